"""Replica groups in the fold: only the group that is meant ends, opens and is sealed; and no time gets lost."""

from __future__ import annotations

from random import Random

import pytest

from ft_rendezvous.core.model import (
    GroupFailsAgain,
    GroupForms,
    NodesLost,
    NoGroupTrains,
    Outcome,
    RestartRequested,
    VerdictKind,
    WorkersFailed,
)
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.events import decode_line, encode_state, replay, take_event
from ft_rendezvous.state.model.records import Cycle, CycleStatus, Group, GroupStatus, NodeRole, Run, RunStatus
from ft_rendezvous.state.model.run_state import NS, RunState
from ft_rendezvous.state.model.view import end_last, view_cycles, view_nodes, view_run, view_vanished
from tests.state.group_story import GroupStory, tell_group_story, training
from tests.state.recording import record_seed
from tests.state.test_fold import training as training_without_groups


def run_of(story: GroupStory) -> Run:
    run = view_run(story.state, story.now_ns)
    assert run is not None
    return run


def group_of(story: GroupStory, number: int) -> Group:
    return next(group for group in run_of(story).groups if group.group == number)


def cycle_of(story: GroupStory, cycle_id: int) -> Cycle:
    return view_cycles(story.state, story.now_ns)[cycle_id - 1]


def node_of(story: GroupStory, rank: int) -> tuple[int | None, int | None, NodeRole]:
    (node,) = (node for node in view_nodes(story.state) if node.incarnation == story.lives[rank])
    return node.group, node.group_rank, node.role


def lost_of(story: GroupStory) -> dict[str, tuple[int, float]]:
    """How often and how long, in milliseconds' precision, by cause."""
    return {cause: (lost.times, round(lost.seconds, 3)) for cause, lost in run_of(story).lost.items()}


def times_of(record: Run | Group) -> tuple[float, float]:
    """Trained and lost."""
    return round(record.trained_s, 3), round(record.lost_s, 3)


def statuses(story: GroupStory) -> list[str]:
    return [str(group.status) for group in run_of(story).groups]


# --- what is shown --------------------------------------------------------------------------------------


def test_a_run_without_groups_shows_none() -> None:
    story = training_without_groups()
    run = view_run(story.state, story.now_ns)
    assert run is not None
    assert run.groups == ()
    assert {node.group for node in view_nodes(story.state)} == {None}
    (cycle,) = view_cycles(story.state, story.now_ns)
    assert (cycle.group, cycle.groups, cycle.left) == (None, (), {})


def test_the_first_cycle_is_of_all_groups() -> None:
    story = training()
    cycle = cycle_of(story, 1)
    assert (cycle.group, cycle.groups, cycle.active) == (None, (0, 1, 2), 6)
    assert cycle.status_detail == "groups 0, 1, 2 train in it"
    assert statuses(story) == ["RUNNING"] * 3
    assert [node_of(story, rank)[:2] for rank in range(7)] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
        (None, None),
    ]
    ranks = {node.infra_rank: node.global_ranks for node in view_nodes(story.state)}
    assert (ranks[2], ranks[3], ranks[6]) == ((0, 7), (8, 15), None), "they begin at 0 in each group"
    assert run_of(story).status_detail == "6 nodes train, in 3 groups"
    group = group_of(story, 1)
    assert (group.live, group.wanted, group.restarts, group.cycle_id) == (2, 2, 0, 1)
    assert group.why_text == "the run begins"


