"""The sockets of an agent and its workers: abstract datagram sockets, on which each datagram carries its sender's user.

An abstract socket of Linux has no file, so a crash leaves nothing on the disk. It has no permissions either, so the
receiver checks for each datagram which user sent it. Training scripts import this module: it needs nothing beyond the
standard library. It knows no message.
"""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass

from ft_rendezvous.agent.worker_messages import MAX_MESSAGE_BYTES, Fault

_CREDENTIALS = struct.Struct("iII")  # The kernel's `struct ucred`: pid, uid, gid.
_SENDER_BYTES = socket.CMSG_SPACE(_CREDENTIALS.size)


@dataclass(frozen=True, slots=True)
class Datagram:
    """What came, and the abstract address of the socket from which it came. None if that socket has no such address."""

    content: bytes | Fault
    sender: bytes | None


def open_socket(name: str) -> socket.socket:
    """A socket of this name. With an empty name the kernel chooses one."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        # Set before the socket has a name: every datagram that can be sent to it carries its sender.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        sock.bind(name)
    except BaseException:
        sock.close()
        raise
    return sock


def receive(sock: socket.socket, uid: int) -> Datagram | None:
    """The next datagram. None if the socket was shut down. A datagram of another user comes out as a fault."""
    # There is room for the sender and no more, so the kernel drops descriptors that a sender attaches.
    data, credentials, flags, address = sock.recvmsg(MAX_MESSAGE_BYTES, _SENDER_BYTES)
    if not credentials:  # Every datagram has a sender, even an empty one. So the socket was shut down.
        return None
    sender = address if isinstance(address, bytes) and address.startswith(b"\0") else None
    _, sender_uid, _ = _CREDENTIALS.unpack(credentials[0][2])
    if sender_uid != uid:
        return Datagram(Fault.FOREIGN, sender)
    return Datagram(Fault.TOO_LONG if flags & socket.MSG_TRUNC else data, sender)


def send_at_once(data: bytes, name: str | bytes) -> None:
    """Send without waiting. Raises OSError: BlockingIOError if the receiver is full, ConnectionRefusedError if gone.

    The socket is used once. A socket that is used again has one buffer for all receivers, and one receiver that does
    not read would keep the others from getting anything.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
        sock.sendto(data, name)
