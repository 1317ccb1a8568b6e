"""`form`: from the first arrival to the moment when the last node holds its rank and the workers' address.

Every sample has a store host in one process, and its nodes in other processes. All nodes are connected before the clock
starts. Up to 1,024 nodes are handlers, called as torch's agent calls them, each in a thread; 64 threads are in a
process unless the case says otherwise. **With fewer threads in a process c10d is much faster**: its nodes compute while
they wait, and keep each other from the interpreter. Of the two cases of 64 nodes, the one with 16 in a process is
closer to a cluster, where a node has a process to itself. Threads pass the interpreter on only when they wait (a switch
interval of 1 s). That is better for ours and makes no difference to c10d. Ours has a lease of 60 s here, because
threads starve each other for longer than nodes do. All other settings are the defaults.

In cases called *generated*, all nodes are in one thread, on one connection each (`benchmarks.load`). Each is the real
participant, but beats only once and has no connection for beats. The time includes the nodes' own work, all of it on
one core; it is most of the time. So the ratio to raw operations mostly compares what two kinds of nodes compute. The
section *scale* says what the store host itself needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

from benchmarks import load, ours
from benchmarks.baselines import c10d, nvrx, raw
from benchmarks.children import call, serving
from benchmarks.crowd import LIMIT_S, NODES_PER_PROCESS, Formed
from benchmarks.measure import OURS, Case, Finding, Sample, require

NAME = "form"
RAW = "raw operations"
CONNECT_LIMIT_S = 120.0
"""How long a contender may take to start and to connect. To form a world it has `crowd.LIMIT_S`. A contender that does
not finish takes part in no further round."""

ROUNDS = {8: 7, 64: 5, 256: 5, 1_024: 3}
QUICK_ROUNDS = {8: 3, 64: 3}
FEW_PER_PROCESS = 16
"""As many as make a second case of 64 nodes."""
GENERATED_ROUNDS = {1_024: 5, 4_096: 3, 10_000: 3}
QUICK_GENERATED_ROUNDS = {256: 2}

Form = Callable[[int, int], Formed]
"""Forms a world of so many nodes at a port."""


def cases(is_quick: bool) -> list[Case]:
    threads = [
        _case(f"{count:,} nodes", rounds, partial(_prepare, count, has_c10d=not is_quick or count == 8))
        for count, rounds in (QUICK_ROUNDS if is_quick else ROUNDS).items()
    ]
    if not is_quick:
        name = f"64 nodes, {FEW_PER_PROCESS} to a process"
        threads.insert(2, _case(name, ROUNDS[64], partial(_prepare, 64, True, FEW_PER_PROCESS)))
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
        formed = form_one(count, serve, form)
        per_node_us, share = formed.busy_s / count * 1e6, formed.busy_s / formed.seconds * 100
        found.append(Finding(NAME, case, f"{name}: the generator's CPU per node", per_node_us, "us"))
        found.append(Finding(NAME, case, f"{name}: the generator's CPU, of the time", share, "%"))
    return found


def _case(name: str, rounds: int, prepare: Callable[[], AbstractContextManager[Mapping[str, Sample]]]) -> Case:
    # Every sample has processes of its own: none is warmer than another.
    return Case(NAME, name, rounds, prepare, warm_ups=0)


@contextmanager
def _prepare(count: int, has_c10d: bool, per_process: int = NODES_PER_PROCESS) -> Iterator[Mapping[str, Sample]]:
    forms = {OURS: ours.form, RAW: raw.form}
    if has_c10d:
        forms["c10d"] = c10d.form
    if has_c10d and nvrx.installed_version():
        forms[nvrx.CONTENDER] = nvrx.form
    serve, serve_raw = partial(serving, ours.serve, count), partial(serving, raw.serve)
    yield {
        name: partial(sample, count, serve if name == OURS else serve_raw, partial(form, per_process=per_process))
        for name, form in forms.items()
    }


@contextmanager
def _prepare_generated(count: int) -> Iterator[Mapping[str, Sample]]:
    yield {name: partial(sample, count, serve, form) for name, serve, form in _generated(count)}


def _generated(count: int) -> list[tuple[str, Callable[[], AbstractContextManager[int]], Form]]:
    return [
        (OURS, partial(serving, ours.serve, count), load.form_ours),
        (RAW, partial(serving, raw.serve), load.form_raw),
    ]


def sample(count: int, serve: Callable[[], AbstractContextManager[Any]], form: Form) -> float:
    """Seconds it took to form one world."""
    return form_one(count, serve, form).seconds


def form_one(count: int, serve: Callable[[], AbstractContextManager[Any]], form: Form) -> Formed:
    """One world, formed in processes of its own and found to be one."""
    with serve() as port:
        formed = call(CONNECT_LIMIT_S + LIMIT_S, form, count, port)
    check(formed, count)
    return formed


def check(formed: Formed, count: int) -> None:
    """Whether this is one world: every rank once, and one address for all."""
    require(sorted(seat.rank for seat in formed.seats) == list(range(count)), "ranks are not exactly 0..n-1")
    require({seat.world_size for seat in formed.seats} == {count}, "nodes disagree on the size of the world")
    masters = {seat.master for seat in formed.seats}
    require(len(masters) == 1 and "" not in masters, f"nodes would meet at {len(masters)} addresses")
