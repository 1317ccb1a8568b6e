"""Nodes that are lost, fail again and again, or are not fit: who replaces them, what it costs, when it is over."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.integration.workers.train import EVERY_RANK, EXIT_ON_PURPOSE
from tests.support.torchrun_cluster import QUICK, Cluster, Job, Node, assert_quiet, ranks_of, send

TELL_JOINS = {"FT_LOGLEVEL": "DEBUG"}
SPARE_JOINED = r"joined cycle=\d+ node=.* spare=True"

REPLACED_AFTER_S = 25.0
"""How long a person, or a scheduler, may take to start a node again."""


def failing_at_start(below: int) -> list[object]:
    """What makes workers fail before they import torch, in cycles below this one."""
    return ["--fail-below", below, "--idle-below", below]


def start_with_spare(job: Job, **options: object) -> tuple[Node, Node, Node]:
    """Two nodes whose workers have begun, the first of them the host, and one that waits. Options are the second's."""
    n0 = job.start("n0", is_host=True, infra_rank=0)
    n1 = job.start("n1", is_host=False, infra_rank=1, **options)  # type: ignore[arg-type]
    for node in (n0, n1):
        node.wait_report("begin", cycle=1)
    spare = job.start("spare", is_host=False, infra_rank=2)
    n0.wait_for(SPARE_JOINED)
    return n0, n1, spare


def places_of(node: Node) -> list[tuple[int, int]]:
    """(cycle, rank) of every place the node took, as its agent tells: workers may be stopped before they say a word."""
    told = re.findall(r"^\[ft .* INFO\] cycle=(\d+) rank=(\d+) world=", node.log, re.MULTILINE)
    return [(int(cycle), int(rank)) for cycle, rank in told]


def failed_in(*nodes: Node) -> list[int]:
    """The cycles in which a worker of these nodes failed on purpose."""
    return sorted({int(report["cycle"]) for node in nodes for report in node.reports("fail")})


def kill_worker(node: Node) -> None:
    """Its only worker fails; the agent sees it."""
    (worker,) = node.workers()
    send(worker, signal.SIGKILL)


def write_config(path: Path, health_check: str) -> Path:
    """Settings as a file: it can hold a command with blanks and commas."""
    path.write_text(f"health_check = '''{health_check}'''\n")
    return path


def assert_all_fail(nodes: Sequence[Node]) -> None:
    for node in nodes:
        node.assert_fails()
        assert node.workers() == []


# --- lost nodes -------------------------------------------------------------------------------------


def test_a_lost_node_is_awaited_until_it_is_replaced(cluster: Cluster) -> None:
    done = cluster.path("done")
    job = cluster.job("2:2", conf=QUICK, worker=["--until", done])
    host = job.start("host", is_host=True, infra_rank=1)
    lost = job.start("lost", is_host=False, infra_rank=0)
    lost.wait_report("step", cycle=1, rank=0)
    lost.kill()
    since = time.monotonic()
    host.wait_for(r"waiting cycle=2: 1 of 2 nodes have arrived; missing: infra rank 0 at \S+ pid \d+ \(rank 0\)")
    host.wait_for(r"fenced cycle=\d+ node=infra rank 0 at .*its process has ended")
    # The one test that waits for time to pass: what it claims is that such a time does no harm.
    time.sleep(REPLACED_AFTER_S - (time.monotonic() - since))
    assert not host.has_exited
    assert host.workers() == []
    replacement = job.start("replacement", is_host=False, infra_rank=0)
    replacement.wait_report("step", cycle=2, rank=0, sum=3)
    done.touch()
    job.assert_succeeds(but=[lost])
    assert_quiet(replacement)
    assert [ranks_of(node, 2) for node in (replacement, host)] == [[0], [1]]
    assert job.ranks_and_sums(cycle=2) == [(0, 3), (1, 3)]
    assert job.ranks_and_sums(cycle=3) == []


def test_a_spare_does_not_displace_a_node_that_is_slow_to_stop(cluster: Cluster) -> None:
    stop_s = 2 * QUICK["lease_timeout"]
    job = cluster.job("2:3", conf=QUICK, worker=["--idle-below", 2, "--stop-s", stop_s], env=TELL_JOINS)
    n0, slow, spare = start_with_spare(job)
    kill_worker(n0)
    slow.wait_report("stop", cycle=1, rank=1)
    n0.wait_for("waiting cycle=2: 1 survivor is stopping workers: infra rank 1 at")
    job.assert_succeeds()
    assert_quiet(spare)
    assert n0.logged_at("sealed cycle=2") - n0.logged_at("opened cycle=2") > stop_s
    assert [ranks_of(node, 2) for node in (n0, slow, spare)] == [[0], [1], []]
    assert job.ranks_and_sums(cycle=2) == [(0, 3), (1, 3)]
    assert not n0.lines("fenced|opened cycle=3")


