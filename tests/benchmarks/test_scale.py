"""The model counts the operations that are really made, and can be checked from a file."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from dataclasses import fields, replace

import pytest

from benchmarks import scale
from benchmarks.baselines import raw
from benchmarks.children import prepare_environment
from benchmarks.coordinating import time_coordinator
from benchmarks.costs import LABELS, MANY, THREADS, Costs, costs_in, findings_of, measure
from benchmarks.nodes import make_arrivals
from benchmarks.report import Row
from benchmarks.scale import LASTS, NODES, RAW, TARGET, Model, check_hosts, compare
from ft_rendezvous.protocol.codec import channel_count
from ft_rendezvous.protocol.ops import Check, MultiGet, MultiSet

COSTS = Costs(
    connect_s=90e-6,
    add_s=10e-6,
    append_s=5e-6,
    get_s=20e-6,
    hear_s=40e-6,
    check_key_s=1e-6,
    check_pair_s=0.0,
    read_key_s=4e-6,
    read_pair_s=1e-9,
    publish_key_s=20e-6,
    publish_pair_s=0.0,
    log_byte_s=1e-9,
    batch_keys=MANY,
    arrival_few_s=30e-6,
    arrival_many_s=50e-6,
    look_s=3e-6,
    record_s=20e-6,
    round_trip_s=50e-6,
    record_bytes=160,
    seal_bytes=3_500,
    head_bytes=740,
    ours_threads_s=0.050,
    raw_threads_s=0.010,
    ours_generated_s=200e-6,
    raw_generated_s=30e-6,
    cores=2,
)


def test_the_coordinator_asks_for_what_the_model_counts() -> None:
    count = 256
    coordinated = time_coordinator(count)
    assert [(type(op), len(op.keys)) for op in coordinated.asked] == [  # type: ignore[union-attr]
        (MultiGet, 2 + 16),
        (Check, count),
        (MultiGet, count),
        (MultiSet, channel_count(count) + 1),
    ]
    assert 100 < coordinated.record_bytes < 300
    assert coordinated.seal_bytes > 64 * 20


def test_a_node_performs_what_the_model_counts() -> None:
    move, performed = raw.take_part(2, make_arrivals(1)[0], b""), list[str]()
    with suppress(StopIteration):
        op = next(move)
        while True:
            performed.append(type(op).__name__)
            op = move.send(1)
    assert Counter(performed) == {"CompareSet": 1, "Add": 1, "Append": 1, "Get": 2}


def test_costs_are_measured_and_told() -> None:
    prepare_environment()
    costs = measure(is_quick=True)
    assert all(getattr(costs, name) > 0 for name in LABELS if not name.endswith(("_pair_s", "append_s")))
    assert costs.add_s < 0.01
    told = scale.tell(costs, {64: scale.measure_host(64)})
    (host,) = check_hosts(told, costs)
    assert host.nodes == 64
    assert 0 < host.measured_s < 1
    assert [found.case for found in told if found.what == "predicted time to form"] == [f"{n:,} nodes" for n in NODES]


def test_costs_are_read_as_they_were_told() -> None:
    assert list(LABELS) == [field.name for field in fields(Costs)]
    read = costs_in(findings_of(COSTS))
    assert read is not None
    assert all(getattr(read, name) == pytest.approx(getattr(COSTS, name)) for name in LABELS)
    assert costs_in(list(findings_of(COSTS))[1:]) is None


def test_a_prediction_is_operations_times_cost() -> None:
    model = Model(COSTS)
    assert model.arrive(1_000) == pytest.approx(1_000 * 45e-6)
    assert model.form(1_000, RAW) == pytest.approx(1_000 * (45e-6 + 40e-6) + 6 * 50e-6)
    assert model.form(TARGET) > model.form(TARGET, RAW) > model.arrive(TARGET)
    assert model.form_threads(THREADS) == pytest.approx(COSTS.ours_threads_s)
    own_s = (COSTS.ours_threads_s - model.form(THREADS)) / THREADS
    assert model.form_threads(1_024) == pytest.approx(model.form(1_024) + 1_024 * own_s / COSTS.cores)
    # The generator takes longer than the store; with raw operations the store does.
    decide_s = model.decide(1_000) + 13 * COSTS.round_trip_s
    assert model.form_generated(1_000) == pytest.approx(1_000 * COSTS.ours_generated_s + decide_s)
    assert model.form_generated(1_000, RAW) == model.form(1_000, RAW)


def test_large_requests_cost_more_than_their_keys_unless_they_are_made_in_batches() -> None:
    at_once, batched = Model(COSTS), Model(replace(COSTS, batch_keys=1_000))
    assert at_once.read_beats(TARGET) == pytest.approx(TARGET * (4e-6 + TARGET * 1e-9))
    assert batched.read_beats(TARGET) == pytest.approx(TARGET * (4e-6 + 1_000 * 1e-9))
    assert batched.read_beats(500) == at_once.read_beats(500)


def test_what_gives_way_first_comes_first() -> None:
    limits = [found for found in scale.tell(COSTS, {}) if found.case == LASTS]
    assert [found.value for found in limits] == sorted(found.value for found in limits)
    by_name = {found.what: found for found in limits}
    assert by_name["the store, if all nodes beat every 1 s"].value == pytest.approx(100_000, rel=0.02)
    assert by_name["a network of 10 Gbit/s, if all nodes beat every 1 s"].is_met


def row(case: str, contender: str, median_s: float | None) -> Row:
    return Row("form", case, contender, (), median_s, None if median_s else 60.0, None)


def test_the_store_hosts_time_is_compared_with_what_the_model_says_of_it() -> None:
    model = Model(COSTS)
    (host,) = check_hosts(scale.tell(COSTS, {1_000: 2 * model.host(1_000)}), COSTS)
    assert host.nodes == 1_000
    assert host.error == pytest.approx(-0.5)
    assert model.host(1_000) == pytest.approx(model.form(1_000) - 13 * COSTS.round_trip_s + 1_000 * COSTS.record_s)


def test_measured_worlds_are_compared_as_they_were_measured() -> None:
    rows = [
        row("8 nodes", "ours", 0.02),
        row("1,024 nodes", RAW, 0.3),
        row("10,000 nodes, generated", "ours", 2.0),
        row("8 nodes", "c10d", 1.3),
        row("64 nodes", "ours", 0.05),
        row("64 nodes, 16 to a process", "ours", 0.04),
        row("256 nodes", "ours", None),
        row("a crowd", "ours", 1.0),
        Row("read", "1,000 nodes, first read", "ours", (), 0.01, None, 1.0),
    ]
    compared = compare(rows, COSTS)
    assert [(seen.nodes, seen.contender) for seen in compared] == [(8, "ours"), (1_024, RAW), (10_000, "ours")]
    assert compared[0].predicted_s == Model(COSTS).form(8)
    assert compared[1].here_s == Model(COSTS).form_threads(1_024, RAW)
    assert compared[2].here_s == Model(COSTS).form_generated(10_000)
