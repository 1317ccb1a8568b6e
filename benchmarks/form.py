"""`form`: from the first arrival to the last node holding its rank and the workers' address.

Every sample has a store host of its own in one process and its nodes in another. All nodes are connected
before the clock starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from benchmarks import ours
from benchmarks.baselines import c10d, nvrx, raw
from benchmarks.children import call, serving
from benchmarks.crowd import Formed
from benchmarks.measure import OURS, Case, Sample, require

NAME = "form"
LIMIT_S = 60.0


def cases(is_quick: bool) -> list[Case]:
    counts = (8, 64) if is_quick else (8, 64, 256)
    return [
        Case(
            NAME,
            f"{count} nodes",
            rounds=3 if is_quick else 7,
            prepare=partial(_prepare, count, has_c10d=not is_quick or count == 8),
            warm_ups=0,  # Every sample has processes of its own: none is warmer than another.
        )
        for count in counts
    ]


@contextmanager
def _prepare(count: int, has_c10d: bool) -> Iterator[Mapping[str, Sample]]:
    contenders = {
        OURS: partial(sample, count, partial(serving, ours.serve, count), ours.form),
        "raw operations": partial(sample, count, partial(serving, raw.serve), raw.form),
    }
    if has_c10d:
        contenders["c10d"] = partial(sample, count, partial(serving, raw.serve), c10d.form)
    if has_c10d and nvrx.installed_version():
        contenders["nvrx"] = partial(sample, count, partial(serving, raw.serve), nvrx.form)
    yield contenders


def sample(count: int, serve: Callable[[], AbstractContextManager[Any]], form: Callable[[int, int], Formed]) -> float:
    """Form one world in processes of its own."""
    with serve() as port:
        formed = call(LIMIT_S, form, count, port)
    check(formed, count)
    return formed.seconds


def check(formed: Formed, count: int) -> None:
    """Whether this is one world: every rank once, and one address for all."""
    require(sorted(seat.rank for seat in formed.seats) == list(range(count)), "ranks are not exactly 0..n-1")
    require({seat.world_size for seat in formed.seats} == {count}, "nodes disagree on the size of the world")
    masters = {seat.master for seat in formed.seats}
    require(len(masters) == 1 and "" not in masters, f"nodes would meet at {len(masters)} addresses")
