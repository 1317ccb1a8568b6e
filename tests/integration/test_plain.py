"""Jobs in which nothing goes wrong."""

from __future__ import annotations

import socket
import sys
import time
from pathlib import Path

import pytest

from tests.support.torchrun_cluster import Cluster, assert_quiet


def test_two_nodes(cluster: Cluster) -> None:
    job = cluster.job("2:2", env={"FT_DOMAIN_ID": "rack-1"})
    a = job.start("a", infra_rank=1)
    b = job.start("b", infra_rank=0)
    job.assert_succeeds()
    assert_quiet(a, b)
    assert job.ranks_and_sums(cycle=1) == [(0, 3), (1, 3)]
    begun = {node.name: node.reports("begin")[0] for node in (a, b)}
    # Ranks follow the infrastructure, whoever came first.
    assert {name: r["rank"] for name, r in begun.items()} == {"a": "1", "b": "0"}
    for name, infra_rank in (("a", "1"), ("b", "0")):
        assert begun[name]["ft_cycle_id"] == "1"
        assert begun[name]["ft_infra_rank"] == infra_rank
        assert begun[name]["ft_domain_id"] == "rack-1"
        assert begun[name]["agent_store"] == "True"
    assert begun["a"]["master_port"] == begun["b"]["master_port"] != str(job.port)


def test_four_nodes_that_end_at_different_times(cluster: Cluster) -> None:
    job = cluster.job("4:4", worker=["--linger-s", 0.5])
    for index in range(4):
        job.start(f"n{index}")
    job.assert_succeeds()
    assert_quiet(*job.nodes)
    assert job.ranks_and_sums(cycle=1) == [(0, 10), (1, 10), (2, 10), (3, 10)]
    for node in job.nodes:
        (begun,) = node.reports("begin")
        # Inputs that were not given are not invented.
        assert (begun["ft_infra_rank"], begun["ft_domain_id"]) == ("None", "None")
        assert len(node.reports("end")) == 1


def test_nodes_of_different_sizes(cluster: Cluster) -> None:
    job = cluster.job("2:2")
    big = job.start("big", infra_rank=0, nproc=2)
    small = job.start("small", infra_rank=1, nproc=1)
    job.assert_succeeds()
    assert_quiet(big, small)
    assert job.ranks_and_sums(cycle=1) == [(0, 6), (1, 6), (2, 6)]
    seats = [
        tuple(int(r[key]) for key in ("rank", "role_rank", "group_rank", "local_rank", "local_world", "world"))
        for node in (big, small)
        for r in sorted(node.reports("begin"), key=lambda r: int(r["rank"]))
    ]
    assert seats == [(0, 0, 0, 0, 2, 3), (1, 1, 0, 1, 2, 3), (2, 2, 1, 0, 1, 3)]


def test_workers_that_serve_their_own_store(cluster: Cluster) -> None:
    job = cluster.job("2:2", env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"})
    job.start_all(2)
    job.assert_succeeds()
    assert_quiet(*job.nodes)
    assert job.ranks_and_sums(cycle=1) == [(0, 3), (1, 3)]
    assert {r["agent_store"] for node in job.nodes for r in node.reports("begin")} == {"False"}


def test_the_host_starts_first_and_the_others_much_later(cluster: Cluster) -> None:
    job = cluster.job("3:3")
    host = job.start("n0", is_host=True, infra_rank=0)
    for index in (1, 2):
        # The next one starts when those before it have been waiting, however long that takes.
        host.wait_for(f"waiting cycle=1: {index} of 3 nodes have arrived")
        job.start(f"n{index}", is_host=False, infra_rank=index)
    job.assert_succeeds()
    assert_quiet(*job.nodes)
    assert job.ranks_and_sums(cycle=1) == [(0, 6), (1, 6), (2, 6)]


def test_the_host_starts_last(cluster: Cluster) -> None:
    job = cluster.job("3:3")
    for index in (2, 1):
        early = job.start(f"n{index}", is_host=False, infra_rank=index)
        early.wait_for("waiting for the store at .*: nothing listens there")
    job.start("n0", is_host=True, infra_rank=0)
    job.assert_succeeds()
    assert_quiet(*job.nodes)
    assert job.ranks_and_sums(cycle=1) == [(0, 6), (1, 6), (2, 6)]


STAGGER_S = 3.0


def test_nodes_start_three_seconds_apart(cluster: Cluster) -> None:
    """In the order in which the host is neither first nor last; whoever is early waits, and nobody restarts."""
    job = cluster.job("3:3")
    nodes = [job.start("early", is_host=False)]
    for name in ("host", "late"):
        time.sleep(STAGGER_S)
        nodes.append(job.start(name, is_host=name == "host"))
    job.assert_succeeds()
    assert_quiet(*nodes)
    assert job.ranks_and_sums(cycle=1) == [(0, 6), (1, 6), (2, 6)]


def test_a_relaunch_meets_nothing_of_the_run_before(cluster: Cluster) -> None:
    before = cluster.job("2:2", worker=["--fail-below", 2])
    before.start_all(2)
    before.assert_succeeds()
    assert before.ranks_and_sums(cycle=2) == [(0, 3), (1, 3)]
    after = cluster.job("2:2", port=before.port, run_id=before.run_id)
    after.start_all(2)
    after.assert_succeeds()
    assert_quiet(*after.nodes)
    assert after.ranks_and_sums(cycle=1) == [(0, 3), (1, 3)]
    assert after.ranks_and_sums(cycle=2) == []


def test_a_store_apart_from_the_nodes(cluster: Cluster) -> None:
    job = cluster.job("2:2", worker=["--fail-below", 2])
    ftr = str(Path(sys.executable).parent / "ftr")
    served = ["serve", "--endpoint", job.endpoint, "--rdzv-id", job.run_id, "--nnodes", job.nnodes]
    store = cluster.spawn("store", [ftr, *served])
    store.wait_for("serving run")
    for index in range(2):
        job.start(f"n{index}", infra_rank=index)
    job.assert_succeeds()
    assert job.ranks_and_sums(cycle=2) == [(0, 3), (1, 3)]
    assert store.wait_exit() == 0, store.tail()
    assert_quiet(store)
    for node in job.nodes:
        assert "hosting the store" not in node.log


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as sock:
            sock.bind(("::1", 0))
    except OSError:
        return False
    return True


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no ::1")
def test_an_ipv6_endpoint(cluster: Cluster) -> None:
    job = cluster.job("2:2", host="::1")
    job.start_all(2)
    job.assert_succeeds()
    assert_quiet(*job.nodes)
    assert job.ranks_and_sums(cycle=1) == [(0, 3), (1, 3)]
