"""Performs store operations with torch's TCPStore client, and runs TCPStore servers in this process.

Translates torch's errors to ours. Reads that may block for long use `raw_client` instead.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed import DistError, DistNetworkError, DistStoreError, TCPStore

from ft_rendezvous.config.addresses import format_endpoint
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.protocol.ops import Add, Append, Check, CompareSet, Delete, Get, MultiGet, MultiSet, Op, Set

CALL_TIMEOUT = timedelta(seconds=30)

_PERFORM: dict[type, Callable[[Any, Any], Any]] = {
    Get: lambda store, op: store.get(op.key),
    MultiGet: lambda store, op: store.multi_get(list(op.keys)),
    Check: lambda store, op: store.check(list(op.keys)),
    Set: lambda store, op: store.set(op.key, op.value),
    MultiSet: lambda store, op: store.multi_set(list(op.keys), list(op.values)),
    Append: lambda store, op: store.append(op.key, op.value),
    Add: lambda store, op: store.add(op.key, op.amount),
    CompareSet: lambda store, op: store.compare_set(op.key, op.expected, op.desired),
    Delete: lambda store, op: store.delete_key(op.key),
}


class NoAnswer(StoreUnavailable):
    """The server did not answer a read in time: it is stuck, or a key is missing. The connection can still be used."""


class TcpStore:
    """One connection, for operations that are answered at once."""

    def __init__(self, store: TCPStore, endpoint: str) -> None:
        self._store = store
        self._endpoint = endpoint

    def perform(self, op: Op) -> Any:
        try:
            return _PERFORM[type(op)](self._store, op)
        except DistNetworkError as error:
            raise StoreUnavailable(self._endpoint, "the connection is lost; its host died or left") from error
        except DistStoreError as error:
            raise NoAnswer(self._endpoint, "no answer in time; its host is stuck or cut off") from error


def connect(host: str, port: int) -> TcpStore:
    """Connect to a TCPStore. Call `probe` first: a server that is not a TCPStore may block this call for minutes."""
    endpoint = format_endpoint(host, port)
    try:
        store = TCPStore(host, port, is_master=False, wait_for_workers=False, timeout=CALL_TIMEOUT)
    except DistError as error:
        raise StoreUnavailable(endpoint, "the connection failed") from error
    return TcpStore(store, endpoint)


class ServedStore:
    """A TCPStore server in this process, on a socket that listens already: no other process can take the port."""

    def __init__(self, listener: socket.socket) -> None:
        self.port: int = listener.getsockname()[1]
        self.operations = 0
        """How many operations this process performed. Those of nodes do not count."""
        self._store: TCPStore | None = TCPStore(
            "localhost",
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=CALL_TIMEOUT,
            master_listen_fd=listener.detach(),
        )

    def perform(self, op: Op) -> Any:
        """Perform an operation on the server's own connection to itself.

        The server has one thread. It stands still while it looks up the name of a new client, and a name server may
        take long. The run is not lost then: a read that got no answer in time is repeated if its keys are there.
        """
        if self._store is None:
            raise StoreUnavailable(format_endpoint("localhost", self.port), "it was stopped")
        self.operations += 1
        store = TcpStore(self._store, format_endpoint("localhost", self.port))
        while True:
            try:
                return store.perform(op)
            except NoAnswer:
                keys = op.keys if isinstance(op, MultiGet) else [op.key] if isinstance(op, Get) else []
                if not keys or not store.perform(Check(keys)):  # A check has no timeout: it waits for the server.
                    raise

    def stop(self) -> None:
        """Stop serving as soon as the running operations have ended."""
        self._store = None
