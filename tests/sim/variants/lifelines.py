"""Lifelines: what their end means, at the host and at the node."""

# ruff: noqa: ARG005 - what replaces a function takes what the function took.

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from ft_rendezvous.core.sealing import SealDecision, SealRules, SealView, decide_seal
from ft_rendezvous.core.suspects import LifelineNews, LifelineSign, SuspectTable
from ft_rendezvous.protocol import coordinator, node_loop
from ft_rendezvous.protocol.node_loop import NodeLoop
from tests.sim.variants.base import variant


@variant("a_hang_up_alone_drops_no_node", has_lifelines=True)
def a_hang_up_is_death() -> AbstractContextManager[Any]:
    """A node is dropped as soon as its lifeline has ended."""
    return patch.object(SuspectTable, "judge", lambda self, counters, now: list(counters))


@variant("a_hang_up_alone_drops_no_node", has_lifelines=True)
def a_beat_is_no_sign_of_life() -> AbstractContextManager[Any]:
    """A node that cannot connect its lifeline again is dropped, although it beats."""
    original = SuspectTable.judge

    def judge(self: SuspectTable, counters: Mapping[str, int], now: float) -> list[str]:
        return original(self, dict.fromkeys(counters, 0), now)

    return patch.object(SuspectTable, "judge", judge)


@variant("a_hang_up_alone_drops_no_node", has_lifelines=True)
def a_new_lifeline_is_no_sign_of_life() -> AbstractContextManager[Any]:
    """A node that connects its lifeline again, and beats in vain before the first reading, is dropped."""
    original = SuspectTable.take

    def take(self: SuspectTable, news: Iterable[LifelineNews], now: float) -> None:
        original(self, [each for each in news if each.sign is not LifelineSign.CONNECTED], now)

    return patch.object(SuspectTable, "take", take)


@variant(
    "a_hang_up_alone_drops_no_node",
    focus=("pause_coordinator", "pause_coordinator_at_a_call", "stall_host"),
    has_lifelines=True,
)
def a_late_look_is_judged() -> AbstractContextManager[Any]:
    """A coordinator that stood still takes what it did not hear for silence."""
    original = SuspectTable.judge

    def judge(self: SuspectTable, counters: Mapping[str, int], now: float) -> list[str]:
        earliest = min((self.suspects[name].judged_at for name in counters), default=now)
        dead = original(self, counters, min(now, earliest))
        for suspicion in self.suspects.values():
            suspicion.judged_at += max(0.0, now - earliest)
        return dead

    return patch.object(SuspectTable, "judge", judge)


@variant("a_hang_up_alone_drops_no_node", has_lifelines=True)
def a_lost_lifeline_does_not_hurry() -> AbstractContextManager[Any]:
    """A node that loses its lifeline goes on to beat once per second."""
    return patch.object(NodeLoop, "lose_lifeline", lambda self: None)


@variant("a_hang_up_alone_drops_no_node", has_lifelines=True)
def one_beat_is_enough() -> AbstractContextManager[Any]:
    """A node that loses its lifeline beats once. The host may notice the loss after that beat."""
    return patch.object(node_loop, "HURRY_S", 0.0)


@variant("the_dead_get_no_rank", focus=("crash", "crash_at_a_call", "start_another"), has_lifelines=True)
def suspects_are_placed() -> AbstractContextManager[Any]:
    """A cycle is sealed while a node that arrived in it may be dead."""

    def decide(view: SealView, now: float, rules: SealRules) -> SealDecision:
        return decide_seal(replace(view, suspected=()), now, rules)

    return patch.object(coordinator, "decide_seal", decide)
