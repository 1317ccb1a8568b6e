"""Worker ranks, compared with counting the workers one by one."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.core.model import NodeInfo, WorkerRanks
from ft_rendezvous.core.seats import rank_workers
from tests.core.build import node


def naive_rank_workers(nodes: Sequence[NodeInfo]) -> list[WorkerRanks]:
    """Number the workers one by one."""
    workers = [(index, info.role) for index, info in enumerate(nodes) for _ in range(info.local_world_size or 0)]
    result = []
    for index, info in enumerate(nodes):
        before = [role for owner, role in workers if owner < index]
        result.append(
            WorkerRanks(
                base_global_rank=len(before),
                global_world_size=len(workers),
                base_role_rank=before.count(info.role),
                role_world_size=[role for _, role in workers].count(info.role),
            )
        )
    return result


@given(shapes=st.lists(st.tuples(st.sampled_from(["trainer", "reader"]), st.integers(0, 8)), max_size=8))
def test_worker_ranks_are_those_of_counting_them_one_by_one(shapes: list[tuple[str, int]]) -> None:
    nodes = [node(number, role=role, local_world_size=size) for number, (role, size) in enumerate(shapes)]
    assert rank_workers(nodes) == naive_rank_workers(nodes)


def test_worker_ranks_are_left_to_torch_where_one_node_did_not_say_how_many_it_starts() -> None:
    assert rank_workers([node(1, role="trainer", local_world_size=8), node(2)]) is None
    assert rank_workers([node(1, role="trainer", local_world_size=8), node(2, role="trainer")]) is None
