"""An agent that is killed and started again and again: how often it restarts the workers of the others."""

from __future__ import annotations

from tests.support.torchrun_cluster import QUICK, Cluster, Node, assert_quiet, ranks_of, wait_further

LIMIT = 2
FLAPPING = {**QUICK, "policy": "elastic", "last_call_timeout": 2, "max_node_losses": LIMIT}


def test_an_agent_that_dies_again_and_again_restarts_the_others_a_few_times(cluster: Cluster) -> None:
    done = cluster.path("done")
    job = cluster.job("2:3", conf=FLAPPING, worker=["--until", done])
    n0, n1 = job.start_pair()
    killed: list[Node] = []

    def start_again(number: int) -> Node:
        return job.start(f"flaps-{number}", is_host=False, infra_rank=2)

    def kill(node: Node) -> None:
        node.kill()
        killed.append(node)

    for number in range(LIMIT):
        node = start_again(number)
        node.wait_report("step", world=3)
        kill(node)
    n0.wait_for(f"parked cycle=.* pid {killed[-1].pid}: lost {LIMIT} times within 1 h 00 min")
    for number in range(LIMIT, LIMIT + 3):
        spare = start_again(number)
        n0.wait_for(f"parked cycle=.* pid {spare.pid}: ")
        spare.wait_for(r"spare in cycle=\d+: waiting for the next cycle")
        for node in (n0, n1):
            wait_further(node, steps=20)
        assert ranks_of_all(spare) == []
        if number < LIMIT + 2:
            kill(spare)
    # At most one growth and one loss for each of its lives in a world.
    assert not n0.lines(f"opened cycle={2 * LIMIT + 2}")
    done.touch()
    job.assert_succeeds(but=killed)
    assert_quiet(spare)


def ranks_of_all(node: Node) -> list[int]:
    """Ranks of the workers that this node ever started."""
    return [rank for cycle in range(1, 20) for rank in ranks_of(node, cycle)]
