"""Who trains with which rank, against a second implementation that tries every possibility.

The oracle knows only the sentences of the documentation: survivors keep their rank; a hole goes to the node with its
own infra rank, else to one of its domain, else to the next in topology order.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.core.capacity import PlacementRules
from ft_rendezvous.core.model import Arrival
from ft_rendezvous.core.placement import place
from tests.core.build import arrival, incarnation, node

RULES = PlacementRules(min_nodes=1, max_nodes=9)

# --- the oracle -------------------------------------------------------------------------------------

OWN, DOMAIN, OTHER = 0, 1, 2
"""How well a node fits a hole, best first."""


def in_topology_order(arrived: Sequence[Arrival]) -> list[Arrival]:
    with_rank = [a for a in arrived if a.node.infra_rank is not None]
    without = [a for a in arrived if a.node.infra_rank is None]
    with_rank.sort(key=lambda a: a.node.infra_rank or 0)
    without.sort(key=lambda a: (a.node.addr, a.node.pid, a.incarnation))
    return sorted([*with_rank, *without], key=lambda a: a.node.domain_id or "")


def fit(hole: int, candidate: Arrival, previous: Sequence[Arrival]) -> int:
    if hole >= len(previous):
        return OTHER
    gone = previous[hole].node
    if gone.domain_id != candidate.node.domain_id:
        return OTHER
    return OWN if gone.infra_rank is not None and gone.infra_rank == candidate.node.infra_rank else DOMAIN


def naive_place(arrived: Sequence[Arrival], previous: Sequence[Arrival], world_size: int) -> list[str]:
    """Score every way to fill the holes and take the best."""
    here = {a.incarnation for a in arrived}
    ranks: list[str | None] = [
        previous[rank].incarnation if rank < len(previous) and previous[rank].incarnation in here else None
        for rank in range(world_size)
    ]
    holes = [rank for rank in range(world_size) if ranks[rank] is None]
    free = [a for a in in_topology_order(arrived) if a.incarnation not in ranks]

    def score(choice: tuple[int, ...]) -> tuple[object, ...]:
        fits = [fit(hole, free[index], previous) for hole, index in zip(holes, choice, strict=True)]
        by_fit = [[index for index, fits_ in zip(choice, fits, strict=True) if fits_ == level] for level in (0, 1, 2)]
        # More of the better fits; then the lower ranks first; then, fit by fit, the earlier in topology order.
        return (-fits.count(OWN), -fits.count(DOMAIN), fits, by_fit)

    best = min(permutations(range(len(free)), len(holes)), key=score)
    for hole, index in zip(holes, best, strict=True):
        ranks[hole] = free[index].incarnation
    return [name for name in ranks if name is not None]


# --- worlds -----------------------------------------------------------------------------------------

domains = st.sampled_from([None, "rack1", "rack2"])


@st.composite
def worlds(draw: st.DrawFn) -> tuple[list[Arrival], list[Arrival], int]:
    """Who arrived, the last world, and the size: some of the last world are back, some newcomers came.

    A newcomer may hold the infra rank of a node that is gone; no two nodes here hold the same.
    """
    world_size = draw(st.integers(1, 4))
    infra_ranks = draw(st.permutations([None, None, None, *range(8)]))
    previous: list[Arrival] = []
    if draw(st.booleans()):
        for rank in range(world_size):
            info = node(rank, infra_rank=infra_ranks[rank], domain_id=draw(domains))
            previous.append(arrival(rank, info=info))
    survivors = [seat for seat in previous if draw(st.booleans())]
    held = {seat.node.infra_rank for seat in survivors}
    arrived = list(survivors)
    count = draw(st.integers(world_size - len(survivors), world_size - len(survivors) + 2))
    for number in range(10, 10 + count):
        free = [None, *(rank for rank in range(8) if rank not in held)]
        infra_rank = draw(st.sampled_from(free))
        held.add(infra_rank)
        info = node(number, infra_rank=infra_rank, domain_id=draw(domains), addr=draw(st.sampled_from("xyz")))
        arrived.append(arrival(number, info=info))
    return arrived, previous, world_size


def by_name(arrived: Sequence[Arrival]) -> dict[str, Arrival]:
    return {a.incarnation: a for a in arrived}


@given(world=worlds())
def test_placement_is_what_trying_everything_finds_best(world: tuple[list[Arrival], list[Arrival], int]) -> None:
    arrived, previous, world_size = world
    assert list(place(by_name(arrived), previous, world_size, RULES).ranks) == naive_place(
        arrived, previous, world_size
    )


@given(world=worlds())
def test_every_rank_is_given_once_and_nobody_is_forgotten(world: tuple[list[Arrival], list[Arrival], int]) -> None:
    arrived, previous, world_size = world
    placement = place(by_name(arrived), previous, world_size, RULES)
    assert len(placement.ranks) == world_size
    assert sorted([*placement.ranks, *placement.standbys]) == sorted(a.incarnation for a in arrived)


@given(world=worlds())
def test_survivors_keep_their_ranks(world: tuple[list[Arrival], list[Arrival], int]) -> None:
    arrived, previous, world_size = world
    ranks = place(by_name(arrived), previous, world_size, RULES).ranks
    for rank, seat in enumerate(previous):
        if seat in arrived:
            assert ranks[rank] == seat.incarnation


@given(world=worlds(), data=st.data())
def test_the_result_depends_on_who_arrived_and_not_on_when(
    world: tuple[list[Arrival], list[Arrival], int], data: st.DataObject
) -> None:
    arrived, previous, world_size = world
    shuffled = data.draw(st.permutations(arrived))
    assert place(by_name(shuffled), previous, world_size, RULES) == place(by_name(arrived), previous, world_size, RULES)


@given(world=worlds())
def test_no_more_nodes_are_exchanged_than_were_lost(world: tuple[list[Arrival], list[Arrival], int]) -> None:
    arrived, previous, world_size = world
    ranks = place(by_name(arrived), previous, world_size, RULES).ranks
    lost = [seat for seat in previous if seat not in arrived]
    newcomers = set(ranks) - {seat.incarnation for seat in previous}
    assert len(newcomers) == (len(lost) if previous else world_size)


@given(world=worlds())
def test_placing_the_same_nodes_again_changes_nothing(world: tuple[list[Arrival], list[Arrival], int]) -> None:
    arrived, previous, world_size = world
    first = place(by_name(arrived), previous, world_size, RULES)
    sealed = [by_name(arrived)[name] for name in first.ranks]
    assert place(by_name(arrived), sealed, world_size, RULES).ranks == first.ranks


# --- examples a reader can follow -------------------------------------------------------------------


def seat(number: int, infra_rank: int | None = None, domain_id: str | None = None) -> Arrival:
    return arrival(number, info=node(number, infra_rank=infra_rank, domain_id=domain_id))


@pytest.mark.parametrize(
    ("arrived", "previous", "ranks", "standbys"),
    [
        pytest.param([seat(3), seat(1), seat(2)], [], [1, 2, 3], [], id="first world by address"),
        pytest.param(
            [seat(1, 2), seat(2, 1), seat(3, 0)], [], [3, 2, 1], [], id="first world by infra rank, not by address"
        ),
        pytest.param(
            [seat(1, 0, "b"), seat(2, 1, "a"), seat(3, 2, "a")], [], [2, 3, 1], [], id="domains stay together"
        ),
        pytest.param([seat(1), seat(2, 9), seat(3, 8)], [], [3, 2, 1], [], id="nodes without an infra rank come last"),
        pytest.param(
            [seat(1), seat(3), seat(9)], [seat(1), seat(2), seat(3)], [1, 9, 3], [], id="a spare fills the hole"
        ),
        pytest.param(
            [seat(8, 5), seat(9, 1), seat(3, 2)],
            [seat(1, 0), seat(2, 1), seat(3, 2)],
            [8, 9, 3],
            [],
            id="a node with the hole's infra rank takes its own place",
        ),
        pytest.param(
            [seat(1, 0, "a"), seat(7, 5, "a"), seat(8, 6, "b"), seat(3, 2, "c")],
            [seat(1, 0, "a"), seat(2, 1, "b"), seat(3, 2, "c")],
            [1, 8, 3],
            [7],
            id="a spare of the hole's domain goes before one that is first in topology order",
        ),
        pytest.param(
            [seat(1, 0, "a"), seat(7, 5, "a"), seat(3, 2, "c")],
            [seat(1, 0, "a"), seat(2, 1, "b"), seat(3, 2, "c")],
            [1, 7, 3],
            [],
            id="any spare is better than none",
        ),
    ],
)
def test_example(arrived: list[Arrival], previous: list[Arrival], ranks: list[int], standbys: list[int]) -> None:
    placement = place(by_name(arrived), previous, 3, RULES)
    assert placement.ranks == tuple(map(incarnation, ranks))
    assert placement.standbys == tuple(map(incarnation, standbys))
