"""Nodes that wait: they disturb nobody, take over when needed, and leave with the others."""

from __future__ import annotations

import signal

from tests.support.torchrun_cluster import QUICK, Cluster, assert_quiet, is_alive, ranks_of
from tests.support.waiting import wait_until

TELL_JOINS = {"FT_LOGLEVEL": "DEBUG"}
SPARE_JOINED = r"joined cycle=\d+ node=.* spare=True"


def test_a_late_node_is_a_hot_spare(cluster: Cluster) -> None:
    done = cluster.path("done")
    job = cluster.job("2:3", worker=["--until", done], env=TELL_JOINS)
    n0, n1 = job.start_pair()
    pids = {node.name: node.workers() for node in (n0, n1)}
    spare = job.start("spare", is_host=False, infra_rank=2)
    n0.wait_for(SPARE_JOINED)
    spare.wait_for("spare in cycle=1: waiting for the next cycle")
    seen = int(n1.reports("step")[-1]["step"])
    n1.wait_report("step", step=seen + 5)
    assert {node.name: node.workers() for node in (n0, n1)} == pids
    done.touch()
    job.assert_succeeds()
    assert_quiet(n0, n1, spare)
    for node in (n0, n1):
        assert len(node.reports("begin")) == 1
        assert len(node.reports("end", cycle=1)) == 1
    assert spare.reports("begin") == []


def test_more_nodes_than_max(cluster: Cluster) -> None:
    done = cluster.path("done")
    job = cluster.job("1:2", worker=["--until", done], env=TELL_JOINS)
    active = job.start("active", is_host=True)
    active.wait_report("step", world=1, sum=1)
    spares = [job.start(f"spare{index}", is_host=False) for index in range(3)]
    active.wait_for(rf"(?s)({SPARE_JOINED}.*){{3}}")
    done.touch()
    job.assert_succeeds()
    assert_quiet(active, *spares)
    assert len(active.reports("begin")) == 1
    for spare in spares:
        assert spare.reports("begin") == []


def test_a_spare_takes_the_rank_of_a_killed_node(cluster: Cluster) -> None:
    done = cluster.path("done")
    # The workers of the others fail of the loss: the run's budget allows no failure, and is not charged for it.
    job = cluster.job("3:4", conf={**QUICK, "max_cycles": 1}, worker=["--until", done], env=TELL_JOINS)
    n0, n1, n2 = job.start_all(3)
    for node in (n0, n1, n2):
        node.wait_report("step", cycle=1, world=3)
    spare = job.start("spare", is_host=False, infra_rank=3)
    n0.wait_for(SPARE_JOINED)
    n1.kill()
    # Topology alone would move n2 to rank 1 and give the spare rank 2.
    spare.wait_report("step", cycle=2, rank=1, world=3, sum=6)
    done.touch()
    job.assert_succeeds(but=[n1])
    assert_quiet(spare)
    assert [ranks_of(node, 2) for node in (n0, spare, n2)] == [[0], [1], [2]]
    assert job.ranks_and_sums(cycle=2) == [(0, 6), (1, 6), (2, 6)]
    assert job.ranks_and_sums(cycle=3) == []
    assert n0.lines("fenced cycle=.*infra rank 1 at .*its process has ended")


def test_the_workers_of_a_killed_agent_die_within_the_lease(cluster: Cluster) -> None:
    done = cluster.path("done")
    job = cluster.job("2:3", conf=QUICK, worker=["--until", done], env=TELL_JOINS)
    host = job.start("host", is_host=True, infra_rank=1)
    # Rank 0's agent serves the store its workers met on: the next cycle must not need it.
    killed = job.start("killed", is_host=False, infra_rank=0)
    killed.wait_report("step", cycle=1, rank=0)
    spare = job.start("spare", is_host=False, infra_rank=2)
    host.wait_for(SPARE_JOINED)
    (orphan,) = killed.workers()
    killed.kill(with_workers=False)
    wait_until("the orphan is gone", lambda: not is_alive(orphan) or None, float(QUICK["lease_timeout"]), killed.tail)
    spare.wait_report("step", cycle=2, rank=0, sum=3)
    done.touch()
    job.assert_succeeds(but=[killed])
    assert_quiet(spare)
    assert [ranks_of(node, 2) for node in (spare, host)] == [[0], [1]]
    assert job.ranks_and_sums(cycle=2) == [(0, 3), (1, 3)]
    assert job.ranks_and_sums(cycle=3) == []


def test_a_node_is_asked_to_go(cluster: Cluster) -> None:
    done = cluster.path("done")
    # It says goodbye: nobody waits for this lease.
    job = cluster.job("2:3", conf={"lease_timeout": 200}, worker=["--until", done], env=TELL_JOINS)
    n0, n1 = job.start_pair()
    spare = job.start("spare", is_host=False, infra_rank=2)
    n0.wait_for(SPARE_JOINED)
    n1.signal(signal.SIGTERM)
    assert n1.wait_exit() != 0
    assert n1.workers() == []
    spare.wait_report("step", cycle=2, rank=1, sum=3)
    done.touch()
    job.assert_succeeds(but=[n1])
    assert_quiet(spare)
    assert [ranks_of(node, 2) for node in (n0, spare)] == [[0], [1]]
