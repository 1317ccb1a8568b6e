"""Cases, samples, and how contenders take turns. Knows nothing of stores.

A sample is one timed and checked piece of work. Contenders take turns within each round, in changing order,
so that other work of the machine slows all of them down; a ratio is the median over rounds of the two
times of the same round.
"""

from __future__ import annotations

import gc
import random
import statistics
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TypeVar

T = TypeVar("T")

OURS = "ours"
"""The contender that ratios are relative to."""

Sample = Callable[[], float]
"""Does the work once, checks the result, and returns the seconds the work took."""


class WrongResult(AssertionError):
    """A contender was fast and wrong. Its time must not count."""


class DidNotFinish(Exception):
    """A sample took longer than it may."""

    def __init__(self, limit_s: float) -> None:
        super().__init__(f"did not finish in {limit_s:g} s")
        self.limit_s = limit_s

    def __reduce__(self) -> tuple[type[DidNotFinish], tuple[float]]:
        return DidNotFinish, (self.limit_s,)


@dataclass(frozen=True, slots=True)
class Case:
    """One line-up of contenders over the same work."""

    benchmark: str
    name: str
    rounds: int
    prepare: Callable[[], AbstractContextManager[Mapping[str, Sample]]]
    """Sets up the contenders, ours among them, and cleans up after them."""
    warm_ups: int = 1

    @property
    def turns(self) -> int:
        return self.warm_ups + self.rounds


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that was counted or measured and is no contest: operations, retries, megabytes, a share of a CPU."""

    benchmark: str
    case: str
    what: str
    value: float
    unit: str
    target: str = ""
    """What it should be, for people: `at most 2`."""
    is_met: bool | None = None


@dataclass(slots=True)
class Times:
    """What one contender needed in one case, by round."""

    seconds: list[float] = field(default_factory=list)
    limit_s: float | None = None
    """Set if the contender did not finish a round within this time; it takes part in no further round."""

    @property
    def median_s(self) -> float | None:
        return statistics.median(self.seconds) if self.limit_s is None else None


def require(is_right: bool, fact: str) -> None:
    """Refuse a sample whose result is wrong."""
    if not is_right:
        raise WrongResult(fact)


def timed(work: Callable[[], T]) -> tuple[float, T]:
    """Seconds the work took, and what came out of it."""
    gc.collect()  # So that no contender pays for the garbage of the one before.
    started = time.perf_counter()
    result = work()
    return time.perf_counter() - started, result


def in_a_row(sample: Sample, count: int) -> Sample:
    """The mean of so many samples in a row, after one that does not count; with a count of 0, a sample as it is.

    For contests of short and long work: a moment's luck, and what the contender before has left in the caches, would
    decide about the short.
    """

    def repeat() -> float:
        sample()
        return statistics.mean([sample() for _ in range(count)])

    return repeat if count else sample


def run_case(case: Case, show: Callable[[int, str], None] = lambda _turn, _contender: None) -> dict[str, Times]:
    """Let the contenders of a case take turns. `show` gets the number of the turn and the contender that starts now."""
    with case.prepare() as contenders:
        assert OURS in contenders, "a case without us has no ratios"
        names = list(contenders)
        times = {name: Times() for name in names}
        gc.freeze()  # Torch's own objects would make every collection take a tenth of a second.
        for turn in range(case.turns):
            # In an order that changes, so that no contender always follows the same one.
            for name in random.Random(turn).sample(names, len(names)):
                if times[name].limit_s is None:
                    show(turn, name)
                    _sample(contenders[name], times[name], counts=turn >= case.warm_ups)
    return times


def _sample(sample: Sample, times: Times, counts: bool) -> None:
    try:
        seconds = sample()
    except DidNotFinish as late:
        times.limit_s = late.limit_s
    else:
        if counts:
            times.seconds.append(seconds)


def ratio_to_ours(times: Mapping[str, Times], name: str) -> float | None:
    """How many times as long as ours a contender took; a lower bound if it did not finish."""
    ours, theirs = times[OURS], times[name]
    if ours.limit_s is not None or not ours.seconds:
        return None
    if theirs.limit_s is not None:
        return theirs.limit_s / statistics.median(ours.seconds)
    return statistics.median(b / a for a, b in zip(ours.seconds, theirs.seconds, strict=True))