def test_a_group_restarts_alone() -> None:
    story = training()
    story.wait(100)
    _, why = story.fail(3)
    story.open(why, 1)
    assert statuses(story) == ["RUNNING", "WAITING", "RUNNING"]
    run = run_of(story)
    assert (run.status, run.cycle_id) == (RunStatus.RUNNING, 2)
    assert run.status_detail == (
        "4 nodes train, in 2 of 3 groups; group 1 restarts, workers failed on infra rank 3 at 10.0.0.13 pid 4203 "
        "(rank 1): exit code 1; waiting for 2 of 2 nodes: infra ranks 2 and 3, stopping workers"
    )
    assert [node_of(story, rank)[2] for rank in (0, 3)] == [NodeRole.ACTIVE, NodeRole.AWAITED]
    first, second = view_cycles(story.state, story.now_ns)
    assert (first.status, first.left) == (CycleStatus.RUNNING, {1: CycleStatus.ERRORED})
    assert first.status_detail == "groups 0, 2 train in it"
    assert (second.group, second.status, second.previous_id) == (1, CycleStatus.PENDING, 1)
    story.arrive(2, 3, after_s=2.0)
    assert second.status_detail.startswith("waiting for 2 of 2 nodes")
    assert cycle_of(story, 2).arrived == 2
    story.seal_group(1, 2, 3, after_s=1.0)
    assert statuses(story) == ["RUNNING"] * 3
    group = group_of(story, 1)
    assert (group.cycle_id, group.restarts, group.why_text) == (2, 1, str(why))
    assert group_of(story, 0).restarts == 0
    assert cycle_of(story, 2).groups == (1,)


def test_a_common_cycle_ends_with_the_last_of_its_groups_as_badly_as_the_worst() -> None:
    story = training(spares=2)
    story.open(story.fail(3)[1], 1)
    story.open(RestartRequested("an operator", ""), 0)
    assert cycle_of(story, 1).status is CycleStatus.RUNNING
    story.arrive(2, 0, 3, 1)  # Of two groups, in one entry.
    assert (cycle_of(story, 2).arrived, cycle_of(story, 3).arrived) == (2, 2)
    story.seal_group(0, 0, 1)
    story.seal_group(1, 2, 3)
    story.open(RestartRequested("an operator", ""), 2)
    first = cycle_of(story, 1)
    assert first.left == {1: CycleStatus.ERRORED, 0: CycleStatus.ABORTED, 2: CycleStatus.ABORTED}
    assert (first.status, first.end_time_ns) == (CycleStatus.ERRORED, story.now_ns)


def test_a_spare_takes_the_rank_of_a_lost_node_in_its_group() -> None:
    story = training()
    story.open(story.lose(5), 2)
    story.arrive(4)
    story.seal_group(2, 4, 6)
    assert node_of(story, 6) == (2, 1, NodeRole.ACTIVE)
    assert node_of(story, 5)[:2] == (2, 1), "a dead node keeps what it had"
    assert group_of(story, 2).live == 2


def test_a_group_without_a_replacement_waits_and_says_for_whom() -> None:
    story = training(spares=0)
    story.open(story.lose(5), 2)
    story.arrive(4)
    story.lacks(2, "1 of 2 nodes have arrived")
    story.wait(7)
    group = group_of(story, 2)
    assert (group.status, group.live, group.wanted) == (GroupStatus.WAITING, 1, 2)
    assert group.status_detail == "waiting for 1 of 2 nodes: infra rank 5, last seen 12 s ago"
    assert run_of(story).status is RunStatus.RUNNING


def test_a_survivor_that_misses_the_seal_of_its_group_is_in_no_group() -> None:
    story = training()
    story.open(story.fail(3)[1], 1)
    story.arrive(2)
    story.seal_group(1, 2, 6)
    assert node_of(story, 3) == (None, None, NodeRole.HOT_SPARE)
    story.arrive(3)
    assert node_of(story, 3) == (None, None, NodeRole.STANDBY)
    assert group_of(story, 1).live == 2


def test_an_open_cycle_of_a_group_may_be_opened_anew() -> None:
    story = training()
    story.wait(30)
    _, why = story.fail(3)
    story.open(why, 1)
    story.arrive(2, 3)
    story.open(why, 1, after_s=2.0)
    story.seal_group(1, 2, 3, after_s=1.0)
    group = group_of(story, 1)
    assert (group.restarts, group.cycle_id, times_of(group)) == (1, 3, (30.0, 3.0))
    assert [cycle.status for cycle in view_cycles(story.state, story.now_ns)] == [
        CycleStatus.RUNNING,
        CycleStatus.ABORTED,
        CycleStatus.RUNNING,
    ]
    assert lost_of(story) == {"workers_failed": (1, 1.0)}
    assert cycle_of(story, 3).stop_time_ns == cycle_of(story, 2).start_time_ns


