"""How large a world nodes can form, and what it can lose: compared with trying everything, and by example."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.core.capacity import (
    Cover,
    PlacementRules,
    Policy,
    Spread,
    capacity,
    cover_of,
    is_complete,
    leftovers,
    natural_key,
)
from ft_rendezvous.core.model import NodeInfo
from tests.core.build import node
from tests.core.naive import possible

RULES = PlacementRules(min_nodes=4, max_nodes=8)
SEGMENTS_OF_2 = replace(RULES, segment=2)
UNITS_OF_2 = replace(RULES, unit_size=2)
UNITS_OF_4 = replace(RULES, unit_size=4, segment=2)
ELASTIC = replace(RULES, policy=Policy.ELASTIC)


def at(domain_id: str | None, count: int, unit: str | None = None) -> list[NodeInfo]:
    return [node(number, domain_id=domain_id, unit_id=unit) for number in range(count)]


# --- trying everything ------------------------------------------------------------------------------

BLOCKS = [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (1, 3), (2, 4)]
"""Segment and unit size."""


@dataclass(frozen=True)
class Roster:
    """Nodes, how many of them train, and under which rules."""

    nodes: tuple[NodeInfo, ...]
    active_count: int
    rules: PlacementRules


@st.composite
def rosters(draw: st.DrawFn) -> Roster:
    """Nodes that can form a world, and some more."""
    segment, unit_size = draw(st.sampled_from(BLOCKS))
    units = ["X", "Y", "Z"] if unit_size > 1 else []
    places = st.tuples(st.sampled_from([None, "A", "B"]), st.sampled_from([None, *units]))
    block = max(segment, unit_size)
    whole = draw(st.lists(places, min_size=0, max_size=7 // block - 1))
    found = [place for place in whole for _ in range(block)]
    found += draw(st.lists(places, max_size=7 - len(found) - block)) + [("A", "X" if units else None)] * block
    nodes = tuple(node(number, domain_id=domain, unit_id=unit) for number, (domain, unit) in enumerate(found))
    rules = PlacementRules(
        min_nodes=block, max_nodes=9, segment=segment, unit_size=unit_size, policy=draw(st.sampled_from(Policy))
    )
    blocks = capacity(nodes, rules) // block
    least = draw(st.integers(1, blocks))
    return Roster(nodes, draw(st.integers(least, blocks)) * block, replace(rules, min_nodes=least * block))


def largest_world(nodes: Sequence[NodeInfo], rules: PlacementRules) -> Sequence[NodeInfo]:
    """A world of the largest possible size."""
    named = {str(number): one for number, one in enumerate(nodes)}
    for size in range(len(nodes) // rules.block * rules.block, 0, -rules.block):
        for ranking in possible(named, size, rules):
            return [named[name] for name in ranking]
    return []


def is_enough(nodes: Iterable[NodeInfo], size: int, rules: PlacementRules) -> bool:
    return capacity(list(nodes), rules) >= size


def without(nodes: Iterable[NodeInfo], lost: Iterable[NodeInfo]) -> list[NodeInfo]:
    gone = list(lost)
    return [one for one in nodes if one not in gone]


def naive_cover(active: Sequence[NodeInfo], nodes: Sequence[NodeInfo], rules: PlacementRules) -> Cover:
    """Compute the cover by trying every loss."""
    domains = {one.domain_id for one in active} - {None}
    return Cover(
        any_nodes=max(
            count
            for count in range(len(nodes) + 1)
            if all(is_enough(without(nodes, lost), len(active), rules) for lost in combinations(nodes, count))
        ),
        nodes=sum(is_enough(without(nodes, [one]), len(active), rules) for one in active),
        of_nodes=len(active),
        domains=sum(
            is_enough([one for one in nodes if one.domain_id != domain], len(active), rules) for domain in domains
        ),
        of_domains=len(domains),
    )


@given(roster=rosters())
def test_the_capacity_is_the_size_of_the_largest_world(roster: Roster) -> None:
    assert capacity(roster.nodes, roster.rules) == len(largest_world(roster.nodes, roster.rules))


@given(roster=rosters())
def test_spares_cover_what_losing_everything_in_turn_finds_covered(roster: Roster) -> None:
    active = largest_world(roster.nodes, roster.rules)[: roster.active_count]
    assert cover_of(active, roster.nodes, roster.rules) == naive_cover(active, roster.nodes, roster.rules)


@given(roster=rosters())
def test_one_node_less_costs_one_block_at_most(roster: Roster) -> None:
    before = capacity(roster.nodes, roster.rules)
    for one in roster.nodes:
        assert before - capacity(without(roster.nodes, [one]), roster.rules) in (0, roster.rules.block)


@given(roster=rosters())
def test_leftovers_of_segments_are_all_who_fill_none(roster: Roster) -> None:
    if not roster.rules.needs_unit:
        texts = [int(text.split()[0]) for text in leftovers(roster.nodes, roster.rules)]
        assert sum(texts) == len(roster.nodes) - capacity(roster.nodes, roster.rules)


@given(roster=rosters())
def test_leftovers_of_units_are_the_units_that_cannot_train(roster: Roster) -> None:
    if roster.rules.needs_unit:
        units: dict[str, list[NodeInfo]] = {}
        for one in roster.nodes:
            if one.unit_id is not None:
                units.setdefault(one.unit_id, []).append(one)
        able = [unit for unit, nodes in units.items() if is_complete(nodes, roster.rules)]
        whole = [unit for unit in able if len(units[unit]) == roster.rules.unit_size]
        texts = [re.search(r"in unit (\w+)", text) for text in leftovers(roster.nodes, roster.rules)]
        assert [found[1] for found in texts if found] == sorted(units.keys() - whole)
        assert capacity(roster.nodes, roster.rules) == len(able) * roster.rules.unit_size


# --- sizes ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "nodes", "size"),
    [
        pytest.param(RULES, 3, 0, id="fixed: too few"),
        pytest.param(RULES, 4, 4, id="fixed: MIN"),
        pytest.param(RULES, 9, 4, id="fixed: never more"),
        pytest.param(ELASTIC, 3, 0, id="elastic: too few"),
        pytest.param(ELASTIC, 4, 4, id="elastic: MIN"),
        pytest.param(ELASTIC, 7, 7, id="elastic: all of them"),
        pytest.param(ELASTIC, 9, 8, id="elastic: MAX"),
        pytest.param(replace(ELASTIC, segment=2), 7, 6, id="elastic: whole segments"),
        pytest.param(replace(ELASTIC, segment=2, max_nodes=7), 9, 6, id="elastic: MAX in whole segments"),
        pytest.param(replace(ELASTIC, unit_size=4, segment=2), 7, 4, id="elastic: whole units"),
        pytest.param(replace(ELASTIC, unit_size=4, max_nodes=11), 12, 8, id="elastic: MAX in whole units"),
    ],
)
def test_world_size(rules: PlacementRules, nodes: int, size: int) -> None:
    assert rules.world_size(nodes) == size


@given(
    blocks=st.tuples(st.integers(1, 4), st.integers(0, 4)),
    sizes=st.sampled_from(BLOCKS),
    nodes=st.integers(0, 30),
    policy=st.sampled_from(Policy),
)
def test_the_world_is_the_largest_that_is_allowed(
    blocks: tuple[int, int], sizes: tuple[int, int], nodes: int, policy: Policy
) -> None:
    (least, more), block = blocks, max(sizes)
    rules = PlacementRules(
        min_nodes=least * block, max_nodes=least * block + more, segment=sizes[0], unit_size=sizes[1], policy=policy
    )
    most = rules.max_nodes if policy is Policy.ELASTIC else rules.min_nodes
    allowed = [size for size in range(rules.min_nodes, most + 1) if size <= nodes and size % block == 0]
    assert rules.world_size(nodes) == max(allowed, default=0)


@pytest.mark.parametrize(
    ("rules", "block", "block_name", "needs"),
    [
        pytest.param(RULES, 1, "segment", "", id="nodes"),
        pytest.param(replace(RULES, spread=Spread.DOMAINS), 1, "segment", "domain", id="nodes, spread"),
        pytest.param(SEGMENTS_OF_2, 2, "segment", "domain", id="segments"),
        pytest.param(UNITS_OF_2, 2, "unit", "unit", id="units"),
        pytest.param(UNITS_OF_4, 4, "unit", "domain, unit", id="units of segments"),
    ],
)
def test_what_a_world_is_made_of(rules: PlacementRules, block: int, block_name: str, needs: str) -> None:
    assert (rules.block, rules.block_name) == (block, block_name)
    needed = [name for name, is_needed in (("domain", rules.needs_domain), ("unit", rules.needs_unit)) if is_needed]
    assert ", ".join(needed) == needs


@pytest.mark.parametrize(
    ("rules", "nodes", "fit"),
    [
        pytest.param(RULES, [], 0, id="no nodes"),
        pytest.param(RULES, at(None, 2) + at("A", 1), 3, id="all nodes"),
        pytest.param(SEGMENTS_OF_2, at("A", 3) + at("B", 3), 4, id="two segments, and a spare in each domain"),
        pytest.param(SEGMENTS_OF_2, at("A", 1) + at("B", 1), 0, id="no two of one domain"),
        pytest.param(SEGMENTS_OF_2, at(None, 4) + at("A", 2), 2, id="nodes without a domain share nothing"),
        pytest.param(UNITS_OF_2, at("A", 5, "X"), 2, id="a unit trains once, however large"),
        pytest.param(UNITS_OF_2, at("A", 1, "X") + at("A", 1, "Y"), 0, id="no unit is complete"),
        pytest.param(UNITS_OF_2, at("A", 1, "X") + at("B", 1, "X"), 2, id="a unit may be in two domains"),
        pytest.param(UNITS_OF_2, at("A", 4), 0, id="nodes without a unit"),
        pytest.param(UNITS_OF_4, at("A", 2, "X") + at("B", 2, "X"), 4, id="a unit of two segments"),
        pytest.param(UNITS_OF_4, at("A", 3, "X") + at("B", 1, "X"), 0, id="a unit whose nodes fill one segment"),
    ],
)
def test_capacity(rules: PlacementRules, nodes: list[NodeInfo], fit: int) -> None:
    assert capacity(nodes, rules) == fit


@pytest.mark.parametrize(
    ("rules", "unit", "expected"),
    [
        pytest.param(UNITS_OF_2, at("A", 1), False, id="one too few"),
        pytest.param(UNITS_OF_2, at("A", 2), True, id="enough"),
        pytest.param(UNITS_OF_2, at("A", 5), True, id="enough for two: it is one all the same"),
        pytest.param(UNITS_OF_2, at("A", 1) + at(None, 1), True, id="domains do not matter"),
        pytest.param(UNITS_OF_4, at("A", 2) + at("B", 2), True, id="two segments"),
        pytest.param(UNITS_OF_4, at("A", 3) + at("B", 1), False, id="one segment and two nodes"),
        pytest.param(UNITS_OF_4, at("A", 2) + at(None, 2), False, id="without a domain there is no segment"),
    ],
)
def test_is_complete(rules: PlacementRules, unit: list[NodeInfo], expected: bool) -> None:
    assert is_complete(unit, rules) is expected


@pytest.mark.parametrize(
    ("rules", "nodes", "texts"),
    [
        pytest.param(RULES, at("A", 3), [], id="every node is a segment"),
        pytest.param(
            SEGMENTS_OF_2,
            at("rack10", 1) + at("rack2", 3) + at("rack3", 2),
            ["1 in domain rack2", "1 in domain rack10"],
            id="domains in natural order",
        ),
        pytest.param(SEGMENTS_OF_2, at(None, 2) + at("A", 2), ["2 in no domain"], id="no domain"),
        pytest.param(
            UNITS_OF_4,
            at("A", 4, "X") + at("A", 3, "Y") + at("A", 1, "Z10") + at("A", 2, "Z9"),
            ["3 of 4 in unit Y", "2 of 4 in unit Z9", "1 of 4 in unit Z10"],
            id="units",
        ),
        pytest.param(
            UNITS_OF_4,
            at("A", 6, "X") + at("A", 3, "Y") + at("B", 1, "Y"),
            ["2 more than 4 in unit X", "4 in unit Y, not in whole segments of 2"],
            id="units with enough nodes",
        ),
    ],
)
def test_leftovers(rules: PlacementRules, nodes: list[NodeInfo], texts: list[str]) -> None:
    assert leftovers(nodes, rules) == texts


# --- what can be lost -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rules", "active", "spares", "text"),
    [
        pytest.param(RULES, at("A", 4), [], "no loss", id="no spare"),
        pytest.param(RULES, at(None, 4), at(None, 1), "any 1 node, 4 of 4 single nodes", id="a spare, no domains"),
        pytest.param(
            RULES,
            at("A", 2) + at("B", 2),
            at("B", 2),
            "any 2 nodes, 4 of 4 single nodes, 1 of 2 single domains",
            id="as many spares as a domain has nodes",
        ),
        pytest.param(
            SEGMENTS_OF_2,
            at("A", 2) + at("B", 2),
            at("A", 1),
            "2 of 4 single nodes, 0 of 2 single domains",
            id="a spare in one of two domains",
        ),
        pytest.param(
            SEGMENTS_OF_2,
            at("A", 2) + at("B", 2),
            at("C", 2),
            "any 1 node, 4 of 4 single nodes, 2 of 2 single domains",
            id="a spare segment",
        ),
        pytest.param(
            UNITS_OF_2,
            at("A", 2, "X") + at("A", 2, "Y"),
            at("B", 2, "Z"),
            "any 1 node, 4 of 4 single nodes, 0 of 1 single domains",
            id="a spare unit",
        ),
        pytest.param(
            replace(ELASTIC, min_nodes=2),
            at(None, 4),
            [],
            "no loss",
            id="an elastic world that has no spare, though it may shrink",
        ),
    ],
)
def test_cover(rules: PlacementRules, active: list[NodeInfo], spares: list[NodeInfo], text: str) -> None:
    assert str(cover_of(active, active + spares, rules)) == text


# --- names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "names",
    [
        pytest.param([None, "", "rack"], id="no name comes first"),
        pytest.param(["rack2", "rack10"], id="numbers count as numbers"),
        pytest.param(["r1-n9", "r1-n10", "r2-n1", "r10-n1"], id="every number"),
        pytest.param(["2", "10", "rack"], id="names that begin with a number"),
        pytest.param(["rack", "rack1", "rack1a"], id="shorter ones first"),
        pytest.param(["rack02", "rack2", "rack03"], id="zeros in front"),
    ],
)
def test_natural_order(names: list[str | None]) -> None:
    assert all(natural_key(name) < natural_key(after) for name, after in pairwise(names))


@given(names=st.lists(st.none() | st.text("ab01٣ -") | st.text(), unique=True))
def test_any_names_can_be_sorted_and_no_two_are_equal(names: list[str | None]) -> None:
    in_order = sorted(names, key=natural_key)
    assert all(natural_key(name) < natural_key(after) for name, after in pairwise(in_order))


@given(word=st.text("ab-"), numbers=st.lists(st.integers(0, 10**6), unique=True))
def test_names_sort_by_their_numbers(word: str, numbers: list[int]) -> None:
    in_order = sorted((f"{word}{number}" for number in numbers), key=natural_key)
    assert [int(found) for name in in_order for found in re.findall("[0-9]+", name)] == sorted(numbers)
