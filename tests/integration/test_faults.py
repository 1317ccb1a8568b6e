"""Nodes and store hosts that die or fall silent at the worst moment."""

from __future__ import annotations

import re
import sys
import time

import pytest

from tests.support.torchrun_cluster import HERE, QUICK, Cluster, Node, assert_quiet, is_alive, ranks_of
from tests.support.waiting import wait_until

LEASE_S = float(QUICK["lease_timeout"])
STOP_S = 20.0
"""What stopping workers and ending a Python process may take on a loaded machine; well under every timeout of torch."""

DYING = (sys.executable, str(HERE / "workers" / "die_before_workers.py"))


# --- between the seal and the start of workers ------------------------------------------------------


def test_death_between_seal_and_start_is_noticed_by_the_lease(cluster: Cluster) -> None:
    job = cluster.job("2:3", conf=QUICK)
    n0 = job.start("n0", is_host=True, infra_rank=0)
    n1 = job.start("n1", is_host=False, infra_rank=1, launcher=DYING)
    n1.wait_for("ft-test dies group_rank=1")
    spare = job.start("spare", is_host=False, infra_rank=2)
    job.assert_succeeds(but=[n1])
    assert_quiet(spare)
    assert [ranks_of(node, 2) for node in (n0, spare)] == [[0], [1]]
    assert job.ranks_and_sums(cycle=2) == [(0, 3), (1, 3)]
    assert not n0.lines("opened cycle=3")
    noticed_s = n0.logged_at("opened cycle=2") - n0.logged_at("sealed cycle=1")
    assert noticed_s < LEASE_S + STOP_S


def test_death_between_seal_and_start_is_noticed_by_the_restarted_node(cluster: Cluster) -> None:
    # With a lifeline, the death would be noticed before the node is back.
    job = cluster.job("2:2", conf={"lease_timeout": 100, "lifeline": "no"})
    n0 = job.start("n0", is_host=True, infra_rank=0)
    n1 = job.start("n1", is_host=False, infra_rank=1, launcher=DYING)
    n1.wait_for("ft-test dies group_rank=1")
    again = job.start("n1-again", is_host=False, infra_rank=1)
    job.assert_succeeds(but=[n1])
    assert_quiet(again)
    assert [ranks_of(node, 2) for node in (n0, again)] == [[0], [1]]
    assert job.ranks_and_sums(cycle=2) == [(0, 3), (1, 3)]
    assert not n0.lines("opened cycle=3")
    assert n0.lines(rf"fenced cycle=1 node=infra rank 1 at \S+ pid {n1.pid}: .*newer start"), n0.tail()


# --- a node that hangs and comes back ---------------------------------------------------------------


@pytest.mark.parametrize("has_spare", [False, True], ids=["rejoins", "parks"])
def test_a_node_that_hangs_longer_than_its_lease(cluster: Cluster, has_spare: bool) -> None:
    done = cluster.path("done")
    job = cluster.job("2:3", conf=QUICK, worker=["--until", done], env={"FT_LOGLEVEL": "DEBUG"})
    n0, n1 = job.start_pair()
    if has_spare:
        spare = job.start("spare", is_host=False, infra_rank=2)
        n0.wait_for("joined cycle=1 node=.* spare=True")
    (old_worker,) = n1.workers()
    n1.pause()
    last_step = int(n1.reports("step")[-1]["step"])
    n0.wait_for("fenced cycle=.*infra rank 1 at .*no beat for 3 s")
    if has_spare:
        spare.wait_report("step", cycle=2, rank=1, sum=3)
    n1.resume()
    # The step it hung in may end, since the answer may have been on its way; there is no other.
    wait_until("the old worker is gone", lambda: not is_alive(old_worker) or None, explain=n1.tail)
    assert int(n1.reports("step", cycle=1)[-1]["step"]) <= last_step + 1
    if has_spare:
        n0.wait_for(rf"joined cycle=2 node=infra rank 1 at \S+ pid {n1.pid} spare=True")
    else:
        n1.wait_report("step", cycle=2, rank=1, sum=3)
    done.touch()
    job.assert_succeeds()
    assert job.ranks_and_sums(cycle=2) == [(0, 3), (1, 3)]
    assert ranks_of(n0, 2) == [0]
    assert ranks_of(n1, 2) == ([] if has_spare else [1])
    assert n1.reports("end", cycle=1) == []
    assert job.ranks_and_sums(cycle=3) == []


