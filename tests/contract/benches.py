"""The stores a contract is held against: the simulated one and a real TCPStore, behind one interface."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from ft_rendezvous.protocol.ops import Check, Op, Store
from ft_rendezvous.store.client import ServedStore, connect
from ft_rendezvous.store.net import listen
from tests.sim.store import SimStore

LONG_S = 60.0
"""How long a test waits for what must happen; how long it takes says nothing on a shared machine."""


class Blocked(Protocol):
    """A read that waits for its keys."""

    @property
    def is_done(self) -> bool: ...

    def result(self) -> Any: ...


class Bench(Protocol):
    """A store and a way to wait on it."""

    def perform(self, op: Op) -> Any: ...

    def second(self) -> Bench:
        """Another connection to the same store."""
        ...

    def start(self, op: Op) -> Blocked: ...


class SimBlocked:
    def __init__(self, store: SimStore, op: Op) -> None:
        self._results: list[Any] = []
        missing = store.missing(op)
        if missing:
            store.park(self, missing, lambda: self._results.append(store.apply(op)))
        else:
            self._results.append(store.perform(op))

    @property
    def is_done(self) -> bool:
        return bool(self._results)

    def result(self) -> Any:
        assert self.is_done, "nobody has woken it"
        return self._results[0]


class SimBench:
    def __init__(self) -> None:
        self._store = SimStore()

    def perform(self, op: Op) -> Any:
        return self._store.perform(op)

    def second(self) -> Bench:
        return self

    def start(self, op: Op) -> Blocked:
        return SimBlocked(self._store, op)


class TcpBlocked:
    """Waits in a thread, on a connection of its own: a `Get` on a store socket, as an ear does."""

    def __init__(self, port: int, op: Op, connect_with: Callable[[str, int], Store]) -> None:
        self._results = list[Any]()
        self._other, store = (connect_with("127.0.0.1", port) for _ in range(2))
        self._thread = threading.Thread(target=lambda: self._results.append(store.perform(op)), daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        for _ in range(50):
            self._other.perform(Check(["something else"]))  # The server has had its chance to answer.
        return bool(self._results)

    def result(self) -> Any:
        self._thread.join(LONG_S)
        assert self._results, "nobody has woken it"
        return self._results[0]


class TcpBench:
    """A real TCPStore, by torch's client or by our own."""

    def __init__(self, port: int, connect_with: Callable[[str, int], Store] = connect) -> None:
        self.port, self._connect_with = port, connect_with
        self._store = connect_with("127.0.0.1", port)

    def perform(self, op: Op) -> Any:
        return self._store.perform(op)

    def second(self) -> Bench:
        return TcpBench(self.port, self._connect_with)

    def start(self, op: Op) -> Blocked:
        return TcpBlocked(self.port, op, self._connect_with)


@contextmanager
def tcp_bench() -> Iterator[TcpBench]:
    served = ServedStore(listen())
    try:
        yield TcpBench(served.port)
    finally:
        served.stop()
