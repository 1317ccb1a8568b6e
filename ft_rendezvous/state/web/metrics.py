"""The state as Prometheus metrics: values of the state, never counts of the server itself.

So a server that started later reports the same. Nothing is registered globally.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

import msgspec
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import generate_latest

from ft_rendezvous.core.update_notes import UpdateOutcome
from ft_rendezvous.state.model import view
from ft_rendezvous.state.model.records import Cycle, CycleStatus, GroupStatus, NodeRole, NodeStatus, Run, RunStatus
from ft_rendezvous.state.model.run_state import NS, LostTime, RunState
from ft_rendezvous.state.model.time_account import losing_since
from ft_rendezvous.state.web.live_run import LiveRun
from ft_rendezvous.state.web.views import has_lost_coordinator

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SEAL_BUCKETS_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 900.0)


class Scrape(msgspec.Struct, frozen=True, kw_only=True):
    """All that one scrape reports."""

    run: Run | None
    is_heard: bool
    silent_s: float
    losing_s: float
    """How long no node has trained by now, after the first world did."""
    lost: dict[str, LostTime]
    """Of pauses that are over. A pause that still lasts may yet get another cause."""
    cycles: list[Cycle]
    event_id: int
    missed: int
    progress: list[tuple[str, int | None, int | None, float]]
    """Nodes that train and say how far they are: name, step, slowest rank, and seconds since its progress."""


def write_metrics(live_run: LiveRun, now_ns: int) -> bytes:
    """The text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Collector(see(live_run, now_ns)))
    return generate_latest(registry)


def see(live_run: LiveRun, now_ns: int) -> Scrape:
    def look(state: RunState) -> Scrape:
        run = view.view_run(state, now_ns)
        is_gone = has_lost_coordinator(state, live_run.is_ended, now_ns)
        if run is not None and is_gone:
            run = view.view_vanished(run, state.time_ns)
        since_ns = losing_since(state)
        return Scrape(
            run=run,
            is_heard=run is not None and not run.is_terminal(),
            silent_s=max(0, now_ns - state.time_ns) / NS if state.event_id else 0.0,
            losing_s=0.0 if since_ns is None else max(0, now_ns - since_ns) / NS,
            lost={cause: msgspec.structs.replace(each) for cause, each in state.lost.items()},
            cycles=list(state.cycles),
            event_id=state.event_id,
            missed=live_run.missed,
            progress=[
                (member.name, member.step, member.slowest_rank, max(0, now_ns - member.progress_ns) / NS)
                for member in state.members.values()
                if member.progress_ns is not None and view.is_training(member)
            ],
        )

    return live_run.read(look)


class _Collector:
    def __init__(self, seen: Scrape) -> None:
        self._seen = seen

    def collect(self) -> Iterator[Metric]:
        seen = self._seen
        yield _gauge(
            "ft_coordinator_heard",
            "1 while the run's coordinator says that it is alive; 0 before it began, after its end, and after three"
            " leases of silence",
            float(seen.is_heard),
        )
        yield _gauge("ft_coordinator_silence_seconds", "Time since the newest event of the coordinator", seen.silent_s)
        yield _counter("ft_events", "Events of the run so far", seen.event_id)
        yield _counter(
            "ft_missed_events", "Events that the state server could not take in: a bug if not 0", seen.missed
        )
        if seen.run is not None:
            yield from _collect_run(seen.run)
            yield from _collect_nodes(seen.run)
            yield from _collect_progress(seen)
            yield from _collect_groups(seen.run)
            yield from _collect_updates(seen.run)
            yield from _collect_cycles(seen)


def _collect_run(run: Run) -> Iterator[Metric]:
    info = GaugeMetricFamily(
        "ft_run_info",
        "Always 1; its labels say which run this is, where its store is and what it runs on",
        labels=["run_id", "run_name", "store_host", "versions"],
    )
    versions = ", ".join(f"{name} {version}" for name, version in sorted(run.versions.items()))
    info.add_metric([run.id, run.name, run.store_host, versions], 1.0)
    yield info
    status = GaugeMetricFamily(
        "ft_run_status", "1 for the status that the run has, 0 for all others", labels=["status"]
    )
    for each in RunStatus:
        status.add_metric([each], float(run.status is each))
    yield status
    yield _gauge("ft_run_start_time_seconds", "When the run began, in Unix time", run.start_time_ns / NS)
    if run.end_time_ns is not None:
        yield _gauge("ft_run_end_time_seconds", "When the run ended, in Unix time", run.end_time_ns / NS)
    yield _gauge(
        "ft_trained_seconds",
        "Time in which a sealed world was whole; falls by a node's silence when that node turns out to be lost. One of"
        " N groups counts as an N-th",
        run.trained_s,
    )
    yield _counter("ft_store_operations", "Operations of the coordinator on the store", run.operations)
    yield _counter("ft_refused_records", "Records that the coordinator could not read", run.refused_records)
    yield _gauge(
        "ft_oldest_lease_age_seconds",
        "How long ago the node that was silent for longest was heard of, when the coordinator last looked",
        run.oldest_lease_s,
    )


