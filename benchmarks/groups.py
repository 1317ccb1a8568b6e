"""`groups`: one replica group of several is lost. What that costs the groups that did not fail.

Real processes train with torchft on gloo (`examples/train_torchft.py`): three groups of one node with one worker, steps
of about 0.15 s. The node of one group is killed (SIGKILL), or stopped (SIGSTOP: no connection closes), its agent and
its worker at once. Times are the **longest gap** between two committed steps of a group that did not fail, from the
loss until all groups have trained together again. So the return of the lost group counts, too.

    ours                one run with `group_size=1,lighthouse=yes` and a spare node; all other settings are the defaults
                        (a lease of 5 s)
    restart of all      ours without groups, as it was before there were groups: the same model as a plain data parallel
                        training with a checkpoint every 20 steps, and a spare; a loss restarts all workers
    torchft             without us: its lighthouse, and one torchrun with c10d per group in a shell loop, which starts a
                        group again on the same machine at once; timeouts are torchft's own

torchft does not replace a group that hangs. There the sample ends when the others train again.

*Steps lost* are counted against the median pace before the loss: the steps that fit into all pauses (intervals of more
than two usual ones), and the steps that were done again. Where all share two cores, workers that start take time from
those that train, and the return of a group takes longer than in a cluster.

In the last case a worker fails in a run of 64 groups of 16 nodes and 16 spares, by the load generator: until all nodes
that restart have their new ranks. All nodes are in one thread, each on one connection, and the time includes their own
work: most of it is that 1,040 nodes hear two events. No process stops or starts.
"""

from __future__ import annotations

import signal
import statistics
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial

from benchmarks import ours
from benchmarks.baselines import torchft
from benchmarks.children import call, serving
from benchmarks.group_training import EVERYBODY, SETUPS, Record
from benchmarks.load.restart import Restarted, restart_ours
from benchmarks.measure import OURS, Case, Finding, Sample, require
from ft_rendezvous.config.settings import RunSettings

NAME = "groups"
TRAINING_ROUNDS = 3
RESTART_LIMIT_S = 180.0
READS_TARGET = 2
"""What the restart of a group may cost a node of another group: it hears that it opens, and that it is sealed."""


@dataclass(slots=True)
class Played:
    """What has happened in the cases of a run, for what is counted and not contested."""

    trainings: dict[str, Record] = field(default_factory=dict)
    """By case."""
    restarts: dict[str, dict[str, list[Restarted]]] = field(default_factory=dict)
    """By case and contender."""


_played = Played()


def cases(is_quick: bool) -> list[Case]:
    _played.trainings.clear()
    _played.restarts.clear()
    restart = _worker_fails(8, 4, rounds=3) if is_quick else _worker_fails(64, 16, rounds=5)
    # torchft alone may need minutes until it trains on: that is no small case.
    if is_quick or torchft.installed_version() is None:
        return [restart]
    return [
        _node_lost("killed", Record(signal.SIGKILL, 3, 1), TRAINING_ROUNDS),
        _node_lost("stopped", Record(signal.SIGSTOP, 3, 1), TRAINING_ROUNDS),
        restart,
    ]


def findings(_is_quick: bool) -> list[Finding]:
    """Of what was played for the cases."""
    found: list[Finding] = []
    for case, record in _played.trainings.items():
        found += count_losses(case, record)
    for case, restarts in _played.restarts.items():
        found += count_operations(case, restarts)
    return found


# --- a node is lost ---------------------------------------------------------------------------------


def _node_lost(how: str, record: Record, rounds: int) -> Case:
    spares = f" + {record.spares} spare" if record.spares else ""
    name = f"{record.groups} groups{spares}, a node is {how}: longest gap"
    _played.trainings[name] = record
    # Without the return of the lost group, a restart of everybody does not come to an end.
    contenders = {kind: setup for kind, setup in SETUPS.items() if record.must_come_back or kind != EVERYBODY}
    return Case(NAME, name, rounds, lambda: nullcontext(record.gaps(contenders)), warm_ups=0)


