"""A plain socket that speaks TCPStore's wire protocol, and needs no torch. All connections of a node are of this kind.

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
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any

from ft_rendezvous.config.addresses import format_endpoint
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.protocol.ops import Add, Append, Check, CompareSet, Delete, Get, MultiGet, MultiSet, Op, Set
from ft_rendezvous.store import names

_VALIDATE, _SET, _COMPARE_SET, _GET, _ADD, _CHECK, _WAIT = (bytes([no]) for no in (0, 1, 2, 3, 4, 5, 6))
_DELETE, _APPEND, _MULTI_GET, _MULTI_SET, _PING = (bytes([no]) for no in (8, 9, 10, 11, 13))
_MAGIC = struct.pack("<I", 0x3C85F7CE)
_STOPPED_WAITING = b"\x00"
_ALL_THERE = b"\x00"
_ANSWER_BYTES = 1 << 13
"""How much of an answer is read at once: a system call costs more than some bytes too many."""
GREETING_TIMEOUT_S = 3.0
"""How long one address may take to accept a connection, and then to answer as a store."""
KEEPALIVE_IDLE_S, KEEPALIVE_INTERVAL_S, KEEPALIVE_PROBES = 30, 10, 3


class Found(StrEnum):
    """What was found at an endpoint."""

    STORE = "a TCPStore"
    NOTHING = "nothing listens there"
    NO_ANSWER = "no answer from that host or port"
    SILENT = "the port accepts connections, but no store answers"
    HUNG_UP = "something listens there and hangs up"
    STRANGER = "another program listens there"
    UNKNOWN_HOST = "the host name does not resolve"
    SILENT_RESOLVER = "the resolver does not answer when asked for the host name"


_BY_HOPE = (Found.SILENT, Found.HUNG_UP, Found.NO_ANSWER, Found.NOTHING, Found.STRANGER)


def most_hopeful(found: Iterable[Found]) -> Found:
    """Of what was found at several addresses, what may soonest become a store, or hide one."""
    return min(found, key=_BY_HOPE.index)


class _Unfit(Exception):
    def __init__(self, found: Found) -> None:
        super().__init__(found)
        self.found = found


class NoStore(StoreUnavailable):
    """No TCPStore answered at an endpoint."""

    def __init__(self, endpoint: str, found: Found) -> None:
        super().__init__(endpoint, str(found), is_refused=found is Found.NOTHING)
        self.found = found


class StoreSocket:
    """One connection for one thread. A call may block for `timeout_s` at most, or without limit if it is None."""

    def __init__(self, host: str, port: int, timeout_s: float | None = None, greeting_s: float | None = None) -> None:
        """Connect. The store may take `greeting_s` for its first answer; GREETING_TIMEOUT_S if that is None."""
        self._endpoint = format_endpoint(host, port)
        try:
            self._socket, self.address = _greet(host, port, greeting_s)
            self._socket.settimeout(timeout_s)
        except _Unfit as unfit:
            raise NoStore(self._endpoint, unfit.found) from unfit

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
                case CompareSet(key, expected, desired):
                    self._socket.sendall(_COMPARE_SET + _text("/" + key) + _sized(expected) + _sized(desired))
                    return self._receive_sized()
                case Set(key, value):
                    return self._socket.sendall(_SET + _text("/" + key) + _sized(value))
                case Append(key, value):
                    return self._socket.sendall(_APPEND + _text("/" + key) + _sized(value))
                case MultiGet(keys):
                    return self._multi_get(keys)
                case MultiSet(keys, values):
                    pairs = (_text("/" + key) + _sized(value) for key, value in zip(keys, values, strict=True))
                    return self._socket.sendall(_MULTI_SET + struct.pack("<Q", len(keys)) + b"".join(pairs))

    def wait_for(self, key: str) -> None:
        """Block until the key exists, with any value."""
        with self._translated_errors():
            self._wait([key])

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
        self._wait([key])
        self._socket.sendall(_GET + _text("/" + key))
        return self._receive_sized()

    def _multi_get(self, keys: Sequence[str]) -> list[bytes]:
        self._wait(keys)
        self._socket.sendall(_MULTI_GET + _texts(keys))
        sizes = (struct.unpack("<Q", _receive(self._socket, 8))[0] for _ in keys)
        return [_receive(self._socket, size) for size in sizes]

    def _receive_sized(self) -> bytes:
        """A value behind its size, which is all that the other side sends."""
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

    def _wait(self, keys: Sequence[str]) -> None:
        self._socket.sendall(_WAIT + _texts(keys))
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
        _greet(host, port)[0].close()
    except _Unfit as unfit:
        return unfit.found
    return Found.STORE


def find_addresses(host: str, port: int) -> tuple[str, ...]:
    """The addresses of an endpoint's host, as DNS knows them now. Raises NoStore."""
    try:
        return _look_up(host)
    except _Unfit as unfit:
        raise NoStore(format_endpoint(host, port), unfit.found) from unfit


