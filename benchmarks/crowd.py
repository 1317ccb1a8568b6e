"""Many nodes as threads: all connect, then all are released at once, and have a limited time.

Nodes that share a process share an interpreter: a node that computes or polls more makes the others wait longer. As
many machines form a world faster than these threads do.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

from benchmarks.measure import DidNotFinish

T = TypeVar("T")

NODES_PER_PROCESS = 64
LIMIT_S = 60.0
"""What a contender is given to form a world, from the release."""
SWITCH_INTERVAL_S = 1.0
"""How long a thread that computes may keep the interpreter. By default every thread that waits for it wakes up every 5
ms to ask for it, and hundreds of threads that do so leave little time for anything else. c10d takes as long with either
(64 nodes in a process: 12.9 and 13.1 s); ours takes 2.6 instead of 3.1 times as long as raw operations at 1,024."""
GLANCE_S = 0.5
"""How often to look at the clock while no node gets a seat."""

Join = Callable[[], "Seat"]
"""Blocks until the node has its place."""

Connect = Callable[[int], Join]
"""Connects one node, by its index."""


@dataclass(frozen=True, slots=True)
class Seat:
    """What a node must hold before it can start workers."""

    rank: int
    world_size: int
    master: str


@dataclass(frozen=True, slots=True)
class Formed:
    """A world, and how long it took from the release to the last node's seat."""

    seconds: float
    seats: list[Seat]
    busy_s: float = 0.0
    """Seconds of CPU that the nodes' process took meanwhile, where they were counted."""
    host_s: float = 0.0
    """Seconds of CPU that the store host took meanwhile, where they were counted."""


def form_world(count: int, connect: Connect, per_process: int = NODES_PER_PROCESS, limit_s: float = LIMIT_S) -> Formed:
    """Connect `count` nodes, release them together, and wait until each has its seat.

    Raises DidNotFinish if one has none `limit_s` after the release.
    """
    starts = range(0, count, per_process)
    crowds = [_Crowd(range(start, min(start + per_process, count)), connect, limit_s) for start in starts]
    outcomes = [crowds[0].run()] if len(crowds) == 1 else _run_apart(crowds)
    seconds = max(outcome.ended_at for outcome in outcomes) - min(outcome.started_at for outcome in outcomes)
    return Formed(seconds, [seat for outcome in outcomes for seat in outcome.seats])


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What became of some nodes. Times are of a clock that all processes of a machine share."""

    started_at: float
    ended_at: float
    seats: list[Seat]


@dataclass(slots=True)
class _Crowd:
    """Nodes that share a process."""

    nodes: Sequence[int]
    connect: Connect
    limit_s: float
    hold: Callable[[], None] = lambda: None
    """Called when all are connected; they are released when it returns."""
    started_at: float = 0.0
    ends: SimpleQueue[tuple[float, Seat] | BaseException] = field(default_factory=SimpleQueue)

    def run(self) -> _Outcome:
        """Connect, hold, release, and wait until each has its seat. The first failure ends it for all."""
        sys.setswitchinterval(SWITCH_INTERVAL_S)
        barrier = threading.Barrier(len(self.nodes), action=self._start)
        for index in self.nodes:
            threading.Thread(target=self._run_node, args=(index, barrier), daemon=True).start()
        ended_at, seats = 0.0, list[Seat]()
        for _ in self.nodes:
            end = self._next_end()
            if isinstance(end, BaseException):
                raise end
            ended_at = max(ended_at, end[0])
            seats.append(end[1])
        return _Outcome(self.started_at, ended_at, seats)

    def _next_end(self) -> tuple[float, Seat] | BaseException:
        while True:
            try:
                return self.ends.get(timeout=GLANCE_S)
            except Empty:
                if self.started_at and time.perf_counter() - self.started_at > self.limit_s:
                    raise DidNotFinish(self.limit_s) from None

    def _start(self) -> None:
        self.hold()
        self.started_at = time.perf_counter()

    def _run_node(self, index: int, barrier: threading.Barrier) -> None:
        try:
            join = self.connect(index)
            barrier.wait()
            seat = join()
            self.ends.put((time.perf_counter(), seat))
        except BaseException as error:
            self.ends.put(error)
            barrier.abort()


def in_thread(work: Callable[[], T]) -> Future[T]:
    """Do the work in a thread that does not keep the process from ending: a spare may wait for ever."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


# --- more than one process --------------------------------------------------------------------------


def _run_apart(crowds: Sequence[_Crowd]) -> list[_Outcome]:
    """Run each crowd in a process of its own; all are held until all are connected."""
    groups: list[Connection] = []
    for crowd in crowds:
        groups.append(_fork(crowd, groups))
    _hear_all(groups)
    for group in groups:
        group.send("go")
    outcomes = _hear_all(groups)
    for group in groups:
        group.close()
        os.wait()
    for outcome in outcomes:
        if isinstance(outcome, DidNotFinish):
            raise outcome
    return outcomes


def _hear_all(groups: Sequence[Connection]) -> list[Any]:
    """The next message of each of them. Raises as soon as one of them reports a failure."""
    said: dict[Connection, Any] = {}
    while len(said) < len(groups):
        for group in wait([group for group in groups if group not in said]):
            assert isinstance(group, Connection)
            said[group], failure = group.recv()
            if failure:
                raise RuntimeError(failure)
    return list(said.values())


def _fork(crowd: _Crowd, siblings: Sequence[Connection]) -> Connection:
    """A crowd in a process of its own: it says when all are connected and, after the word to go, how it went.

    Forked rather than started anew, so that `connect` may be any function. No thread has been started yet.
    """
    ours, theirs = Pipe()
    if os.fork():
        theirs.close()
        return ours
    try:
        for connection in (ours, *siblings):
            connection.close()
        _obey(crowd, theirs)
    finally:
        os._exit(0)


def _obey(crowd: _Crowd, parent: Connection) -> None:
    released = threading.Event()

    def hold() -> None:
        parent.send(("connected", None))
        released.wait()

    def run() -> None:
        try:
            said: tuple[_Outcome | DidNotFinish | None, str | None] = crowd.run(), None
        except DidNotFinish as late:
            said = late, None
        except BaseException:
            said = None, traceback.format_exc()
        with suppress(BrokenPipeError):  # We were given up, and are about to end.
            parent.send(said)

    crowd.hold = hold
    threading.Thread(target=run, daemon=True).start()
    parent.recv()
    released.set()
    parent.poll(None)  # The parent sends nothing more: this is its end, and so ours, even if our threads hang.
