"""Nodes that lose the store while they, their workers and the store are all well."""

from __future__ import annotations

import time

from tests.support.proxy import Proxy
from tests.support.torchrun_cluster import QUICK, Cluster, assert_quiet, is_alive, ranks_of, wait_until

TELL_JOINS = {"FT_LOGLEVEL": "DEBUG"}
LEASE_S = float(QUICK["lease_timeout"])


def test_a_connection_is_reset(cluster: Cluster) -> None:
    done = cluster.path("done")
    # Whoever waits for the lease instead of trying again would wait for longer than this test does.
    job = cluster.job("2:2", conf={"lease_timeout": 200}, worker=["--until", done])
    n0 = job.start("n0", is_host=True, infra_rank=0)
    with Proxy(job.port) as proxy:
        n1 = job.start("n1", is_host=False, infra_rank=1, endpoint=f"127.0.0.1:{proxy.port}")
        n1.wait_report("step", cycle=1, rank=1)
        proxy.cut()
        n1.wait_report("step", cycle=2, rank=1, sum=3)
        done.touch()
        job.assert_succeeds()
    assert [ranks_of(node, 2) for node in (n0, n1)] == [[0], [1]]
    assert job.ranks_and_sums(cycle=3) == []


def test_a_partition_outlasts_the_lease(cluster: Cluster) -> None:
    done = cluster.path("done")
    job = cluster.job("2:3", conf=QUICK, worker=["--until", done], env=TELL_JOINS)
    n0 = job.start("n0", is_host=True, infra_rank=0)
    with Proxy(job.port) as proxy:
        n1 = job.start("n1", is_host=False, infra_rank=1, endpoint=f"127.0.0.1:{proxy.port}")
        n1.wait_report("step", cycle=1, rank=1)
        spare = job.start("spare", is_host=False, infra_rank=2)
        n0.wait_for("joined cycle=1 node=.* spare=True")
        (old_worker,) = n1.workers()
        proxy.fall_silent()
        since = time.monotonic()
        # Nobody can tell it that its place is given away: it stops by its own clock.
        wait_until("the old worker is gone", lambda: not is_alive(old_worker) or None, explain=n1.tail)
        assert time.monotonic() - since < LEASE_S + 10.0
        spare.wait_report("step", cycle=2, rank=1, sum=3)
        n1.assert_fails()
        assert len(n1.lines(rf"ERROR\] store 127\.0\.0\.1:{proxy.port}: .* for this node, and it stops")) == 1, (
            n1.tail()
        )
        assert n1.workers() == []
    done.touch()
    job.assert_succeeds(but=[n1])
    assert_quiet(spare)
    assert [ranks_of(node, 2) for node in (n0, spare)] == [[0], [1]]
    assert n1.reports("begin", cycle=2) == []