def test_more_nodes_than_max_and_twenty_restarts(cluster: Cluster) -> None:
    go = cluster.path("go")
    conf = {"crash_loop": 0, "max_node_failures": 0}
    worker = [*failing_at_start(below=21), "--fail-by-turns", "--fail-when", go]
    job = cluster.job("2:3", conf=conf, worker=worker, env=TELL_JOINS)
    n0, n1, spare = start_with_spare(job)
    surplus = job.start("surplus", is_host=False, infra_rank=3)
    n0.wait_for("joined cycle=1 node=infra rank 3 .* spare=True")
    go.touch()
    job.assert_succeeds()
    assert_quiet(spare, surplus)
    for rank, node in enumerate((n0, n1)):
        assert places_of(node) == [(cycle, rank) for cycle in range(1, 22)], node.tail()
    assert (failed_in(n0), failed_in(n1)) == ([*range(2, 21, 2)], [*range(1, 21, 2)])
    assert places_of(spare) == places_of(surplus) == []
    assert job.ranks_and_sums(cycle=21) == [(0, 3), (1, 3)]


# --- nodes that fail --------------------------------------------------------------------------------


def test_a_node_that_fails_again_and_again_is_quarantined(cluster: Cluster) -> None:
    done, go = cluster.path("done"), cluster.path("go")
    conf = {"max_node_failures": 2, "quarantine_s": 600}
    worker = [*failing_at_start(below=3), "--fail-node", 1, "--fail-when", go, "--until", done]
    job = cluster.job("2:3", conf=conf, worker=worker, env=TELL_JOINS)
    n0, bad, spare = start_with_spare(job)
    go.touch()
    bad.assert_fails()
    assert bad.lines(r"\[ft .* ERROR\] this node was refused: quarantined for 600 s: .*first to fail in 2 cycles")
    assert failed_in(bad) == [1, 2]
    spare.wait_report("step", cycle=3, rank=1, sum=3)
    n0.wait_report("step", cycle=3, rank=0)
    pids = {node.name: node.workers() for node in (n0, spare)}
    again = job.start("again", is_host=False, infra_rank=1)
    again.assert_fails()
    assert again.lines(r"\[ft .* ERROR\] this node was refused: infra rank 1 at .* is in quarantine for another \d+ s")
    assert places_of(again) == []
    seen = int(n0.reports("step")[-1]["step"])
    n0.wait_report("step", step=seen + 5)
    assert {node.name: node.workers() for node in (n0, spare)} == pids
    done.touch()
    job.assert_succeeds(but=[bad, again])
    assert_quiet(spare)
    assert [ranks_of(node, 3) for node in (n0, spare)] == [[0], [1]]
    assert not n0.lines("opened cycle=4")


def test_the_runs_budget_is_spent(cluster: Cluster) -> None:
    go = cluster.path("go")
    worker = [*failing_at_start(below=9), "--fail-when", go]
    job = cluster.job("2:3", conf={"max_cycles": 2}, worker=worker, env=TELL_JOINS)
    nodes = start_with_spare(job)
    go.touch()
    assert_all_fail(nodes)
    host = nodes[0]
    assert failed_in(host) == [1, 2]
    assert [places_of(node) for node in nodes] == [[(1, 0), (2, 0)], [(1, 1), (2, 1)], []]
    first = rf"infra rank 0 .*\(rank 0\) in cycle 2: exit code {EXIT_ON_PURPOSE}"
    reason = rf"failed\(max_cycles=2: .*first failure: {first}"
    assert host.lines(f"closed verdict={reason}"), host.tail()
    for node in nodes:
        assert node.lines(rf"^\[ft .* ERROR\] run .* is closed: {reason}.*; this node stops"), node.tail()


def test_an_agent_without_restarts_leaves_and_a_spare_takes_over(cluster: Cluster) -> None:
    go = cluster.path("go")
    worker = [*failing_at_start(below=2), "--fail-node", 1, "--fail-when", go]
    job = cluster.job("2:3", worker=worker, env=TELL_JOINS)
    n0, spent, spare = start_with_spare(job, max_restarts=0)
    go.touch()
    spent.assert_fails()
    assert "ChildFailedError" in spent.log
    job.assert_succeeds(but=[spent])
    assert_quiet(spare)
    assert [ranks_of(node, 2) for node in (n0, spent, spare)] == [[0], [], [1]]
    assert job.ranks_and_sums(cycle=2) == [(0, 3), (1, 3)]
    assert not n0.lines("opened cycle=3")


