"""Many lifelines that carry nothing: the real process holds them, and processes of clients have the other ends."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from benchmarks import ours
from benchmarks.children import serving
from benchmarks.consumption import cpu_at, rss_bytes
from benchmarks.measure import require
from ft_rendezvous.host.lifelines import Lifelines
from ft_rendezvous.host.serve import new_id
from ft_rendezvous.node.lifeline import Lifeline
from ft_rendezvous.store.net import FILES_BESIDE, raise_file_limit

PER_PROCESS = 5_000
"""Clients share a process, and a process may not open any number of files."""


@dataclass(frozen=True, slots=True)
class Held:
    """What the process that holds lifelines has cost."""

    connecting_cpu_s: float
    """What it used to take all lifelines in."""
    seconds: float
    cpu_s: float
    """What it used in so many seconds, while they were idle."""
    empty_bytes: int
    """Its memory before the first lifeline."""
    full_bytes: int


def hold(count: int, window_s: float) -> Held:
    """Connect lifelines, each confirmed by the process that holds it, and see what nothing costs."""
    epoch = new_id()
    with ExitStack() as stack:
        port, pid = stack.enter_context(serving(listening, epoch))
        empty_bytes, at_first_s = rss_bytes(pid), cpu_at(pid)
        for first in range(0, count, PER_PROCESS):
            stack.enter_context(serving(connected, port, epoch, first, min(PER_PROCESS, count - first)))
        began, before = time.monotonic(), cpu_at(pid)
        time.sleep(window_s)
        seconds, used_s = time.monotonic() - began, cpu_at(pid) - before
        return Held(before - at_first_s, seconds, used_s, empty_bytes, rss_bytes(pid))


@contextmanager
def listening(epoch: str) -> Iterator[tuple[int, int]]:
    """The host's end; yields its port and the pid of the process. That process has served once by then."""
    lifelines = Lifelines(epoch)
    try:
        Lifeline(ours.HOST, lifelines.port, epoch, new_id()).close(says_goodbye=True)
        pid = lifelines.pid
        require(pid is not None, "the process that holds the lifelines has ended")
        assert pid is not None
        yield lifelines.port, pid
        require(lifelines.pid == pid, "the process that holds the lifelines was replaced")
    finally:
        lifelines.close()


@contextmanager
def connected(port: int, epoch: str, first: int, count: int) -> Iterator[int]:
    """The nodes' ends."""
    raise_file_limit(count + FILES_BESIDE)
    lifelines = [Lifeline(ours.HOST, port, epoch, f"{number:016x}") for number in range(first, first + count)]
    yield len(lifelines)