def _collect_nodes(run: Run) -> Iterator[Metric]:
    nodes = GaugeMetricFamily(
        "ft_nodes",
        "Nodes by role and status; of the dead, those that are remembered",
        labels=["role", "status"],
    )
    for role in NodeRole:
        for status in NodeStatus:
            nodes.add_metric([role, status], run.nodes.get(role, {}).get(status, 0))
    yield nodes
    yield _gauge("ft_nodes_live", "Nodes that are not dead, spares included", run.live)
    yield _gauge("ft_nodes_wanted", "Nodes without which no cycle is sealed", run.wanted)


def _collect_progress(seen: Scrape) -> Iterator[Metric]:
    """Nothing in a run that does not look for hangs."""
    if not seen.progress:
        return
    steps = GaugeMetricFamily("ft_node_step", "The last step of the node's slowest worker", labels=["node"])
    ages = GaugeMetricFamily(
        "ft_node_progress_age_seconds", "Time since the node's slowest worker made progress", labels=["node"]
    )
    ranks = GaugeMetricFamily("ft_node_slowest_rank", "The global rank of the node's slowest worker", labels=["node"])
    for name, step, rank, age_s in seen.progress:
        if step is not None:
            steps.add_metric([name], step)
        if rank is not None:
            ranks.add_metric([name], rank)
        ages.add_metric([name], age_s)
    yield steps
    yield ranks
    yield ages
    if seen.run is not None and seen.run.late_after_s is not None:
        yield _gauge(
            "ft_hang_timeout_seconds",
            "The age of progress at which a rank is late; with `auto`, the longest that a node has learned",
            seen.run.late_after_s,
        )


def _collect_groups(run: Run) -> Iterator[Metric]:
    """Nothing in a run without groups."""
    if not run.groups:
        return
    training = GaugeMetricFamily("ft_group_training", "1 while the replica group trains, else 0", labels=["group"])
    cycle = GaugeMetricFamily(
        "ft_group_cycle", "The number of the group's current cycle, or its last", labels=["group"]
    )
    restarts = CounterMetricFamily(
        "ft_group_restarts", "How often the group's world ended and its next cycle opened", labels=["group"]
    )
    for group in run.groups:
        label = [str(group.group)]
        training.add_metric(label, float(group.status is GroupStatus.RUNNING))
        cycle.add_metric(label, group.cycle_id)
        restarts.add_metric(label, group.restarts)
    yield training
    yield cycle
    yield restarts


def _collect_updates(run: Run) -> Iterator[Metric]:
    """Nothing in a run whose workers report none."""
    totals = run.updates
    if not totals.updates:
        return
    updates = CounterMetricFamily("ft_updates", "Updates that workers have reported, by outcome", labels=["outcome"])
    updates.add_metric([UpdateOutcome.COMPLETED], totals.updates - totals.failed)
    updates.add_metric([UpdateOutcome.FAILED], totals.failed)
    yield updates
    yield _counter("ft_updates_retried", "Updates that needed more than one attempt", totals.retried)
    yield _counter("ft_update_seconds", "Time in updates", totals.spent_s)
    yield _counter("ft_update_lost_seconds", "Time in attempts at updates that failed", totals.lost_s)


def _collect_cycles(seen: Scrape) -> Iterator[Metric]:
    current = seen.cycles[-1].cycle_id if seen.cycles else 0
    yield _gauge("ft_current_cycle", "The number of the current cycle, or of the last", current)
    cycles = GaugeMetricFamily("ft_cycles", "Cycles that are remembered, by status", labels=["status"])
    for status in CycleStatus:
        cycles.add_metric([status], sum(cycle.status is status for cycle in seen.cycles))
    yield cycles
    yield _histogram(
        "ft_time_to_seal_seconds",
        "From the opening of a cycle to its seal, over the cycles that are remembered",
        [cycle.time_to_seal_s for cycle in seen.cycles if cycle.time_to_seal_s is not None],
    )
    lost = CounterMetricFamily(
        "ft_lost_seconds",
        "Time in which no node trained, by what ended the world before; until the next seal. One of N groups counts as"
        " an N-th",
        labels=["cause"],
    )
    times = CounterMetricFamily(
        "ft_interruptions", "How often training stopped, by what ended the world before", labels=["cause"]
    )
    for cause, each in sorted(seen.lost.items()):
        lost.add_metric([cause], each.lost_ns / NS)
        times.add_metric([cause], each.times)
    yield lost
    yield times
    yield _gauge("ft_losing_seconds", "For how long no node has trained by now; 0 while a world trains", seen.losing_s)
    failures = sum(cycle.failure_count for cycle in seen.cycles)
    yield _gauge("ft_worker_failures", "Nodes whose workers failed, over the cycles that are remembered", failures)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(name, text, value=value)


def _counter(name: str, text: str, value: float) -> Metric:
    return CounterMetricFamily(name, text, value=value)


def _histogram(name: str, text: str, values: list[float]) -> Metric:
    counts = [0] * (len(SEAL_BUCKETS_S) + 1)
    for value in values:
        counts[bisect_left(SEAL_BUCKETS_S, value)] += 1
    bounds = [*(str(bound) for bound in SEAL_BUCKETS_S), "+Inf"]
    buckets = [(bound, float(sum(counts[: index + 1]))) for index, bound in enumerate(bounds)]
    return HistogramMetricFamily(name, text, buckets=buckets, sum_value=sum(values))
