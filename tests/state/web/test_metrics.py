"""Metrics: Prometheus can read them, and they say what the state says."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model import view
from ft_rendezvous.state.model.events import decode_line, encode_line, make_event
from ft_rendezvous.state.model.records import NodeRole, NodeStatus
from ft_rendezvous.state.model.run_state import NS
from ft_rendezvous.state.web.live_run import LiveRun
from tests.state.group_story import tell_group_story
from tests.state.recording import BORN_NS, eventful_seed, record_seed
from tests.state.web.servers import client_of, live_run_of

NOW_NS = BORN_NS + 3600 * NS


def scrape(live_run: LiveRun, now_ns: int = NOW_NS) -> dict[str, Metric]:
    with client_of(live_run, clock_ns=lambda: now_ns) as client:
        response = client.get("/metrics")
        assert response.headers["content-type"].startswith("text/plain; version=0.0.4")
        return {family.name: family for family in text_string_to_metric_families(response.text)}


def value(families: dict[str, Metric], name: str, **labels: str) -> float:
    """The one sample of this name and these labels; fails if there is none."""
    samples = [sample for family in families.values() for sample in family.samples if sample.name == name]
    return next(sample.value for sample in samples if sample.labels == labels)


@pytest.mark.parametrize("seed", [3, 8, 21])
def test_metrics_say_what_the_state_says(seed: int) -> None:
    recording = record_seed(seed)
    state = recording.state
    run = view.view_run(state, NOW_NS)
    assert run is not None
    families = scrape(live_run_of(recording.lines))
    assert value(families, "ft_events_total") == state.event_id
    assert value(families, "ft_run_status", status=run.status) == 1
    assert sum(sample.value for sample in families["ft_run_status"].samples) == 1
    assert value(families, "ft_nodes_live") == run.live
    assert value(families, "ft_nodes_wanted") == run.wanted
    assert value(families, "ft_store_operations_total") == run.operations
    assert value(families, "ft_trained_seconds") == pytest.approx(run.trained_s)
    assert value(families, "ft_oldest_lease_age_seconds") == run.oldest_lease_s
    assert value(families, "ft_current_cycle") == run.cycle_id
    assert value(families, "ft_worker_failures") == sum(cycle.failure_count for cycle in state.cycles)
    for role in NodeRole:
        for status in NodeStatus:
            assert value(families, "ft_nodes", role=role, status=status) == run.nodes.get(role, {}).get(status, 0)
    assert sum(sample.value for sample in families["ft_cycles"].samples) == len(state.cycles)
    for cause, lost in state.lost.items():
        assert value(families, "ft_lost_seconds_total", cause=cause) == pytest.approx(lost.lost_ns / NS)
        assert value(families, "ft_interruptions_total", cause=cause) == lost.times
    sealed = [cycle.time_to_seal_s for cycle in state.cycles if cycle.time_to_seal_s is not None]
    assert value(families, "ft_time_to_seal_seconds_count") == len(sealed)
    assert value(families, "ft_time_to_seal_seconds_sum") == pytest.approx(sum(sealed))
    for bound in (0.05, 1.0, 60.0):
        within = sum(each <= bound for each in sealed)
        assert value(families, "ft_time_to_seal_seconds_bucket", le=str(bound)) == within
    info = families["ft_run_info"].samples[0].labels
    assert (info["run_id"], info["run_name"], info["store_host"]) == (run.id, run.name, run.store_host)


def test_a_coordinator_that_is_silent_is_not_heard() -> None:
    recording = record_seed(eventful_seed())
    middle = len(recording.lines) // 2
    last_ns = recording.events[middle - 1].timestamp_ns
    live_run = live_run_of(recording.lines[:middle])
    families = scrape(live_run, last_ns + NS)
    assert value(families, "ft_coordinator_heard") == 1
    assert value(families, "ft_coordinator_silence_seconds") == pytest.approx(1)
    families = scrape(live_run, last_ns + 100 * NS)
    assert value(families, "ft_coordinator_heard") == 0
    assert value(families, "ft_run_status", status="ABORTED") == 1


def test_time_that_is_being_lost_is_shown_until_it_has_a_cause() -> None:
    recording = record_seed(eventful_seed())
    opened = next(
        number
        for number, each in enumerate(recording.events)
        if isinstance(each.event, journal.CycleOpened) and each.event.cycle_id == 2
    )
    families = scrape(live_run_of(recording.lines[: opened + 1]), recording.events[opened].timestamp_ns + 3 * NS)
    assert value(families, "ft_losing_seconds") >= 3
    assert families["ft_lost_seconds"].samples == []


def test_before_a_run_there_is_little_to_tell() -> None:
    families = scrape(LiveRun())
    assert value(families, "ft_coordinator_heard") == 0
    assert value(families, "ft_events_total") == 0
    assert "ft_nodes" not in families


def test_every_metric_is_ours_explained_and_of_a_name_that_prometheus_likes() -> None:
    families = scrape(live_run_of(record_seed(eventful_seed()).lines))
    for name, family in families.items():
        assert name.startswith("ft_")
        assert len(family.documentation) > 15
        assert not name.endswith(("_ns", "_ms", "_s"))
    assert not [family for family in REGISTRY.collect() if family.name.startswith("ft_")]


def test_names_of_runs_cannot_break_the_text() -> None:
    name = 'a"b\\c\nd{}'
    entry = journal.RunBegan(run_id=name, epoch="e", settings={}, versions={"torch": "2"}, host="h")
    families = scrape(live_run_of([encode_line(make_event(1, BORN_NS, entry))]))
    assert families["ft_run_info"].samples[0].labels["run_name"] == name


def test_the_document_explains_every_metric() -> None:
    from tests.state.web.servers import ROOT  # noqa: PLC0415

    text = (ROOT / "docs" / "state-api.md").read_text()
    families = scrape(live_run_of(record_seed(eventful_seed()).lines))
    names = {sample.name for family in families.values() for sample in family.samples}
    plain = {name.removesuffix("_bucket").removesuffix("_count").removesuffix("_sum") for name in names}
    assert not [name for name in sorted(plain | {"ft_run_end_time_seconds"}) if f"`{name}`" not in text]


def test_each_group_has_its_metrics() -> None:
    story = tell_group_story()
    lines = story.lines[: story.marks["a group waits"]]
    families = scrape(live_run_of(lines), decode_line(lines[-1]).timestamp_ns)
    for group, is_training, cycle_id, restarts in (("0", 1, 1, 0), ("1", 0, 4, 2), ("2", 1, 3, 1)):
        assert value(families, "ft_group_training", group=group) == is_training
        assert value(families, "ft_group_cycle", group=group) == cycle_id
        assert value(families, "ft_group_restarts_total", group=group) == restarts
    assert value(families, "ft_losing_seconds") == 0, "two of three groups train"


def test_a_run_without_groups_has_no_metrics_of_groups() -> None:
    assert not [name for name in scrape(live_run_of(record_seed(3).lines)) if "group" in name]
