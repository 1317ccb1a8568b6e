"""What the run and its nodes are charged with, and when it is closed."""

# ruff: noqa: ARG005 - what replaces a function takes what the function took.

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from ft_rendezvous.core.blame import FailureNote, Ledger, is_excused
from ft_rendezvous.core.effects import Fence
from ft_rendezvous.core.model import (
    AnyWhy,
    Arrival,
    Placement,
    Request,
    Verdict,
    VerdictKind,
)
from ft_rendezvous.core.roster import Roster
from ft_rendezvous.host.staying import HostStay
from ft_rendezvous.protocol import coordinator
from ft_rendezvous.protocol.coordinator import Coordinator
from ft_rendezvous.protocol.membership import Membership
from ft_rendezvous.protocol.ops import Move
from tests.sim.variants.base import variant

# --- blame -----------------------------------------------------------------------------------------


def _excusing(excuse: Callable[[AnyWhy, int, bool], bool]) -> AbstractContextManager[Any]:
    return patch.object(coordinator, "is_excused", excuse)


@variant("charges_are_just", focus=("stall_host", "pause_coordinator"))
def stalls_are_charged() -> AbstractContextManager[Any]:
    """Workers that failed while the host stood still are charged to the run."""
    return _excusing(lambda why, lost_count, has_stalled: is_excused(why, lost_count, False))


@variant("charges_are_just", focus=("crash", "terminate", "restart"))
def losses_are_charged() -> AbstractContextManager[Any]:
    """Workers that failed because a node was lost are charged to the run."""
    return _excusing(lambda why, lost_count, has_stalled: is_excused(why, 0, has_stalled))


@variant("charges_are_just", "every_close_is_justified", focus=("ask_restart", "operator_restarts"))
def restarts_are_charged() -> AbstractContextManager[Any]:
    """An end that was asked for is charged like one that was not."""
    return _excusing(lambda why, lost_count, has_stalled: lost_count > 0 or has_stalled)


@variant("charges_are_just")
def all_who_failed_are_charged() -> AbstractContextManager[Any]:
    """A failure is charged to the node that the last cycle was charged to."""
    original = Ledger._blame
    first: list[FailureNote] = []

    def _blame(self: Ledger, note: FailureNote | None, now: float, can_lose: Callable[[FailureNote], bool]) -> Any:
        if self.charged <= 1:
            first.clear()
        first.extend([note] if note is not None else [])
        return original(self, first[0] if first else None, now, can_lose)

    return patch.object(Ledger, "_blame", _blame)


@variant("quarantined_are_not_placed", focus=("restart", "start_twice"))
def quarantine_of_an_incarnation() -> AbstractContextManager[Any]:
    """A node in quarantine that is started again is taken for another one."""
    return patch.object(Ledger, "quarantined_for", lambda self, key, now: 0.0)


# --- closes ----------------------------------------------------------------------------------------


@variant("every_close_is_justified", focus=("stall_host", "crash", "terminate"))
def stalls_use_up_the_join_timeout() -> AbstractContextManager[Any]:
    """A host that comes back from a stall gives up on nodes that could not arrive."""
    original = Membership.judge_leases

    def judge_leases(self: Membership, published: int) -> Move[float]:
        yield from original(self, published)
        return 0.0

    return patch.object(Membership, "judge_leases", judge_leases)


@variant("every_close_is_justified", focus=("crash", "pause", "restart"))
def join_timeout_of_the_run() -> AbstractContextManager[Any]:
    """The time to find enough nodes is counted from the beginning of the run."""
    original = Coordinator._open

    def _open(self: Coordinator, why: AnyWhy) -> Move[None]:
        opened_at = self.opened_at
        yield from original(self, why)
        self.opened_at = opened_at

    return patch.object(Coordinator, "_open", _open)


@variant("every_close_is_justified", focus=("terminate", "crash", "start_another"))
def spent_for_ever() -> AbstractContextManager[Any]:
    """An agent that gave up counts after another node has trained in its place."""
    original = Roster.seal

    def seal(self: Roster, placement: Placement, cycle_id: int) -> None:
        spent = self.spent_count
        original(self, placement, cycle_id)
        self._rest.spent_count = spent

    return patch.object(Roster, "seal", seal)


@variant("every_close_is_justified", focus=("fail_health_check", "start_unfit"))
def unfit_for_ever() -> AbstractContextManager[Any]:
    """An unfit node counts after another one has come in its place."""
    original = Roster._take_arrival

    def _take_arrival(self: Roster, arrival: Arrival, *cycle: Any) -> list[Fence]:
        unhealthy = dict(self.unhealthy)
        fences = original(self, arrival, *cycle)
        self.unhealthy = unhealthy
        return fences

    return patch.object(Roster, "_take_arrival", _take_arrival)


@variant("every_close_is_justified", focus=("operator_restarts", "operator_lists"))
def any_request_closes() -> AbstractContextManager[Any]:
    """A restart that an operator asks for at the wrong moment closes the run."""
    original = Coordinator._grant_operator

    def _grant_operator(self: Coordinator, request: Request) -> Move[list[str]]:
        draining = yield from original(self, request)
        yield from self.close(Verdict(VerdictKind.CANCELLED, "closed by an operator: maintenance"))
        return draining

    return patch.object(Coordinator, "_grant_operator", _grant_operator)


@variant("every_close_is_justified", focus=("pause", "partition"))
def the_silent_have_left() -> AbstractContextManager[Any]:
    """A run whose nodes are all silent is closed, though they may come back."""
    original = Roster.drop

    def drop(self: Roster, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self._rest.left_count += 1

    return patch.object(Roster, "drop", drop)


@variant("the_host_stays_while_needed", focus=("terminate", "signal_host"))
def the_host_stays_for_a_while() -> AbstractContextManager[Any]:
    """A node whose own part is over takes the store with it when a signal comes."""
    original = HostStay.decide_staying
    return patch.object(
        HostStay, "decide_staying", lambda self, others, has_signal, now: original(self, 0, has_signal, now)
    )
