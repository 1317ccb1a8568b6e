"""Each node's seat in a sealed cycle, and the ranks of its workers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from ft_rendezvous.core.model import Arrival, Master, NodeInfo, Placement, Seat, WorkerRanks


def rank_workers(nodes: Sequence[NodeInfo]) -> list[WorkerRanks] | None:
    """Global and role ranks of every node's workers. `nodes` are in the order of ranks.

    These are the prefix sums that torch's agent otherwise computes through the store. None if a node did not say how
    many workers it starts; then the agents compute them.
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
    """The seat of every placed or standby node in a sealed cycle. Ranks are those within a group."""
    seats: dict[str, Seat] = {}
    for group, names in placement.by_group():
        workers = rank_workers([arrivals[incarnation].node for incarnation in names])
        seats.update(
            (incarnation, Seat(rank, workers[rank] if workers else None, group))
            for rank, incarnation in enumerate(names)
        )
    return seats | {incarnation: Seat(None) for incarnation in placement.standbys}


def masters(placement: Placement, arrivals: Mapping[str, Arrival]) -> dict[int, Master]:
    """Where the workers of each group meet: at its rank 0."""
    firsts = {group: arrivals[names[0]] for group, names in placement.by_group()}
    return {group: Master(first.node.addr, first.bootstrap_port) for group, first in firsts.items()}
