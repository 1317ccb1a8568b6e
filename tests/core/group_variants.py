"""Placement of replica groups, broken on purpose: one mistake each.

Every variant names the property that catches it.
"""

# ruff: noqa: ARG005 - what replaces a function takes what the function took.

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

from hypothesis import strategies as st

from ft_rendezvous.core import group_placement, placement
from ft_rendezvous.core.capacity import Ranks, Spread
from ft_rendezvous.core.model import Placement
from tests.core.group_worlds import (
    GROUP_KINDS,
    PAIRS,
    PARTS,
    ROWS,
    TRIPLES,
    GroupKind,
    GroupWorld,
    group_worlds,
    placed,
)
from tests.core.worlds import by_name

Placing = Callable[[GroupWorld], Placement]

STICKY: dict[str, Any] = {"is_first": [False], "ranks": [Ranks.STICKY], "spread": [Spread.NONE]}
"""Draws only worlds that have others before them."""


@dataclass(frozen=True, slots=True)
class GroupVariant:
    """A mistake, and the one property that must notice it."""

    caught_by: str
    placing: Placing
    worlds: st.SearchStrategy[GroupWorld]
    """The worlds that show the mistake quickly."""


GROUP_VARIANTS: dict[str, GroupVariant] = {}


def _variant(caught_by: str, kinds: Sequence[GroupKind] = GROUP_KINDS, **draws: Any) -> Callable[[Placing], Placing]:
    def register(placing: Placing) -> Placing:
        GROUP_VARIANTS[placing.__name__] = GroupVariant(caught_by, placing, group_worlds(kinds, **draws))
        return placing

    return register


def _with_rules(world: GroupWorld, **changes: Any) -> GroupWorld:
    return replace(world, rules=replace(world.rules, **changes))


# --- nodes and groups -------------------------------------------------------------------------------


@_variant("every_rank_is_given_once", [PAIRS])
def the_gone_keep_their_places(world: GroupWorld) -> Placement:
    """A group of the last worlds is formed again with the nodes it had."""
    right, size = placed(world), world.rules.group_size
    held = [
        [one.incarnation for one in world.last[group]] if group in world.last else names
        for group, names in right.by_group()
    ]
    assert all(len(names) == size for names in held)
    return replace(right, ranks=tuple(name for names in held for name in names))


@_variant("no_node_is_forgotten")
def only_spares_with_infra_ranks_are_listed(world: GroupWorld) -> Placement:
    right, here = placed(world), by_name(world.arrived)
    return replace(right, standbys=tuple(name for name in right.standbys if here[name].node.infra_rank is not None))


@_variant("groups_with_the_most_survivors_stay")
def groups_are_numbered_anew(world: GroupWorld) -> Placement:
    """Group ids are not sticky."""
    right = placed(world)
    return replace(right, groups=tuple(range(len(right.groups))))


@_variant("groups_with_the_most_survivors_stay", [PAIRS, TRIPLES])
def the_lowest_groups_stay(world: GroupWorld) -> Placement:
    """Where fewer groups are possible than before, survivors are not counted."""
    count = world.size // world.rules.group_size
    lowest = {group: seats for group, seats in world.worlds.items() if group < count}
    return placed(replace(world, worlds=lowest))


@_variant("arrival_order_does_not_matter")
def first_come_first_placed(world: GroupWorld) -> Placement:
    """Within a domain, nodes are in the order of their arrival."""
    with patch.object(placement, "_rank_key", lambda arrival: 0):
        return placed(world)


# --- segments and domains ---------------------------------------------------------------------------


@_variant("segments_are_within_one_domain", PARTS + ROWS)
def a_segment_is_a_wish(world: GroupWorld) -> Placement:
    return placed(_with_rules(world, segment=1))


@_variant("segments_are_within_one_domain", ROWS)
def a_segment_ends_with_its_group(world: GroupWorld) -> Placement:
    """Groups that share a segment may be in several domains."""
    return placed(_with_rules(world, segment=world.rules.group_size))


@_variant("as_many_new_groups_as_possible_are_within_one_domain", [TRIPLES, PARTS[0]])
def a_group_is_any_nodes_in_a_row(world: GroupWorld) -> Placement:
    """Nodes are placed in topology order, wherever a group ends."""
    with patch.object(group_placement._Wishes, "fulfil", lambda self: None):
        return placed(world)


@_variant("new_groups_are_from_where_most_are_left", [PAIRS], is_first=[True], spread=[Spread.DOMAINS])
def nothing_is_spread(world: GroupWorld) -> Placement:
    return placed(_with_rules(world, spread=Spread.NONE))


# --- which nodes stay -------------------------------------------------------------------------------


@_variant("no_more_survivors_can_keep_their_places")
def every_cycle_is_the_first(world: GroupWorld) -> Placement:
    right = placed(world)
    return replace(placed(replace(world, worlds={})), groups=right.groups)


@_variant("the_returned_come_back", [PAIRS, TRIPLES])
def each_hole_takes_the_next_node(world: GroupWorld) -> Placement:
    """Holes are filled one after the other, and a node that came back may be given to an earlier one."""
    with patch.object(group_placement._Wishes, "_seat_returned", lambda self, free: None):
        return placed(world)


@_variant("holes_are_filled_from_the_domain_of_their_group", [TRIPLES], **STICKY)
def holes_are_at_home_where_the_gone_were(world: GroupWorld) -> Placement:
    """A hole is filled from the domain of the node that is gone, and not of the group."""
    with patch.object(group_placement._Wishes, "_fill", lambda self, ranks, pool: None):
        return placed(world)


@_variant("a_group_that_lost_all_its_nodes_stays_in_its_domain", [PAIRS], **STICKY)
def an_empty_group_is_a_new_one(world: GroupWorld) -> Placement:
    """A group that lost all its nodes is filled in topology order."""
    original = group_placement._Wishes._fill_empty

    def fill_empty(self: group_placement._Wishes, starts: Sequence[int], free: Any) -> None:
        for start in starts:
            size = self.rules.group_size
            self.row[start : start + size] = [group_placement._no_node(group_placement._NOWHERE)] * size
        original(self, starts, free)

    with patch.object(group_placement._Wishes, "_fill_empty", fill_empty):
        return placed(world)


@_variant("placing_again_changes_nothing")
def the_last_worlds_backwards(world: GroupWorld) -> Placement:
    """The last worlds are read from their highest rank."""
    return placed(replace(world, worlds={group: seats[::-1] for group, seats in world.worlds.items()}))


@_variant("ranks_by_topology_forget_the_last_worlds")
def every_rank_is_sticky(world: GroupWorld) -> Placement:
    return placed(_with_rules(world, ranks=Ranks.STICKY))
