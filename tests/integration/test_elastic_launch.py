"""`elastic_launch` from Python: a function as the entry point, results by rank."""

from __future__ import annotations

import sys

from tests.support.torchrun_cluster import HERE, Cluster, Job, Node, assert_quiet, is_alive
from tests.support.waiting import wait_until


def launch(job: Job, name: str, until: object, is_host: bool, infra_rank: int, **environ: str) -> Node:
    script = str(HERE / "workers" / "launch_function.py")
    low, high = job.nnodes.split(":")
    command = [sys.executable, script, job.cluster.backend, job.endpoint, job.run_id, low, high, str(until)]
    settings = [f"is_host={str(is_host).lower()}", f"infra_rank={infra_rank}"]
    node = job.cluster.spawn(name, [*command, *settings], {"FT_LOGLEVEL": "DEBUG", **environ})
    job.nodes.append(node)
    return node


def test_results_by_rank_and_none_for_a_spare(cluster: Cluster) -> None:
    done = cluster.path("done")
    job = cluster.job("2:3")
    n0 = launch(job, "n0", done, is_host=True, infra_rank=0)
    n1 = launch(job, "n1", done, is_host=False, infra_rank=1)
    n0.wait_report("step", rank=0, sum=3)
    spare = launch(job, "spare", done, is_host=False, infra_rank=2)
    n0.wait_for("joined cycle=1 node=.* spare=True")
    done.touch()
    job.assert_succeeds()
    assert_quiet(n0, n1, spare)
    assert n0.lines("^ft-test results=") == ["ft-test results={0: (0, 3)}"]
    assert n1.lines("^ft-test results=") == ["ft-test results={1: (1, 3)}"]
    assert spare.lines("^ft-test results=") == ["ft-test results={}"]


def test_forked_workers_of_a_killed_agent_die(cluster: Cluster) -> None:
    done = cluster.path("done")
    job = cluster.job("1:1")
    agent = launch(job, "n0", done, is_host=True, infra_rank=0, LAUNCH_FORKS="1")
    worker = int(agent.wait_report("step", rank=0)["pid"])
    agent.kill(with_workers=False)
    wait_until("the forked worker is gone", lambda: not is_alive(worker))