def test_a_crash_loop_ends_the_run(cluster: Cluster) -> None:
    worker = [*failing_at_start(below=99), "--fail-rank", EVERY_RANK, "--exit-code", 3]
    job = cluster.job("2:2", conf={"crash_loop": 3}, worker=worker)
    nodes = job.start_all(2)
    assert_all_fail(nodes)
    # A worker may be stopped for another's failure before it can fail.
    assert failed_in(*nodes) == [1, 2, 3]
    for rank, node in enumerate(nodes):
        assert places_of(node) == [(1, rank), (2, rank), (3, rank)]
        reason = r"failed\(crash loop: 3 cycles in a row .*first failure: .* in cycle 3: exit code 3"
        assert node.lines(rf"is closed: {reason}"), node.tail()


# --- unhealthy nodes --------------------------------------------------------------------------------


def test_unhealthy_nodes_stay_away(cluster: Cluster) -> None:
    sick = write_config(cluster.path("sick.toml"), 'printf "%s, %s\\n" "/scratch is gone" again; exit 4')
    well = write_config(cluster.path("well.toml"), "exit 0")
    job = cluster.job("2:4")
    # Its part is over before it began, and the others still need its store.
    host = job.start("host", is_host=True, infra_rank=0, conf={"config": sick})
    other = job.start("other", is_host=False, infra_rank=1, conf={"config": sick})
    healthy = [job.start(f"n{index}", is_host=False, infra_rank=index, conf={"config": well}) for index in (2, 3)]
    assert_all_fail([other, host])
    reason = "the health check exited with 4: /scratch is gone, again"
    for node in (other, host):
        assert node.lines(rf"^\[ft .* ERROR\] this node is unhealthy and has withdrawn: {reason}"), node.tail()
        assert places_of(node) == []
    for infra_rank in (0, 1):
        assert host.lines(rf"unhealthy cycle=1 node=infra rank {infra_rank} at \S+ pid \d+: {reason}"), host.tail()
    job.assert_succeeds(but=[other, host])
    assert_quiet(*healthy)
    assert [ranks_of(node, 1) for node in healthy] == [[0], [1]]
    assert job.ranks_and_sums(cycle=1) == [(0, 3), (1, 3)]


@pytest.mark.parametrize("end", ["a signal", "join_timeout"])
def test_a_host_that_is_unfit_and_alone_does_not_stay_for_ever(cluster: Cluster, end: str) -> None:
    sick = write_config(cluster.path("sick.toml"), "exit 4")
    job = cluster.job("2:4", conf={"join_timeout": 3 if end == "join_timeout" else 600})
    host = job.start("host", is_host=True, conf={"config": sick})
    host.wait_for("this node hosts the store: staying")
    if end == "a signal":
        host.signal(signal.SIGTERM)
    assert host.wait_exit() != 0


def test_too_few_healthy_nodes_end_the_run(cluster: Cluster) -> None:
    broken = cluster.path("broken")
    job = cluster.job("2:2", conf=QUICK, worker=["--idle-below", 9])
    n0 = job.start("n0", is_host=True, infra_rank=0)
    config = write_config(cluster.path("n1.toml"), f"test ! -e {broken} || {{ echo a GPU fell off the bus; exit 1; }}")
    n1 = job.start("n1", is_host=False, infra_rank=1, conf={"config": config})
    for node in (n0, n1):
        node.wait_report("begin", cycle=1)
    # Healthy when it joined; it is asked again before it comes back.
    broken.touch()
    kill_worker(n0)
    assert_all_fail([n0, n1])
    reason = "the health check exited with 1: a GPU fell off the bus"
    assert n1.lines(f"this node is unhealthy and has withdrawn: {reason}"), n1.tail()
    assert n0.lines(rf"unhealthy cycle=2 node=infra rank 1 at \S+ pid \d+: {reason}"), n0.tail()
    assert n0.lines(rf"closed verdict=failed\(1 node of at most 2 unhealthy, 1 can remain and 2 .*{reason}"), n0.tail()
    assert [places_of(node) for node in (n0, n1)] == [[(1, 0)], [(1, 1)]]


def test_a_spare_takes_over_from_a_node_that_turned_unhealthy(cluster: Cluster) -> None:
    broken = cluster.path("broken")
    # The spare is one more than MAX: what counts is whether enough healthy nodes are there.
    job = cluster.job("2:2", worker=["--idle-below", 2], env=TELL_JOINS)
    config = write_config(cluster.path("n1.toml"), f"test ! -e {broken}")
    n0, n1, spare = start_with_spare(job, conf={"config": config})
    broken.touch()
    kill_worker(n0)
    n1.assert_fails()
    job.assert_succeeds(but=[n1])
    assert_quiet(spare)
    assert [ranks_of(node, 2) for node in (n0, n1, spare)] == [[0], [], [1]]
    assert job.ranks_and_sums(cycle=2) == [(0, 3), (1, 3)]
    assert n0.lines(r"unhealthy cycle=2 node=infra rank 1 at \S+ pid \d+: the health check exited with 1"), n0.tail()
