"""The agent's inbox: a socket to which the workers of this node send messages, and a thread that receives them.

An abstract socket of Linux has no file, so a crash leaves nothing on the disk. It has no permissions either, so the
inbox checks for each datagram which user sent it. No datagram ends the thread. The inbox decides nothing: it passes on
a message of an earlier cycle like any other, and the receiver compares the cycle.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import struct
import threading
from collections.abc import Callable

from ft_rendezvous.agent.worker_messages import MAX_MESSAGE_BYTES, Fault, WorkerMessage, decode, socket_name

log = logging.getLogger("ft_rendezvous")

CLOSE_TIMEOUT_S = 1.0
"""How long `close` waits for a message that is being passed on: the caller may hold a lock that the receiver needs."""

_CREDENTIALS = struct.Struct("iII")  # The kernel's `struct ucred`: pid, uid, gid.
_SENDER_BYTES = socket.CMSG_SPACE(_CREDENTIALS.size)


class WorkerInbox:
    """Open from its creation until it is closed. Raises OSError where the system allows no such socket."""

    def __init__(self, on_message: Callable[[WorkerMessage], None]) -> None:
        """The inbox's thread calls `on_message` for one message at a time. Meanwhile a few more messages can wait."""
        self.address = f"@ft-rendezvous/{secrets.token_hex(16)}"
        """What workers find as FT_INBOX."""
        self._on_message = on_message
        self._uid = os.getuid()
        self._logged_faults: set[Fault] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._socket = _open(self.address)
        self._thread = threading.Thread(target=self._listen, name="ft-inbox", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. It still passes on the messages that came before. A second call does nothing."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._socket.shutdown(socket.SHUT_RD)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_TIMEOUT_S)

    def _listen(self) -> None:
        # Only this thread closes the socket: another thread cannot know whether this one still reads from it.
        with self._socket:
            while True:
                # There is room for the sender and no more, so the kernel drops descriptors that a sender attaches.
                data, sender, flags, _ = self._socket.recvmsg(MAX_MESSAGE_BYTES, _SENDER_BYTES)
                if not sender:  # Every datagram has a sender, even an empty one. So the socket was shut down.
                    return
                _, uid, _ = _CREDENTIALS.unpack(sender[0][2])
                if uid != self._uid:
                    self._ignore(Fault.FOREIGN)
                elif flags & socket.MSG_TRUNC:
                    self._ignore(Fault.TOO_LONG)
                else:
                    self._receive(data)

    def _receive(self, data: bytes) -> None:
        message = decode(data)
        if isinstance(message, Fault):
            self._ignore(message)
            return
        try:
            self._on_message(message)
        except Exception:  # An error of the receiver with one message must not stop the messages after it.
            log.exception("a worker's message was lost: %s", message)

    def _ignore(self, fault: Fault) -> None:
        if fault not in self._logged_faults:
            self._logged_faults.add(fault)
            log.warning("ignored a message to the agent's inbox: %s; this warning is not repeated", fault)


def _open(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        # Set before the socket has a name: every datagram that can be sent to it carries its sender.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sock.bind(socket_name(address))
    except BaseException:
        sock.close()
        raise
    return sock
