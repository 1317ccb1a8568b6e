"""The benchmark of replica groups counts what it says, and a contender that does not do its work is caught."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from benchmarks import groups, ours
from benchmarks.baselines import torchft
from benchmarks.children import call, prepare_environment, serving
from benchmarks.group_steps import Cost, Loss, Step, count_together, judge, parse
from benchmarks.group_training import EVERYBODY, SETUPS, Record, Setup, Stage, lose
from benchmarks.load.restart import Restarted, restart_ours
from benchmarks.measure import OURS, WrongResult, run_case
from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.protocol.participant import Place

PACE_S = 0.5
LOST_AT = 10.1
LOSS = Loss(group=1, at=LOST_AT, are_others_kept=True)


@pytest.fixture(autouse=True, scope="module")
def _environment() -> None:
    prepare_environment()


# --- what a loss costs ------------------------------------------------------------------------------


def train(group: int, first: int, count: int, begin: float, *, pid: int | None = None, of: int = 3) -> list[Step]:
    """Steps at an even pace."""
    pid = 100 + group if pid is None else pid
    return [Step(group, first + i, of, f"w{first + i}", begin + i * PACE_S, pid) for i in range(count)]


def three_groups(pause_s: float = 2.0) -> list[Step]:
    """Step 20 is at 10 s, then group 1 is lost. The others go on after the pause, and later group 1 is back."""
    after = 10.0 + pause_s
    steps = [step for group in range(3) for step in train(group, 1, 20, 0.5)]
    steps += [step for group in (0, 2) for step in train(group, 21, 10, after, of=2)]
    steps += [
        step for group in range(3) for step in train(group, 31, 5, after + 10 * PACE_S, pid=[100, 201, 102][group])
    ]
    return sorted(steps, key=lambda step: step.at)


def test_the_longest_gap_of_the_others_is_measured_with_the_steps_that_fit_into_it() -> None:
    cost = judge(three_groups(pause_s=2.0), LOSS)
    assert cost.gap_s == pytest.approx(2.0)
    assert cost.steps_lost == pytest.approx(2.0 / PACE_S - 1)
    assert cost.back_s == pytest.approx(12.0 + 10 * PACE_S - LOST_AT)


def test_an_interval_that_is_a_little_longer_costs_no_step() -> None:
    cost = judge(three_groups(pause_s=1.9 * PACE_S), LOSS)
    assert cost.gap_s == pytest.approx(1.9 * PACE_S)
    assert cost.steps_lost == 0


def test_steps_that_are_done_again_are_lost() -> None:
    steps = [step for rank in range(3) for step in train(rank, 1, 20, 0.5)]
    steps += [step for rank in range(3) for step in train(rank, 16, 10, 15.0, pid=300 + rank)]
    loss = replace(LOSS, are_others_kept=False, saved_every=5)
    cost = judge(sorted(steps, key=lambda step: step.at), loss)
    assert cost.steps_lost == pytest.approx(5.0 / PACE_S - 1 + 5)


def test_a_gap_before_the_loss_does_not_count() -> None:
    steps = three_groups()
    early = [replace(step, at=step.at - 50) if step.no < 5 else step for step in steps]
    assert judge(sorted(early, key=lambda step: step.at), LOSS).gap_s == pytest.approx(2.0)


def test_the_lines_of_a_worker_are_read_and_an_unfinished_one_is_left_out() -> None:
    line = "step group=1 rank=0 step=7 groups=3 digest=ab12 time=12.345 pid=42\n"
    assert parse([line, "done group=1 rank=0 step=8\n", line[:-4]]) == [Step(1, 7, 3, "ab12", 12.345, 42)]


def test_steps_count_if_all_groups_made_them_together() -> None:
    steps = three_groups()
    assert count_together(steps, 3) == 25
    assert count_together(steps, 3, LOST_AT) == 5
    assert count_together(steps, 2, LOST_AT, but=(1,)) == 10
    assert count_together([step for step in steps if step.group], 3) == 0


def test_a_group_that_is_not_lost_at_all_is_caught() -> None:
    steps = [step for group in range(3) for step in train(group, 1, 30, 0.5)]
    with pytest.raises(WrongResult, match="trained on"):
        judge(steps, LOSS)


def test_a_group_that_trains_on_alone_with_other_weights_is_caught() -> None:
    diverged = [replace(step, digest="other") if step.group == 2 and step.no > 25 else step for step in three_groups()]
    with pytest.raises(WrongResult, match="different weights"):
        judge(diverged, LOSS)
    alone = [replace(step, groups=1) if step.at > LOST_AT else step for step in three_groups()]
    with pytest.raises(WrongResult, match="without the others"):
        judge(alone, LOSS)


def test_a_restart_of_a_group_that_should_train_on_is_caught() -> None:
    restarted = [replace(step, pid=999) if step.group == 2 and step.no > 25 else step for step in three_groups()]
    with pytest.raises(WrongResult, match="group 2 was restarted, too"):
        judge(restarted, LOSS)
    assert judge(restarted, replace(LOSS, are_others_kept=False)).gap_s > 0


def test_a_group_that_does_not_train_after_the_loss_is_caught() -> None:
    with pytest.raises(WrongResult, match="group 0 did not train after"):
        judge([step for step in three_groups() if step.group or step.at < LOST_AT], LOSS)


def test_a_training_that_begins_again_without_its_checkpoint_is_caught() -> None:
    steps = [step for rank in range(3) for step in train(rank, 1, 20, 0.5)]
    steps += [step for rank in range(3) for step in train(rank, 1, 10, 15.0, pid=300 + rank)]
    with pytest.raises(WrongResult, match="without its last checkpoint"):
        judge(steps, replace(LOSS, are_others_kept=False, saved_every=5))


def test_what_was_played_is_counted_by_contender() -> None:
    record = Record(signal.SIGKILL, 3, 1)
    record.costs[OURS] += [Cost(1.0, 7.0, 12.0), Cost(1.2, 9.0, 14.0), Cost(1.1, 30.0, 13.0)]
    record.costs["torchft"] += [Cost(5.0, 33.0, None)]
    found = {finding.what: finding.value for finding in groups.count_losses("a case: longest gap", record)}
    assert found == {
        "ours: steps lost, median": 9.0,
        "ours: steps lost, most": 30.0,
        "ours: the lost group trains again, median": 13.0,
        "torchft: steps lost, median": 33.0,
        "torchft: steps lost, most": 33.0,
    }


# --- generated nodes --------------------------------------------------------------------------------


def run_of(group_size: int) -> RunSettings:
    return replace(ours.run_settings(12, 15), group_size=group_size)


def restart(run: RunSettings) -> Restarted:
    with serving(ours.serve_run, run) as (port, host_pid):
        return call(60.0, restart_ours, run, port, host_pid)


def test_a_generated_group_restarts_and_all_others_read_two_events() -> None:
    run = run_of(3)
    restarted = restart(run)
    groups.check_restart(restarted, run)
    assert groups.operations_of_others(restarted) == [{"get": 2}] * 12
    spent = [
        ops for index, ops in restarted.operations.items() if restarted.after.get(index) != restarted.before.get(index)
    ]
    assert sorted(sum(ops.values()) for ops in spent) == [5, 5, 7]
    reads = groups.count_operations("a case", {OURS: [restarted], EVERYBODY: []})[0]
    assert (reads.value, reads.is_met) == (2, True)


def test_without_groups_all_generated_nodes_restart() -> None:
    run = run_of(0)
    restarted = restart(run)
    groups.check_restart(restarted, run)
    assert len(groups.operations_of_others(restarted)) == 3, "the spares keep none of their places, too"
    with pytest.raises(WrongResult, match="ranks are not exactly"):
        groups.check_restart(restarted, run_of(3))


def made_up(**changes: Place) -> Restarted:
    """Two groups of two nodes; group 1 has restarted."""
    before = {index: place(1, index // 2, index % 2) for index in range(4)}
    after = before | {index: place(2, 1, index - 2) for index in (2, 3)}
    after |= {int(name[1:]): changed for name, changed in changes.items()}
    return Restarted(0.1, before, after, {index: {"get": 2} for index in range(4)}, 0.01)


def place(cycle_id: int, group: int, rank: int, port: int = 1) -> Place:
    return Place(
        cycle_id=cycle_id,
        incarnation="i",
        rank=rank,
        world_size=2,
        master_addr="a",
        master_port=port,
        workers=None,
        group=group,
    )


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"n0": place(2, 0, 0)}, "2 groups have restarted"),
        ({"n3": place(1, 1, 1)}, "ranks are not exactly"),
        ({"n3": place(2, 1, 0)}, "ranks are not exactly"),
        ({"n3": place(3, 1, 1)}, "different cycles"),
        ({"n3": place(2, 1, 1, port=2)}, "different addresses"),
        ({"n4": place(2, 1, 1)}, "not every rank"),
    ],
)
def test_what_is_not_the_restart_of_one_group_is_noticed(changes: dict[str, Place], fact: str) -> None:
    run = replace(ours.run_settings(4), group_size=2)
    groups.check_restart(made_up(), run)
    with pytest.raises(WrongResult, match=fact):
        groups.check_restart(made_up(**changes), run)


def test_a_node_of_another_group_that_does_more_than_listen_is_counted() -> None:
    busy = made_up()
    busy = replace(busy, operations={**busy.operations, 0: {"get": 2, "append": 1}})
    found = groups.count_operations("a case", {OURS: [made_up(), busy], EVERYBODY: []})[0]
    assert (found.value, found.is_met) == (3, False)


# --- real processes ---------------------------------------------------------------------------------

needs_torchft = pytest.mark.skipif(torchft.installed_version() is None, reason="torchft is not installed")


@needs_torchft
def test_real_groups_train_on_when_one_is_killed() -> None:
    cost = lose(SETUPS[OURS], signal.SIGKILL, groups=2, spares=0, must_come_back=False)
    assert 0 < cost.gap_s < 30
    assert cost.steps_lost >= 0
    assert cost.back_s is None


@needs_torchft
def test_real_processes_that_do_not_train_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second group is never started: the contender is not taken for a slow one."""
    monkeypatch.setattr("benchmarks.group_training.START_LIMIT_S", 1.0)

    def start_nothing(stage: Stage) -> None:
        stage.output.write_text("")

    with pytest.raises(AssertionError, match="all groups train"):
        lose(Setup(start_nothing), signal.SIGKILL, groups=2, spares=0, must_come_back=False)


def test_without_torchft_only_generated_nodes_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torchft, "installed_version", lambda: None)
    (case,) = groups.cases(is_quick=True)
    times = run_case(case)
    assert all(len(taken.seconds) == 3 for taken in times.values())
    assert [finding.is_met for finding in groups.findings(True) if finding.target] == [True]
