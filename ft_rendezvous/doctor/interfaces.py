"""Finds the network interface of an address in the kernel's own list, over netlink."""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator

_GETADDR, _NEWADDR, _DONE = 22, 20, 3
_REQUEST, _DUMP = 0x1, 0x300
_HEADER = struct.Struct("=IHHII")
_ADDRESS = struct.Struct("=BBBBI")
_ATTRIBUTE = struct.Struct("=HH")
_IFA_ADDRESS, _IFA_LOCAL = 1, 2


def interface_of(address: str) -> str:
    """The name of the interface; empty if the kernel does not say."""
    wanted = address.partition("%")[0].removeprefix("::ffff:")
    try:
        for index, found in _addresses():
            if found == wanted:
                return socket.if_indextoname(index)
    except (OSError, struct.error):
        pass  # A sandbox without netlink. The name of the interface is not essential.
    return ""


def _addresses() -> Iterator[tuple[int, str]]:
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE) as sock:
        sock.settimeout(1.0)
        body = _ADDRESS.pack(socket.AF_UNSPEC, 0, 0, 0, 0)
        sock.send(_HEADER.pack(_HEADER.size + len(body), _GETADDR, _REQUEST | _DUMP, 1, 0) + body)
        while True:
            data = sock.recv(1 << 17)
            at = 0
            while at < len(data):
                length, kind, *_ = _HEADER.unpack_from(data, at)
                if kind == _DONE or length < _HEADER.size:
                    return
                if kind == _NEWADDR:
                    yield from _read(data[at + _HEADER.size : at + length])
                at += (length + 3) & ~3


def _read(message: bytes) -> Iterator[tuple[int, str]]:
    family, _, _, _, index = _ADDRESS.unpack_from(message)
    at = _ADDRESS.size
    while at + _ATTRIBUTE.size <= len(message):
        length, kind = _ATTRIBUTE.unpack_from(message, at)
        if length < _ATTRIBUTE.size:
            return
        value = message[at + _ATTRIBUTE.size : at + length]
        if kind in (_IFA_ADDRESS, _IFA_LOCAL) and family in (socket.AF_INET, socket.AF_INET6):
            yield index, socket.inet_ntop(family, value)
        at += (length + 3) & ~3
