"""A roster that can be kept in a file: the nodes, and their last ranks. `ftr explain` reads it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.model import Arrival, NodeInfo
from ft_rendezvous.core.roster import Roster
from ft_rendezvous.text import MAX_NAME_CHARS


class SnapshotNode(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, gc=False):
    """A node, in a form that people can write."""

    infra_rank: int | None = None
    domain: str | None = None
    unit: str | None = None
    addr: str = ""
    pid: int = 0
    rank: int | None = None
    """Its rank in the last world: that of its group, if the run has groups."""
    group: int | None = None
    """The replica group of that world. None: the run has no groups."""
    gone: bool = False
    """It is not in the run any more, or it drains."""
    finished: bool = False
    """Its workers ended well. It never trains again."""
    parked: bool = False
    """It was lost too often. It trains only if the other nodes cannot form a world."""


class Snapshot(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    nodes: tuple[SnapshotNode, ...]
    run_id: str = ""
    cycle_id: int = 0
    settings: dict[str, str] = {}
    """The run's settings, by their `--rdzv-conf` keys."""


def take_snapshot(roster: Roster, run_id: str, cycle_id: int, settings: Mapping[str, str]) -> Snapshot:
    """A live run: all of its nodes, and the nodes of the last worlds that are gone."""
    places = {
        seat.incarnation: (group if roster.has_groups else None, rank)
        for group, world in sorted(roster.worlds.items())
        for rank, seat in enumerate(world.seats)
    }
    nodes = [
        _describe(
            member.arrival.node,
            places.get(incarnation, (None, None)),
            is_gone=incarnation in roster.draining,
            is_finished=member.role is Role.FINISHED,
            is_parked=incarnation in roster.parked,
        )
        for incarnation, member in roster.members.items()
    ]
    nodes += [
        _describe(seat.node, places[seat.incarnation], is_gone=True)
        for seat in roster.world
        if seat.incarnation not in roster.members
    ]
    return Snapshot(tuple(nodes), run_id, cycle_id, dict(settings))


def _describe(
    node: NodeInfo,
    place: tuple[int | None, int | None],
    *,
    is_gone: bool,
    is_finished: bool = False,
    is_parked: bool = False,
) -> SnapshotNode:
    group, rank = place
    return SnapshotNode(
        infra_rank=node.infra_rank,
        domain=node.domain_id,
        unit=node.unit_id,
        addr=node.addr,
        pid=node.pid,
        rank=rank,
        group=group,
        gone=is_gone,
        finished=is_finished,
        parked=is_parked,
    )


def restore(snapshot: Snapshot) -> tuple[dict[str, Arrival], tuple[Arrival, ...]]:
    """The nodes that can be placed, and the last world by rank. Raises ValueError if the file contradicts itself."""
    arrivals = [_arrival(number, node) for number, node in enumerate(snapshot.nodes)]
    pairs = list(zip(snapshot.nodes, arrivals, strict=True))
    here = {arrival.incarnation: arrival for node, arrival in pairs if not (node.gone or node.finished)}
    _check_infra_ranks([node for node in snapshot.nodes if not node.gone])
    grouped = next((node for node in snapshot.nodes if node.group is not None), None)
    if grouped is not None:
        raise ValueError("its nodes are in groups: pass --group-size, or take the groups out")
    ranked = [(node.rank, arrival) for node, arrival in pairs if node.rank is not None]
    return here, _in_order("the last world", ranked)


def restore_groups(snapshot: Snapshot, size: int) -> tuple[dict[str, Arrival], dict[int, tuple[Arrival, ...]]]:
    """The nodes that can be placed, and the last world of each group. Raises ValueError like `restore`."""
    here, _ = restore(msgspec.structs.replace(snapshot, nodes=tuple(map(_without_place, snapshot.nodes))))
    ranked: dict[int, list[tuple[int, Arrival]]] = {}
    for number, node in enumerate(snapshot.nodes):
        if (node.rank is None) != (node.group is None):
            raise ValueError(f"node {number} of the file has a rank and no group, or a group and no rank: give both")
        if node.rank is not None and node.group is not None:
            ranked.setdefault(node.group, []).append((node.rank, _arrival(number, node)))
    worlds = {group: _in_order(f"group {group}", found) for group, found in sorted(ranked.items())}
    for group, seats in worlds.items():
        if len(seats) != size:
            raise ValueError(f"group {group} has {len(seats)} ranks, and group_size is {size}: name all of its nodes")
    return here, worlds


def _without_place(node: SnapshotNode) -> SnapshotNode:
    return msgspec.structs.replace(node, rank=None, group=None)


def _in_order(world: str, ranked: Sequence[tuple[int, Arrival]]) -> tuple[Arrival, ...]:
    """A world by rank, if every rank is there once."""
    ordered = sorted(ranked, key=lambda pair: (pair[0], pair[1].incarnation))
    ranks = [rank for rank, _ in ordered]
    if ranks != list(range(len(ranks))):
        raise ValueError(f"the ranks of {world} are {ranks}: they must be 0, 1, 2 and so on, each once")
    return tuple(arrival for _, arrival in ordered)


def find_finished(snapshot: Snapshot) -> set[str]:
    """The nodes whose workers ended well, by the incarnations that `restore` gives them."""
    return {_incarnation(number) for number, node in enumerate(snapshot.nodes) if node.finished}


def find_parked(snapshot: Snapshot) -> set[str]:
    """The parked nodes, by the incarnations that `restore` gives them."""
    return {_incarnation(number) for number, node in enumerate(snapshot.nodes) if node.parked}


def _check_infra_ranks(nodes: Sequence[SnapshotNode]) -> None:
    counts = Counter(node.infra_rank for node in nodes if node.infra_rank is not None)
    twice = [rank for rank, count in counts.items() if count > 1]
    if twice:
        raise ValueError(f"two live nodes have infra rank {twice[0]}: give every node its own")


def _incarnation(number: int) -> str:
    return f"{number:08d}"


def _arrival(number: int, node: SnapshotNode) -> Arrival:
    if (node.infra_rank or 0) < 0 or max(len(node.domain or ""), len(node.unit or "")) > MAX_NAME_CHARS:
        raise ValueError(
            f"node {number} of the file: infra_rank is at least 0, a name at most {MAX_NAME_CHARS} letters"
        )
    if node.infra_rank is None and not node.addr:
        raise ValueError(f"node {number} of the file has neither infra_rank nor addr: give it one of them")
    info = NodeInfo(addr=node.addr, pid=node.pid, infra_rank=node.infra_rank, domain_id=node.domain, unit_id=node.unit)
    return Arrival(
        cycle_id=0,
        incarnation=_incarnation(number),
        seq=number,
        node=info,
        bootstrap_port=0,
    )
