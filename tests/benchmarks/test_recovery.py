"""A world recovers in every contender, and its times are measured from where they should be."""

from __future__ import annotations

from concurrent.futures import Future
from functools import partial

import pytest

from benchmarks import end_to_end, form, recovery
from benchmarks.children import prepare_environment
from benchmarks.crowd import Seat, in_thread
from benchmarks.losing import Loss, TellingLeases, lose_node
from benchmarks.measure import OURS, DidNotFinish, run_case
from benchmarks.restarting import first
from benchmarks.scenarios_c10d.observe import Story
from ft_rendezvous.config.settings import RunSettings


@pytest.fixture(autouse=True, scope="module")
def _environment() -> None:
    prepare_environment()


def test_a_quick_run_restarts_a_world_with_either_rendezvous() -> None:
    (case,) = recovery.cases(is_quick=True)
    times = run_case(case)
    assert all(taken.limit_s is None and len(taken.seconds) == 1 for taken in times.values())
    assert OURS in times
    assert recovery.findings(is_quick=True) == []


def test_a_killed_node_is_replaced_when_its_lease_is_over() -> None:
    run = RunSettings(run_id="benchmark", min_nodes=2, max_nodes=3, has_lifelines=False)
    loss, formed = lose_node(run)
    form.check(formed, 2)
    assert loss.after_lease_s is not None
    assert 0 < loss.after_lease_s < loss.total_s
    assert loss.total_s > run.lease_s - 2 * run.beat_s


@pytest.mark.parametrize("has_reaper", [False, True], ids=["machine", "agent"])
def test_a_killed_node_is_replaced_when_its_lifeline_has_ended(has_reaper: bool) -> None:
    loss, formed = lose_node(RunSettings(run_id="benchmark", min_nodes=2, max_nodes=3), has_reaper=has_reaper)
    form.check(formed, 2)
    assert loss.after_lease_s is None, "no lease has ended"


def test_the_medians_of_deaths_and_host_losses_are_judged() -> None:
    deaths = recovery.judge_deaths("killed", [Loss(None, 0.1), Loss(None, 0.2), Loss(None, 9.0)], 0.4)
    assert [(finding.value, finding.is_met) for finding in deaths] == [(0.2, True), (9.0, None)]
    hosts = recovery.judge_host_losses([1.5, 2.0, 0.5])
    assert [(finding.value, finding.is_met) for finding in hosts] == [(1.5, False), (2.0, None)]


def test_the_end_of_a_lease_is_told_once() -> None:
    told: list[float] = []
    run = RunSettings(run_id="benchmark", min_nodes=2, max_nodes=3)
    leases = TellingLeases(run, told.append)
    leases.grant("live", 10.0)
    leases.grant("dead", 11.0)
    leases.observe({"live": 7, "dead": 3}, 12.0, 1.0, published=0)
    leases.observe({"live": 8, "dead": 3}, 12.5, 1.0, published=0)
    assert leases.judge_leases(17.2) == ["dead"]
    assert told == [12.0 + run.lease_s]


def test_the_median_is_judged_and_the_worst_is_shown() -> None:
    losses = [Loss(0.01, 5.1), Loss(0.02, 5.2), Loss(0.9, 9.0)]
    found = {finding.what: finding for finding in recovery.judge_losses(losses, lease_s=5.0)}
    assert found["lease's end to last rank, median"].value == 0.02
    assert found["lease's end to last rank, worst"].value == 0.9
    assert [finding.is_met for finding in found.values()] == [True, None, True, None]
    late = recovery.judge_losses([Loss(0.1, 5.5)], lease_s=5.0)
    assert [finding.is_met for finding in late] == [False, None, False, None]


def test_one_node_may_stay_without_a_place() -> None:
    seats = [(1.0, Seat(0, 2, "a:1")), (2.0, Seat(1, 2, "a:1"))]
    waiting: Future[tuple[float, Seat]] = Future()
    held = first(2, [in_thread(lambda: seats[0]), waiting, in_thread(lambda: seats[1])])
    assert held == seats


def test_a_node_that_fails_is_not_taken_for_one_that_has_a_place() -> None:
    def fail() -> tuple[float, Seat]:
        raise RuntimeError("no place")

    with pytest.raises(RuntimeError, match="no place"):
        first(1, [in_thread(fail)])


def test_what_was_played_once_is_told_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    stories = iter([Story(recovery_s=7.5), Story(recovery_s=8.5), Story(missed="not seen: n0 trains again")])
    starts = iter([3.5, 4.5])

    def play(scenario: partial[None], *_: object) -> Story:
        story = next(stories)
        if story.recovery_s is not None:
            _, note_start = scenario.args
            note_start(next(starts))
        return story

    monkeypatch.setattr(end_to_end, "play", play)
    record = end_to_end.Record(end_to_end.AS_THEY_COME, end_to_end.lose_node)
    assert [record.steps()[OURS]() for _ in range(2)] == [7.5, 8.5]
    with pytest.raises(DidNotFinish):
        record.steps()["c10d"]()
    assert [record.starts()[OURS]() for _ in range(2)] == [3.5, 4.5]
    with pytest.raises(DidNotFinish):
        record.starts()["c10d"]()
