"""Whether a run reached what we set out to reach."""

from __future__ import annotations

import pytest

from benchmarks.measure import OURS
from benchmarks.registry import BENCHMARKS
from benchmarks.report import Row
from benchmarks.targets import LIMITS, TARGETS, judge


def row(benchmark: str, case: str, contender: str, ratio: float | None) -> Row:
    return Row(benchmark, case, contender, (), 1.0, None, ratio)


@pytest.mark.parametrize(("ratio", "is_met"), [(29.9, False), (30.0, True), (45.0, True)])
def test_a_contender_should_take_so_much_longer(ratio: float, is_met: bool) -> None:
    (found,) = judge([row("read", "10,000 nodes, first read", "slots, JSON", ratio)])
    assert (found.what, found.value, found.target, found.is_met) == ("slots, JSON / ours", ratio, "at least 30", is_met)


@pytest.mark.parametrize(("ratio", "value", "is_met"), [(0.25, 4.0, False), (0.5, 2.0, True)])
def test_we_should_take_no_longer_than_so_many_raw_ones(ratio: float, value: float, is_met: bool) -> None:
    (found,) = judge([row("form", "10,000 nodes, generated", "raw operations", ratio)])
    assert (found.what, found.value, found.is_met) == ("ours / raw operations", value, is_met)


def test_what_a_run_did_not_measure_is_not_judged() -> None:
    assert judge([row("form", "64 nodes", "nvrx", 80.0)]) == []


@pytest.mark.parametrize("contender", ["c10d", "raw operations"])
def test_a_target_is_missed_where_ours_did_not_finish(contender: str) -> None:
    case = "64 nodes" if contender == "c10d" else "1,024 nodes"
    (found,) = judge([row("form", case, contender, None)])
    assert found.is_met is False


@pytest.mark.parametrize(("seconds", "is_met"), [(0.03, True), (0.031, False), (None, False)])
def test_what_users_wait_for_has_a_limit(seconds: float | None, is_met: bool) -> None:
    (found,) = judge([Row("placement", "10,000 nodes, sticky after a loss", OURS, (), seconds, None, 1.0)])
    assert (found.target, found.is_met) == ("at most 30", is_met)


def test_every_target_is_of_a_case_that_is_run() -> None:
    run = {(case.benchmark, case.name) for cases in BENCHMARKS.values() for case in cases(False)}
    named = {(target.benchmark, target.case) for target in (*TARGETS, *LIMITS)}
    assert named <= run


def test_every_target_has_one_side() -> None:
    assert all((target.at_least is None) != (target.at_most is None) for target in TARGETS)