def count_losses(case: str, record: Record) -> list[Finding]:
    case = case.removesuffix(": longest gap")
    found: list[Finding] = []
    for name, costs in record.costs.items():
        lost = [cost.steps_lost for cost in costs]
        found.append(Finding(NAME, case, f"{name}: steps lost, median", statistics.median(lost), "steps"))
        found.append(Finding(NAME, case, f"{name}: steps lost, most", max(lost), "steps"))
        back = [cost.back_s for cost in costs if cost.back_s is not None]
        if back:
            what = f"{name}: the lost group trains again, median"
            found.append(Finding(NAME, case, what, statistics.median(back), "s"))
    return found


# --- a worker fails, generated ----------------------------------------------------------------------


def _worker_fails(groups: int, size: int, rounds: int) -> Case:
    name = f"{groups} groups of {size} nodes, a worker fails: ranks held"
    _played.restarts[name] = {OURS: [], EVERYBODY: []}
    return Case(NAME, name, rounds, partial(_prepare_restart, name, groups, size), warm_ups=0)


@contextmanager
def _prepare_restart(name: str, groups: int, size: int) -> Iterator[Mapping[str, Sample]]:
    everybody = ours.run_settings(groups * size, (groups + 1) * size)
    runs = {OURS: replace(everybody, group_size=size), EVERYBODY: everybody}
    restarts = _played.restarts[name]
    yield {contender: partial(_sample_restart, run, restarts[contender]) for contender, run in runs.items()}


def _sample_restart(run: RunSettings, restarts: list[Restarted]) -> float:
    with serving(ours.serve_run, run) as (port, host_pid):
        restarted = call(RESTART_LIMIT_S, restart_ours, run, port, host_pid)
    check_restart(restarted, run)
    restarts.append(restarted)
    return restarted.seconds


def check_restart(restarted: Restarted, run: RunSettings) -> None:
    """Whether one group has restarted as a whole, and no other node has."""
    before, after = restarted.before, restarted.after
    require(len(before) == len(after) == run.min_nodes, "not every rank was held before and after")
    renewed = {index: place for index, place in after.items() if place != before.get(index)}
    groups = {place.group for place in renewed.values()}
    require(len(groups) == 1, f"{len(groups)} groups have restarted")
    size = run.group_size or run.min_nodes
    require(sorted(place.rank for place in renewed.values()) == list(range(size)), "ranks are not exactly 0..n-1")
    require(len({place.cycle_id for place in renewed.values()}) == 1, "nodes are in different cycles")
    require(len({place.master_port for place in renewed.values()}) == 1, "nodes would meet at different addresses")
    require(before.keys() == after.keys(), "a spare has taken the place of a node that lives")


def count_operations(case: str, restarts: Mapping[str, list[Restarted]]) -> list[Finding]:
    """What the restarts have cost the store, and the nodes that did not restart."""
    case = case.removesuffix(": ranks held")
    found: list[Finding] = []
    others = [spent for restarted in restarts[OURS] for spent in operations_of_others(restarted)]
    if others:
        most = max(sum(spent.values()) for spent in others)
        is_met = all(spent == {"get": READS_TARGET} for spent in others)
        what = "operations of a node that does not restart, most"
        found.append(Finding(NAME, case, what, most, "", f"{READS_TARGET} reads", is_met))
    for name, played in restarts.items():
        if played:
            asked = [sum(sum(spent.values()) for spent in each.operations.values()) for each in played]
            host_s = [each.host_s for each in played]
            found.append(Finding(NAME, case, f"{name}: operations of all nodes", statistics.median(asked), ""))
            found.append(Finding(NAME, case, f"{name}: CPU of the store host", statistics.median(host_s) * 1e3, "ms"))
    return found


def operations_of_others(restarted: Restarted) -> list[Mapping[str, int]]:
    """What nodes whose place is the same as before, and spares, asked of the store."""
    return [
        spent
        for index, spent in restarted.operations.items()
        if restarted.after.get(index) == restarted.before.get(index)
    ]
