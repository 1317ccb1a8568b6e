"""The agent's door: where workers of this node lay their messages, and a thread that takes them in.

An abstract socket of Linux: it has no file, so a crash leaves nothing on the disk, and no permissions either, so the
kernel's word on who sent a datagram is checked for each. Whatever is sent here, the thread lives on. The door decides
nothing: a message of an earlier cycle is passed on like any other, and whoever receives it compares the cycle.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import struct
import threading
from collections.abc import Callable

from ft_rendezvous.agent.worker_messages import MAX_MESSAGE_BYTES, Fault, Message, decode, socket_name

log = logging.getLogger("ft_rendezvous")

STOP_S = 1.0
"""How long `close` waits for a message that is being passed on: whoever closes may hold what the receiver waits for."""

_CREDENTIALS = struct.Struct("iII")  # The kernel's `struct ucred`: pid, uid, gid.
_SENDER_BYTES = socket.CMSG_SPACE(_CREDENTIALS.size)


class Door:
    """Open from its creation until it is closed. Raises OSError where there can be none."""

    def __init__(self, on_message: Callable[[Message], None]) -> None:
        """The door's thread calls `on_message`, one message at a time; what comes while it runs waits, up to a few."""
        self.address = f"@ft-rendezvous/{secrets.token_hex(16)}"
        """What workers find as FT_DOOR."""
        self._on_message = on_message
        self._uid = os.getuid()
        self._told: set[Fault] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._socket = _open(self.address)
        self._thread = threading.Thread(target=self._listen, name="ft-door", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread; what was laid here before is still passed on. A second call does nothing."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._socket.shutdown(socket.SHUT_RD)
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_S)

    def _listen(self) -> None:
        # The thread alone closes the socket: nobody else can know that it does not sit on it.
        with self._socket:
            while True:
                # There is room for the sender and no more: descriptors that somebody attaches are not received.
                data, sender, flags, _ = self._socket.recvmsg(MAX_MESSAGE_BYTES, _SENDER_BYTES)
                if not sender:  # Every datagram has one, even an empty datagram: this is the end.
                    return
                _, uid, _ = _CREDENTIALS.unpack(sender[0][2])
                if uid != self._uid:
                    self._ignore(Fault.FOREIGN)
                elif flags & socket.MSG_TRUNC:
                    self._ignore(Fault.TOO_LONG)
                else:
                    self._take_in(data)

    def _take_in(self, data: bytes) -> None:
        message = decode(data)
        if isinstance(message, Fault):
            self._ignore(message)
            return
        try:
            self._on_message(message)
        except Exception:  # The receiver's trouble with one message must not close the door to the next.
            log.exception("a worker's message was lost: %s", message)

    def _ignore(self, fault: Fault) -> None:
        if fault not in self._told:
            self._told.add(fault)
            log.warning("ignored a message at the door: %s; more of this kind will not be told", fault)


def _open(address: str) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        # Before there is a name to send to, so that no datagram comes without its sender.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sock.bind(socket_name(address))
    except BaseException:
        sock.close()
        raise
    return sock
