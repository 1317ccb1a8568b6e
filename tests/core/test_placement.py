"""Which node gets which rank: compared with a second implementation that tries everything, by properties, by example.

Placements that are broken on purpose show that the properties can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from ft_rendezvous.core.capacity import PlacementRules, Ranks, Spread
from ft_rendezvous.core.model import Arrival, NodeInfo
from ft_rendezvous.core.placement import bench, choose_candidates, place
from tests.core.naive import FAR, KEPT, NEAR, OWN, Judge
from tests.core.variants import VARIANTS, Placing
from tests.core.worlds import KINDS, Kind, World, by_name, capacity_of, names, placed, seat, worlds

SOON = settings(max_examples=500, phases=[Phase.generate])
"""A variant that is not found in this many worlds counts as not found."""

# --- properties -------------------------------------------------------------------------------------

Property = Callable[[World, Placing], bool]
PROPERTIES: dict[str, Property] = {}


def _property(holds: Property) -> Property:
    PROPERTIES[holds.__name__] = holds
    return holds


def blocks_of(world: World, placing: Placing, size: int) -> list[list[NodeInfo]]:
    here = by_name(world.arrived)
    nodes = [here[name].node for name in placing(world).ranks]
    return [nodes[start : start + size] for start in range(0, len(nodes), size)]


@_property
def every_rank_is_given_once(world: World, placing: Placing) -> bool:
    ranks = placing(world).ranks
    return len(ranks) == len(set(ranks)) == world.size and set(ranks) <= by_name(world.arrived).keys()


@_property
def no_node_is_forgotten(world: World, placing: Placing) -> bool:
    placement = placing(world)
    return sorted([*placement.ranks, *placement.standbys]) == sorted(by_name(world.arrived))


@_property
def segments_are_within_one_domain(world: World, placing: Placing) -> bool:
    segments = blocks_of(world, placing, world.rules.segment)
    return all(len({node.domain_id for node in segment}) == 1 for segment in segments)


@_property
def units_train_whole(world: World, placing: Placing) -> bool:
    """The ranks of a block are all of one unit, and no unit has two blocks."""
    units = [{node.unit_id for node in block} for block in blocks_of(world, placing, world.rules.unit_size)]
    return not world.rules.needs_unit or len(set().union(*units)) == sum(map(len, units)) == len(units)


@_property
def arrival_order_does_not_matter(world: World, placing: Placing) -> bool:
    in_order = tuple(sorted(world.arrived, key=lambda one: one.incarnation))
    return placing(world) == placing(replace(world, arrived=in_order))


@_property
def placing_again_changes_nothing(world: World, placing: Placing) -> bool:
    here, ranks = by_name(world.arrived), placing(world).ranks
    return placing(replace(world, previous=tuple(here[name] for name in ranks))).ranks == ranks


@_property
def ranks_by_topology_forget_the_last_world(world: World, placing: Placing) -> bool:
    return world.rules.ranks is Ranks.STICKY or placing(world) == placing(replace(world, previous=()))


@_property
def no_more_survivors_can_keep_their_ranks(world: World, placing: Placing) -> bool:
    judge = Judge(world)
    return judge.kept(placing(world).ranks) == max(map(judge.kept, judge.rankings))


@_property
def nothing_possible_is_better(world: World, placing: Placing) -> bool:
    judge, ranks = Judge(world), placing(world).ranks
    return ranks in judge.rankings and judge.is_best(ranks)


@_property
def new_nodes_are_from_where_most_are_left(world: World, placing: Placing) -> bool:
    """For nodes and segments only: the documentation does not say whether the spares of a unit count."""
    if world.rules.spread is Spread.NONE or world.rules.needs_unit:
        return True
    return Judge(world).is_spread(placing(world).ranks)


@_property
def spares_are_spread_evenly(world: World, placing: Placing) -> bool:
    """In a first world: no other choice leaves fewer nodes in the domains with the most nodes left."""
    judge = Judge(world)
    if world.rules.spread is Spread.NONE or world.last or judge.is_spanning:
        return True
    return judge.spares(placing(world).ranks) == min(map(judge.spares, judge.rankings))


@_property
def spreading_moves_no_survivor(world: World, placing: Placing) -> bool:
    def kept(spread: Spread) -> list[bool]:
        ranks = placing(replace(world, rules=replace(world.rules, spread=spread))).ranks
        return [one.incarnation == name for one, name in zip(world.last, ranks, strict=False)]

    return kept(Spread.DOMAINS) == kept(Spread.NONE)


@pytest.mark.parametrize("name", PROPERTIES)
@given(world=worlds())
def test_of_every_placement(name: str, world: World) -> None:
    assert PROPERTIES[name](world, placed)


@pytest.mark.parametrize("kind", KINDS, ids=str)
@settings(max_examples=150)
@given(data=st.data())
def test_placement_is_what_trying_everything_finds_best(kind: Kind, data: st.DataObject) -> None:
    assert nothing_possible_is_better(data.draw(worlds([kind])), placed)


@pytest.mark.parametrize(
    "name",
    [
        "every_rank_is_given_once",
        "no_node_is_forgotten",
        "segments_are_within_one_domain",
        "units_train_whole",
        "arrival_order_does_not_matter",
        "placing_again_changes_nothing",
    ],
)
@given(world=worlds(), data=st.data())
def test_of_a_world_that_other_rules_made(name: str, world: World, data: st.DataObject) -> None:
    """Its nodes are in no order, its segments in several domains, its units in several blocks."""
    previous = data.draw(st.permutations(world.previous))[data.draw(st.integers(0, 2)) :]
    assert PROPERTIES[name](replace(world, previous=tuple(previous)), placed)


# --- properties that see ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", VARIANTS)
def test_a_broken_placement_is_caught(name: str) -> None:
    variant = VARIANTS[name]
    holds = PROPERTIES[variant.caught_by]
    find(worlds(variant.kinds), lambda world: not holds(world, variant.placing), settings=SOON)


def test_no_property_is_blind() -> None:
    assert {variant.caught_by for variant in VARIANTS.values()} == PROPERTIES.keys()


def fits_of(world: World) -> list[int]:
    judge = Judge(world)
    return [judge.fits[rank][name] for rank, name in enumerate(placed(world).ranks)]


@pytest.mark.parametrize(
    "is_drawn",
    [
        pytest.param(lambda world: world.size < len(world.last), id="shrinks"),
        pytest.param(lambda world: 0 < len(world.last) < world.size, id="grows"),
        pytest.param(lambda world: {KEPT, OWN, NEAR} <= set(fits_of(world)), id="fills holes"),
        pytest.param(lambda world: FAR in fits_of(world)[: len(world.last)] and KEPT in fits_of(world), id="moves"),
        pytest.param(lambda world: Judge(world).is_any_displaced(placed(world).ranks), id="displaces"),
    ],
)
def test_a_world_is_drawn_that(is_drawn: Callable[[World], bool]) -> None:
    find(worlds(), is_drawn, settings=SOON)


# --- examples a reader can follow -------------------------------------------------------------------

RULES = PlacementRules(min_nodes=1, max_nodes=9)
SEGMENTS_OF_2 = replace(RULES, segment=2)
UNITS_OF_2 = replace(RULES, unit_size=2)


def at(domain_id: str | None, *numbers: int, unit: str | None = None) -> list[Arrival]:
    """Nodes of one domain; the number is the infra rank."""
    return [seat(number, number, domain_id, unit) for number in numbers]


def restarted(number: int, infra_rank: int, domain_id: str | None = None) -> list[Arrival]:
    return [seat(number, infra_rank, domain_id)]


def check(
    rules: PlacementRules,
    arrived: Sequence[Arrival],
    previous: Sequence[Arrival],
    ranks: Sequence[int],
    standbys: Sequence[int],
) -> None:
    placement = place(by_name(arrived), previous, len(ranks), rules)
    assert placement.ranks == names(ranks)
    assert placement.standbys == names(standbys)


@pytest.mark.parametrize(
    ("arrived", "ranks", "standbys"),
    [
        pytest.param([seat(3), seat(1), seat(2)], [1, 2, 3], [], id="by address"),
        pytest.param([seat(1, 2), seat(2, 1), seat(3, 0)], [3, 2, 1], [], id="by infra rank, not by address"),
        pytest.param([seat(1, 0, "b"), seat(2, 1, "a"), seat(3, 2, "a")], [2, 3, 1], [], id="domains stay together"),
        pytest.param([seat(1), seat(2, 9), seat(3, 8)], [3, 2, 1], [], id="nodes without an infra rank come last"),
        pytest.param([*at("a", 1), *at(None, 2)], [2, 1], [], id="nodes without a domain come first"),
        pytest.param([*at("rack10", 1, 2), *at("rack2", 3, 4)], [3, 4, 1], [2], id="rack2 comes before rack10"),
        pytest.param([*at("a10b2", 1), *at("a10b1", 2), *at("a9b3", 3)], [3, 2, 1], [], id="every number counts"),
    ],
)
def test_first_world(arrived: list[Arrival], ranks: list[int], standbys: list[int]) -> None:
    check(RULES, arrived, (), ranks, standbys)


@pytest.mark.parametrize(
    ("previous", "arrived", "ranks", "standbys"),
    [
        pytest.param([seat(1), seat(2), seat(3)], [seat(1), seat(3), seat(9)], [1, 9, 3], [], id="a spare fills"),
        pytest.param(
            at(None, 1, 2, 3),
            [*at(None, 3, 5), *restarted(12, infra_rank=2)],
            [5, 12, 3],
            [],
            id="a node with the hole's infra rank takes its own place",
        ),
        pytest.param(
            at("a", 1, 2, 3),
            [*at("a", 0, 1, 3), *restarted(12, infra_rank=2, domain_id="b")],
            [1, 0, 3],
            [12],
            id="but not in another domain",
        ),
        pytest.param(
            [*at("a", 1), *at("b", 2), *at("c", 3)],
            [*at("a", 1, 7), *at("b", 8), *at("c", 3)],
            [1, 8, 3],
            [7],
            id="a spare of the hole's domain goes before one that is first in topology order",
        ),
        pytest.param(
            [*at("a", 1), *at("b", 2), *at("c", 3)],
            [*at("a", 1), *at("c", 3, 7)],
            [1, 7, 3],
            [],
            id="any spare is better than none",
        ),
        pytest.param(
            [*at("a", 1, 2), *at("b", 3)],
            [*at("a", 5), *at("b", 3, 4)],
            [5, 4, 3],
            [],
            id="of two holes of a domain with one spare, the lower rank stays in it",
        ),
        pytest.param(at(None, 1, 2, 3, 4), at(None, 1, 3, 4), [1, 4, 3], [], id="shrinks: the highest fills the hole"),
        pytest.param(at(None, 1, 2, 3, 4), at(None, 2, 4), [4, 2], [], id="shrinks by half"),
        pytest.param(at(None, 5, 1), at(None, 1, 2, 5, 9), [5, 1, 2, 9], [], id="grows: no node moves"),
        pytest.param(
            at("a", 5, 1), [*at("a", 5), *at("b", 2, 3)], [5, 2, 3], [], id="grows, and fills a hole from elsewhere"
        ),
    ],
)
def test_later_world(previous: list[Arrival], arrived: list[Arrival], ranks: list[int], standbys: list[int]) -> None:
    check(RULES, arrived, previous, ranks, standbys)


@pytest.mark.parametrize(
    ("previous", "arrived", "ranks", "standbys"),
    [
        pytest.param([], [*at("A", 1, 2, 3), *at("B", 4, 5)], [1, 2, 4, 5], [3], id="of three, one is a spare"),
        pytest.param([], [*at("A", 1), *at("B", 4, 5, 6, 7)], [4, 5, 6, 7], [1], id="a single node gives none"),
        pytest.param(
            [*at("A", 1, 2), *at("B", 4, 5)],
            [*at("A", 2, 3), *at("B", 4, 5, 6)],
            [3, 2, 4, 5],
            [6],
            id="a hole is filled from the domain of its segment",
        ),
        pytest.param(
            [*at("A", 1, 2), *at("B", 4, 5)],
            [*at("A", 0, 1), *restarted(12, infra_rank=2, domain_id="A"), *at("B", 4, 5)],
            [1, 12, 4, 5],
            [0],
            id="by the node that came back",
        ),
        pytest.param(
            [*at("A", 1, 2), *at("B", 4, 5)],
            [*at("A", 2), *at("B", 4, 5, 6), *at("C", 7, 8)],
            [7, 8, 4, 5],
            [2, 6],
            id="a segment moves whole to a domain that can fill it",
        ),
        pytest.param(
            at("A", 1, 2, 3, 4),
            [*at("A", 2, 3, 4), *at("B", 5, 6)],
            [5, 6, 3, 4],
            [2],
            id="the segment with the most survivors stays",
        ),
        pytest.param(
            at("A", 1, 2, 3, 4),
            [*at("A", 2, 4), *at("B", 5, 6)],
            [4, 2, 5, 6],
            [],
            id="of two with equally many, the lower one stays, with the survivor of the other",
        ),
        pytest.param(
            at("A", 1, 2, 3, 4),
            [*at("A", 0, 2, 4), *at("B", 5, 6)],
            [4, 2, 5, 6],
            [0],
            id="a node that lost its rank comes before a spare",
        ),
        pytest.param(at("A", 1, 2), [*at("A", 1, 2, 3), *at("B", 4, 5)], [1, 2, 4, 5], [3], id="grows by a segment"),
        pytest.param(
            [*at("A", 1, 2), *at("B", 4, 5)], [*at("A", 2), *at("B", 4, 5)], [4, 5], [2], id="shrinks by a segment"
        ),
        pytest.param(
            [*at("A", 1), *at("B", 4)],
            [*at("A", 2, 3), *at("B", 4, 5)],
            [5, 4],
            [2, 3],
            id="in a world without segments, a segment is at home where its first survivor is",
        ),
    ],
)
def test_segments(previous: list[Arrival], arrived: list[Arrival], ranks: list[int], standbys: list[int]) -> None:
    check(SEGMENTS_OF_2, arrived, previous, ranks, standbys)


def test_a_domain_makes_good_one_loss_and_not_two() -> None:
    """Six nodes, three in each of two domains, four ranks in segments of two: every domain has a spare."""
    a, b = at("A", 1, 2, 3), at("B", 4, 5, 6)
    check(SEGMENTS_OF_2, a + b, (), [1, 2, 4, 5], [3, 6])
    check(SEGMENTS_OF_2, a[1:] + b, [*a[:2], *b[:2]], [3, 2, 4, 5], [6])
    assert capacity_of(a[1:] + b, SEGMENTS_OF_2) == 4
    assert capacity_of(a[2:] + b, SEGMENTS_OF_2) == 2


X, Y, Z = at("A", 1, 2, unit="X"), at("B", 3, 4, unit="Y"), at("A", 7, 8, unit="Z")


@pytest.mark.parametrize(
    ("previous", "arrived", "ranks", "standbys"),
    [
        pytest.param([], X + Y + Z, [1, 2, 7, 8], [3, 4], id="units are in topology order"),
        pytest.param(
            [], [*at("A", 1, 4, unit="X"), *at("A", 2, 3, unit="Y")], [1, 4, 2, 3], [], id="by their first nodes"
        ),
        pytest.param([], X[:1] + Y + Z, [7, 8, 3, 4], [1], id="an incomplete unit does not train"),
        pytest.param(X, [*X[1:], *at("A", 0, unit="X"), *Z], [0, 2], [7, 8], id="a unit's own spare fills its hole"),
        pytest.param(
            X,
            [*at("A", 5, 6, unit="X"), *at("A", 0, 1, unit="Z")],
            [5, 6],
            [0, 1],
            id="a unit of new nodes is the same",
        ),
        pytest.param(
            X + Y,
            [*X[1:], *Y, *Z, *at("B", 5, 6, unit="W")],
            [7, 8, 3, 4],
            [2, 5, 6],
            id="a unit is swapped whole for a spare one of its domain",
        ),
        pytest.param(
            Y + X,
            [*X, *Y[1:], *Z, *at("B", 5, unit="W")],
            [7, 8, 1, 2],
            [4, 5],
            id="or for one of another domain, if its own has no complete one",
        ),
        pytest.param(X, X + Y, [1, 2, 3, 4], [], id="grows by a unit"),
        pytest.param(X + Y, X[1:] + Y, [3, 4], [2], id="shrinks by a unit"),
        pytest.param(
            X + Z,
            [*X[1:], *Z, *at("A", 0, 9, unit="W")],
            [7, 8],
            [0, 2, 9],
            id="shrinks: a unit that trained goes before a spare one",
        ),
        pytest.param(
            [X[0], Y[0], X[1], Y[1]],
            X + Y,
            [1, 2, 3, 4],
            [],
            id="in a world without units, a unit is at home where its first node was",
        ),
    ],
)
def test_units(previous: list[Arrival], arrived: list[Arrival], ranks: list[int], standbys: list[int]) -> None:
    check(UNITS_OF_2, arrived, previous, ranks, standbys)


def test_a_unit_that_gets_its_node_back_is_a_spare() -> None:
    """X loses a node, and Z replaces it. X gets a node, waits as a spare, and replaces Y when Y is lost."""
    returned = [*X[1:], seat(11, 1, "A", "X")]
    check(UNITS_OF_2, X[1:] + Y + Z, X + Y, [7, 8, 3, 4], [2])
    assert capacity_of(X[1:] + Y + Z, UNITS_OF_2) == 4
    check(UNITS_OF_2, returned + Y + Z, Z + Y, [7, 8, 3, 4], [11, 2])
    assert capacity_of(returned + Y + Z, UNITS_OF_2) == 6
    check(UNITS_OF_2, returned + Y[1:] + Z, Z + Y, [7, 8, 11, 2], [4])


def test_a_unit_is_laid_out_in_segments() -> None:
    """Four nodes of X train, two in each domain. Y has four nodes, three of them in one domain."""
    rules = replace(RULES, segment=2, unit_size=4)
    x = [*at("A", 1, 2, 3, unit="X"), *at("B", 6, 7, unit="X")]
    y = [*at("A", 0, unit="Y"), *at("B", 8, 9, 10, unit="Y")]
    check(rules, x + y, (), [1, 2, 6, 7], [0, 3, 8, 9, 10])
    check(rules, x[1:] + y, [*x[:2], *x[3:]], [3, 2, 6, 7], [0, 8, 9, 10])
    assert capacity_of(x[:4] + y, rules) == 0


@pytest.mark.parametrize(
    ("spread", "ranks", "standbys"),
    [
        pytest.param(Spread.NONE, [1, 2, 3, 4], [5, 6, 7], id="none"),
        pytest.param(Spread.DOMAINS, [1, 2, 4, 5], [3, 6, 7], id="domains"),
    ],
)
def test_spread(spread: Spread, ranks: list[int], standbys: list[int]) -> None:
    check(replace(RULES, spread=spread), [*at("A", 1, 2, 3), *at("B", 4, 5, 6), *at("C", 7)], (), ranks, standbys)


def test_a_world_that_is_not_spread_is_not_moved_to_spread_it() -> None:
    nodes = [*at("A", 1, 2, 3), *at("B", 4, 5, 6)]
    check(replace(RULES, spread=Spread.DOMAINS), nodes, nodes[:4], [1, 2, 3, 4], [5, 6])


def test_ranks_by_topology_are_given_out_anew() -> None:
    check(replace(RULES, ranks=Ranks.TOPOLOGY), at("A", 1, 2, 3), at("A", 3, 2, 4), [1, 2, 3], [])


# --- parked nodes -----------------------------------------------------------------------------------


@given(world=worlds(), data=st.data())
def test_parked_nodes_are_the_last_choice(world: World, data: st.DataObject) -> None:
    """If the others can form a world, no parked node is a candidate. If they cannot, all nodes are."""
    arrived = by_name(world.arrived)
    parked = data.draw(st.sets(st.sampled_from(sorted(arrived)))) if arrived else set()
    rules = replace(world.rules, min_nodes=data.draw(st.integers(1, 3)) * world.rules.block)
    candidates = choose_candidates(arrived, parked, rules)
    others = [one for name, one in arrived.items() if name not in parked]
    assert set(candidates) == set(by_name(others) if capacity_of(others, rules) >= rules.min_nodes else arrived)
    is_possible = capacity_of(arrived.values(), rules) >= rules.min_nodes
    assert (capacity_of(candidates.values(), rules) >= rules.min_nodes) == is_possible, "parking loses no world"


@given(world=worlds(), data=st.data())
def test_a_parked_node_that_is_not_placed_is_a_standby(world: World, data: st.DataObject) -> None:
    arrived = by_name(world.arrived)
    candidates = {name: arrived[name] for name in data.draw(st.sets(st.sampled_from(sorted(arrived)))) if arrived}
    size = world.rules.world_size(capacity_of(candidates.values(), world.rules))
    placement = place(candidates, world.previous, size, world.rules)
    benched = bench(placement, arrived)
    assert benched.ranks == placement.ranks
    assert sorted([*benched.ranks, *benched.standbys]) == sorted(arrived)
