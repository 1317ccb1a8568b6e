"""Who trains, with which rank.

Sticky ranks: the first world is ordered by topology; later, survivors keep their rank and newcomers fill
the holes: the node with the hole's own infra rank if it came back, else one of the hole's domain, else the
next in topology order. The result depends on who arrived, not on when.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ft_rendezvous.core.model import Arrival, NodeInfo, Placement, Seat, WorkerRanks

TopologyKey = tuple[str, bool, int, str, int, str]


def topology_key(incarnation: str, node: NodeInfo) -> TopologyKey:
    """Order by domain, then infra rank (nodes without one last), then address, so that it is total."""
    missing = node.infra_rank is None
    return (node.domain_id or "", missing, node.infra_rank or 0, node.addr, node.pid, incarnation)


def place(arrivals: Mapping[str, Arrival], previous: Sequence[Arrival], world_size: int) -> Placement:
    """Give `world_size` of the arrivals a rank each; the rest are standbys.

    `previous` is the last sealed world by rank. Requires `len(arrivals) >= world_size`.
    """
    assert len(arrivals) >= world_size, f"{len(arrivals)} arrivals for {world_size} ranks"
    ranks: list[str | None] = [None] * world_size
    for rank, seat in enumerate(previous[:world_size]):
        if seat.incarnation in arrivals:
            ranks[rank] = seat.incarnation
    kept = {incarnation for incarnation in ranks if incarnation is not None}
    free = sorted(
        (incarnation for incarnation in arrivals if incarnation not in kept),
        key=lambda incarnation: topology_key(incarnation, arrivals[incarnation].node),
    )
    holes = [rank for rank, incarnation in enumerate(ranks) if incarnation is None]
    for rank, incarnation in _fill(holes, free, arrivals, previous):
        ranks[rank] = incarnation
    placed = {incarnation for incarnation in ranks if incarnation is not None}
    assert len(placed) == world_size, "a rank was given twice or not at all"
    return Placement(
        ranks=tuple(incarnation for incarnation in ranks if incarnation is not None),
        standbys=tuple(incarnation for incarnation in free if incarnation not in placed),
    )


def _fill(
    holes: Sequence[int], free: Sequence[str], arrivals: Mapping[str, Arrival], previous: Sequence[Arrival]
) -> list[tuple[int, str]]:
    """Pair every hole with a free node, best matches first. `free` is in topology order."""
    pairs: list[tuple[int, str]] = []
    for affinity in (_by_infra_rank, _by_domain):
        pools: dict[object, list[str]] = defaultdict(list)
        for incarnation in reversed(free):
            pools[affinity(arrivals[incarnation].node)].append(incarnation)
        unmatched: list[int] = []
        for rank in holes:
            wanted = affinity(previous[rank].node) if rank < len(previous) else None
            if wanted is not None and pools[wanted]:
                pairs.append((rank, pools[wanted].pop()))
            else:
                unmatched.append(rank)
        taken = {incarnation for _, incarnation in pairs}
        holes = unmatched
        free = [incarnation for incarnation in free if incarnation not in taken]
    pairs.extend(zip(holes, free, strict=False))
    return pairs


def _by_infra_rank(node: NodeInfo) -> object:
    return node.infra_rank


def _by_domain(node: NodeInfo) -> object:
    return node.domain_id


def rank_workers(nodes: Sequence[NodeInfo]) -> list[WorkerRanks] | None:
    """Global and role ranks of every node's workers, nodes given by rank.

    The same prefix sums torch's agent works out through the store; None where a node did not say how many
    workers it starts, and then the agent does it its own way.
    """
    role_sizes: dict[str, int] = defaultdict(int)
    shapes: list[tuple[str, int]] = []
    for node in nodes:
        if node.role is None or node.local_world_size is None:
            return None
        role_sizes[node.role] += node.local_world_size
        shapes.append((node.role, node.local_world_size))
    global_size = sum(size for _, size in shapes)
    role_ranks: dict[str, int] = defaultdict(int)
    base = 0
    result: list[WorkerRanks] = []
    for role, size in shapes:
        result.append(WorkerRanks(base, global_size, role_ranks[role], role_sizes[role]))
        base += size
        role_ranks[role] += size
    return result


def seat(placement: Placement, arrivals: Mapping[str, Arrival]) -> dict[str, Seat]:
    """Everybody's line in a sealed cycle."""
    workers = rank_workers([arrivals[incarnation].node for incarnation in placement.ranks])
    seats = {
        incarnation: Seat(rank, workers[rank] if workers else None) for rank, incarnation in enumerate(placement.ranks)
    }
    return seats | {incarnation: Seat(None) for incarnation in placement.standbys}
