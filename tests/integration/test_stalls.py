"""A store host that stands still for longer than a lease, and then goes on."""

from __future__ import annotations

import signal
import time

import pytest

from tests.support.torchrun_cluster import TORCHRUN, Cluster, Job, Node, assert_quiet, ranks_of, send
from tests.support.waiting import wait_until

LEASE_S = 2.0
CONF = {"lease_timeout": LEASE_S, "beat_interval": 0.5}
STALL_S = 1.5 * LEASE_S
TELL_JOINS = {"FT_LOGLEVEL": "DEBUG"}
ALONE = ("--alone-below", 99)
SPARE_JOINED = r"joined cycle=1 node=.* spare=True"

whole_or_agent = pytest.mark.parametrize("with_workers", [False, True], ids=["agent", "machine"])
"""What stands still: the agent with the store, or its workers, too."""


def stall(host: Node, with_workers: bool = False, stall_s: float = STALL_S) -> None:
    host.pause(with_workers)
    time.sleep(stall_s)
    host.resume(with_workers)


def start_spare(job: Job, host: Node, infra_rank: int) -> Node:
    spare = job.start("spare", is_host=False, infra_rank=infra_rank)
    host.wait_for(SPARE_JOINED)
    return spare


def assert_no_node_was_lost(job: Job, host: Node) -> None:
    """Every node ends well as the incarnation that it began as."""
    job.assert_succeeds()
    assert not host.lines("fenced cycle="), host.tail()
    assert len(host.lines("joined cycle=")) == len(job.nodes), host.tail()


@whole_or_agent
def test_the_host_stalls_while_others_train(cluster: Cluster, with_workers: bool) -> None:
    done = cluster.path("done")
    # The run's budget allows no failure. Workers fail because their peers are stopped, and no node is charged for that.
    job = cluster.job("3:4", conf={**CONF, "max_cycles": 1}, worker=["--until", done], env=TELL_JOINS)
    actives = job.start_all(3)
    for node in actives:
        node.wait_report("step", cycle=1)
    host = actives[0]
    spare = start_spare(job, host, infra_rank=3)
    stall(host, with_workers)
    for node in actives:
        node.wait_report("step", cycle=2, world=3, sum=6)
    done.touch()
    assert_no_node_was_lost(job, host)
    assert_quiet(spare)
    assert spare.reports("begin") == []
    assert [ranks_of(node, 2) for node in actives] == [[0], [1], [2]]
    assert not host.lines("opened cycle=3"), host.tail()
    assert len(host.lines(r"WARNING\] this process, which hosts the store, stood still for 3\.\d s")) == 1, host.tail()


def test_the_host_stalls_while_nodes_enter_the_exit_barrier(cluster: Cluster) -> None:
    last = cluster.path("last")
    # Without torch a worker ends in a moment, also on a loaded machine: within the lease.
    job = cluster.job("2:3", conf=CONF, worker=["--linger-until", last, *ALONE], env=TELL_JOINS)
    host, slow = job.start_all(2)
    host.wait_for("finished in cycle=1: waiting for the other nodes")
    spare = start_spare(job, host, infra_rank=2)
    host.pause()
    # It ends its part within its lease, and only the host can say what becomes of that.
    last.touch()
    slow.wait_report("end", cycle=1, rank=1)
    time.sleep(STALL_S)
    host.resume()
    assert_no_node_was_lost(job, host)
    assert_quiet(host, slow, spare)
    assert spare.reports("begin") == []
    assert not host.lines("opened cycle=2"), host.tail()


def test_the_host_stalls_while_a_node_waits_in_the_exit_barrier(cluster: Cluster) -> None:
    last = cluster.path("last")
    job = cluster.job("2:3", conf={**CONF, "max_cycles": 1}, worker=["--linger-until", last], env=TELL_JOINS)
    host = job.start("host", is_host=True, infra_rank=1)
    finished = job.start("finished", is_host=False, infra_rank=0)
    finished.wait_for("finished in cycle=1: waiting for the other nodes")
    spare = start_spare(job, host, infra_rank=2)
    stall(host)
    # The workers of the host had to stop. They begin again with the spare: a node that has finished never trains again.
    for node in (host, spare):
        node.wait_report("step", cycle=2, world=2, sum=3)
    assert not finished.has_exited
    last.touch()
    assert_no_node_was_lost(job, host)
    assert_quiet(finished, spare)
    assert len(finished.reports("begin")) == 1
    assert not host.lines("opened cycle=3"), host.tail()


MONITOR_S = 3.0
"""How rarely an agent looks after its workers here: its lease is lost and renewed between two looks."""
SHORT_STALL_S = 1.1 * LEASE_S
"""It begins when the workers begin, and is over before the first look."""


def wait_later_cycle(node: Node, cycle: int) -> int:
    """The cycle in which its workers have begun again."""

    def look() -> int | None:
        newest = int(node.reports("begin")[-1]["cycle"])
        return newest if newest > cycle else None

    return wait_until(f"workers of {node.name} in a later cycle than {cycle}", look, explain=node.tail)


@pytest.mark.parametrize("whose", ["host", "other"])
def test_a_worker_dies_when_the_host_goes_on(cluster: Cluster, whose: str) -> None:
    done = cluster.path("done")
    # Deaths in a row are not the point: neither a crash loop nor a bad node may end this run.
    conf = {**CONF, "crash_loop": 0, "max_node_failures": 0}
    job = cluster.job("2:2", conf=conf, worker=["--until", done, *ALONE], env=TELL_JOINS)
    host, other = job.start_all(2, launcher=(*TORCHRUN, f"--monitor-interval={MONITOR_S}"))
    victim = host if whose == "host" else other
    cycle = 1
    for delay_s in (-0.5, -0.01, 0.0, 0.01, 0.1):
        worker = int(victim.wait_report("begin", cycle=cycle)["pid"])
        # An agent that looks during the stall has stopped it before: then there is nothing left to kill.
        host.pause(with_workers=False)
        time.sleep(SHORT_STALL_S + min(0.0, delay_s))
        if delay_s < 0:
            send(worker, signal.SIGKILL)
            time.sleep(-delay_s)
        host.resume(with_workers=False)
        if delay_s >= 0:
            time.sleep(delay_s)
            send(worker, signal.SIGKILL)
        cycle = wait_later_cycle(victim, cycle)
    for node in (host, other):
        node.wait_report("step", cycle=cycle)
    done.touch()
    assert_no_node_was_lost(job, host)
