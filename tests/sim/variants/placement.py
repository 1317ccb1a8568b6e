"""Which nodes are placed where, and how many."""

# ruff: noqa: ARG001, ARG005 - what replaces a function takes what the function took.

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from ft_rendezvous.core import sealing
from ft_rendezvous.core.capacity import PlacementRules, Policy
from ft_rendezvous.core.model import (
    AnyWhy,
    Arrival,
    Placement,
)
from ft_rendezvous.core.next_cycle import Grow, Growth, MoveDecision, decide_move
from ft_rendezvous.core.next_cycle import World as SealedWorld
from ft_rendezvous.core.placement import place
from ft_rendezvous.core.roster import Roster
from ft_rendezvous.core.sealing import Seal, SealDecision, SealRules, SealView, decide_seal
from ft_rendezvous.protocol import coordinator
from ft_rendezvous.protocol.coordinator import Coordinator
from ft_rendezvous.protocol.ops import Move
from tests.sim.variants.base import all_of, variant

# --- who is placed where ---------------------------------------------------------------------------


def _placing(place_as: Callable[..., Placement]) -> AbstractContextManager[Any]:
    return patch.object(coordinator, "place", place_as)


@variant("blocks_belong_together", segment=2)
def holes_filled_from_any_domain() -> AbstractContextManager[Any]:
    """A node that is lost is replaced by the next one, wherever that is."""

    def place_as(
        arrivals: Mapping[str, Arrival], previous: Sequence[Arrival], size: int, rules: PlacementRules
    ) -> Placement:
        return place(arrivals, previous, size, replace(rules, segment=1) if previous else rules)

    return _placing(place_as)


@variant("blocks_belong_together", unit_size=2)
def units_torn_apart() -> AbstractContextManager[Any]:
    """A unit that has lost a node gets one of another."""

    def place_as(
        arrivals: Mapping[str, Arrival], previous: Sequence[Arrival], size: int, rules: PlacementRules
    ) -> Placement:
        return place(arrivals, previous, size, replace(rules, unit_size=1) if previous else rules)

    return _placing(place_as)


@variant("survivors_keep_their_ranks")
def ranks_follow_the_topology() -> AbstractContextManager[Any]:
    """Every cycle is placed as if it were the first."""
    return _placing(lambda arrivals, previous, size, rules: place(arrivals, (), size, rules))


@variant("survivors_keep_their_ranks", policy=Policy.ELASTIC, focus=("crash", "terminate"))
def survivors_close_ranks() -> AbstractContextManager[Any]:
    """Where nobody comes for a rank, those behind it move up."""

    def place_as(
        arrivals: Mapping[str, Arrival], previous: Sequence[Arrival], size: int, rules: PlacementRules
    ) -> Placement:
        survivors = [arrival for arrival in previous if arrival.incarnation in arrivals]
        return place(arrivals, survivors, size, rules)

    return _placing(place_as)


# --- how many --------------------------------------------------------------------------------------


@variant("worlds_are_of_allowed_size", policy=Policy.ELASTIC)
def shrinks_below_min() -> AbstractContextManager[Any]:
    """An elastic world is as large as there are nodes, and MIN is forgotten."""

    def world_size(self: PlacementRules, capacity: int) -> int:
        return min(self.max_nodes, capacity) // self.block * self.block

    return patch.object(PlacementRules, "world_size", world_size)


@variant("worlds_are_of_allowed_size", policy=Policy.ELASTIC)
def never_larger_than_the_last() -> AbstractContextManager[Any]:
    """The next world is opened to be larger, and sealed as large as the one before."""

    def decide(view: SealView, now: float, rules: SealRules) -> SealDecision:
        decision = decide_seal(view, now, rules)
        if isinstance(decision, Seal) and view.world:
            return Seal(min(decision.world_size, len(view.world)))
        return decision

    return patch.object(coordinator, "decide_seal", decide)


@variant("worlds_are_of_allowed_size", policy=Policy.ELASTIC, focus=("crash", "terminate"))
def shrinks_without_a_last_call() -> AbstractContextManager[Any]:
    """Whoever is not there when there are enough is not waited for."""
    return patch.object(sealing, "_hoped_for", lambda view, rules: 0)