def test_a_dissolved_group_is_shown_until_it_is_formed_again() -> None:
    story = training(spares=0)
    story.open(story.lose(5), 2)
    story.arrive(4)
    story.open(story.lose(3), 1)
    story.arrive(2)
    story.dissolve(2, "group 1 needs its nodes, and no others come", after_s=30.0)
    assert statuses(story) == ["RUNNING", "WAITING", "DISSOLVED"]
    assert node_of(story, 4) == (None, None, NodeRole.STANDBY)
    cycle = cycle_of(story, 2)
    assert (cycle.status, cycle.seal_time_ns) == (CycleStatus.ABORTED, None)
    assert group_of(story, 2).status_detail == "group 1 needs its nodes, and no others come"
    story.seal_group(1, 2, 4)
    assert run_of(story).status_detail == "4 nodes train, in 2 groups"
    story.join(3, 5, after_s=5.0)
    story.form(2, 3, 5)
    assert statuses(story) == ["RUNNING"] * 3
    assert (group_of(story, 2).restarts, group_of(story, 2).cycle_id) == (1, 4)
    assert cycle_of(story, 4).previous_id is None
    story.join(7, 8)
    story.form(3, 7, 8)
    assert statuses(story) == ["RUNNING"] * 4
    assert group_of(story, 3).restarts == 0


def test_a_common_cycle_ends_the_open_cycles_of_groups() -> None:
    story = training(spares=0)
    story.wait(100)
    story.open(story.lose(5), 2)
    story.arrive(4, after_s=1.0)
    story.open(story.lose(3), 1, after_s=20.0)
    lost = story.lose(0, after_s=40.0)
    why = NoGroupTrains((0,), str(lost))
    story.open(why)
    assert statuses(story) == ["WAITING"] * 3
    assert run_of(story).status is RunStatus.RESTARTING
    first, second, third, common = view_cycles(story.state, story.now_ns)
    assert [each.status for each in (first, second, third)] == [
        CycleStatus.ERRORED,
        CycleStatus.ABORTED,
        CycleStatus.ABORTED,
    ]
    assert (common.group, common.previous_id, common.arrived) == (None, None, 0)
    assert node_of(story, 4)[2] is NodeRole.AWAITED
    assert common.status_detail.startswith("waiting for 2 of 2 nodes: infra rank 0, last seen 5 s ago;")
    story.arrive(1, 2, 4, after_s=2.0)
    story.seal((1, 2), after_s=0.0)
    assert statuses(story) == ["RUNNING", "DISSOLVED", "DISSOLVED"]
    assert group_of(story, 1).status_detail == "there were no nodes for it in cycle 4"
    assert node_of(story, 2)[:2] == (0, 1)
    assert node_of(story, 4) == (None, None, NodeRole.STANDBY)
    assert {group.restarts for group in run_of(story).groups} == {1}, "an open cycle that ends is no restart"


def test_groups_keep_their_numbers_in_a_common_cycle() -> None:
    story = training(spares=0)
    story.open(GroupFailsAgain(1, 3))
    story.lose(0)
    story.lose(1)
    story.arrive(2, 3, 4, 5)
    story.seal((2, 3), (4, 5), groups=(1, 2))
    assert statuses(story) == ["DISSOLVED", "RUNNING", "RUNNING"]
    assert node_of(story, 4)[:2] == (2, 0)


def test_a_group_that_has_finished_and_the_end() -> None:
    story = training()
    story.finish(2, 3)
    assert statuses(story) == ["RUNNING", "FINISHED", "RUNNING"]
    assert run_of(story).status_detail == "4 nodes train, in 2 of 3 groups; group 1 has finished"
    story.lose(3)
    assert statuses(story)[1] == "FINISHED"
    assert group_of(story, 1).live == 2
    story.finish(0)
    story.go(1, Outcome.SUCCEEDED)
    assert statuses(story) == ["FINISHED", "FINISHED", "RUNNING"]
    story.open(story.lose(5), 2)
    assert run_of(story).status is RunStatus.RESTARTING, "no node trains"
    story.dissolve(2, "it lacks nodes, and all other groups have finished")
    story.end()
    assert statuses(story) == ["FINISHED", "FINISHED", "DISSOLVED"]
    assert [cycle.status for cycle in view_cycles(story.state, story.now_ns)] == [
        CycleStatus.FINISHED,
        CycleStatus.ABORTED,
    ]


