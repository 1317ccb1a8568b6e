"""Deaths that are noticed at once, with real torchruns. A lease lasts for minutes here, so it cannot be the lease."""

from __future__ import annotations

from tests.support.torchrun_cluster import QUICK, Cluster, Job, Node, assert_quiet, is_alive, ranks_of
from tests.support.waiting import wait_until

LONG_LEASE = {"lease_timeout": 300, "beat_interval": 1}
TELL_JOINS = {"FT_LOGLEVEL": "DEBUG"}
SPARE_JOINED = r"joined cycle=\d+ node=.* spare=True"


def start_with_spare(job: Job) -> tuple[Node, Node, Node]:
    n0, n1 = job.start_pair()
    spare = job.start("spare", is_host=False, infra_rank=2)
    n0.wait_for(SPARE_JOINED)
    return n0, n1, spare


def test_a_killed_machine_is_replaced_at_once(cluster: Cluster) -> None:
    """Agent, reaper and workers die together: the lifeline hangs up, and no beat comes for the grace."""
    done = cluster.path("done")
    job = cluster.job("2:3", conf=LONG_LEASE, worker=["--until", done], env=TELL_JOINS)
    n0, n1, spare = start_with_spare(job)
    n1.kill()
    spare.wait_report("step", cycle=2, rank=1, sum=3)
    done.touch()
    job.assert_succeeds(but=[n1])
    assert_quiet(spare)
    assert n0.lines("fenced cycle=1 node=infra rank 1 at .*its process has ended: its lifeline hung up")
    assert [ranks_of(node, 2) for node in (n0, spare)] == [[0], [1]]
    assert n0.lines("sealed cycle=3") == []


def test_a_killed_agent_is_replaced_at_once_and_its_worker_dies(cluster: Cluster) -> None:
    """The reaper says that the agent is dead, and ends the worker."""
    done = cluster.path("done")
    job = cluster.job("2:3", conf=LONG_LEASE, worker=["--until", done], env=TELL_JOINS)
    n0, n1, spare = start_with_spare(job)
    (orphan,) = n1.workers()
    n1.kill(with_workers=False)
    spare.wait_report("step", cycle=2, rank=1, sum=3)
    wait_until("the orphan is gone", lambda: not is_alive(orphan) or None, explain=n1.tail)
    done.touch()
    job.assert_succeeds(but=[n1])
    assert n0.lines("fenced cycle=1 node=infra rank 1 at .*its agent has ended without a goodbye")
    assert n0.lines("sealed cycle=3") == []


def test_a_node_that_is_killed_while_it_waits_gets_no_rank(cluster: Cluster) -> None:
    """No ghost in a world: the first world is formed without the dead node, and is the only one."""
    done = cluster.path("done")
    job = cluster.job("3:3", conf=LONG_LEASE, worker=["--until", done], env=TELL_JOINS)
    n0, dead = (job.start(f"n{rank}", is_host=rank == 0, infra_rank=rank) for rank in range(2))
    n0.wait_for("waiting cycle=1: 2 of 3 nodes have arrived")
    dead.wait_for("arrived in cycle=1: waiting for the seal")
    dead.kill()
    last = [job.start(f"n{rank}", is_host=False, infra_rank=rank) for rank in (2, 3)]
    for node in (n0, *last):
        node.wait_report("step", cycle=1, world=3)
    done.touch()
    job.assert_succeeds(but=[dead])
    assert n0.lines("fenced cycle=1 node=infra rank 1 at .*its process has ended")
    assert n0.lines("opened cycle=2") == []


def test_a_store_host_that_is_killed_ends_its_run_at_once(cluster: Cluster) -> None:
    job = cluster.job("2:3", conf=LONG_LEASE, worker=["--until", cluster.path("done")])
    host = job.serve()
    nodes = [job.start(f"n{rank}", is_host=False, infra_rank=rank) for rank in range(2)]
    for node in nodes:
        node.wait_report("step", cycle=1)
    nodes.append(job.start("spare", is_host=False, infra_rank=2))
    nodes[2].wait_for("spare in cycle=1")
    host.kill()
    for node in nodes:
        node.assert_fails()
        assert node.lines(r"nothing listens there, for \d\.\d s: the run ended with its store"), node.tail()
        assert node.workers() == []


def test_without_lifelines_the_lease_finds_the_dead(cluster: Cluster) -> None:
    done = cluster.path("done")
    job = cluster.job("2:3", conf={**QUICK, "lifeline": "no"}, worker=["--until", done], env=TELL_JOINS)
    n0, n1, spare = start_with_spare(job)
    n1.kill()
    spare.wait_report("step", cycle=2, rank=1, sum=3)
    done.touch()
    job.assert_succeeds(but=[n1])
    assert n0.lines("fenced cycle=.*infra rank 1 at .*no beat for 3 s")
