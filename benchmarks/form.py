"""`form`: from the first arrival to the last node holding its rank and the workers' address.

Every sample has a store host of its own in one process and its nodes in others. All nodes are connected before the
clock starts. Up to 1,024 nodes are real links, in threads, 64 of them in a process: with fewer in a process everybody
is faster, c10d most of all (64 nodes in two processes instead of one: 3.5 s instead of 12 s, ours 37 ms
instead of 59).
Cases that are called generated have their nodes in one thread on one connection each (`benchmarks.load`): the real
participant, without the beats that follow its first one and without the connection for them. The nodes' own work is
part of the time, all of it on one core.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from benchmarks import load, ours
from benchmarks.baselines import c10d, nvrx, raw
from benchmarks.children import call, serving
from benchmarks.crowd import Formed
from benchmarks.measure import OURS, Case, Finding, Sample, require

NAME = "form"
RAW = "raw operations"
LIMIT_S = 60.0
"""What a contender is given, to connect and to form a world. Who does not finish takes part in no further round."""
GENERATED_LIMIT_S = 120.0
"""Connecting thousands of nodes takes its time too."""

ROUNDS = {8: 7, 64: 5, 256: 5, 1_024: 3}
QUICK_ROUNDS = {8: 3, 64: 3}
GENERATED_ROUNDS = {1_024: 5, 4_096: 3, 10_000: 3}
QUICK_GENERATED_ROUNDS = {256: 2}

Form = Callable[[int, int], Formed]
"""Forms a world of so many nodes at a port."""


def cases(is_quick: bool) -> list[Case]:
    threads = [
        _case(f"{count:,} nodes", rounds, partial(_prepare, count, has_c10d=not is_quick or count == 8))
        for count, rounds in (QUICK_ROUNDS if is_quick else ROUNDS).items()
    ]
    generated = [
        _case(f"{count:,} nodes, generated", rounds, partial(_prepare_generated, count))
        for count, rounds in (QUICK_GENERATED_ROUNDS if is_quick else GENERATED_ROUNDS).items()
    ]
    return threads + generated


def findings(is_quick: bool) -> list[Finding]:
    """What the load generator itself costs: in a cluster this is the work of as many machines as there are nodes."""
    count = max(QUICK_GENERATED_ROUNDS if is_quick else GENERATED_ROUNDS)
    case = f"{count:,} nodes, generated"
    found: list[Finding] = []
    for name, serve, form in _generated(count):
        formed = form_one(count, serve, form, GENERATED_LIMIT_S)
        per_node_us, share = formed.busy_s / count * 1e6, formed.busy_s / formed.seconds * 100
        found.append(Finding(NAME, case, f"{name}: the generator's CPU per node", per_node_us, "us"))
        found.append(Finding(NAME, case, f"{name}: the generator's CPU, of the time", share, "%"))
    return found


def _case(name: str, rounds: int, prepare: Callable[[], AbstractContextManager[Mapping[str, Sample]]]) -> Case:
    # Every sample has processes of its own: none is warmer than another.
    return Case(NAME, name, rounds, prepare, warm_ups=0)


@contextmanager
def _prepare(count: int, has_c10d: bool) -> Iterator[Mapping[str, Sample]]:
    contenders = {
        OURS: partial(sample, count, partial(serving, ours.serve, count), ours.form),
        RAW: partial(sample, count, partial(serving, raw.serve), raw.form),
    }
    if has_c10d:
        contenders["c10d"] = partial(sample, count, partial(serving, raw.serve), c10d.form)
    if has_c10d and nvrx.installed_version():
        contenders["nvrx"] = partial(sample, count, partial(serving, raw.serve), nvrx.form)
    yield contenders


@contextmanager
def _prepare_generated(count: int) -> Iterator[Mapping[str, Sample]]:
    yield {name: partial(sample, count, serve, form, GENERATED_LIMIT_S) for name, serve, form in _generated(count)}


def _generated(count: int) -> list[tuple[str, Callable[[], AbstractContextManager[int]], Form]]:
    return [
        (OURS, partial(serving, ours.serve, count), load.form_ours),
        (RAW, partial(serving, raw.serve), load.form_raw),
    ]


def sample(count: int, serve: Callable[[], AbstractContextManager[Any]], form: Form, limit_s: float = LIMIT_S) -> float:
    """Seconds it took to form one world."""
    return form_one(count, serve, form, limit_s).seconds


def form_one(count: int, serve: Callable[[], AbstractContextManager[Any]], form: Form, limit_s: float) -> Formed:
    """One world, formed in processes of its own and found to be one."""
    with serve() as port:
        formed = call(limit_s, form, count, port)
    check(formed, count)
    return formed


def check(formed: Formed, count: int) -> None:
    """Whether this is one world: every rank once, and one address for all."""
    require(sorted(seat.rank for seat in formed.seats) == list(range(count)), "ranks are not exactly 0..n-1")
    require({seat.world_size for seat in formed.seats} == {count}, "nodes disagree on the size of the world")
    masters = {seat.master for seat in formed.seats}
    require(len(masters) == 1 and "" not in masters, f"nodes would meet at {len(masters)} addresses")
