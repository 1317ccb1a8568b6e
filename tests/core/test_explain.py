"""Explanations of a placement: every reason, from a placement that has it, and the line after a seal."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import get_args

import pytest
from hypothesis import given

from ft_rendezvous.core.capacity import PlacementRules, Policy, Ranks, cover_of
from ft_rendezvous.core.explain import (
    CameBack,
    InOrder,
    Kept,
    LastChoice,
    Moved,
    Nowhere,
    PlacementLine,
    PlacementReason,
    Replaces,
    Spare,
    Summary,
    TooFew,
    Torn,
    explain,
    foresee,
    summarize,
    summarize_groups,
)
from ft_rendezvous.core.group_placement import place_groups
from ft_rendezvous.core.model import Arrival, NodeInfo, node_name
from ft_rendezvous.core.placement import place
from ft_rendezvous.text import NAMED
from tests.core.build import arrival
from tests.core.worlds import World, by_name, placed, seat, worlds

RULES = PlacementRules(min_nodes=2, max_nodes=9)
SEGMENTS_OF_2 = replace(RULES, segment=2)
UNITS_OF_2 = replace(RULES, unit_size=2)
ELASTIC = replace(RULES, policy=Policy.ELASTIC)

A1, A2, A3, B4, B5 = seat(1, 1, "A"), seat(2, 2, "A"), seat(3, 3, "A"), seat(4, 4, "B"), seat(5, 5, "B")
X1, X2, X3, Y4 = seat(1, 1, None, "X"), seat(2, 2, None, "X"), seat(3, 3, None, "X"), seat(4, 4, None, "Y")
AGAIN = seat(12, 2, "A")
"""Another start of A2."""

# --- every reason -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """A cycle, one of its nodes, and the reason for that node."""

    reason: PlacementReason
    text: str
    of: Arrival
    arrived: Sequence[Arrival]
    previous: Sequence[Arrival] = ()
    rules: PlacementRules = RULES
    parked: Sequence[Arrival] = ()


CASES = [
    Case(Kept(), "keeps its rank", A1, [A1, A2], [A2, A1]),
    Case(CameBack(), "came back: its infra rank had this rank", AGAIN, [A1, A3, AGAIN], [A1, A2]),
    Case(
        Replaces("infra rank 2 at host2 pid 102", "A", "A"),
        "in place of infra rank 2 at host2 pid 102, of the same domain",
        A3,
        [A1, A3, B4],
        [A1, A2],
    ),
    Case(
        Replaces("infra rank 2 at host2 pid 102", "A", "B"),
        "in place of infra rank 2 at host2 pid 102, of domain A",
        B4,
        [A1, B4],
        [A1, A2],
    ),
    Case(
        Replaces("host8 pid 108", None, None),
        "in place of host8 pid 108",
        seat(9),
        [seat(7), seat(9)],
        [seat(7), seat(8)],
    ),
    Case(Moved(2), "had rank 2", A3, [A1, A3], [A1, A2, A3], ELASTIC),
    Case(Moved(1), "had rank 1", A1, [A1, A2], [A2, A1], replace(RULES, ranks=Ranks.TOPOLOGY)),
    Case(InOrder(), "next in topology order", A2, [A1, A2]),
    Case(InOrder(), "next in topology order", A3, [A1, A2, A3], [A1, A2], ELASTIC),
    Case(InOrder(), "next in topology order", A3, [A1, A3], [A1, A2], replace(RULES, ranks=Ranks.TOPOLOGY)),
    Case(Spare(), "spare: every rank is taken", A3, [A1, A2, A3]),
    Case(Spare(), "spare: every rank is taken", B5, [A1, A2, B4, B5], (), SEGMENTS_OF_2),
    Case(
        TooFew("domain A", 1, 2, "segment"),
        "spare: domain A has 1 left, a segment takes 2",
        A3,
        [A1, A2, A3],
        (),
        SEGMENTS_OF_2,
    ),
    Case(TooFew("unit Y", 1, 2, "unit"), "spare: unit Y has 1 left, a unit takes 2", Y4, [X1, X2, Y4], (), UNITS_OF_2),
    Case(TooFew("unit X", 1, 2, "unit"), "spare: unit X has 1 left, a unit takes 2", X3, [X1, X2, X3], (), UNITS_OF_2),
    Case(
        Torn("Y", 2),
        "spare: unit Y is not in whole segments of 2",
        seat(5, 5, "A", "Y"),
        [seat(1, 1, "A", "X"), seat(2, 2, "A", "X"), seat(5, 5, "A", "Y"), seat(6, 6, "B", "Y")],
        (),
        replace(RULES, segment=2, unit_size=2),
    ),
    Case(
        Replaces("infra rank 1 at host1 pid 101", "A", "B", is_benched=True),
        "in place of infra rank 1 at host1 pid 101, of domain A, which is a spare now",
        B4,
        [A1, B4, B5],
        [A1, A2],
        SEGMENTS_OF_2,
    ),
    Case(Nowhere("domain"), "spare: it has no domain", seat(9), [A1, A2, seat(9)], (), SEGMENTS_OF_2),
    Case(Nowhere("unit"), "spare: it has no unit", seat(9), [X1, X2, seat(9)], (), UNITS_OF_2),
    Case(
        LastChoice(),
        "spare: parked, because it was lost too often",
        A2,
        [A1, A2, A3],
        [A1, A2, A3],
        ELASTIC,
        parked=[A2],
    ),
    Case(Kept(), "keeps its rank", A2, [A1, A2], [A1, A2], parked=[A2]),
]


def lines_of(case: Case) -> list[PlacementLine]:
    outlook = foresee(by_name(case.arrived), case.previous, case.rules, set(by_name(case.parked)))
    return list(outlook.lines)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.text)
def test_reason(case: Case) -> None:
    [reason] = [line.reason for line in lines_of(case) if line.node == case.of.node]
    assert reason == case.reason
    assert str(reason) == case.text


def test_there_is_a_case_of_every_reason() -> None:
    assert {type(case.reason) for case in CASES} == set(get_args(PlacementReason))


# --- every node -------------------------------------------------------------------------------------


def explained(world: World) -> list[PlacementLine]:
    return explain(placed(world), by_name(world.arrived), world.previous, world.rules)


def summarized(world: World) -> Summary:
    return summarize(placed(world), by_name(world.arrived), world.previous, world.rules)


@given(world=worlds())
def test_every_node_has_a_line_and_ranks_come_first(world: World) -> None:
    lines, spare_count = explained(world), len(world.arrived) - world.size
    assert [line.rank for line in lines] == [*range(world.size), *[None] * spare_count]
    here, placement = by_name(world.arrived), placed(world)
    assert [line.node for line in lines] == [here[name].node for name in placement.ranks + placement.standbys]


@given(world=worlds())
def test_a_line_says_what_became_of_the_node(world: World) -> None:
    rank_before = {one.node: rank for rank, one in enumerate(world.previous)}
    for line in explained(world):
        before = rank_before.get(line.node)
        if line.rank is None:
            assert isinstance(line.reason, Spare | TooFew | Torn)
        elif before is None:
            assert isinstance(line.reason, CameBack | Replaces | InOrder)
        else:
            assert line.reason == (Kept() if before == line.rank else Moved(before))


@given(world=worlds())
def test_a_line_is_true_of_the_rank(world: World) -> None:
    for line in explained(world):
        match line.reason:
            case CameBack():
                assert line.rank is not None
                assert world.previous[line.rank].node.infra_rank == line.node.infra_rank
            case Replaces(name, gone_from, domain, is_benched):
                assert line.rank is not None
                gone = world.previous[line.rank].node
                assert node_name(gone) == name
                assert (gone_from, domain) == (gone.domain_id, line.node.domain_id)
                assert is_benched == (world.previous[line.rank] in world.arrived)
            case TooFew(_, have, need, _):
                assert have < need == world.rules.block


# --- one line per cycle -----------------------------------------------------------------------------


@given(world=worlds())
def test_a_summary_counts_the_lines(world: World) -> None:
    summary, placement, here = summarized(world), placed(world), by_name(world.arrived)
    active = [line for line in explained(world) if line.rank is not None]
    changed = [line for line in active if not isinstance(line.reason, Kept)]
    assert summary.kept == len(active) - len(changed)
    assert summary.moved == sum(isinstance(line.reason, Moved) for line in changed)
    assert summary.new == len(changed) - summary.moved
    assert summary.benched == sum(one.incarnation in here for one in world.previous) - summary.kept - summary.moved
    changes = [(line.rank, node_name(line.node), line.reason) for line in changed] if world.previous else []
    assert list(summary.changes) == changes[:NAMED]
    nodes: list[NodeInfo] = [one.node for one in world.arrived]
    assert summary.cover == cover_of([here[name].node for name in placement.ranks], nodes, world.rules)


def of_host(number: int, domain_id: str, pid: int) -> Arrival:
    """The node that the documentation calls 10.0.0.<number>. Infra ranks start at 0."""
    info = NodeInfo(addr=f"10.0.0.{number}", pid=pid, infra_rank=number - 1, domain_id=domain_id)
    return arrival(number, info=info)


def line_of(arrived: Sequence[Arrival], previous: Sequence[Arrival], rules: PlacementRules, size: int) -> str:
    here = by_name(arrived)
    told = summarize(place(here, previous, size, rules), here, previous, rules)
    return f"kept={told.kept} moved={told.moved} new={told.new} benched={told.benched}; {told.effect}"


def test_the_line_of_the_documentation() -> None:
    gone, spare = of_host(1, "A", 640), of_host(3, "A", 812)
    stay = [of_host(2, "A", 700), of_host(4, "B", 701), of_host(5, "B", 702)]
    assert line_of([*stay, spare, of_host(6, "B", 703)], [gone, *stay], replace(RULES, min_nodes=4), 4) == (
        "kept=3 moved=0 new=1 benched=0; spares cover any 1 node, 4 of 4 single nodes, 0 of 2 single domains: "
        "rank 0 infra rank 2 at 10.0.0.3 pid 812, in place of infra rank 0 at 10.0.0.1 pid 640, of the same domain"
    )


def test_a_first_world_names_no_changes() -> None:
    assert line_of([A1, A2, A3], [], RULES, 2) == (
        "kept=0 moved=0 new=2 benched=0; spares cover any 1 node, 2 of 2 single nodes, 0 of 1 single domains"
    )


def test_a_world_that_no_node_left_names_no_changes() -> None:
    assert line_of([A1, A2], [A1, A2], RULES, 2) == "kept=2 moved=0 new=0 benched=0; spares cover no loss"


def test_a_world_that_shrinks_tells_who_moved() -> None:
    assert line_of([seat(1), seat(3)], [seat(1), seat(2), seat(3)], ELASTIC, 2) == (
        "kept=1 moved=1 new=0 benched=0; spares cover no loss: rank 1 host3 pid 103, had rank 2"
    )


def test_changes_are_told_one_after_the_other() -> None:
    assert line_of([seat(8), seat(9)], [seat(1), seat(2)], RULES, 2) == (
        "kept=0 moved=0 new=2 benched=0; spares cover no loss: "
        "rank 0 host8 pid 108, in place of host1 pid 101; rank 1 host9 pid 109, in place of host2 pid 102"
    )


@pytest.mark.parametrize(
    ("count", "tail"),
    [
        pytest.param(NAMED, "", id="all"),
        pytest.param(NAMED + 1, " and 1 more", id="one too many"),
        pytest.param(3 * NAMED, f" and {2 * NAMED} more", id="a few, and the number of the rest"),
    ],
)
def test_the_line_names_a_few_changes_and_counts_the_rest(count: int, tail: str) -> None:
    previous, arrived = [seat(number) for number in range(count)], [seat(100 + number) for number in range(count)]
    line = line_of(arrived, previous, replace(RULES, min_nodes=count, max_nodes=count), count)
    assert line.count("in place of") == NAMED
    assert line.endswith(f"in place of host{NAMED - 1} pid {99 + NAMED}{tail}")


# --- replica groups ---------------------------------------------------------------------------------

PAIRED = PlacementRules(min_nodes=2, max_nodes=99, group_size=2)


def group_line(arrived: Sequence[Arrival], worlds: dict[int, list[Arrival]], size: int, spares: int) -> str:
    here = by_name(arrived)
    told = summarize_groups(place_groups(here, worlds, size, PAIRED), here, worlds, PAIRED, spares)
    return f"kept={told.kept} moved={told.moved} new={told.new} benched={told.benched}; {told.effect}"


@pytest.mark.parametrize(
    ("arrived", "worlds", "size", "spares", "line"),
    [
        pytest.param(
            [1, 2, 3, 4], {}, 4, 0, "kept=0 moved=0 new=4 benched=0; no nodes stand by for any group", id="first"
        ),
        pytest.param(
            [1, 2, 3, 4],
            {0: [1, 2], 1: [3, 4]},
            4,
            1,
            "kept=4 moved=0 new=0 benched=0; 1 node stands by for any group",
            id="no node left",
        ),
        pytest.param(
            [1, 3, 4, 9],
            {0: [1, 2], 1: [3, 4]},
            4,
            2,
            "kept=3 moved=0 new=1 benched=0; 2 nodes stand by for any group: "
            "group 0 rank 1 host9 pid 109, in place of host2 pid 102",
            id="a spare fills a hole",
        ),
        pytest.param(
            [1, 3],
            {0: [1, 2], 1: [3, 4]},
            2,
            0,
            "kept=1 moved=1 new=0 benched=0; no nodes stand by for any group: "
            "group 0 rank 1 host3 pid 103, had group 1 rank 0",
            id="a group is filled from another one",
        ),
        pytest.param(
            [1, 2, 3],
            {0: [1, 2], 1: [3, 4]},
            2,
            1,
            "kept=2 moved=0 new=0 benched=1; 1 node stands by for any group",
            id="a group is given up",
        ),
    ],
)
def test_the_line_of_groups(
    arrived: list[int], worlds: dict[int, list[int]], size: int, spares: int, line: str
) -> None:
    last = {group: [seat(number) for number in numbers] for group, numbers in worlds.items()}
    assert group_line([seat(number) for number in arrived], last, size, spares) == line


def test_the_line_of_groups_names_a_few_changes_and_counts_the_rest() -> None:
    last = {group: [seat(2 * group), seat(2 * group + 1)] for group in range(NAMED)}
    line = group_line([seat(100 + number) for number in range(2 * NAMED)], last, 2 * NAMED, 0)
    assert line.count("in place of") == NAMED
    assert line.endswith(f" and {NAMED} more")