def _look_up(host: str) -> tuple[str, ...]:
    try:
        return names.RESOLVER.look_up(host)
    except names.UnknownName as error:
        raise _Unfit(Found.UNKNOWN_HOST) from error
    except names.SilentResolver as error:
        raise _Unfit(Found.SILENT_RESOLVER) from error


def _greet(host: str, port: int, greeting_s: float | None = None) -> tuple[socket.socket, str]:
    """A connection to a TCPStore, and its address. The addresses of a name are tried in turn."""
    found: list[Found] = []
    for address in _look_up(host):
        try:
            return _greet_at(address, port, greeting_s), address
        except _Unfit as unfit:
            found.append(unfit.found)
    raise _Unfit(most_hopeful(found))


def _greet_at(address: str, port: int, greeting_s: float | None) -> socket.socket:
    """A connection to a TCPStore. The other end has proved that it is one: it has echoed a ping."""
    nonce = struct.pack("<I", random.getrandbits(32))
    try:
        sock = socket.create_connection((address, port), timeout=GREETING_TIMEOUT_S)
    except TimeoutError as error:
        raise _Unfit(Found.NO_ANSWER) from error
    except ConnectionRefusedError as error:
        raise _Unfit(Found.NOTHING) from error
    except OSError as error:
        raise _Unfit(Found.NO_ANSWER) from error
    try:
        keep_alive(sock)
        # A write has no answer. Without this, the operation after it would wait for the other machine's delayed
        # acknowledgement: 40 ms.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.settimeout(greeting_s or GREETING_TIMEOUT_S)
        sock.sendall(_VALIDATE + _MAGIC + _PING + nonce)
        if _receive(sock, len(nonce)) != nonce:
            raise _Unfit(Found.STRANGER)
        sock.settimeout(None)
    except TimeoutError as error:
        sock.settimeout(GREETING_TIMEOUT_S)
        found = Found.STRANGER if _speaks_lines(sock, nonce) else Found.SILENT
        sock.close()
        raise _Unfit(found) from error
    except OSError as error:
        sock.close()
        raise _Unfit(Found.HUNG_UP) from error
    except _Unfit:
        sock.close()
        raise
    return sock


def keep_alive(sock: socket.socket) -> None:
    """Notice within a minute that an idle connection is gone: a firewall may forget it without a word."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, KEEPALIVE_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, KEEPALIVE_INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, KEEPALIVE_PROBES)


def _speaks_lines(sock: socket.socket, nonce: bytes) -> bool:
    """Whether the other end answers an empty line, as web servers do. A store that hangs does not.

    A store that is only slow may answer its ping in the meantime.
    """
    try:
        sock.sendall(b"\r\n\r\n")
        answer = sock.recv(len(nonce))
        return bool(answer) and not nonce.startswith(answer)
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
