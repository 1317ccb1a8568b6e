"""Mistakes about replica groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import msgspec

from ft_rendezvous.core import group_placement, groups, model
from ft_rendezvous.core.blame import Ledger, Settlement
from ft_rendezvous.core.groups import GroupRules, GroupStep, GroupsView, OpenGroup, RestartAll
from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.model import AnyEvent, Arrival, View
from ft_rendezvous.core.roster import Roster
from ft_rendezvous.protocol import participant
from ft_rendezvous.protocol.group_cycles import GroupCycles
from ft_rendezvous.protocol.ops import Move
from ft_rendezvous.protocol.publisher import Publisher
from tests.sim.variants.base import variant

THREE: dict[str, Any] = {"group_size": 2, "max_group_failures": 3}


@variant("groups_restart_for_their_own_sake", **THREE)
def one_failure_restarts_all() -> AbstractContextManager[Any]:
    """A group that fails takes all others with it."""
    original = groups._decide_restarts

    def _decide_restarts(view: GroupsView, now: float, rules: GroupRules) -> list[GroupStep]:
        steps: list[GroupStep] = []
        for step in original(view, now, rules)[:1]:
            steps.append(RestartAll(step.why) if isinstance(step, OpenGroup) else step)
        return steps

    return patch.object(groups, "_decide_restarts", _decide_restarts)


@variant("groups_restart_for_their_own_sake", "nodes_are_in_one_group", **THREE)
def the_next_group_restarts() -> AbstractContextManager[Any]:
    """The trouble of one group is charged to another one."""
    original = groups._decide_restarts

    def _decide_restarts(view: GroupsView, now: float, rules: GroupRules) -> list[GroupStep]:
        sealed = [each.group for each in view.groups if each.is_training]
        return [
            replace(step, group=sealed[0]) if isinstance(step, OpenGroup) and sealed else step
            for step in original(view, now, rules)[:1]
        ]

    return patch.object(groups, "_decide_restarts", _decide_restarts)


@variant("nodes_are_in_one_group", group_size=1)
def spares_given_twice() -> AbstractContextManager[Any]:
    """A standby that has got a place still stands by."""
    original = Roster.seal_group

    def seal_group(self: Roster, group: int, ranks: Sequence[str], cycle_id: int) -> dict[str, Role]:
        stood_by = {name: self.ready[name] for name in ranks if name in self.ready}
        changed = original(self, group, ranks, cycle_id)
        for name in stood_by:
            self.members[name].role = Role.STANDBY
        self.ready |= stood_by
        return changed

    return patch.object(Roster, "seal_group", seal_group)


@variant("restarts_of_a_group_are_bounded", **{**THREE, "max_group_failures": 2})
def false_starts_are_forgotten() -> AbstractContextManager[Any]:
    """A group restarts alone however often it fails."""
    original = Ledger.settle_group

    def settle_group(self: Ledger, *args: Any, **kwargs: Any) -> Settlement:
        return replace(original(self, *args, **kwargs), false_starts=0)

    return patch.object(Ledger, "settle_group", settle_group)


@variant("other_groups_train_on", focus=("ask_restart",), **THREE)
def every_opening_concerns_all() -> AbstractContextManager[Any]:
    """A node takes the cycle of another group for its own."""

    def fold_for(view: View, event: AnyEvent, _incarnation: str) -> View:
        return model._take_in(view, event)

    return patch.object(participant, "fold_for", fold_for)


@variant("nobody_trains_after_moving_on", focus=("crash",), **THREE)
def back_to_an_earlier_cycle() -> AbstractContextManager[Any]:
    """A group is sealed with a node that has arrived in a later cycle."""

    def _catch_up(self: GroupCycles, number: int, ranks: Sequence[str]) -> Move[None]:  # noqa: ARG001
        return
        yield

    return patch.object(GroupCycles, "_catch_up", _catch_up)


@variant("converges", focus=("stall_a_newcomer", "slow_down", "crash"), **THREE)
def newcomers_miss_seals_of_groups() -> AbstractContextManager[Any]:
    """The head does not say which seals may count a newcomer."""
    original = Publisher._turn

    def _turn(self: Publisher, event: AnyEvent) -> Any:
        return msgspec.structs.replace(original(self, event), seals=())

    return patch.object(Publisher, "_turn", _turn)


@variant("blocks_belong_together", **{**THREE, "segment": 4})
def groups_of_a_segment_anywhere() -> AbstractContextManager[Any]:
    """A group is filled from any domain, though its segment has one."""

    def _allowed(_group: int, arrivals: Mapping[str, Arrival], *_: Any) -> dict[str, Arrival]:
        return dict(arrivals)

    return patch.object(group_placement, "_allowed", _allowed)


@variant("survivors_keep_their_ranks", **THREE)
def groups_are_placed_anew() -> AbstractContextManager[Any]:
    """A group forgets which rank a survivor had."""
    original = group_placement.fill_group

    def fill_group(group: int, survivors: Any, spares: Any, _worlds: Any, rules: Any) -> Any:
        ranks = original(group, survivors, spares, {}, rules)
        return None if ranks is None else tuple(reversed(ranks))

    return patch.object(groups, "fill_group", fill_group)