@pytest.mark.parametrize("kind", [VerdictKind.FAILED, VerdictKind.CANCELLED])
def test_a_run_that_is_closed_ends_every_cycle_and_group(kind: VerdictKind) -> None:
    story = training()
    story.open(story.fail(3)[1], 1)
    story.end(kind, "enough")
    word = {VerdictKind.FAILED: "ERRORED", VerdictKind.CANCELLED: "ABORTED"}[kind]
    assert statuses(story) == [word] * 3
    assert {str(cycle.status) for cycle in view_cycles(story.state, story.now_ns)} == {word}


def test_a_coordinator_that_vanished_leaves_no_group_and_no_cycle_running() -> None:
    story = training()
    story.open(story.fail(3)[1], 1)
    gone = view_vanished(run_of(story), story.now_ns)
    assert {group.status for group in gone.groups} == {GroupStatus.ABORTED}
    assert gone.groups[1].status_detail.startswith("before that: WAITING, waiting for 2 of 2 nodes")
    cycles = end_last(view_cycles(story.state, story.now_ns), story.now_ns)
    assert {cycle.status for cycle in cycles} == {CycleStatus.ABORTED}


def test_the_first_failure_of_a_common_cycle_is_that_of_the_group_that_was_settled_first() -> None:
    story = training()
    for group, rank in ((1, 3), (0, 1)):
        note, why = story.fail(rank, f"exit code {rank}")
        story.open(why, group)
        story.tell(journal.CycleSettled(cycle_id=1, failures=1, first=note))
    first = cycle_of(story, 1)
    assert (first.failure_count, first.first_failure_node) == (2, story.name(3))


# --- time -----------------------------------------------------------------------------------------------


def test_what_one_of_three_groups_loses_is_a_third_of_the_runs_time() -> None:
    story = training()
    story.wait(90)
    story.open(story.lose(5, silent_s=5.0), 2)
    story.arrive(4, after_s=1.0)
    open_run = view_run(story.state, story.now_ns + 3 * NS)
    assert open_run is not None
    assert open_run.lost["nodes_lost"].seconds == pytest.approx((5 + 1 + 3) / 3)
    story.seal_group(2, 4, 6, after_s=6.0)
    story.wait(30)
    run = run_of(story)
    assert lost_of(story) == {"nodes_lost": (1, 4.0)}
    assert run.trained_s + run.lost_s == pytest.approx(90 + 7 + 30)
    cycle = cycle_of(story, 2)
    assert cycle.lost_s == pytest.approx(4.0)
    assert cycle.seal_time_ns is not None
    assert cycle.stop_time_ns == cycle.seal_time_ns - 12 * NS
    assert times_of(group_of(story, 2)) == (115.0, 12.0)
    assert times_of(group_of(story, 0)) == (127.0, 0.0)


def test_two_groups_that_wait_at_once_lose_two_thirds() -> None:
    story = training()
    story.wait(60)
    story.open(story.fail(3)[1], 1)
    story.open(story.fail(1)[1], 0, after_s=3.0)
    story.arrive(2, 3, after_s=3.0)
    story.seal_group(1, 2, 3, after_s=0.0)
    story.arrive(0, 1, after_s=3.0)
    story.seal_group(0, 0, 1, after_s=0.0)
    assert lost_of(story) == {"workers_failed": (2, 4.0)}
    assert times_of(run_of(story)) == (65.0, 4.0)


