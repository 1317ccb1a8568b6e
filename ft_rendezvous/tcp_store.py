"""The store port on torch's TCPStore, and how to reach one without being caught by what is not one.

Nothing outside this module and `host` knows an address of the store. Maps torch's errors to ours.
"""

from __future__ import annotations

import errno
import random
import socket
import struct
import threading
from collections.abc import Callable
from datetime import timedelta
from enum import StrEnum
from typing import Any

from torch.distributed import DistError, DistNetworkError, DistStoreError, TCPStore

from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.ports import Add, Append, Check, Delete, Get, MultiGet, MultiSet, Op, Set
from ft_rendezvous.settings import format_endpoint

CALL_TIMEOUT = timedelta(seconds=30)
FOREVER = timedelta(days=365)

_PERFORM: dict[type, Callable[[Any, Any], Any]] = {
    Get: lambda store, op: store.get(op.key),
    MultiGet: lambda store, op: store.multi_get(list(op.keys)),
    Check: lambda store, op: store.check(list(op.keys)),
    Set: lambda store, op: store.set(op.key, op.value),
    MultiSet: lambda store, op: store.multi_set(list(op.keys), list(op.values)),
    Append: lambda store, op: store.append(op.key, op.value),
    Add: lambda store, op: store.add(op.key, op.amount),
    Delete: lambda store, op: store.delete_key(op.key),
}


class TcpStore:
    """One connection. A blocked `Get` holds it, so whoever blocks does so on a clone."""

    def __init__(self, store: TCPStore, endpoint: str) -> None:
        self._store = store
        self._endpoint = endpoint

    def perform(self, op: Op) -> Any:
        try:
            return _PERFORM[type(op)](self._store, op)
        except DistNetworkError as error:
            raise StoreUnavailable(self._endpoint, "the connection is lost; its host died or left") from error
        except DistStoreError as error:
            raise StoreUnavailable(self._endpoint, "no answer in time; its host is stuck or cut off") from error

    def clone(self) -> TcpStore:
        """A second connection whose calls may block for as long as it takes."""
        try:
            copy = self._store.clone()  # type: ignore[attr-defined]
        except DistError as error:
            raise StoreUnavailable(self._endpoint, "a second connection was refused") from error
        copy.set_timeout(FOREVER)
        return TcpStore(copy, self._endpoint)


def connect(host: str, port: int) -> TcpStore:
    """Connect to a server that `probe` has found to be a TCPStore."""
    endpoint = format_endpoint(host, port)
    try:
        store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=CALL_TIMEOUT)
    except DistError as error:
        raise StoreUnavailable(endpoint, "the connection failed") from error
    return TcpStore(store, endpoint)


class Found(StrEnum):
    """What is at an endpoint."""

    STORE = "a TCPStore"
    NOTHING = "nothing listens there"
    SILENT = "something listens there and does not answer as a store does"
    STRANGER = "another program listens there"
    UNKNOWN_HOST = "the host name does not resolve"


def probe(host: str, port: int, timeout_s: float = 3.0) -> Found:
    """Ask whether a TCPStore is there, in bounded time.

    TCPStore's own client, given a listener that never answers, does not come back within ten minutes
    whatever its timeout, and prints a C++ trace for each failed try. So its greeting (a magic number, then a
    ping that must be echoed) is first tried on a plain socket.
    """
    nonce = struct.pack("<I", random.getrandbits(32))
    greeting = b"\x00" + struct.pack("<I", 0x3C85F7CE) + b"\x0d" + nonce
    try:
        with socket.create_connection((host, port), timeout=timeout_s) as sock:
            sock.settimeout(timeout_s)
            sock.sendall(greeting)
            reply = b""
            while len(reply) < len(nonce):
                part = sock.recv(len(nonce) - len(reply))
                if not part:
                    return Found.STRANGER
                reply += part
    except TimeoutError:
        return Found.SILENT
    except socket.gaierror:
        return Found.UNKNOWN_HOST
    except ConnectionRefusedError:
        return Found.NOTHING
    except OSError:
        return Found.NOTHING
    return Found.STORE if reply == nonce else Found.STRANGER


class ServedStore:
    """A TCPStore server in this process, on a listening socket that is already held: no port can be lost."""

    def __init__(self, listener: socket.socket) -> None:
        self.port: int = listener.getsockname()[1]
        self._lock = threading.Lock()
        self._store: TCPStore | None = TCPStore(
            "localhost",
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=CALL_TIMEOUT,
            master_listen_fd=listener.detach(),
        )

    def client(self) -> TcpStore:
        """The server's own connection to itself."""
        assert self._store is not None, "the server was stopped"
        return TcpStore(self._store, format_endpoint("localhost", self.port))

    def stop(self) -> None:
        """Stop serving once nobody in this process uses the server's own connection any more."""
        with self._lock:
            self._store = None


def listen(port: int = 0) -> socket.socket:
    """A listening socket on all addresses, IPv6 and IPv4 where both exist. Raises OSError if it is taken."""
    if socket.has_ipv6:
        try:
            return _listen(socket.AF_INET6, "::", port)
        except OSError as error:
            if error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                raise
    return _listen(socket.AF_INET, "0.0.0.0", port)


def _listen(family: socket.AddressFamily, address: str, port: int) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((address, port))
        sock.listen(16384)
    except OSError:
        sock.close()
        raise
    return sock
