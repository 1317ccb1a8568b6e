"""Leases, fences and who is taken for dead."""

# ruff: noqa: ARG001, ARG005 - what replaces a function takes what the function took.

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from ft_rendezvous.core.effects import Fence, FenceCause
from ft_rendezvous.core.leases import LeaseTable, Pulse
from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.model import (
    Arrival,
    node_name,
)
from ft_rendezvous.core.recent import RecentNames
from ft_rendezvous.core.roster import Roster
from ft_rendezvous.protocol import moves
from ft_rendezvous.protocol.membership import Membership
from ft_rendezvous.protocol.ops import Move
from ft_rendezvous.protocol.participant import Participant
from tests.sim.variants.base import all_of, variant


@variant("no_dead_incarnation_placed", "fenced_nodes_stop")
def fence_without_incarnation() -> AbstractContextManager[Any]:
    """A fenced node comes back under its old incarnation, and the coordinator has forgotten the fence."""
    original_init, original_remove = Participant.__post_init__, Roster._remove

    def __post_init__(self: Participant) -> None:
        original_init(self)
        draw = self.new_incarnation
        self.new_incarnation = lambda: self.incarnation or draw()

    def _remove(self: Roster, incarnation: str) -> None:
        original_remove(self, incarnation)
        self.fenced = RecentNames()

    return all_of(patch.object(Participant, "__post_init__", __post_init__), patch.object(Roster, "_remove", _remove))


@variant("no_live_node_is_dropped", focus=("pause_coordinator_at_a_call",))
def leases_survive_no_pause() -> AbstractContextManager[Any]:
    """A coordinator that was paused blames the nodes for what it did not see."""
    original = LeaseTable.observe

    def observe(self: LeaseTable, counters: Any, now: float, planned_gap_s: float, published: int) -> None:
        original(self, counters, now, float("inf"), published)

    return patch.object(LeaseTable, "observe", observe)


@variant("no_live_node_is_dropped", focus=("pause_between_events", "slow_down"))
def deaf_after_one_lease() -> AbstractContextManager[Any]:
    """A node that is slow to act upon events is given no more time than one that is silent."""

    def judge_deaf(self: LeaseTable, now: float) -> list[str]:
        behind = {name: lease.behind_since for name, lease in self.leases.items() if lease.behind_since is not None}
        return [name for name, since in behind.items() if now - since >= self.lease_s]

    return patch.object(LeaseTable, "judge_deaf", judge_deaf)


@variant("no_dead_incarnation_placed", "converges")
def dead_still_placed() -> AbstractContextManager[Any]:
    """The lease is judged, the fence is written, and the roster is not told."""

    def _drop(self: Membership, incarnation: str, cause: FenceCause, reason: str) -> Move[None]:
        name = self.roster.members[incarnation].name
        yield from self.fence(Fence(incarnation, name, cause, reason))

    return patch.object(Membership, "_drop", _drop)


@variant("no_dead_incarnation_placed", focus=("crash", "pause", "start_another"))
def leases_only_in_training() -> AbstractContextManager[Any]:
    """A node that waits for the seal gets twenty leases more. Without end, a closed run would wait for it too."""
    original = Membership._drop
    renewed: Counter[str] = Counter()

    def _drop(self: Membership, incarnation: str, cause: FenceCause, reason: str) -> Move[None]:
        if self.roster.members[incarnation].role is not Role.ARRIVED or renewed[incarnation] == 20:
            yield from original(self, incarnation, cause, reason)
        else:
            renewed[incarnation] += 1
            self.leases.leases[incarnation].seen_at = self.clock()

    return patch.object(Membership, "_drop", _drop)


@variant("fenced_nodes_stop")
def beat_reply_unchecked() -> AbstractContextManager[Any]:
    """A node takes any reply to its beat for a renewed lease."""

    def take_reply(self: Pulse, sent: int, found: int, sent_at: float) -> None:
        self.counter = found
        self.alive_until = sent_at + self.lease_s

    return patch.object(Pulse, "take_reply", take_reply)


@variant("fenced_nodes_stop", focus=("pause_at_a_call", "slow_down"))
def lease_from_the_reply() -> AbstractContextManager[Any]:
    """A node counts its lease from when it heard of it, which is later than when the coordinator saw the beat."""

    def beat(self: Participant) -> Move[None]:
        pulse = self.pulse
        if not self.incarnation or self.has_left or pulse.is_fenced:
            return
        counter = pulse.next_counter(self.view.no if self.view is not None else 0)
        found = yield from moves.beat(self.keys, self.incarnation, pulse.counter, counter)
        pulse.take_reply(counter, found, self.clock())

    return patch.object(Participant, "beat", beat)


@variant("no_live_node_is_dropped", focus=("restart", "start_twice", "pause_coordinator"))
def last_read_start_wins() -> AbstractContextManager[Any]:
    """Of two starts of one node, the one whose record is read last stays: that may be the dead one."""
    original = Roster._contest_infra_rank

    def _contest_infra_rank(self: Roster, arrival: Arrival) -> list[Fence]:
        holder = self.members.get(self.by_infra_rank.get(arrival.node.infra_rank or 0, ""))
        if holder is None or holder.arrival.node.addr != arrival.node.addr:
            return original(self, arrival)
        reason = f"{node_name(arrival.node)} is a newer start of {holder.name}"
        self.drop(holder.arrival.incarnation)
        return [Fence(holder.arrival.incarnation, holder.name, FenceCause.REPLACED, reason)]

    in_any_order = patch("ft_rendezvous.protocol.membership.sorted", lambda items, key: list(items), create=True)
    return all_of(in_any_order, patch.object(Roster, "_contest_infra_rank", _contest_infra_rank))


@variant("no_live_node_is_dropped", focus=("pause_coordinator", "pause_coordinator_at_a_call"))
def one_look_per_lease() -> AbstractContextManager[Any]:
    """A coordinator that plans to look seldom cannot tell its own pause from a node's silence."""
    original = Membership.judge_leases

    def judge_leases(self: Membership, published: int) -> Move[float]:
        before = self.leases.looked_at
        stall_s = yield from original(self, published)
        if self.leases.looked_at is not None and self.leases.looked_at != before:
            self.look_gap_s = self.settings.lease_s
            self.next_look_at = self.leases.looked_at + self.look_gap_s
        return stall_s

    return patch.object(Membership, "judge_leases", judge_leases)
