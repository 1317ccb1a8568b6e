"""What an update decides, as pure functions: which parties failed, what is cleaned up, and what comes next.

The shell (`attempt`, `fleet`) calls parties and asks here. Times are arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ft_rendezvous.errors import ConfigError

MAX_ATTEMPTS = 2
"""An update is tried once more. A third try would fail of the same cause, and generation stands still meanwhile."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRules:
    """The settings of a fleet."""

    min_parties: int = 1
    step_timeout_s: float = 60.0
    cleanup_timeout_s: float | None = None
    """As `step_timeout_s`, if it is None."""
    abort_timeout_s: float = 5.0
    max_party_failures: int = 3

    def __post_init__(self) -> None:
        if self.min_parties < 1:
            raise ConfigError(f"min_parties is {self.min_parties}: an update needs at least one party")
        if self.max_party_failures < 1:
            raise ConfigError(f"max_party_failures is {self.max_party_failures}: give at least 1")
        for name in ("step_timeout_s", "cleanup_timeout_s", "abort_timeout_s"):
            value = getattr(self, name)
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{name} is {value}: give a time in seconds that ends")


class EndKind(StrEnum):
    """How the call of a step ended on one party."""

    DONE = "done"
    RAISED = "raised"
    UNAVAILABLE = "unavailable"
    """It raised, and its adapter says that the party cannot be reached now."""
    DEAD = "dead"
    """It raised, and its adapter says that the party is gone."""
    STOPPED = "stopped"
    """It was cancelled, because another party failed or the caller was cancelled."""
    GIVEN_UP = "given up"
    """It did not end in time, although it was asked to."""


GONE = frozenset({EndKind.UNAVAILABLE, EndKind.DEAD, EndKind.GIVEN_UP})


@dataclass(frozen=True, slots=True)
class CallEnd:
    """How the call of a step ended on one party, and whether the step's deadline had passed before."""

    party: str
    kind: EndKind
    is_late: bool = False
    is_essential: bool = False


def judge_blame(ends: Sequence[CallEnd], *, has_abort: bool, is_last_attempt: bool) -> tuple[str, ...]:
    """The parties that failed in a step, from the ends of its calls in the order in which they ended.

    In a step with an abort, parties wait for each other. One failure then makes others fail, so only the best evidence
    counts: a party that is gone, else one that was late where others were not, else the first that raised.
    """
    gone = [end for end in ends if end.kind in GONE]
    raised = [end for end in ends if end.kind is EndKind.RAISED and not end.is_late]
    late = [end for end in ends if end.is_late and end.kind not in GONE]
    if not has_abort:
        return _names([*gone, *raised, *late])
    if gone:
        return _names(gone)
    if raised:
        # The errors of an essential party, which is in this process, are seen before those that caused them.
        return () if raised[0].is_essential and not is_last_attempt else (raised[0].party,)
    if len(late) < len(ends) or is_last_attempt:
        return _names(late)
    return ()


def _names(ends: Sequence[CallEnd]) -> tuple[str, ...]:
    return tuple(end.party for end in ends)


def decide_wait_until(
    now: float, deadline: float, abort_timeout_s: float, *, has_abort: bool, is_cancelled: bool
) -> float:
    """How long calls that are not over are awaited after their step has failed, or its caller was cancelled."""
    soon = now + abort_timeout_s
    # Without an abort, a call that cannot be cancelled may just be slow: that is no fault before the deadline.
    return soon if has_abort or is_cancelled else max(soon, deadline)


def decide_cleanup_timeout_s(rules: FleetRules, *, is_silent: bool) -> float:
    """How long one undo or finish may take. A party that has not answered before has to prove that it does."""
    timeout_s = rules.step_timeout_s if rules.cleanup_timeout_s is None else rules.cleanup_timeout_s
    return min(timeout_s, rules.abort_timeout_s) if is_silent else timeout_s


class CleanupKind(StrEnum):
    UNDO = "undo"
    FINISH = "finish"


@dataclass(frozen=True, slots=True)
class CleanupItem:
    """One undo or finish of one party, by the number of its step in the flow."""

    step: int
    kind: CleanupKind


@dataclass(frozen=True, slots=True)
class BegunStep:
    """What there is to clean up of a step that began on a party."""

    step: int
    has_undo: bool
    has_finish: bool


def plan_cleanup(begun: Sequence[BegunStep], *, has_failed: bool) -> list[CleanupItem]:
    """What is called on a party after an attempt, from the steps that began on it, in their order."""
    plan = []
    for each in reversed(begun):
        if has_failed and each.has_undo:
            plan.append(CleanupItem(each.step, CleanupKind.UNDO))
        if each.has_finish:
            plan.append(CleanupItem(each.step, CleanupKind.FINISH))
    return plan


class Ending(StrEnum):
    """What follows from an attempt."""

    COMPLETED = "completed"
    RETRY = "retry"
    RESTORED = "restored"
    """It failed, and enough parties are as they were before, or are new: the next update can reach them."""
    UNRECOVERABLE = "unrecoverable"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFacts:
    """What is known of an attempt when its clean-up is done."""

    attempt: int
    has_completed: bool
    """Every step was done by every party."""
    is_flow_error: bool
    """The flow itself failed, and no party."""
    clean: int
    """Parties that did not fail, and whose clean-up succeeded. Essential parties are not counted."""
    updated: int
    """Of those, the parties that have the version now: no other party took their names meanwhile."""
    lacks_essential: bool
    """An essential party is not among those."""


def decide_ending(facts: AttemptFacts, min_parties: int) -> Ending:
    if facts.clean < min_parties or facts.lacks_essential:
        return Ending.UNRECOVERABLE
    if facts.has_completed:
        return Ending.COMPLETED if facts.updated >= min_parties else Ending.RESTORED
    return Ending.RESTORED if facts.is_flow_error or facts.attempt >= MAX_ATTEMPTS else Ending.RETRY
