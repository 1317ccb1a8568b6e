"""Nodes that lose the store while they, their workers and the store are all well."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.machines import HAS_NETWORKS, NO_NETWORKS, Machine, Switch
from tests.support.proxy import Proxy
from tests.support.torchrun_cluster import (
    QUICK,
    TORCHRUN,
    Cluster,
    Job,
    Node,
    assert_quiet,
    is_alive,
    ranks_of,
    wait_further,
)
from tests.support.waiting import wait_until

TELL_JOINS = {"FT_LOGLEVEL": "DEBUG"}
SPARE_JOINED = r"joined cycle=1 node=.* spare=True"
LEASE_S = float(QUICK["lease_timeout"])
JOIN_S = 20.0
RESETS = 20


def start_through(proxy: Proxy, job: Job, name: str, infra_rank: int) -> Node:
    return job.start(name, is_host=False, infra_rank=infra_rank, endpoint=f"127.0.0.1:{proxy.port}")


def reset(proxy: Proxy) -> None:
    """Break the connections of a node, and wait until it has both again."""
    accepted = proxy.accepted
    assert proxy.cut() > 0
    wait_until("new connections", lambda: proxy.accepted >= accepted + 2 or None)


def test_resets_of_connections_cost_nothing(cluster: Cluster) -> None:
    done = cluster.path("done")
    # A node that waits for the lease instead of trying again would wait for longer than this test does.
    job = cluster.job("2:3", conf={"lease_timeout": 200}, worker=["--until", done], env=TELL_JOINS)
    n0 = job.start("n0", is_host=True, infra_rank=0)
    with Proxy(job.port) as to_active, Proxy(job.port) as to_spare:
        n1 = start_through(to_active, job, "n1", infra_rank=1)
        n1.wait_report("step", cycle=1, rank=1)
        spare = start_through(to_spare, job, "spare", infra_rank=2)
        n0.wait_for(SPARE_JOINED)
        spare.wait_for("spare in cycle=1: waiting")
        pids = [node.workers() for node in (n0, n1)]
        for _ in range(RESETS):
            reset(to_active)
            reset(to_spare)
        for node in (n0, n1):
            wait_further(node)
        assert [node.workers() for node in (n0, n1)] == pids
        done.touch()
        job.assert_succeeds()
    assert_quiet(n0, n1, spare)
    assert [len(node.reports("begin")) for node in (n0, n1, spare)] == [1, 1, 0]
    assert not n0.lines("opened cycle=2|fenced"), n0.tail()
    assert len(n0.lines("joined cycle=")) == 3, n0.tail()


@pytest.mark.parametrize("heals", [True, False], ids=["heals", "for_good"])
def test_a_partition_outlasts_the_lease(cluster: Cluster, heals: bool) -> None:
    done = cluster.path("done")
    conf = {**QUICK, "join_timeout": JOIN_S}
    job = cluster.job("2:3", conf=conf, worker=["--until", done], env=TELL_JOINS)
    n0 = job.start("n0", is_host=True, infra_rank=0)
    with Proxy(job.port) as proxy:
        n1 = start_through(proxy, job, "n1", infra_rank=1)
        n1.wait_report("step", cycle=1, rank=1)
        spare = job.start("spare", is_host=False, infra_rank=2)
        n0.wait_for(SPARE_JOINED)
        (old_worker,) = n1.workers()
        proxy.fall_silent()
        since = time.monotonic()
        # No node can tell it that its place is given away: it stops by its own clock.
        wait_until("the old worker is gone", lambda: not is_alive(old_worker) or None, explain=n1.tail)
        assert time.monotonic() - since < LEASE_S + 10.0
        n1.wait_for(rf"out of touch with the store at .*; this node tries again for {JOIN_S:g} s")
        spare.wait_report("step", cycle=2, rank=1, sum=3)
        if heals:
            proxy.speak_again()
            n1.wait_for("in touch with the store again after")
            n0.wait_for(rf"joined cycle=2 node=infra rank 1 at \S+ pid {n1.pid} spare=True")
        else:
            n1.assert_fails()
            assert time.monotonic() - since > JOIN_S
            said = n1.lines(rf"ERROR\] store 127\.0\.0\.1:{proxy.port}: .* for this node, and it stops")
            assert len(said) == 1, n1.tail()
        assert n1.workers() == []
        done.touch()
        job.assert_succeeds(but=[] if heals else [n1])
    assert_quiet(spare)
    assert [ranks_of(node, 2) for node in (n0, spare)] == [[0], [1]]
    assert n1.reports("begin", cycle=2) == []
    assert not n0.lines("opened cycle=3"), n0.tail()


# --- machines with a switch between them ------------------------------------------------------------

PORT = 29400


@pytest.fixture
def machines() -> Iterator[tuple[Switch, Machine, Machine]]:
    first, second = Machine(1), Machine(2)
    with Switch(first, second) as switch:
        yield switch, first, second


def start_on(machine: Machine, job: Job, name: str, infra_rank: int, *, is_host: bool = False) -> Node:
    env = {"GLOO_SOCKET_IFNAME": machine.wire}
    launcher = (*machine.enter, *TORCHRUN)
    return job.start(name, is_host=is_host, infra_rank=infra_rank, launcher=launcher, env=env)


@pytest.mark.skipif(not HAS_NETWORKS, reason=NO_NETWORKS)
@pytest.mark.parametrize("has_spare", [False, True], ids=["rejoins", "parks"])
def test_a_machine_is_cut_off_and_comes_back(
    cluster: Cluster, machines: tuple[Switch, Machine, Machine], has_spare: bool
) -> None:
    switch, near, far = machines
    done = cluster.path("done")
    job = cluster.job("2:3", conf=QUICK, worker=["--until", done], env=TELL_JOINS, host=near.address, port=PORT)
    n0 = start_on(near, job, "n0", infra_rank=0, is_host=True)
    n1 = start_on(far, job, "n1", infra_rank=1)
    for node in (n0, n1):
        node.wait_report("step", cycle=1, sum=3)
    if has_spare:
        spare = start_on(near, job, "spare", infra_rank=2)
        n0.wait_for(SPARE_JOINED)
    (old_worker,) = n1.workers()
    switch.cut_off(far)
    since = time.monotonic()
    wait_until("the old worker is gone", lambda: not is_alive(old_worker) or None, explain=n1.tail)
    n0.wait_for("fenced cycle=1 node=infra rank 1 at .*no beat for 3 s")
    if has_spare:
        spare.wait_report("step", cycle=2, rank=1, sum=3)
    time.sleep(max(0.0, since + 3 * LEASE_S - time.monotonic()))
    switch.connect(far)
    n1.wait_for("in touch with the store again after")
    if has_spare:
        n0.wait_for(rf"joined cycle=2 node=infra rank 1 at \S+ pid {n1.pid} spare=True")
    else:
        n1.wait_report("step", cycle=2, rank=1, sum=3)
    done.touch()
    job.assert_succeeds()
    assert_quiet(*job.nodes[2:])
    assert job.ranks_and_sums(cycle=2) == [(0, 3), (1, 3)]
    assert ranks_of(n1, 2) == ([] if has_spare else [1])
    assert not n0.lines("opened cycle=3"), n0.tail()
