"""Placement, broken on purpose: one mistake each, of the kind a careful reader could make.

Proves that the properties see. Every variant names the property that catches it; one that is not caught within a few
hundred worlds means that the property is blind or that no such world is drawn.
"""

# ruff: noqa: ARG005 - what replaces a function takes what the function took.

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import msgspec

from ft_rendezvous.core import placement
from ft_rendezvous.core.capacity import Ranks, Spread
from ft_rendezvous.core.model import Arrival, Placement
from tests.core.worlds import KINDS, NODES, SEGMENTS, UNITS, Kind, World, by_name, placed

Placing = Callable[[World], Placement]


@dataclass(frozen=True, slots=True)
class Variant:
    """A mistake, and the one property that must notice it."""

    caught_by: str
    placing: Placing
    kinds: Sequence[Kind]
    """The worlds that show the mistake quickly."""


VARIANTS: dict[str, Variant] = {}


def _variant(caught_by: str, kinds: Sequence[Kind] = KINDS) -> Callable[[Placing], Placing]:
    def register(placing: Placing) -> Placing:
        VARIANTS[placing.__name__] = Variant(caught_by, placing, kinds)
        return placing

    return register


def _with_rules(world: World, **changes: Any) -> World:
    return replace(world, rules=replace(world.rules, **changes))


def _with_node(one: Arrival, **changes: Any) -> Arrival:
    return msgspec.structs.replace(one, node=msgspec.structs.replace(one.node, **changes))


# --- nodes --------------------------------------------------------------------------------------------


@_variant("every_rank_is_given_once")
def the_gone_keep_their_ranks(world: World) -> Placement:
    """A node keeps its rank even if it has not arrived."""
    right = placed(world)
    held = [one.incarnation for one in world.previous[: world.size]]
    return Placement((*held, *right.ranks[len(held) :]), right.standbys)


@_variant("no_node_is_forgotten")
def spares_have_infra_ranks(world: World) -> Placement:
    """A spare without an infra rank is not listed."""
    right, here = placed(world), by_name(world.arrived)
    return Placement(right.ranks, tuple(name for name in right.standbys if here[name].node.infra_rank is not None))


@_variant("arrival_order_does_not_matter")
def first_come_first_placed(world: World) -> Placement:
    """Within a domain, nodes are in the order of their arrival."""
    with patch.object(placement, "_rank_key", lambda arrival: 0):
        return placed(world)


@_variant("nothing_possible_is_better")
def names_are_text(world: World) -> Placement:
    """rack10 comes before rack2."""
    with patch.object(placement, "natural_key", lambda name: (name is not None, name)):
        return placed(world)


# --- which nodes stay --------------------------------------------------------------------------------------


@_variant("no_more_survivors_can_keep_their_ranks")
def every_cycle_is_the_first(world: World) -> Placement:
    """Sticky ranks are given out again."""
    return placed(replace(world, previous=()))


@_variant("ranks_by_topology_forget_the_last_world")
def every_rank_is_sticky(world: World) -> Placement:
    """`ranks` is ignored."""
    return placed(_with_rules(world, ranks=Ranks.STICKY))


@_variant("placing_again_changes_nothing")
def the_last_world_backwards(world: World) -> Placement:
    """The last world is read from its highest rank."""
    return placed(replace(world, previous=world.previous[::-1]))


@_variant("no_more_survivors_can_keep_their_ranks", SEGMENTS)
def those_with_fewest_survivors_stay(world: World) -> Placement:
    """A domain that is short of nodes keeps the segments with the most holes."""

    class WorstFirst(list[Any]):
        def sort(self, **_: Any) -> None:
            super().sort(reverse=True)

    original = placement._Layout.keep_segments

    def keep_segments(self: placement._Layout, pool: placement._Pool) -> list[int]:
        pool.homes = WorstFirst(pool.homes)
        return original(self, pool)

    with patch.object(placement._Layout, "keep_segments", keep_segments):
        return placed(world)


@_variant("nothing_possible_is_better")
def infra_ranks_are_for_order_only(world: World) -> Placement:
    """A node that came back is treated like any other of its domain."""
    return placed(replace(world, previous=tuple(_with_node(one, infra_rank=None) for one in world.previous)))


@_variant("nothing_possible_is_better")
def holes_have_no_domain(world: World) -> Placement:
    """The rank of a lost node goes to the next node of all domains."""
    here = by_name(world.arrived)
    last = [one if one.incarnation in here else _with_node(one, domain_id="nowhere") for one in world.previous]
    return placed(replace(world, previous=tuple(last)))


# --- blocks -----------------------------------------------------------------------------------------


@_variant("segments_are_within_one_domain", SEGMENTS)
def segments_of_any_nodes(world: World) -> Placement:
    """Every node is a segment of its own."""
    return placed(_with_rules(world, segment=1))


@_variant("units_train_whole", UNITS)
def units_of_any_nodes(world: World) -> Placement:
    """Nodes train without regard to their unit."""
    return placed(_with_rules(world, unit_size=1))


@_variant("units_train_whole", UNITS[:1])
def a_large_unit_is_two(world: World) -> Placement:
    """The nodes of a unit above its size are another unit."""
    if world.rules.segment > 1:
        return placed(world)
    seen: Counter[str | None] = Counter()
    split: list[Arrival] = []
    for one in world.arrived:
        unit = one.node.unit_id
        split.append(_with_node(one, unit_id=f"{unit} {seen[unit] // world.rules.unit_size}"))
        seen[unit] += 1
    return placed(replace(world, arrived=tuple(split), previous=()))


@_variant("nothing_possible_is_better", UNITS[:1])
def spare_units_have_no_domain(world: World) -> Placement:
    """A unit is replaced by the next unit of all domains."""
    original = placement._fill
    with patch.object(placement, "_fill", lambda chosen, gone, *rest: original(chosen, {}, *rest)):
        return placed(world)


# --- spares -----------------------------------------------------------------------------------------


@_variant("spares_are_spread_evenly", [NODES])
def nothing_is_spread(world: World) -> Placement:
    """`spread` is ignored."""
    return placed(_with_rules(world, spread=Spread.NONE))


@_variant("new_nodes_are_from_where_most_are_left", [NODES])
def spread_in_turn(world: World) -> Placement:
    """Domains give in turn, without regard to what they have left."""
    original = placement._share_out

    def share_out(count: int, free: Mapping[Any, int], spread: Spread, block: int) -> dict[Any, int]:
        if spread is Spread.NONE:
            return original(count, free, spread, block)
        turns = sorted((turn, index) for index, nodes in enumerate(free.values()) for turn in range(nodes // block))
        given = Counter(index for _, index in turns[:count])
        return {domain: given[index] for index, domain in enumerate(free)}

    with patch.object(placement, "_share_out", share_out):
        return placed(world)


@_variant("spreading_moves_no_survivor")
def spread_anew(world: World) -> Placement:
    """With `spread`, all nodes that train are chosen again."""
    return placed(replace(world, previous=()) if world.rules.spread is Spread.DOMAINS else world)
