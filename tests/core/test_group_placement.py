"""Which node trains in which replica group: compared with trying everything, by properties, by example.

Placements that are broken on purpose show that the properties can fail.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from ft_rendezvous.core.capacity import PlacementRules, Ranks, Spread
from ft_rendezvous.core.group_placement import choose_spares, fill_group, place_groups
from ft_rendezvous.core.model import Arrival
from tests.core.group_variants import GROUP_VARIANTS, Placing
from tests.core.group_worlds import (
    GROUP_KINDS,
    PAIRS,
    TRIPLES,
    Domain,
    GroupKind,
    GroupWorld,
    group_worlds,
    most_kept,
    most_whole_groups,
    patterns,
    placed,
    ranks_of,
)
from tests.core.worlds import by_name, names, seat

SOON = settings(max_examples=3000, phases=[Phase.generate], derandomize=True)
"""A variant that is not found in this many worlds counts as not found."""

# --- properties -------------------------------------------------------------------------------------

Property = Callable[[GroupWorld, Placing], bool]
PROPERTIES: dict[str, Property] = {}


def _property(holds: Property) -> Property:
    PROPERTIES[holds.__name__] = holds
    return holds


def domains_of(world: GroupWorld, placing: Placing) -> dict[int, list[Domain]]:
    """The domains of each group's nodes, by rank."""
    here = by_name(world.arrived)
    return {group: [here[name].node.domain_id for name in names] for group, names in placing(world).by_group()}


@_property
def every_rank_is_given_once(world: GroupWorld, placing: Placing) -> bool:
    ranks = placing(world).ranks
    return len(ranks) == len(set(ranks)) == world.size and set(ranks) <= by_name(world.arrived).keys()


@_property
def no_node_is_forgotten(world: GroupWorld, placing: Placing) -> bool:
    placement = placing(world)
    return sorted([*placement.ranks, *placement.standbys]) == sorted(by_name(world.arrived))