def test_a_dissolved_group_has_no_share_and_a_new_one_has() -> None:
    story = training(spares=0, nnodes="4:8")
    story.open(story.lose(5, silent_s=0.0), 2)
    story.arrive(4)
    story.dissolve(2, "why not", after_s=30.0)
    assert run_of(story).lost_s == pytest.approx(10.0)
    assert cycle_of(story, 2).lost_s == pytest.approx(10.0)
    story.wait(20)
    assert times_of(run_of(story)) == (40.0, 10.0)
    story.join(5)
    story.form(2, 4, 5)
    assert run_of(story).lost["nodes_lost"].times == 1, "forming a group costs nothing"
    story.wait(30)
    story.open(story.fail(0)[1], 0)
    story.arrive(0, 1)
    story.seal_group(0, 0, 1, after_s=3.0)
    assert run_of(story).lost_s == pytest.approx(11.0)


def test_a_common_pause_is_one_pause() -> None:
    story = training()
    story.wait(100)
    story.open(RestartRequested("an operator", ""))
    story.arrive(*range(7), after_s=2.0)
    story.seal((0, 1), (2, 3), (4, 5), after_s=1.0)
    assert lost_of(story) == {"restart_requested": (1, 3.0)}
    assert times_of(run_of(story)) == (100.0, 3.0)


def test_a_group_that_waited_before_a_common_cycle_is_charged_for_itself() -> None:
    story = training(spares=0)
    story.wait(100)
    story.open(story.lose(5, silent_s=5.0), 2)
    story.wait(25)  # It has not trained for 30 s by now.
    story.open(GroupFailsAgain(1, 3))
    story.arrive(0, 1, 2, 3)
    story.seal((0, 1), (2, 3), after_s=4.0)
    assert lost_of(story) == {"nodes_lost": (1, 10.0), "group_fails_again": (1, 4.0)}
    assert times_of(run_of(story)) == (115.0, 14.0)


def test_a_corrected_cause_is_that_of_its_own_group() -> None:
    story = training()
    story.wait(100)
    story.open(story.fail(4)[1], 2)
    story.open(story.fail(0, "exit code 7")[1], 0)
    story.arrive(4, 0, 1, after_s=2.0)
    lost = story.lose(5, silent_s=5.0, after_s=3.0)
    story.tell(journal.CauseCorrected(cycle_id=2, why=lost))
    story.seal_group(2, 4, 6, after_s=0.0)
    story.seal_group(0, 0, 1, after_s=0.0)
    assert lost_of(story) == {"nodes_lost": (1, 1.667), "workers_failed": (1, 1.667)}
    assert group_of(story, 2).why_text == str(lost)
    assert cycle_of(story, 3).why_text.endswith("exit code 7")
    # All groups but one have left the common cycle: it goes on, and its end is told by the last.
    story.open(WorkersFailed("n", 0, "last"), 1)
    assert cycle_of(story, 1).status_detail == "workers failed on n (rank 0): last"
    late = NodesLost(("later",), (0,))
    story.tell(journal.CauseCorrected(cycle_id=3, why=late))
    assert cycle_of(story, 1).status_detail == "workers failed on n (rank 0): last"
    story.tell(journal.CauseCorrected(cycle_id=4, why=late))
    assert cycle_of(story, 1).status_detail == str(late)


def test_a_group_may_stay_in_a_cycle_that_is_long_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ft_rendezvous.state.model.cycle_fold.SUMMARIES", 20)
    monkeypatch.setattr("ft_rendezvous.state.model.cycle_fold.TRIM", 5)
    story = training()
    for _ in range(60):
        story.open(story.fail(3)[1], 1, after_s=10.0)
        story.arrive(2, 3)
        story.seal_group(1, 2, 3)
    assert story.state.cycles[0].cycle_id > 30
    assert group_of(story, 0).cycle_id == 1
    story.open(story.lose(5), 2)
    story.arrive(4)
    story.seal_group(2, 4, 6)
    assert [group.cycle_id for group in run_of(story).groups] == [1, 61, 62]
    story.end()


