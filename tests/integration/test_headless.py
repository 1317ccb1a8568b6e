"""A name with the addresses of several machines, as a headless Service of Kubernetes has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.machines import HAS_NETWORKS, NO_NETWORKS, Machine, Switch
from tests.support.torchrun_cluster import QUICK, TORCHRUN, Cluster, Job, Node, assert_quiet

pytestmark = pytest.mark.skipif(not HAS_NETWORKS, reason=NO_NETWORKS)

NAME, PORT = "train", 29400
SILENT = "10.213.0.99"
"""No machine has this address: every packet to it is lost."""


@pytest.fixture
def pods() -> Iterator[list[Machine]]:
    machines = [Machine(number) for number in (1, 2, 3)]
    with Switch(*machines):
        yield machines


def start_on(pod: Machine, job: Job, index: int) -> Node:
    env = {"GLOO_SOCKET_IFNAME": pod.wire, "JOB_COMPLETION_INDEX": str(index)}
    return job.start(f"n{index}", infra_rank=index, launcher=(*pod.enter, *TORCHRUN), env=env)


@pytest.mark.parametrize("seen_first", ["nothing", "itself", "all"])
def test_only_index_0_hosts_and_the_others_find_it(cluster: Cluster, pods: list[Machine], seen_first: str) -> None:
    """One address is silent and one refuses. The node with index 1 starts first, before DNS has all addresses."""
    first, second, idle = pods
    names = [f"{address} {NAME}" for address in (SILENT, idle.address, second.address, first.address)]
    second.know(*{"nothing": [], "itself": [f"{second.address} {NAME}"], "all": names}[seen_first])
    job = cluster.job("2:2", conf={**QUICK, "join_timeout": 60}, host=NAME, port=PORT)
    n1 = start_on(second, job, 1)
    n1.wait_for("waiting for the store at train:29400|hosting the store")
    for pod in pods:
        pod.know(*names)
    n0 = start_on(first, job, 0)
    job.assert_succeeds()
    assert_quiet(n0, n1)
    assert [len(node.lines("hosting the store")) for node in (n0, n1)] == [1, 0]
    assert job.ranks_and_sums(cycle=1) == [(0, 3), (1, 3)]
