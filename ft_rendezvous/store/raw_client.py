"""A plain socket that speaks the part of TCPStore's wire protocol that this package needs. It needs no torch.

Why not a second TCPStore client:

- Its blocked `get` waits in C++ until the key exists, and nothing can wake it. A process that ends meanwhile aborts
  (exit code 134). A socket can be closed from another thread.
- If a listener never answers, its constructor does not return within ten minutes, even with a short timeout.
- It prints C++ stack traces when a connection is lost. Here that is a normal event.

The contract tests compare every byte that is sent here with what torch's own client sends.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Iterator, Sequence
from enum import StrEnum
from typing import Any

from ft_rendezvous.config.addresses import format_endpoint
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.protocol.ops import Add, Check, Delete, Get, Op, Set

_VALIDATE, _SET, _GET, _ADD, _CHECK, _WAIT, _DELETE, _PING = (bytes([no]) for no in (0, 1, 3, 4, 5, 6, 8, 13))
_MAGIC = struct.pack("<I", 0x3C85F7CE)
_STOPPED_WAITING = b"\x00"
_ALL_THERE = b"\x00"
_ANSWER_BYTES = 1 << 13
"""How much of an answer is read at once: a system call costs more than some bytes too many."""
GREETING_TIMEOUT_S = 3.0


class Found(StrEnum):
    """What was found at an endpoint."""

    STORE = "a TCPStore"
    NOTHING = "nothing listens there"
    NO_ANSWER = "no answer from that host or port"
    SILENT = "something listens there and does not answer as a store does"
    HUNG_UP = "something listens there and hangs up"
    STRANGER = "another program listens there"
    UNKNOWN_HOST = "the host name does not resolve"


class _Unfit(Exception):
    def __init__(self, found: Found) -> None:
        super().__init__(found)
        self.found = found


class StoreSocket:
    """One connection for one thread. A call may block for `timeout_s` at most, or without limit if it is None."""

    def __init__(self, host: str, port: int, timeout_s: float | None = None) -> None:
        self._endpoint = format_endpoint(host, port)
        try:
            self._socket = _greet(host, port)
            self._socket.settimeout(timeout_s)
        except _Unfit as unfit:
            raise StoreUnavailable(self._endpoint, str(unfit.found)) from unfit

    def perform(self, op: Op) -> Any:
        """Perform an operation like a TCPStore. One difference: a key that is deleted during a read reads as empty."""
        with self._translated_errors():
            match op:
                case Check(keys):
                    return self._check(keys)
                case Get(key):
                    return self._get(key)
                case Delete(key):
                    return self._delete(key)
                case Add(key, amount):
                    return self._add(key, amount)
                case Set(key, value):
                    return self._socket.sendall(_SET + _text("/" + key) + _sized(value))
        raise AssertionError(f"this client cannot perform {op}")

    def wait_for(self, key: str) -> None:
        """Block until the key exists, with any value."""
        with self._translated_errors():
            self._wait(key)

    @contextlib.contextmanager
    def _translated_errors(self) -> Iterator[None]:
        """Raise StoreUnavailable, with the fact, when the connection fails."""
        try:
            yield
        except TimeoutError as error:
            raise StoreUnavailable(self._endpoint, "no answer in time") from error
        except (OSError, _Unfit) as error:
            raise StoreUnavailable(self._endpoint, "the connection is lost; its host died or left") from error

    def _check(self, keys: Sequence[str]) -> bool:
        self._socket.sendall(_CHECK + _texts(keys))
        return _receive(self._socket, 1) == _ALL_THERE

    def _get(self, key: str) -> bytes:
        self._wait(key)
        self._socket.sendall(_GET + _text("/" + key))
        answer = _receive(self._socket, 8, _ANSWER_BYTES)
        missing_bytes = 8 + struct.unpack_from("<Q", answer)[0] - len(answer)
        return answer[8:] + _receive(self._socket, missing_bytes)

    def _delete(self, key: str) -> bool:
        self._socket.sendall(_DELETE + _text("/" + key))
        return struct.unpack("<q", _receive(self._socket, 8)) == (1,)

    def _add(self, key: str, amount: int) -> int:
        self._socket.sendall(_ADD + _text("/" + key) + struct.pack("<q", amount))
        (total,) = struct.unpack("<q", _receive(self._socket, 8))
        return int(total)

    def _wait(self, key: str) -> None:
        self._socket.sendall(_WAIT + _texts([key]))
        if _receive(self._socket, 1) != _STOPPED_WAITING:
            raise StoreUnavailable(self._endpoint, "the store ended the wait")

    def close(self) -> None:
        """End the connection. A thread that is blocked on it gets StoreUnavailable."""
        with contextlib.suppress(OSError):  # The other side may have closed it first.
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def probe(host: str, port: int) -> Found:
    """Find out, in bounded time, whether a TCPStore is at an endpoint."""
    try:
        _greet(host, port).close()
    except _Unfit as unfit:
        return unfit.found
    return Found.STORE


def _greet(host: str, port: int) -> socket.socket:
    """A connection to a TCPStore. The other end has proved that it is one: it has echoed a ping."""
    nonce = struct.pack("<I", random.getrandbits(32))
    try:
        sock = socket.create_connection((host, port), timeout=GREETING_TIMEOUT_S)
    except TimeoutError as error:
        raise _Unfit(Found.NO_ANSWER) from error
    except socket.gaierror as error:
        raise _Unfit(Found.UNKNOWN_HOST) from error
    except OSError as error:
        raise _Unfit(Found.NOTHING) from error
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.sendall(_VALIDATE + _MAGIC + _PING + nonce)
        if _receive(sock, len(nonce)) != nonce:
            raise _Unfit(Found.STRANGER)
        sock.settimeout(None)
    except TimeoutError as error:
        found = Found.STRANGER if _speaks_lines(sock) else Found.SILENT
        sock.close()
        raise _Unfit(found) from error
    except OSError as error:
        sock.close()
        raise _Unfit(Found.HUNG_UP) from error
    except _Unfit:
        sock.close()
        raise
    return sock


def _speaks_lines(sock: socket.socket) -> bool:
    """Whether the other end answers an empty line, as web servers do. A store that hangs does not."""
    try:
        sock.sendall(b"\r\n\r\n")
        return bool(sock.recv(1))
    except OSError:
        return False


def _receive(sock: socket.socket, size_bytes: int, most_bytes: int = 0) -> bytes:
    """At least `size_bytes` bytes, and up to `most_bytes` if they have arrived."""
    parts: list[bytes] = []
    while size_bytes > 0:
        part = sock.recv(max(min(size_bytes, 1 << 20), most_bytes))
        if not part:
            raise _Unfit(Found.HUNG_UP)
        parts.append(part)
        size_bytes -= len(part)
    return b"".join(parts)


def _texts(keys: Sequence[str]) -> bytes:
    return struct.pack("<Q", len(keys)) + b"".join(_text("/" + key) for key in keys)


def _text(text: str) -> bytes:
    return _sized(text.encode())


def _sized(data: bytes) -> bytes:
    return struct.pack("<Q", len(data)) + data
