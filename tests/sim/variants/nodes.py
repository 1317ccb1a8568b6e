"""What a node does."""

# ruff: noqa: ARG001, ARG005 - what replaces a function takes what the function took.

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from ft_rendezvous.core.model import (
    Seat,
    Verdict,
    VerdictKind,
    View,
)
from ft_rendezvous.core.node_step import Progress, TakeSeat, decide_step
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.protocol import participant
from ft_rendezvous.protocol.node_loop import NodeLoop
from ft_rendezvous.protocol.ops import CHANGED
from ft_rendezvous.protocol.ops import Routine as NodeRoutine
from ft_rendezvous.protocol.participant import Participant
from ft_rendezvous.store.worker_store import Bootstrap
from tests.sim.variants.base import variant


@variant("one_placement_per_cycle")
def seat_of_an_earlier_cycle() -> AbstractContextManager[Any]:
    """A node remembers its seat and does not look again."""
    seats: dict[str, Seat] = {}

    def decide(view: View, mine: Progress, incarnation: str, is_draining: bool) -> Any:
        decision = decide_step(view, mine, incarnation, is_draining)
        if isinstance(decision, TakeSeat):
            return TakeSeat(decision.sealed, seats.setdefault(incarnation, decision.seat))
        return decision

    return patch.object(participant, "decide_step", decide)


@variant("converges", focus=("stall_a_newcomer", "slow_down", "pause_coordinator"))
def head_knows_all() -> AbstractContextManager[Any]:
    """A newcomer that was sealed in while it joined takes the head as it is, which has no seat for it."""
    return patch.object(participant, "watch_from", lambda head, _seal_no: head)


@variant("one_verdict")
def barrier_is_success() -> AbstractContextManager[Any]:
    """Whoever leaves the exit barrier takes the run for a success."""
    original = Participant.await_verdict

    def await_verdict(self: Participant) -> NodeRoutine[Any]:
        yield from original(self)
        return Verdict(VerdictKind.SUCCEEDED)

    return patch.object(Participant, "await_verdict", await_verdict)


@variant("nobody_trains_after_moving_on")
def superseded_and_training() -> AbstractContextManager[Any]:
    """A node hears of the next cycle and does not stop."""
    return patch.object(participant, "is_superseded", lambda view, cycle_id: False)


@variant("converges", focus=("pause", "pause_at_a_call", "pause_between_events"))
def verdict_only_by_ear() -> AbstractContextManager[Any]:
    """A node that has finished and lost its lease waits for an event it can no longer hear."""

    def await_verdict(self: Participant) -> NodeRoutine[Any]:
        while self.verdict is None:
            yield CHANGED
        return self.verdict

    return patch.object(Participant, "await_verdict", await_verdict)


@variant("resets_cost_nothing", focus=("cut",))
def lost_listener_is_not_replaced() -> AbstractContextManager[Any]:
    """A node whose listener has lost its connection goes on beating, and hears no event any more."""
    return patch.object(NodeLoop, "lose_listener", lambda self, error: None)


@variant("resets_cost_nothing", focus=("cut",))
def mended_without_a_listener() -> AbstractContextManager[Any]:
    """A node connects again, and does not listen over the new connection."""
    original = NodeLoop._mend

    def _mend(self: NodeLoop, error: StoreUnavailable) -> Any:
        listen, self._on_listen = self._on_listen, lambda: None
        try:
            return (yield from original(self, error))
        finally:
            self._on_listen = listen

    return patch.object(NodeLoop, "_mend", _mend)


@variant("worker_stores_are_new", focus=("pause", "pause_at_a_call", "partition"))
def socket_kept_for_the_next_cycle() -> AbstractContextManager[Any]:
    """A socket that this node did not serve is announced again, though an earlier seal may have named it."""
    original = Bootstrap.hold
    return patch.object(Bootstrap, "hold", lambda self, *key: original(self, *(self._announced or key)))


@variant("nobody_gives_up_on_a_live_store", focus=("cut",))
def one_reset_is_enough() -> AbstractContextManager[Any]:
    """A node that has lost its connection does not try again."""

    def _mend(self: NodeLoop, error: StoreUnavailable) -> Any:
        raise error
        yield

    return patch.object(NodeLoop, "_mend", _mend)


@variant("converges", focus=("pause", "pause_at_a_call", "pause_between_events"))
def fenced_and_never_stirred() -> AbstractContextManager[Any]:
    """A fenced node has no beat, and nothing else makes it look at the head."""
    original = NodeLoop._beat

    def _beat(self: NodeLoop) -> Any:
        if not self.participant.pulse.is_fenced:
            yield from original(self)

    return patch.object(NodeLoop, "_beat", _beat)


@variant("nobody_gives_up_on_a_live_store", focus=("pause", "pause_at_a_call", "partition"))
def barrier_needs_a_lease() -> AbstractContextManager[Any]:
    """A node that has finished and lost its lease leaves the exit barrier, and the run may go on without a word."""
    original = Participant.await_verdict

    def await_verdict(self: Participant) -> NodeRoutine[Any]:
        for request in original(self):
            if not self.is_trusted():
                raise StoreUnavailable("store", "the lease is lost")
            yield request
        return self.verdict

    return patch.object(Participant, "await_verdict", await_verdict)
