"""Updates, broken on purpose: one mistake each. Every check must see the mistake that it is there for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import Phase, given, settings

from ft_rendezvous.updates import attempt, rules, update_run
from ft_rendezvous.updates.cleanup import PartyCleanup
from ft_rendezvous.updates.membership import FleetMembership
from ft_rendezvous.updates.party import Party, PlainAdapter
from ft_rendezvous.updates.rules import plan_cleanup
from ft_rendezvous.updates.states import PartyState
from ft_rendezvous.updates.step_run import StepRun
from ft_rendezvous.updates.update_run import UpdateRun
from tests.updates.drawing import scenarios
from tests.updates.naive_model import NaiveModel
from tests.updates.rig import (
    BLOCK_S,
    NAMES,
    Cell,
    Rig,
    calls_when_all_tasks_are_cancelled_before_their_first_step,
    find_faults,
)
from tests.updates.scenario import Scenario, Stage

RAISES = Cell("transfer", "gen-1", "raises", is_blocking=True, min_parties=3)
COMPLETES = Cell("transfer", "gen-1", "raises", is_blocking=True, min_parties=2)
Patch = AbstractContextManager[object]


# --- the mistakes -------------------------------------------------------------------------------------


def _stop_at_the_first_error(self: PartyCleanup) -> None:
    """The clean-up of a party ends when one undo fails."""
    if self.has_failed:
        self.over.set_result(None)
    else:
        _call_next(self)


def _replace_the_cause(self: UpdateRun) -> None:
    _complete_error(self)
    if self.error is not None and self.error.cleanup_errors:
        self.error.__cause__ = self.error.cleanup_errors[0].__cause__


def _take_the_last_error(self: StepRun, blamed: Any) -> tuple[str, BaseException]:
    failed = [call for call in self._over if call.error is not None]
    if self.is_expired or not failed:
        return _first_error(self, blamed)
    assert failed[-1].error is not None
    return failed[-1].record.name, failed[-1].error


def _serve_from_any_state(self: FleetMembership, min_version: int | None) -> tuple[Party, ...]:
    return tuple(record.party for record in self.records if (record.version or -1) >= (min_version or 0))


def _keep_the_state_of_the_former_party(self: FleetMembership, party: Party) -> None:
    former = self._records.get(party.name)
    if former is None or former.state is not PartyState.HEALTHY:
        _put(self, party)


def _call_in_the_loop(self: PlainAdapter, name: str) -> Any:
    method = getattr(self._target, name)

    async def call(*args: Any) -> Any:
        return method(*args)

    return call


def _forget_what_began(self: StepRun) -> set[str]:
    return {call.record.name for call in self.calls}


def _clean_up_in_order(begun: Any, *, has_failed: bool) -> Any:
    return plan_cleanup(begun, has_failed=has_failed)[::-1]


def _finish_only_after_success(begun: Any, *, has_failed: bool) -> Any:
    return [item for item in plan_cleanup(begun, has_failed=has_failed) if not has_failed or item.kind == "undo"]


def _undo_after_success(begun: Any, *, has_failed: bool) -> Any:  # noqa: ARG001
    return plan_cleanup(begun, has_failed=True)


def _blame_all_that_raised(ends: Any, *, has_abort: bool, is_last_attempt: bool) -> Any:  # noqa: ARG001
    return _judge_blame(ends, has_abort=False, is_last_attempt=is_last_attempt)


_complete_error, _first_error, _put = UpdateRun._complete_error, StepRun.first_error, FleetMembership.put
_judge_blame, _call_next = rules.judge_blame, PartyCleanup._call_next


# --- the rig sees them --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mistake", "cell", "caught_by"),
    [
        (patch.object(PartyCleanup, "_call_next", _stop_at_the_first_error), RAISES, "what began is cleaned up once"),
        (
            patch.object(UpdateRun, "_complete_error", _replace_the_cause),
            RAISES,
            "the first error is seen",
        ),
        (patch.object(FleetMembership, "serving", _serve_from_any_state), COMPLETES, "one version serves"),
        (patch.object(PlainAdapter, "attribute", _call_in_the_loop), COMPLETES, "the event loop never pauses"),
        (patch.object(attempt, "plan_cleanup", _clean_up_in_order), COMPLETES, "what began is cleaned up once"),
        (patch.object(attempt, "plan_cleanup", _finish_only_after_success), RAISES, "what began is cleaned up once"),
        (patch.object(attempt, "plan_cleanup", _undo_after_success), COMPLETES, "what began is cleaned up once"),
    ],
    ids=[
        "undo is skipped after an error",
        "the first error is replaced",
        "a party without the version serves",
        "a blocking call is in the loop",
        "clean-up in the order of the steps",
        "finish only after success",
        "undo after success",
    ],
)
def test_the_rig_sees_a_mistake(mistake: Patch, cell: Cell, caught_by: str) -> None:
    right = Rig(cell, block_s=BLOCK_S)
    right.run()
    assert find_faults(right) - {"the event loop never pauses"} == set()
    with mistake:
        wrong = Rig(cell, block_s=BLOCK_S)
        wrong.run()
        assert caught_by in find_faults(wrong)


def test_a_step_that_did_not_begin_is_not_undone() -> None:
    expected = {name: ["one", "undo one"] for name in NAMES}
    assert calls_when_all_tasks_are_cancelled_before_their_first_step() == expected
    with patch.object(StepRun, "begun", _forget_what_began):
        assert calls_when_all_tasks_are_cancelled_before_their_first_step() != expected


# --- the model sees them ------------------------------------------------------------------------------


@settings(max_examples=400, phases=[Phase.generate], database=None)
@given(scenarios())
def compare(scenario: Scenario) -> None:
    assert Stage(scenario).run() == NaiveModel(scenario).run()


@pytest.mark.parametrize(
    "mistake",
    [
        lambda: patch.object(StepRun, "first_error", _take_the_last_error),
        lambda: patch.object(FleetMembership, "put", _keep_the_state_of_the_former_party),
        lambda: patch.object(attempt, "plan_cleanup", _finish_only_after_success),
        lambda: patch.object(rules, "MAX_ATTEMPTS", 1),
        lambda: patch("ft_rendezvous.updates.step_run.judge_blame", _blame_all_that_raised),
        lambda: patch.object(update_run, "decide_ending", lambda *_: rules.Ending.COMPLETED),
    ],
    ids=[
        "the first error is replaced",
        "a stale party serves",
        "finish only after success",
        "no second try",
        "errors that follow from another are blamed",
        "every update is said to have completed",
    ],
)
def test_the_model_sees_a_mistake(mistake: Callable[[], Patch]) -> None:
    with mistake(), pytest.raises((AssertionError, ExceptionGroup)):
        compare()