# --- the store host ---------------------------------------------------------------------------------


JOIN_S = 20.0
"""How long a node waits for a silent host. It is also how long the first nodes wait for others on a loaded machine."""
GREETING_S = 3.0
"""How long one attempt to reach a host takes that accepts connections and says nothing."""


def start_with_spare(cluster: Cluster) -> tuple[Node, Node, Node]:
    lost = cluster.path("lost")
    conf = {**QUICK, "join_timeout": JOIN_S, "exit_command": f"echo $FT_INFRA_RANK $FT_VERDICT >>{lost}"}
    never = cluster.path("never")
    job = cluster.job("2:3", conf=conf, worker=["--until", never], env={"FT_LOGLEVEL": "DEBUG"})
    host, active = job.start_pair()
    spare = job.start("spare", is_host=False, infra_rank=2)
    host.wait_for("joined cycle=1 node=.* spare=True")
    return host, active, spare


def assert_lost_store(nodes: list[Node], since: float, within_s: float) -> None:
    """Every node has ended in time, without workers, with one line that names the store and says nothing false."""
    for node in nodes:
        node.assert_fails(within_s + 60.0)
        took_s = time.monotonic() - since
        assert took_s < within_s, f"{node.name} took {took_s:.1f} s, not {within_s:g}\n{node.tail()}"
        assert node.workers() == []
        said = node.lines(r"^\[ft .* ERROR\] store 127\.0\.0\.1:\d+: .*the run is over for this node, and it stops")
        assert len(said) == 1, node.tail()
        claimed = re.search(r"(?:after|for) ([\d.]+) s", said[0])
        assert claimed is None or float(claimed[1]) <= took_s, f"it has been {took_s:.1f} s: {said[0]}"


def test_the_store_host_hangs(cluster: Cluster) -> None:
    host, active, spare = start_with_spare(cluster)
    (worker,) = active.workers()
    host.pause()
    since = time.monotonic()
    # Workers do not wait: their place may be given away.
    wait_until("the worker is gone", lambda: not is_alive(worker) or None, LEASE_S + STOP_S, active.tail)
    for node in (active, spare):
        node.wait_for(rf"WARNING\] out of touch with the store at .*; this node tries again for {JOIN_S:g} s")
    # Nodes notice the silence within a lease, then wait as long as they would to join. The host may only be stuck.
    assert_lost_store([spare, active], since, within_s=LEASE_S + JOIN_S + GREETING_S + STOP_S)
    assert time.monotonic() - since > JOIN_S
    host.kill()


def test_the_store_host_is_killed(cluster: Cluster) -> None:
    host, active, spare = start_with_spare(cluster)
    host.kill()
    since = time.monotonic()
    assert_lost_store([spare, active], since, within_s=LEASE_S + STOP_S)
    assert sorted(cluster.path("lost").read_text().splitlines()) == ["1 unknown", "2 unknown"]


def test_the_store_host_is_killed_when_others_have_finished(cluster: Cluster) -> None:
    # The host has rank 1 and its worker lingers: rank 0 is in the exit barrier of a run that will never succeed.
    lost = cluster.path("lost")
    conf = {**QUICK, "exit_command": f"echo $FT_VERDICT $FT_IS_RETRYABLE >>{lost}"}
    job = cluster.job("2:2", conf=conf, worker=["--linger-s", 600])
    host = job.start("host", is_host=True, infra_rank=1)
    finished = job.start("finished", is_host=False, infra_rank=0)
    ended = finished.wait_report("end", rank=0)
    wait_until("the worker is gone", lambda: not is_alive(int(ended["pid"])) or None)
    host.wait_report("step", rank=1)
    host.kill()
    finished.assert_fails(LEASE_S + STOP_S)
    assert lost.read_text() == "unknown 1\n"