@variant("converges", policy=Policy.ELASTIC)
def growth_counts_the_finished() -> AbstractContextManager[Any]:
    """Nodes that wait for the end of the run are taken for spares: cycles open for them, and they do not come."""

    def _growth(self: Coordinator) -> Growth | None:
        was, to = len(self.roster.world), self.rules.world_size(self.roster.undrained_fit(self.rules))
        return Growth(was, to, 0.0, self.is_growth_called) if to > was and not self.roster.finished_count else None

    return patch.object(Coordinator, "_growth", _growth)


@variant("worlds_grow_for_a_reason", policy=Policy.ELASTIC)
def growth_counts_the_absent() -> AbstractContextManager[Any]:
    """A node that is alive and still stops its workers, or has died unnoticed, is taken for one that has come."""

    def _growth(self: Coordinator) -> Growth | None:
        was, to = len(self.roster.world), self.rules.world_size(self.roster.joinable_fit(self.rules))
        return Growth(was, to, 0.0, self.is_growth_called) if to > was and not self.roster.finished_count else None

    return patch.object(Coordinator, "_growth", _growth)


@variant("worlds_grow_for_a_reason", policy=Policy.ELASTIC, focus=("drain", "start_another"))
def growth_counts_the_draining() -> AbstractContextManager[Any]:
    """A node that was asked to go is taken for one that could come."""
    original = Coordinator._growth

    def _growth(self: Coordinator) -> Growth | None:
        with patch.object(self.roster, "draining", set()):
            return original(self)

    return patch.object(Coordinator, "_growth", _growth)


@variant("worlds_grow_for_a_reason", policy=Policy.ELASTIC, focus=("start_a_visitor",))
def grows_though_nodes_finished() -> AbstractContextManager[Any]:
    """A world that is about to end is opened again for the sake of a newcomer."""
    original = Coordinator._growth

    def _growth(self: Coordinator) -> Growth | None:
        with patch.object(Roster, "finished_count", 0):
            return original(self)

    return patch.object(Coordinator, "_growth", _growth)


@variant("worlds_grow_for_a_reason", policy=Policy.ELASTIC, grow=Grow.CHECKPOINT)
def grows_at_once() -> AbstractContextManager[Any]:
    """Nobody waits for the checkpoint."""

    def decide(world: SealedWorld, now: float, grow: Grow) -> MoveDecision:
        return decide_move(world, now, Grow.NOW)

    return patch.object(coordinator, "decide_move", decide)


@variant(
    "worlds_grow_for_a_reason",
    policy=Policy.ELASTIC,
    grow=Grow.CHECKPOINT,
    focus=("start_a_visitor",),
)
def growth_called_once_a_cycle() -> AbstractContextManager[Any]:
    """The spare that the checkpoint was asked for is gone; the next one finds it written, long ago."""
    return patch.object(Coordinator, "_growth", _remembering_the_call(Coordinator._growth))


def _remembering_the_call(growth_of: Callable[[Coordinator], Growth | None]) -> Callable[[Coordinator], Growth | None]:
    def _growth(self: Coordinator) -> Growth | None:
        is_called = self.is_growth_called
        growth = growth_of(self)
        self.is_growth_called = is_called
        return growth

    return _growth


@variant("converges", policy=Policy.ELASTIC, grow=Grow.CHECKPOINT, focus=("start_a_visitor",))
def growth_called_once_a_run() -> AbstractContextManager[Any]:
    """Workers that were asked once are not asked again, and wait to be."""
    original = Coordinator._open

    def _open(self: Coordinator, why: AnyWhy) -> Move[None]:
        is_called = self.is_growth_called
        yield from original(self, why)
        self.is_growth_called = is_called

    is_kept = patch.object(Coordinator, "_growth", _remembering_the_call(Coordinator._growth))
    return all_of(is_kept, patch.object(Coordinator, "_open", _open))


@variant("converges", policy=Policy.ELASTIC)
def growth_counts_the_arrived() -> AbstractContextManager[Any]:
    """Whoever comes after the seal has not arrived, so the world never grows."""

    def _growth(self: Coordinator) -> Growth | None:
        was, to = len(self.roster.world), self.rules.world_size(self.roster.arrived_fit(self.rules))
        return Growth(was, to, 0.0, self.is_growth_called) if to > was and not self.roster.finished_count else None

    return patch.object(Coordinator, "_growth", _growth)