# --- any order ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_told_the_fold_agrees_with_the_roster_and_all_time_is_accounted_for(seed: int) -> None:
    """The story compares roles, groups and ranks at every opening and seal."""
    rng, story = Random(seed), training(spares=seed % 3)
    began_ns, number = story.now_ns, 20
    for _ in range(120):
        story.wait(rng.choice([0.0, 0.5, 7.0, 400.0]))
        _take_step(rng, story, number)
        number += 1
        run = run_of(story)
        assert run.trained_s + run.lost_s == pytest.approx((story.now_ns - began_ns) / NS, abs=1e-3)
        assert (run.status is RunStatus.RUNNING) == any(each.status is GroupStatus.RUNNING for each in run.groups)
    assert encode_state(replay(iter(story.lines))) == encode_state(story.state)
    story.end(VerdictKind.CANCELLED)
    assert all(cycle.is_terminal() for cycle in view_cycles(story.state, story.now_ns))


def _take_step(rng: Random, story: GroupStory, number: int) -> None:
    """Something that may happen: nodes come and are lost, groups end, wait, are filled, given up and formed."""
    roster = story.roster
    ranks = {life: rank for rank, life in story.lives.items()}
    if story.is_open:
        story.arrive(*(ranks[name] for name in list(roster.members) if name not in roster.arrived))
        while len(roster.arrived) < 2:
            story.join(number + 1_000 + len(roster.arrived))
            ranks = {life: rank for rank, life in story.lives.items()}
        here = [ranks[name] for name in roster.arrived]
        worlds = [tuple(here[start : start + 2]) for start in range(0, len(here) - 1, 2)][:3]
        story.seal(*worlds, groups=tuple(sorted(rng.sample(range(4), len(worlds)))))
        return
    match rng.choice(["join", "lose", "fail", "fail", "seal", "seal", "dissolve", "form", "all"]):
        case "join":
            story.join(number)
        case "lose" if roster.members:
            name = rng.choice(list(roster.members))
            group = roster.group_of(name)
            lost = story.lose(ranks[name])
            if group is not None and group not in roster.open_groups:
                story.open(lost, group)
        case "fail" if sealed := [group for group in roster.worlds if group not in roster.open_groups]:
            world = roster.worlds[rng.choice(sealed)]
            active = [ranks[name] for name in world.ranks if name in roster.members]
            story.open(story.fail(rng.choice(active))[1], world.group)
            story.arrive(*active[: rng.choice([1, 2])], after_s=rng.choice([0.0, 3.0]))
        case "seal" if roster.open_groups:
            group = rng.choice(list(roster.open_groups))
            own = [name for name in roster.worlds[group].ranks if name in roster.arrived]
            chosen = [*own, *roster.ready][:2]
            if len(chosen) == 2:
                story.seal_group(group, *(ranks[name] for name in chosen))
        case "dissolve" if len(roster.worlds) > 1 and roster.open_groups:
            story.dissolve(rng.choice(list(roster.open_groups)), "it lacks nodes")
        case "form" if len(roster.ready) >= 2:
            group = next(each for each in range(9) if each not in roster.worlds)
            story.form(group, *(ranks[name] for name in list(roster.ready)[:2]))
        case "all" if rng.random() < 0.3:
            story.open(NoGroupTrains((0,), "of a test"))


def test_simulated_runs_have_what_may_happen_to_groups() -> None:
    """At every look, the recording compares what is folded with what the coordinator knows."""
    kinds: set[str] = set()
    for seed in range(200):
        if record_seed(seed).state.has_groups:
            kinds |= {_kind(event.event) for event in record_seed(seed).events}
        if kinds >= {"common", "group", "formed", "dissolved"}:
            return
    raise AssertionError(f"only {kinds}")


def _kind(entry: object) -> str:
    match entry:
        case journal.GroupDissolved():
            return "dissolved"
        case journal.CycleOpened(why=GroupForms()):
            return "formed"
        case journal.CycleOpened(group=None):
            return "common"
        case journal.CycleOpened():
            return "group"
    return ""


def test_a_story_of_a_night_can_be_told_up_to_any_moment() -> None:
    story = tell_group_story()
    state = RunState()
    for line in story.lines:
        event = decode_line(line)
        state = take_event(state, event)
        assert view_run(state, event.timestamp_ns) is not None
        view_cycles(state, event.timestamp_ns)
    assert state.status is RunStatus.FINISHED
