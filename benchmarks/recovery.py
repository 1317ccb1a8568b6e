"""`recovery`: of 8 + 1 nodes, eight train and one waits. Workers fail, or a node dies. Until every rank is held again.

Four views of it:

    a worker fails      rendezvous alone: no workers to stop or to start, and a node asks a hundred times per second
                        whether its world is over, where torch's agent asks ten times
    a node is killed    ours alone, against our targets: with its reaper, its agent alone, and without lifelines, where
                        the coordinator's own clock says when the lease ended
    the host is killed  ours alone: until the last agent has left
    a torchrun killed   real processes: until the new workers have started, and have trained a step; with default
                        settings, and with settings that make both declare a node dead after 3 s
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial

from benchmarks import end_to_end, form, ours
from benchmarks.baselines import nvrx, raw
from benchmarks.children import serving
from benchmarks.host_loss import lose_host
from benchmarks.losing import Loss, lose_node
from benchmarks.measure import OURS, Case, Finding, Sample
from benchmarks.restarting import restart_c10d, restart_nvrx, restart_ours
from ft_rendezvous.config.settings import RunSettings

NAME = "recovery"
ACTIVE = 8
QUICK_ACTIVE = 3
LOSSES = 5
END_TO_END_ROUNDS = 3
AFTER_LEASE_TARGET_S = 0.1
TOTAL_TARGET_S = 0.5
"""On top of the lease."""
MACHINE_TARGET_S, AGENT_TARGET_S = 0.4, 0.15
"""With lifelines: all processes of a node are killed, or its agent alone."""
HOST_TARGET_S = 1.0
HOST_LOSSES = 3


def cases(is_quick: bool) -> list[Case]:
    if is_quick:
        return [_worker_fails(QUICK_ACTIVE, rounds=1, has_nvrx=False)]
    found = [_worker_fails(ACTIVE, rounds=5, has_nvrx=nvrx.installed_version() is not None)]
    for how, setups in (("", end_to_end.AS_THEY_COME), (", noticed after 3 s", end_to_end.TUNED)):
        played = end_to_end.Record(setups, end_to_end.lose_node)
        found += [_node_killed(f"{how}: trained", played.steps), _node_killed(f"{how}: started", played.starts)]
    failing = end_to_end.Record(end_to_end.FAILING, end_to_end.fail_worker)
    return [*found, _worker_killed(failing.steps)]


def findings(is_quick: bool) -> list[Finding]:
    if is_quick:
        return []
    by_lease = replace(_lossy_run(), has_lifelines=False)
    return [
        *judge_deaths("killed", _lose_often(_lossy_run()), MACHINE_TARGET_S),
        *judge_deaths("whose agent alone is killed", _lose_often(_lossy_run(), has_reaper=True), AGENT_TARGET_S),
        *judge_losses(_lose_often(by_lease), by_lease.lease_s),
        *judge_host_losses([lose_host(ACTIVE) for _ in range(HOST_LOSSES)]),
    ]


# --- a worker fails ---------------------------------------------------------------------------------


def _worker_fails(count: int, rounds: int, has_nvrx: bool) -> Case:
    return Case(
        NAME,
        f"{count} + 1 nodes, a worker fails: ranks held",
        rounds,
        partial(_prepare_worker_fails, count, has_nvrx),
        warm_ups=0,  # Every sample has processes of its own: none is warmer than another.
    )


@contextmanager
def _prepare_worker_fails(count: int, has_nvrx: bool) -> Iterator[Mapping[str, Sample]]:
    serve_raw = partial(serving, raw.serve)
    contenders = {
        OURS: partial(form.sample, count, partial(_serving_port, count), restart_ours),
        "c10d, unshared": partial(form.sample, count, serve_raw, restart_c10d),
    }
    if has_nvrx:
        contenders[nvrx.CONTENDER] = partial(form.sample, count, serve_raw, restart_nvrx)
    yield contenders


@contextmanager
def _serving_port(count: int) -> Iterator[int]:
    with serving(ours.serve_run, ours.run_settings(count, count + 1)) as (port, _):
        yield port


# --- a node is killed -------------------------------------------------------------------------------


def _lossy_run() -> RunSettings:
    """As by default."""
    return RunSettings(run_id="benchmark", min_nodes=ACTIVE, max_nodes=ACTIVE + 1)


def _lose_often(run: RunSettings, *, has_reaper: bool = False) -> list[Loss]:
    losses = []
    for _ in range(LOSSES):
        loss, formed = lose_node(run, has_reaper=has_reaper)
        form.check(formed, ACTIVE)
        losses.append(loss)
    return losses


def judge_deaths(how: str, losses: list[Loss], target_s: float) -> list[Finding]:
    """How soon the world is whole again with lifelines."""
    case = f"{ACTIVE} + 1 nodes, one {how} {len(losses)} times"
    total = [loss.total_s for loss in losses]
    total_s = statistics.median(total)
    return [
        Finding(NAME, case, "kill to last rank, median", total_s, "s", f"under {target_s:g}", total_s < target_s),
        Finding(NAME, case, "kill to last rank, worst", max(total), "s"),
    ]


def judge_host_losses(left_s: list[float]) -> list[Finding]:
    """How soon the last agent has left a run whose host is gone."""
    case = f"{ACTIVE} torchruns, their store host killed {len(left_s)} times"
    median_s = statistics.median(left_s)
    target, is_met = f"under {HOST_TARGET_S:g}", median_s < HOST_TARGET_S
    return [
        Finding(NAME, case, "kill to last exit, median", median_s, "s", target, is_met),
        Finding(NAME, case, "kill to last exit, worst", max(left_s), "s"),
    ]


def judge_losses(losses: list[Loss], lease_s: float) -> list[Finding]:
    """Without lifelines: medians beside their targets, and the worst."""
    case = f"{ACTIVE} + 1 nodes, no lifelines, one killed {len(losses)} times, lease {lease_s:g} s"
    after_lease = [loss.after_lease_s for loss in losses if loss.after_lease_s is not None]
    total = [loss.total_s for loss in losses]
    after_lease_s, total_s = statistics.median(after_lease), statistics.median(total)
    limit_s = lease_s + TOTAL_TARGET_S
    return [
        Finding(
            NAME,
            case,
            "lease's end to last rank, median",
            after_lease_s,
            "s",
            f"under {AFTER_LEASE_TARGET_S:g}",
            after_lease_s < AFTER_LEASE_TARGET_S,
        ),
        Finding(NAME, case, "lease's end to last rank, worst", max(after_lease), "s"),
        Finding(NAME, case, "kill to last rank, median", total_s, "s", f"under {limit_s:g}", total_s < limit_s),
        Finding(NAME, case, "kill to last rank, worst", max(total), "s"),
    ]


# --- end to end -------------------------------------------------------------------------------------


def _worker_killed(contenders: Callable[[], Mapping[str, Sample]]) -> Case:
    name = f"{end_to_end.ACTIVE} torchruns, a worker killed: trained"
    return Case(NAME, name, END_TO_END_ROUNDS, lambda: nullcontext(contenders()), warm_ups=0)


def _node_killed(until: str, contenders: Callable[[], Mapping[str, Sample]]) -> Case:
    return Case(
        NAME,
        f"{end_to_end.ACTIVE} + 1 torchruns, one killed{until}",
        END_TO_END_ROUNDS,
        lambda: nullcontext(contenders()),
        warm_ups=0,
    )
