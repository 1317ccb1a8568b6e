"""Rosters in files: a snapshot can be restored, and a file that is not a roster is refused."""

from __future__ import annotations

import msgspec
import pytest

from ft_rendezvous.core.model import Finish, Placement
from ft_rendezvous.core.roster import Roster
from ft_rendezvous.core.snapshot import (
    Snapshot,
    SnapshotNode,
    find_finished,
    find_parked,
    restore,
    restore_groups,
    take_snapshot,
)
from tests.core.build import arrival, incarnation, node, sealed_roster


def test_a_live_roster_goes_to_a_file_and_back() -> None:
    roster = sealed_roster([1, 2, 3], standby=[4])
    roster.take(arrival(5, info=node(5, infra_rank=9, domain_id="B", unit_id="u")), 1, is_open=False)
    roster.drop(incarnation(2))
    assert roster.drain(incarnation(3))
    taken = take_snapshot(roster, "job", 1, {"nnodes": "3:5"})
    kept = msgspec.json.decode(msgspec.json.encode(taken), type=Snapshot)
    assert kept == taken
    here, world = restore(kept)
    assert sorted(a.node.addr for a in here.values()) == ["host1", "host4", "host5"], (
        "neither the dead nor the draining"
    )
    assert [seat.node.addr for seat in world] == ["host1", "host2", "host3"]
    assert world[0].incarnation in here
    (newcomer,) = (a.node for a in here.values() if a.node.addr == "host5")
    assert (newcomer.infra_rank, newcomer.domain_id, newcomer.unit_id) == (9, "B", "u")
    assert find_parked(kept) == set()


def test_a_snapshot_knows_the_parked_nodes() -> None:
    roster = sealed_roster([1, 2], standby=[3])
    roster.park({"address host3"})
    taken = take_snapshot(roster, "job", 1, {})
    here, _ = restore(taken)
    assert [here[name].node.addr for name in find_parked(taken)] == ["host3"]


@pytest.mark.parametrize(
    ("nodes", "fact"),
    [
        pytest.param([SnapshotNode(domain="A")], "neither infra_rank nor addr", id="a node without a name"),
        pytest.param([SnapshotNode(infra_rank=1, rank=1)], r"the last world are \[1\]", id="a rank is left out"),
        pytest.param([SnapshotNode(1, rank=0), SnapshotNode(2, rank=0)], r"are \[0, 0\]", id="a rank is given twice"),
        pytest.param([SnapshotNode(7), SnapshotNode(7)], "infra rank 7", id="an infra rank is held twice"),
    ],
)
def test_what_is_no_roster_is_told(nodes: list[SnapshotNode], fact: str) -> None:
    with pytest.raises(ValueError, match=fact):
        restore(Snapshot(tuple(nodes)))


def test_a_replacement_may_have_the_infra_rank_of_one_that_is_gone() -> None:
    here, world = restore(Snapshot((SnapshotNode(7, rank=0, gone=True), SnapshotNode(7, addr="new"))))
    assert [a.node.addr for a in here.values()] == ["new"]
    assert len(world) == 1


# --- groups -----------------------------------------------------------------------------------------


def grouped_roster() -> Roster:
    """Groups 0 and 2 of two nodes each; node 5 stands by."""
    roster = Roster(has_groups=True)
    for number in (1, 2, 3, 4, 5):
        roster.take(arrival(number), 1, is_open=True)
    names = tuple(map(incarnation, (1, 2, 3, 4)))
    roster.seal(Placement(names, (incarnation(5),), (0, 2)), 1)
    return roster


def test_a_live_roster_with_groups_goes_to_a_file_and_back() -> None:
    roster = grouped_roster()
    roster.drop(incarnation(4))
    roster.take(Finish(cycle_id=1, incarnation=incarnation(1)), 1, is_open=False)
    taken = take_snapshot(roster, "job", 1, {"group_size": "2"})
    assert msgspec.json.decode(msgspec.json.encode(taken), type=Snapshot) == taken
    here, worlds = restore_groups(taken, 2)
    assert sorted(a.node.addr for a in here.values()) == ["host2", "host3", "host5"]
    assert {group: [seat.node.addr for seat in seats] for group, seats in worlds.items()} == {
        0: ["host1", "host2"],
        2: ["host3", "host4"],
    }
    assert find_finished(taken) == {worlds[0][0].incarnation}


def test_a_roster_without_groups_has_no_word_of_them() -> None:
    taken = take_snapshot(sealed_roster([1, 2], standby=[3]), "job", 1, {})
    assert b"group" not in msgspec.json.encode(taken)


@pytest.mark.parametrize(
    ("nodes", "fact"),
    [
        pytest.param([SnapshotNode(1, rank=0)], "a rank and no group", id="a rank of no group"),
        pytest.param([SnapshotNode(1, group=0)], "a group and no rank", id="a group without a rank"),
        pytest.param([SnapshotNode(1, rank=0, group=1)], "group 1 has 1 ranks", id="a rank is not named"),
        pytest.param(
            [SnapshotNode(1, rank=0, group=1), SnapshotNode(2, rank=0, group=1)],
            r"the ranks of group 1 are \[0, 0\]",
            id="a rank is given twice",
        ),
        pytest.param([SnapshotNode(7), SnapshotNode(7)], "infra rank 7", id="an infra rank is held twice"),
    ],
)
def test_what_is_no_roster_of_groups_is_told(nodes: list[SnapshotNode], fact: str) -> None:
    with pytest.raises(ValueError, match=fact):
        restore_groups(Snapshot(tuple(nodes)), 2)


def test_the_same_rank_may_be_held_in_two_groups() -> None:
    nodes = [SnapshotNode(infra, rank=infra % 2, group=infra // 2) for infra in range(4)]
    assert sorted(restore_groups(Snapshot(tuple(nodes)), 2)[1]) == [0, 1]
    with pytest.raises(ValueError, match="pass --group-size"):
        restore(Snapshot(tuple(nodes)))
