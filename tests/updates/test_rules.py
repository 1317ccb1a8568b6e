"""The decisions of an update, one by one."""

from __future__ import annotations

import pytest

from ft_rendezvous.updates.rules import (
    MAX_ATTEMPTS,
    AttemptFacts,
    BegunStep,
    CallEnd,
    CleanupItem,
    CleanupKind,
    Ending,
    EndKind,
    FleetRules,
    decide_cleanup_timeout_s,
    decide_ending,
    decide_wait_until,
    judge_blame,
    plan_cleanup,
)

DONE, RAISED, DEAD, STOPPED = EndKind.DONE, EndKind.RAISED, EndKind.DEAD, EndKind.STOPPED
GIVEN_UP, UNAVAILABLE = EndKind.GIVEN_UP, EndKind.UNAVAILABLE
LATE = True


def blame(*ends: CallEnd, abort: bool = True, last: bool = False) -> str:
    return " ".join(judge_blame(ends, has_abort=abort, is_last_attempt=last))


@pytest.mark.parametrize("kind", [DEAD, UNAVAILABLE, GIVEN_UP])
def test_a_party_that_is_gone_explains_the_errors_of_those_that_waited_for_it(kind: EndKind) -> None:
    ends = (CallEnd("a", RAISED), CallEnd("b", kind), CallEnd("c", RAISED))
    assert blame(*ends) == "b"
    assert blame(*ends, abort=False) == "b a c"


def test_where_parties_wait_for_each_other_the_first_that_raised_is_to_blame() -> None:
    assert blame(CallEnd("a", DONE), CallEnd("c", RAISED), CallEnd("b", RAISED)) == "c"


def test_where_they_do_not_each_answers_for_itself() -> None:
    ends = (CallEnd("a", RAISED), CallEnd("b", RAISED), CallEnd("c", STOPPED), CallEnd("d", DONE, LATE))
    assert blame(*ends, abort=False) == "a b d"


def test_late_is_who_was_not_done_when_others_were() -> None:
    assert blame(CallEnd("a", DONE), CallEnd("b", RAISED, LATE), CallEnd("c", DONE, LATE)) == "b c"


def test_if_all_are_late_and_came_back_none_is_to_blame_before_the_last_try() -> None:
    ends = (CallEnd("a", RAISED, LATE), CallEnd("b", RAISED, LATE))
    assert blame(*ends) == ""
    assert blame(*ends, last=True) == "a b"


def test_an_essential_party_that_raises_first_may_just_have_been_seen_first() -> None:
    ends = (CallEnd("trainer", RAISED, is_essential=True), CallEnd("b", RAISED))
    assert blame(*ends) == ""
    assert blame(*ends, last=True) == "trainer"
    assert blame(*ends, abort=False) == "trainer b"


def test_calls_that_cannot_be_released_may_be_slow_until_the_deadline() -> None:
    assert decide_wait_until(10.0, 60.0, 5.0, has_abort=False, is_cancelled=False) == 60.0
    assert decide_wait_until(58.0, 60.0, 5.0, has_abort=False, is_cancelled=False) == 63.0
    assert decide_wait_until(10.0, 60.0, 5.0, has_abort=True, is_cancelled=False) == 15.0
    assert decide_wait_until(10.0, 60.0, 5.0, has_abort=False, is_cancelled=True) == 15.0


def test_a_silent_party_has_less_time_for_its_clean_up() -> None:
    rules = FleetRules(step_timeout_s=60.0, abort_timeout_s=5.0)
    assert decide_cleanup_timeout_s(rules, is_silent=False) == 60.0
    assert decide_cleanup_timeout_s(rules, is_silent=True) == 5.0
    short = FleetRules(step_timeout_s=60.0, cleanup_timeout_s=2.0, abort_timeout_s=5.0)
    assert [decide_cleanup_timeout_s(short, is_silent=silent) for silent in (False, True)] == [2.0, 2.0]


def test_clean_up_goes_back_through_the_steps_and_undoes_before_it_finishes() -> None:
    begun = [BegunStep(0, False, True), BegunStep(1, True, True), BegunStep(3, True, False), BegunStep(4, False, False)]
    undo, finish = CleanupKind.UNDO, CleanupKind.FINISH
    assert plan_cleanup(begun, has_failed=True) == [
        CleanupItem(3, undo),
        CleanupItem(1, undo),
        CleanupItem(1, finish),
        CleanupItem(0, finish),
    ]
    assert plan_cleanup(begun, has_failed=False) == [CleanupItem(1, finish), CleanupItem(0, finish)]


def ending(
    *,
    attempt: int = 1,
    completed: bool = False,
    flow: bool = False,
    clean: int = 2,
    updated: int = 2,
    lacks: bool = False,
) -> Ending:
    facts = AttemptFacts(
        attempt=attempt,
        has_completed=completed,
        is_flow_error=flow,
        clean=clean,
        updated=updated,
        lacks_essential=lacks,
    )
    return decide_ending(facts, min_parties=2)


def test_what_follows_from_an_attempt() -> None:
    assert ending(completed=True) is Ending.COMPLETED
    assert ending() is Ending.RETRY
    assert ending(attempt=MAX_ATTEMPTS) is Ending.RESTORED
    assert ending(flow=True) is Ending.RESTORED
    assert ending(clean=1) is Ending.UNRECOVERABLE
    assert ending(lacks=True) is Ending.UNRECOVERABLE
    assert ending(completed=True, clean=1) is Ending.UNRECOVERABLE
    assert ending(completed=True, updated=1) is Ending.RESTORED
