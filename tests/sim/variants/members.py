"""Which nodes and which records count."""

# ruff: noqa: ARG001 - what replaces a function takes what the function took.

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import msgspec

from ft_rendezvous.core.effects import Effect, Fence
from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.model import (
    AnyRecord,
    Arrival,
)
from ft_rendezvous.core.roster import Member, Roster
from ft_rendezvous.protocol.coordinator import Coordinator
from tests.sim.variants.base import variant


@variant("ranks_are_exact")
def finished_are_survivors() -> AbstractContextManager[Any]:
    """Nodes that have finished are counted among those that came back."""
    original = Roster.reopen

    def reopen(self: Roster) -> None:
        original(self)
        for name, member in self.members.items():
            if member.role is Role.FINISHED:
                member.role = Role.ARRIVED
                self.arrived[name] = member.arrival

    return patch.object(Roster, "reopen", reopen)


@variant("success_is_earned")
def success_on_first_finish() -> AbstractContextManager[Any]:
    """The first node to finish speaks for all."""
    original = Roster._finish

    def _finish(self: Roster, incarnation: str, member: Member) -> list[Effect]:
        effects = original(self, incarnation, member)
        for world in self.worlds.values():
            world.unfinished.clear()
        return effects

    return patch.object(Roster, "_finish", _finish)


@variant("ranks_are_exact", focus=("stall_a_newcomer", "slow_down"))
def records_of_any_cycle() -> AbstractContextManager[Any]:
    """An arrival in the last cycle counts in this one."""
    original = Roster.take

    def take(self: Roster, record: AnyRecord, cycle_id: int, is_open: bool) -> list[Effect]:
        return original(self, record, record.cycle_id, is_open)

    return patch.object(Roster, "take", take)


@variant("drained_are_not_placed", focus=("drain", "ask_restart"))
def drained_arrivals_count() -> AbstractContextManager[Any]:
    """A node that waits for the seal and is asked to go keeps its arrival."""

    def drain(self: Roster, incarnation: str) -> bool:
        is_new = incarnation in self.members and incarnation not in self.draining
        self.draining.update([incarnation] if is_new else [])
        return is_new

    return patch.object(Roster, "drain", drain)


@variant("drained_are_not_placed", focus=("drain",))
def drains_whoever_remains() -> AbstractContextManager[Any]:
    """The next cycle opens for a drain though too few nodes would remain."""
    original = Coordinator._drain

    def _drain(self: Coordinator) -> Any:
        drain = original(self)
        return drain and replace(drain, is_covered=True)

    return patch.object(Coordinator, "_drain", _drain)


@variant("no_live_node_is_dropped", focus=("restart",))
def one_clock_for_all_boots() -> AbstractContextManager[Any]:
    """A machine that was booted again has a young clock, and its new process is taken for an older start."""
    original = Roster._contest_infra_rank

    def _contest_infra_rank(self: Roster, arrival: Arrival) -> list[Fence]:
        node = msgspec.structs.replace(arrival.node, boot_id="")
        for member in self.members.values():
            same = msgspec.structs.replace(member.arrival.node, boot_id="")
            member.arrival = msgspec.structs.replace(member.arrival, node=same)
        return original(self, msgspec.structs.replace(arrival, node=node))

    return patch.object(Roster, "_contest_infra_rank", _contest_infra_rank)
