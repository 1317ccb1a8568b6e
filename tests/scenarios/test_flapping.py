"""A node that dies and comes back again and again: how often it disturbs the others."""

from __future__ import annotations

from typing import Any

import pytest

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.capacity import Policy
from tests.scenarios.simulated_cluster import Cluster
from tests.sim.store import SimStore

DEATHS = 40


def run_of(*names: str, has_infra_ranks: bool = True, **settings: Any) -> Cluster:
    """An elastic run of two to four nodes, of which the named ones have come and train."""
    given = {"run_id": "r", "min_nodes": 2, "max_nodes": 4, "policy": Policy.ELASTIC, "last_call_s": 1.0, **settings}
    cluster = Cluster(RunSettings(**given), SimStore())
    for number, name in enumerate(names):
        cluster.join(name, infra_rank=number if has_infra_ranks else None)
        cluster.settle()
    cluster.advance(2.0)
    return cluster


def restart_agent(cluster: Cluster, name: str, away_s: float) -> None:
    """Its agent is killed, and started again after a while."""
    info = cluster.nodes[name].participant.node
    cluster.nodes[name].kill()
    cluster.advance(away_s)
    cluster.join(name, addr=info.addr, infra_rank=info.infra_rank, domain_id=info.domain_id)
    cluster.advance(2.0)


@pytest.mark.parametrize("away_s", [0.5, 7.0], ids=["replaced within its lease", "lost"])
@pytest.mark.parametrize("has_infra_ranks", [True, False])
def test_forty_deaths_of_one_agent_cost_the_others_a_few_restarts(has_infra_ranks: bool, away_s: float) -> None:
    cluster = run_of("a", "b", "f", has_infra_ranks=has_infra_ranks)
    for _ in range(DEATHS):
        restart_agent(cluster, "f", away_s)
    cluster.advance(8.0)
    restarts = cluster.coordinator.cycle_id - 1
    assert restarts <= 2 * cluster.settings.max_node_losses
    assert [node.name for node in cluster.training] == ["a", "b"]
