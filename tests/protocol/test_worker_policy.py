"""Which failure of its workers a node reports, and what torch's agent gets to see: one fact after the other."""

from __future__ import annotations

import pytest

from ft_rendezvous.protocol.worker_policy import (
    SPENT_REASON,
    STUCK_REASON,
    AgentSight,
    GroupState,
    WorkerFailure,
    WorkerPolicy,
)

CYCLE_ID = 3
BEGAN_AT, SEEN_AT, LOOKS_AT = 100.0, 101.5, 105.0
HIDDEN = AgentSight(GroupState.HEALTHY)


@pytest.fixture
def policy() -> WorkerPolicy:
    policy = WorkerPolicy()
    policy.begin(CYCLE_ID, BEGAN_AT)
    return policy


def see(policy: WorkerPolicy, cycle_id: int = CYCLE_ID, code: int | None = 7, is_over: bool = False) -> object:
    return policy.see_failure(cycle_id, 4, code, SEEN_AT, is_over)


def look(policy: WorkerPolicy, is_over: bool = False, state: GroupState = GroupState.FAILED) -> AgentSight:
    return policy.look(state, {9: -11, 4: 7} if state is GroupState.FAILED else {}, LOOKS_AT, is_over)


SEEN = WorkerFailure(CYCLE_ID, 4, 7, after_s=1.5)
LOOKED_AT = WorkerFailure(CYCLE_ID, 4, 7, after_s=5.0)


def test_the_watch_reports_and_the_agent_sees_the_failure_without_a_second_report(policy: WorkerPolicy) -> None:
    assert see(policy) == SEEN
    assert see(policy) is None
    assert look(policy) == AgentSight(GroupState.FAILED, None, SPENT_REASON)


def test_without_a_watch_the_agent_reports_the_lowest_rank_once(policy: WorkerPolicy) -> None:
    assert look(policy) == AgentSight(GroupState.FAILED, LOOKED_AT, SPENT_REASON)
    assert look(policy).report is None
    assert see(policy) is None


@pytest.mark.parametrize(("code", "was_over"), [(None, False), (7, True)], ids=["no exit code", "the cycle was over"])
def test_what_the_watch_did_not_report_the_agent_reports_with_the_time_of_the_watch(
    policy: WorkerPolicy, code: int | None, was_over: bool
) -> None:
    assert see(policy, code=code, is_over=was_over) is None
    assert look(policy).report == SEEN


def test_a_failure_is_excused_only_while_the_cycle_is_over_and_nothing_was_reported(policy: WorkerPolicy) -> None:
    assert look(policy, is_over=True) == HIDDEN
    assert look(policy).report is not None
    assert look(policy, is_over=True).state is GroupState.FAILED, "the report may have ended the cycle"


def test_a_stuck_worker_is_reported_unless_the_cycle_is_over(policy: WorkerPolicy) -> None:
    assert look(policy, True, GroupState.UNHEALTHY) == AgentSight(GroupState.UNHEALTHY, None, STUCK_REASON)
    stuck = WorkerFailure(CYCLE_ID, None, None, after_s=5.0)
    assert look(policy, False, GroupState.UNHEALTHY) == AgentSight(GroupState.UNHEALTHY, stuck, STUCK_REASON)
    assert look(policy, False, GroupState.UNHEALTHY).report is None


@pytest.mark.parametrize("is_over", [True, False])
@pytest.mark.parametrize("state", [GroupState.HEALTHY, GroupState.SUCCEEDED])
def test_what_did_not_fail_is_seen_as_it_is(policy: WorkerPolicy, state: GroupState, is_over: bool) -> None:
    assert look(policy, is_over, state) == AgentSight(state)


def test_a_failure_without_exit_codes_is_seen_and_left_to_the_next_rendezvous(policy: WorkerPolicy) -> None:
    assert policy.look(GroupState.FAILED, {}, LOOKS_AT, False) == AgentSight(GroupState.FAILED, None, SPENT_REASON)


def test_workers_that_are_being_stopped_do_not_fail(policy: WorkerPolicy) -> None:
    policy.stop()
    assert see(policy) is None


def test_every_place_begins_without_a_report_and_hears_nothing_of_the_last(policy: WorkerPolicy) -> None:
    see(policy)
    policy.stop()
    policy.begin(CYCLE_ID + 1, BEGAN_AT)
    assert see(policy) is None, "a late watch of the last place"
    assert look(policy).report == WorkerFailure(CYCLE_ID + 1, 4, 7, after_s=5.0)


def test_before_the_first_place_nothing_is_reported() -> None:
    assert look(WorkerPolicy()).report is None
    assert see(WorkerPolicy(), cycle_id=0) is None


def test_messages_of_other_cycles_are_not_taken(policy: WorkerPolicy) -> None:
    assert [policy.takes_message(cycle_id) for cycle_id in (CYCLE_ID - 1, CYCLE_ID, CYCLE_ID + 1)] == [
        False,
        True,
        False,
    ]


def test_the_drain_signal_is_forwarded_once(policy: WorkerPolicy) -> None:
    assert [policy.forwards_drain() for _ in range(3)] == [True, False, False]