@_property
def groups_with_the_most_survivors_stay(world: GroupWorld, placing: Placing) -> bool:
    """Groups that share a segment stay together. Equals: the lower number. New groups have the lowest free numbers."""
    here, count = by_name(world.arrived), world.size // world.rules.group_size // world.row
    survivors = Counter(dict.fromkeys(range(count), 0))
    for (group, _), one in world.seats.items():
        survivors[group // world.row] += one.incarnation in here
    best = sorted(survivors, key=lambda row: (-survivors[row], row))[:count]
    return placing(world).groups == tuple(
        row * world.row + offset for row in sorted(best) for offset in range(world.row)
    )


@_property
def segments_are_within_one_domain(world: GroupWorld, placing: Placing) -> bool:
    size, segment = world.rules.group_size, world.rules.segment
    blocks: dict[int, set[Domain]] = {}
    for group, domains in domains_of(world, placing).items():
        for rank, domain in enumerate(domains):
            blocks.setdefault((group * size + rank) // segment, set()).add(domain)
    return all(len(found) == 1 and (segment == 1 or None not in found) for found in blocks.values())


@_property
def no_more_survivors_can_keep_their_places(world: GroupWorld, placing: Placing) -> bool:
    placement = placing(world)
    seats = world.seats
    kept = sum(at in seats and seats[at].incarnation == name for at, name in ranks_of(placement).items())
    return kept == most_kept(world, placement.groups)


@_property
def the_returned_come_back(world: GroupWorld, placing: Placing) -> bool:
    """A node with the infra rank and the domain of a node that is gone has its place, if its domain has that."""
    placement, here = placing(world), by_name(world.arrived)
    gone = {
        (one.node.infra_rank, one.node.domain_id): at
        for at, one in world.seats.items()
        if at[0] in placement.groups and one.incarnation not in here and one.node.infra_rank is not None
    }
    survivors = {one.incarnation for at, one in world.seats.items() if at[0] in placement.groups}
    ranks = ranks_of(placement)
    places = {name: at for at, name in ranks.items()}
    return all(
        places.get(name) == gone[own]
        for name, one in here.items()
        if name not in survivors
        and (own := (one.node.infra_rank, one.node.domain_id)) in gone
        and (world.rules.segment == 1 or here[ranks[gone[own]]].node.domain_id == one.node.domain_id)
    )


@_property
def holes_are_filled_from_the_domain_of_their_group(world: GroupWorld, placing: Placing) -> bool:
    """For groups without segments: as many holes as the domain of most survivors has nodes left for.

    A node that came back counts as a survivor.
    """
    placement, here = placing(world), by_name(world.arrived)
    if world.rules.segment > 1:
        return True
    keeps = {at: name for at, name in ranks_of(placement).items() if _is_same(world.seats.get(at), here[name])}
    free = Counter(one.node.domain_id for name, one in here.items() if name not in keeps.values())
    wanted: Counter[Domain] = Counter()
    found: Counter[Domain] = Counter()
    for group, members in placement.by_group():
        homes = Counter(here[name].node.domain_id for rank, name in enumerate(members) if (group, rank) in keeps)
        if len(homes) > 1 and len(set(homes.values())) < len(homes):
            return True  # Which of two domains with equally many survivors is the group's, is left open.
        if homes and len(members) > homes.total():
            home = max(homes, key=lambda domain: homes[domain])
            holes = [name for rank, name in enumerate(members) if (group, rank) not in keeps]
            wanted[home] += len(holes)
            found[home] += sum(here[name].node.domain_id == home for name in holes)
    return all(found[home] == min(free[home], wanted[home]) for home in wanted)


def _is_same(before: Arrival | None, now: Arrival) -> bool:
    """Whether a node had this place, under this incarnation or another one."""
    if before is None or before.incarnation == now.incarnation:
        return before is not None
    facts = [(one.node.infra_rank, one.node.domain_id) for one in (before, now)]
    return before.node.infra_rank is not None and facts[0] == facts[1]


@_property
def a_group_that_lost_all_its_nodes_stays_in_its_domain(world: GroupWorld, placing: Placing) -> bool:
    """If every group was within one domain, and every domain can fill the groups and segments that it had."""
    here, found = by_name(world.arrived), domains_of(world, placing)
    homes = {group: {one.node.domain_id for one in world.last.get(group, ())} for group in found}
    if any(len(domains) > 1 for domains in homes.values()):
        return True
    has = Counter(one.node.domain_id for one in world.arrived if one.node.domain_id or world.rules.segment == 1)
    blocks = {(group // world.row, home) for group, domains in homes.items() for home in domains}
    needs = Counter(home for _, home in blocks)
    if any(has[home] < count * world.row * world.rules.group_size for home, count in needs.items()):
        return True
    return all(
        set(domains) == homes[group]
        for group, domains in found.items()
        if homes[group] and all(one.incarnation not in here for one in world.last[group])
    )


@_property
def as_many_new_groups_as_possible_are_within_one_domain(world: GroupWorld, placing: Placing) -> bool:
    if world.last:
        return True
    whole = sum(len(set(domains)) == 1 for domains in domains_of(world, placing).values())
    return whole == most_whole_groups(world)


@_property
def arrival_order_does_not_matter(world: GroupWorld, placing: Placing) -> bool:
    in_order = tuple(sorted(world.arrived, key=lambda one: one.incarnation))
    backwards = dict(reversed(list(world.worlds.items())))
    return placing(world) == placing(replace(world, arrived=in_order, worlds=backwards))


@_property
def placing_again_changes_nothing(world: GroupWorld, placing: Placing) -> bool:
    here, placement = by_name(world.arrived), placing(world)
    worlds = {group: tuple(here[name] for name in members) for group, members in placement.by_group()}
    return placing(replace(world, worlds=worlds)) == placement


@_property
def ranks_by_topology_forget_the_last_worlds(world: GroupWorld, placing: Placing) -> bool:
    return world.rules.ranks is Ranks.STICKY or placing(world) == placing(replace(world, worlds={}))


@_property
def new_groups_are_from_where_most_are_left(world: GroupWorld, placing: Placing) -> bool:
    """With `spread`, and if all groups are within one domain: no domain gave its last group before a larger one."""
    found = [set(domains) for domains in domains_of(world, placing).values()]
    if world.rules.spread is Spread.NONE or world.last or any(len(domains) > 1 for domains in found):
        return True
    block = world.row * world.rules.group_size
    gave = Counter(domain for domains in found for domain in domains)
    left = Counter(one.node.domain_id for one in world.arrived)
    left.subtract({domain: count * world.rules.group_size for domain, count in gave.items()})
    return all(left[domain] + block >= most for domain in gave for most in left.values())


@pytest.mark.parametrize("kind", GROUP_KINDS, ids=str)
@settings(max_examples=40)
@given(data=st.data())
def test_of_every_placement(kind: GroupKind, data: st.DataObject) -> None:
    world = data.draw(group_worlds([kind]))
    for holds in PROPERTIES.values():
        assert holds(world, placed), holds.__name__


@given(world=group_worlds([PAIRS, TRIPLES], is_first=[True]))
def test_a_first_placement_has_as_many_whole_groups_as_the_domains_have_together(world: GroupWorld) -> None:
    counts = Counter(one.node.domain_id for one in world.arrived)
    size = world.rules.group_size
    whole = sum(len(set(domains)) == 1 for domains in domains_of(world, placed).values())
    assert whole == min(world.size // size, sum(count // size for count in counts.values()))


# --- properties that see ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", GROUP_VARIANTS)
def test_a_broken_placement_is_caught(name: str) -> None:
    variant = GROUP_VARIANTS[name]
    holds = PROPERTIES[variant.caught_by]
    find(variant.worlds, lambda world: not holds(world, variant.placing), settings=SOON)


def test_no_property_is_blind() -> None:
    assert {variant.caught_by for variant in GROUP_VARIANTS.values()} == PROPERTIES.keys()


@pytest.mark.parametrize(
    "is_drawn",
    [
        pytest.param(lambda world: 0 < world.size // world.rules.group_size < len(world.last), id="has fewer groups"),
        pytest.param(lambda world: 0 < len(world.last) < world.size // world.rules.group_size, id="has more groups"),
        pytest.param(lambda world: most_kept(world, placed(world).groups) > 0 and len(world.last) > 1, id="keeps some"),
        pytest.param(lambda world: bool(world.last) and not most_kept(world, placed(world).groups), id="keeps none"),
        pytest.param(lambda world: min(world.last, default=0) > 0, id="lacks the first group"),
    ],
)
def test_a_run_is_drawn_that(is_drawn: Callable[[GroupWorld], bool]) -> None:
    find(group_worlds(), is_drawn, settings=SOON)


# --- examples a reader can follow -------------------------------------------------------------------

GROUPS_OF_2 = PlacementRules(min_nodes=2, max_nodes=99, group_size=2)
GROUPS_OF_4 = replace(GROUPS_OF_2, group_size=4, segment=2)
WHOLE = replace(GROUPS_OF_2, segment=2)
SHARED = replace(GROUPS_OF_2, segment=4)


def at(domain_id: Domain, *numbers: int) -> list[Arrival]:
    """Nodes of one domain; the number is the infra rank."""
    return [seat(number, number, domain_id) for number in numbers]


def back(number: int, infra_rank: int, domain_id: Domain = None) -> list[Arrival]:
    """A node with the infra rank of an earlier one."""
    return [seat(number, infra_rank, domain_id)]


def check(
    rules: PlacementRules,
    worlds: Mapping[int, Sequence[Arrival]],
    arrived: Sequence[Arrival],
    expected: Mapping[int, Sequence[int]],
    standbys: Sequence[int] = (),
) -> None:
    placement = place_groups(by_name(arrived), worlds, len(expected) * rules.group_size, rules)
    assert dict(placement.by_group()) == {group: names(numbers) for group, numbers in expected.items()}
    assert placement.standbys == names(standbys)


@pytest.mark.parametrize(
    ("rules", "arrived", "expected", "standbys"),
    [
        pytest.param(GROUPS_OF_2, at(None, 4, 3, 2, 1), {0: [1, 2], 1: [3, 4]}, [], id="in topology order"),
        pytest.param(
            GROUPS_OF_2,
            [*at("A", 1, 2, 3), *at("B", 4, 5, 6)],
            {0: [1, 2], 1: [4, 5], 2: [3, 6]},
            [],
            id="only the last group is in two domains",
        ),
        pytest.param(
            GROUPS_OF_2,
            [*at("A", 1, 2, 3), *at("B", 4, 5, 6)],
            {0: [1, 2], 1: [4, 5]},
            [3, 6],
            id="a group is not torn for the sake of topology order",
        ),
        pytest.param(
            replace(GROUPS_OF_2, spread=Spread.DOMAINS),
            [*at("A", 1, 2, 3, 4), *at("B", 5, 6, 7)],
            {0: [1, 2], 1: [5, 6]},
            [3, 4, 7],
            id="spread: from the domain with the most nodes left",
        ),
        pytest.param(
            WHOLE, [*at("A", 1, 2, 3), *at("B", 4, 5, 6)], {0: [1, 2], 1: [4, 5]}, [3, 6], id="segment = group_size"
        ),
        pytest.param(
            GROUPS_OF_4,
            [*at("A", 1, 2, 3), *at("B", 4, 5), *at("C", 6, 7, 8, 9)],
            {0: [6, 7, 8, 9], 1: [1, 2, 4, 5]},
            [3],
            id="segments within a group: a whole group first, then one in two domains",
        ),
        pytest.param(
            SHARED,
            [*at("A", 1, 2, 3), *at("B", 4, 5, 6, 7, 8)],
            {0: [4, 5], 1: [6, 7]},
            [1, 2, 3, 8],
            id="a segment of two groups: a domain with three nodes gives none",
        ),
    ],
)
def test_first_placement(
    rules: PlacementRules, arrived: list[Arrival], expected: dict[int, list[int]], standbys: list[int]
) -> None:
    check(rules, {}, arrived, expected, standbys)


A4, B4 = at("A", 1, 2, 3, 4), at("B", 5, 6, 7, 8)


@pytest.mark.parametrize(
    ("rules", "worlds", "arrived", "expected", "standbys"),
    [
        pytest.param(
            GROUPS_OF_2,
            {0: at(None, 1, 2), 1: at(None, 3, 4)},
            at(None, 1, 3, 4, 9),
            {0: [1, 9], 1: [3, 4]},
            [],
            id="a spare fills a hole",
        ),
        pytest.param(
            GROUPS_OF_2,
            {0: at("A", 1, 2), 1: at("B", 3, 4)},
            [*at("A", 1, 0), *at("B", 3, 9)],
            {0: [1, 0], 1: [3, 9]},
            [],
            id="each hole from the domain of its group",
        ),
        pytest.param(
            GROUPS_OF_2,
            {0: at("A", 1, 2), 1: [*at("A", 3), *at("B", 4)]},
            [*at("A", 1, 3, 9), *at("B", 7)],
            {0: [1, 9], 1: [3, 7]},
            [],
            id="of two groups that lack one node each, the first has its domain's spare",
        ),
        pytest.param(
            GROUPS_OF_2,
            {0: at(None, 1, 2), 1: at(None, 3, 4)},
            [*at(None, 1, 4), *back(12, 3), *at(None, 9)],
            {0: [1, 9], 1: [12, 4]},
            [],
            id="a node that came back is not given to another hole",
        ),
        pytest.param(
            GROUPS_OF_2,
            {0: at("B", 1, 2), 1: at("A", 3, 4)},
            [*back(11, 2, "B"), *back(12, 1, "B"), *back(13, 4, "A"), *back(14, 3, "A")],
            {0: [12, 11], 1: [14, 13]},
            [],
            id="all nodes were started again: each has its place",
        ),
        pytest.param(
            GROUPS_OF_2,
            {0: at("B", 1, 2), 1: at("A", 3, 4)},
            [*at("A", 5, 6), *at("B", 7, 8)],
            {0: [7, 8], 1: [5, 6]},
            [],
            id="all nodes were replaced: each group is in its domain",
        ),
        pytest.param(
            GROUPS_OF_2,
            {0: at(None, 1, 2), 1: at(None, 3, 4), 2: at(None, 5, 6)},
            at(None, 1, 3, 4, 5, 6),
            {1: [3, 4], 2: [5, 6]},
            [1],
            id="fewer groups: those with the most survivors keep their numbers",
        ),
        pytest.param(
            GROUPS_OF_2,
            {1: at(None, 3, 4)},
            at(None, 1, 2, 3, 4),
            {0: [1, 2], 1: [3, 4]},
            [],
            id="a new group has the lowest free number",
        ),
        pytest.param(
            replace(GROUPS_OF_2, ranks=Ranks.TOPOLOGY),
            {0: at(None, 4, 3), 1: at(None, 2, 1)},
            at(None, 1, 2, 3, 4),
            {0: [1, 2], 1: [3, 4]},
            [],
            id="ranks by topology: every common cycle is placed like the first",
        ),
        pytest.param(
            GROUPS_OF_4,
            {0: [*at("A", 1, 2), *at("B", 5, 6)], 1: at("C", 21, 22, 23, 24)},
            [*at("A", 2, 11, 12, 13, 14), *at("B", 5, 6, 7, 8)],
            {0: [11, 2, 5, 6], 1: [12, 13, 7, 8]},
            [14],
            id="a new group does not take the node that a segment with a survivor needs",
        ),
        pytest.param(
            GROUPS_OF_4,
            {0: [*at("A", 1, 2), *at("B", 5, 6)]},
            [*back(9, 1, "A"), *at("A", 2, 11, 12, 13, 14), *at("B", 5, 6)],
            {0: [9, 2, 5, 6], 1: [11, 12, 13, 14]},
            [],
            id="nor one that came back",
        ),
        pytest.param(
            WHOLE,
            {0: at("A", 1, 2), 1: at("B", 3, 4)},
            [*at("A", 2), *at("B", 3, 4), *at("C", 5, 6)],
            {0: [5, 6], 1: [3, 4]},
            [2],
            id="segment = group_size: a group that its domain cannot fill moves as a whole",
        ),
        pytest.param(
            SHARED,
            {0: A4[:2], 1: A4[2:], 2: B4[:2], 3: B4[2:]},
            [*A4[1:], *B4, *at("C", 11, 12, 13, 14)],
            {0: [11, 12], 1: [13, 14], 2: [5, 6], 3: [7, 8]},
            [2, 3, 4],
            id="a segment of two groups: both move",
        ),
        pytest.param(
            SHARED,
            {1: at("B", 3, 4)},
            [*at("A", 21, 22, 23, 24), *back(13, 3, "B"), *back(14, 4, "B"), *at("B", 5, 6)],
            {0: [5, 6], 1: [13, 14]},
            [21, 22, 23, 24],
            id="a segment of two groups, of which one was given up, comes back to its domain",
        ),
    ],
)
def test_later_placement(
    rules: PlacementRules,
    worlds: dict[int, list[Arrival]],
    arrived: list[Arrival],
    expected: dict[int, list[int]],
    standbys: list[int],
) -> None:
    check(rules, worlds, arrived, expected, standbys)


# --- one group --------------------------------------------------------------------------------------


def fill(  # noqa: PLR0917
    rules: PlacementRules,
    group: int,
    worlds: Mapping[int, Sequence[Arrival]],
    survivors: Sequence[Arrival],
    spares: Sequence[Arrival],
    parked: Sequence[int] = (),
) -> tuple[str, ...] | None:
    chosen = choose_spares(group, by_name(survivors), by_name(spares), set(names(parked)), worlds, rules)
    return fill_group(group, by_name(survivors), chosen, worlds, rules)


@pytest.mark.parametrize(
    ("rules", "group", "worlds", "survivors", "spares", "expected"),
    [
        pytest.param(GROUPS_OF_2, 0, {}, [], at(None, 2, 1), [1, 2], id="a new group"),
        pytest.param(GROUPS_OF_2, 3, {}, [], at(None, 2, 1), [1, 2], id="with any number"),
        pytest.param(
            GROUPS_OF_2, 1, {1: at(None, 5, 6)}, at(None, 6), at(None, 1), [1, 6], id="a survivor keeps its rank"
        ),
        pytest.param(GROUPS_OF_2, 1, {1: at(None, 5, 6)}, at(None, 6), [], None, id="too few"),
        pytest.param(
            GROUPS_OF_2,
            1,
            {1: at("B", 5, 6)},
            [],
            [*at("A", 1, 2), *at("B", 8, 9)],
            [8, 9],
            id="a group without survivors stays in its domain",
        ),
        pytest.param(
            GROUPS_OF_2,
            1,
            {1: at(None, 5, 6)},
            [],
            [*at(None, 1), *back(12, 6), *back(11, 5)],
            [11, 12],
            id="nodes of a group without survivors come back to their ranks",
        ),
        pytest.param(
            GROUPS_OF_2,
            0,
            {0: at("B", 5, 6)},
            at("B", 5),
            [*at("A", 1, 2, 3), *at("B", 9)],
            [5, 9],
            id="a hole is filled from the group's domain",
        ),
        pytest.param(
            GROUPS_OF_2, 0, {0: at("B", 5, 6)}, at("B", 5), at("A", 1, 2), [5, 1], id="or from another, if it must"
        ),
        pytest.param(
            WHOLE, 0, {0: at("B", 5, 6)}, at("B", 5), at("A", 1, 2), [1, 2], id="segment: the group moves as a whole"
        ),
        pytest.param(WHOLE, 0, {0: at("B", 5, 6)}, at("B", 5), at("A", 1), None, id="segment: two halves are no whole"),
        pytest.param(WHOLE, 0, {}, [], at(None, 1, 2), None, id="segment: nodes without a domain share none"),
        pytest.param(
            SHARED,
            1,
            {0: at("A", 1, 2), 1: at("A", 3, 4)},
            at("A", 3),
            [*at("B", 8, 9), *at("A", 5)],
            [3, 5],
            id="a group that shares a segment stays in its domain",
        ),
        pytest.param(
            SHARED,
            1,
            {0: at("A", 1, 2), 1: at("A", 3, 4)},
            at("A", 3),
            at("B", 8, 9),
            None,
            id="even if only another one could fill it",
        ),
        pytest.param(
            SHARED,
            2,
            {0: at("A", 1, 2)},
            [],
            at("B", 8, 9),
            [8, 9],
            id="the first group of a segment is free to choose",
        ),
        pytest.param(
            replace(GROUPS_OF_2, ranks=Ranks.TOPOLOGY),
            0,
            {0: at(None, 6, 5)},
            at(None, 6),
            at(None, 1, 2),
            [1, 6],
            id="ranks by topology: survivors stay in the group, and ranks are given out anew",
        ),
    ],
)
def test_filling_a_group(  # noqa: PLR0917
    rules: PlacementRules,
    group: int,
    worlds: dict[int, list[Arrival]],
    survivors: list[Arrival],
    spares: list[Arrival],
    expected: list[int] | None,
) -> None:
    assert fill(rules, group, worlds, survivors, spares) == (None if expected is None else names(expected))


@pytest.mark.parametrize(
    ("spares", "parked", "expected"),
    [
        pytest.param([1, 9], [1], [5, 9], id="not if another node can fill the hole"),
        pytest.param([1], [1], [5, 1], id="if no other node can"),
        pytest.param([1, 9], [5, 1], [5, 9], id="a survivor stays, parked or not"),
    ],
)
def test_parked_nodes_fill_a_group_last(spares: list[int], parked: list[int], expected: list[int]) -> None:
    worlds = {0: at(None, 5, 6)}
    assert fill(GROUPS_OF_2, 0, worlds, at(None, 5), at(None, *spares), parked) == names(expected)


@settings(max_examples=150)
@given(world=group_worlds(), data=st.data())
def test_filling_a_group_is_what_trying_everything_finds(world: GroupWorld, data: st.DataObject) -> None:
    """A group is filled if there is any way to, by the rules; and with as many survivors in place as possible."""
    rules, size = world.rules, world.rules.group_size
    group = data.draw(st.integers(0, 3))
    own = {one.incarnation for one in world.worlds.get(group, ())}
    others = {one.incarnation for other, seats in world.worlds.items() if other != group for one in seats}
    survivors = [one for one in world.arrived if one.incarnation in own]
    spares = [one for one in world.arrived if one.incarnation not in own | others]
    segment = min(rules.segment, size)
    row = range(group // world.row * world.row, group // world.row * world.row + world.row)
    homes = {one.node.domain_id for other in row if other != group for one in world.worlds.get(other, ())}
    allowed = [one for one in [*survivors, *spares] if not homes or one.node.domain_id in homes]
    ranks = fill(rules, group, world.worlds, survivors, spares)
    assert (ranks is not None) == any(True for _ in patterns(allowed, size // segment, segment))
    if ranks is None:
        return
    alone = GroupWorld(replace(rules, segment=segment), tuple(allowed), {0: world.worlds.get(group, ())}, size)
    here = by_name(allowed)
    assert len(set(ranks)) == size
    for start in range(0, size, segment):
        assert len({here[name].node.domain_id for name in ranks[start : start + segment]}) == 1
    if rules.ranks is Ranks.STICKY and world.worlds.get(group):
        kept = sum(one.incarnation == name for one, name in zip(world.worlds[group], ranks, strict=True))
        assert kept == most_kept(alone, [0])
    assert fill(rules, group, world.worlds, survivors[::-1], spares[::-1]) == ranks, "the order does not matter"
