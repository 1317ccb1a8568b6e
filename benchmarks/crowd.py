"""Many nodes as threads of one process: all connect, then all are released at once.

The threads share one interpreter, which costs most whoever has most threads: ours has three per node, raw
operations have one. Hundreds of threads that wait for the interpreter wake each other every 5 ms; at 256 nodes
on a busy machine that is most of our time. As many machines form a world faster than these threads do.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

Join = Callable[[], "Seat"]
"""Blocks until the node has its place."""


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


@dataclass(slots=True)
class _Crowd:
    count: int
    barrier: threading.Barrier = field(init=False)
    started_at: float = 0.0
    ended_at: list[float] = field(default_factory=list)
    seats: list[Seat] = field(default_factory=list)
    errors: list[BaseException] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.barrier = threading.Barrier(self.count, action=self._start)

    def _start(self) -> None:
        self.started_at = time.perf_counter()

    def run_node(self, connect: Callable[[int], Join], index: int) -> None:
        try:
            join = connect(index)
            self.barrier.wait()
            seat = join()
            self.ended_at.append(time.perf_counter())
            self.seats.append(seat)
        except BaseException as error:
            self.errors.append(error)
            self.barrier.abort()


def form_world(count: int, connect: Callable[[int], Join]) -> Formed:
    """Connect `count` nodes, release them together, and wait until each has its seat."""
    crowd = _Crowd(count)
    threads = [threading.Thread(target=crowd.run_node, args=(connect, index), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if crowd.errors:
        raise crowd.errors[0]
    return Formed(max(crowd.ended_at) - crowd.started_at, crowd.seats)


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
