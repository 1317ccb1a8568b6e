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
    """Its rank in the last world."""
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
    """A live run: all of its nodes, and the nodes of the last world that are gone."""
    ranks = {seat.incarnation: rank for rank, seat in enumerate(roster.world)}
    nodes = [
        _describe(
            member.arrival.node,
            ranks.get(incarnation),
            is_gone=incarnation in roster.draining,
            is_finished=member.role is Role.FINISHED,
            is_parked=incarnation in roster.parked,
        )
        for incarnation, member in roster.members.items()
    ]
    nodes += [
        _describe(seat.node, rank, is_gone=True)
        for rank, seat in enumerate(roster.world)
        if seat.incarnation not in roster.members
    ]
    return Snapshot(tuple(nodes), run_id, cycle_id, dict(settings))


def _describe(
    node: NodeInfo, rank: int | None, *, is_gone: bool, is_finished: bool = False, is_parked: bool = False
) -> SnapshotNode:
    return SnapshotNode(
        infra_rank=node.infra_rank,
        domain=node.domain_id,
        unit=node.unit_id,
        addr=node.addr,
        pid=node.pid,
        rank=rank,
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
    ranked = sorted((node.rank, number) for number, node in enumerate(snapshot.nodes) if node.rank is not None)
    ranks = [rank for rank, _ in ranked]
    if ranks != list(range(len(ranks))):
        raise ValueError(f"the ranks of the last world are {ranks}: they must be 0, 1, 2 and so on, each once")
    return here, tuple(arrivals[number] for _, number in ranked)


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
