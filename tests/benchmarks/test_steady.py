"""What is counted and measured of a run at rest is what the run did, and is judged."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from benchmarks import steady
from benchmarks.children import prepare_environment
from benchmarks.consumption import cpu_s, rss_bytes
from benchmarks.idle import Idled
from benchmarks.idle_lifelines import Held


@pytest.fixture(autouse=True, scope="module")
def _environment() -> None:
    prepare_environment()


def test_a_small_world_at_rest_beats_and_does_nothing_else() -> None:
    found = {finding.what: finding for finding in steady.find_idle(5, window_s=3.0)}
    assert found["operations of a node"].is_met
    assert found["operations of a node"].value > 0.3
    assert found["the same, mean of all others"].value > 0.3


def test_a_few_idle_lifelines_are_held_and_cost_next_to_nothing() -> None:
    cpu, connecting, memory, each = steady.find_lifelines(200, window_s=1.0)
    assert cpu.case == "200 idle lifelines, 1 s"
    assert 0 <= cpu.value < 100
    assert connecting.value > 0
    assert 1 < memory.value < 100
    assert each.value > 0


def test_lifelines_that_take_a_percent_of_a_core_are_too_expensive() -> None:
    sizes = {"empty_bytes": 9_000_000, "full_bytes": 19_000_000}
    held = Held(connecting_cpu_s=0.2, seconds=10.0, cpu_s=0.05, **sizes)
    cpu, connecting, memory, each = steady.judge_lifelines(10_000, held)
    assert (cpu.value, cpu.target, cpu.is_met) == (0.5, "under 1", True)
    assert (connecting.value, memory.value, each.value) == (20.0, 19.0, 1.0)
    assert not steady.judge_lifelines(10_000, replace(held, cpu_s=0.1))[0].is_met


def test_a_few_restarts_leave_the_host_as_small_as_it_was() -> None:
    found = steady.find_growth(50, 150)
    assert "4 nodes restart 150 times" in found[0].case
    assert [finding.is_met for finding in found[:2]] == [None, None]
    assert found[2].value < 50, "early on memory also grows for other reasons"


def test_more_than_a_beat_per_interval_is_too_much() -> None:
    idled = Idled(seconds=10.02, operations=11, node_cpu_s=0.01, host_cpu_s=0.5)
    operations, others, host, node = steady.judge_idle(1_024, 1.0, idled, rate_of_others=1.0)
    assert operations.is_met
    assert (others.value, round(host.value, 1), round(node.value, 1)) == (1.0, 5.0, 0.1)
    too_many = Idled(seconds=10.02, operations=12, node_cpu_s=0.01, host_cpu_s=0.5)
    assert not steady.judge_idle(1_024, 1.0, too_many, rate_of_others=1.0)[0].is_met
    nothing = Idled(seconds=10.02, operations=0, node_cpu_s=0.01, host_cpu_s=0.5)
    assert not steady.judge_idle(1_024, 1.0, nothing, rate_of_others=1.0)[0].is_met, "nothing was counted"


def test_memory_may_grow_by_what_is_remembered_of_a_cycle() -> None:
    *_, growth = steady.judge_growth({1_000: 102_000_000, 500: 100_000_000}, took_s=30.0)
    assert (growth.value, growth.target, growth.is_met) == (4.0, "at most 4", True)
    assert not steady.judge_growth({500: 100_000_000, 1_000: 102_500_000}, took_s=30.0)[2].is_met


def test_the_kernel_tells_what_a_process_has_used() -> None:
    me = os.getpid()
    before = cpu_s(me)
    while cpu_s(me) < before + 0.05:
        pass
    assert rss_bytes(me) > 10_000_000
