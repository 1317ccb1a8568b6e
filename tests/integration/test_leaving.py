"""How a run ends: who leaves when, with which exit code, and what the verdict file says."""

from __future__ import annotations

import re
import signal
import sys
import time

import pytest

from tests.integration.workers.train import EXIT_ON_PURPOSE
from tests.support.torchrun_cluster import (
    HERE,
    Cluster,
    Node,
    assert_quiet,
    ranks_of,
    read_verdict,
)

TELL_ALL = {"FT_LOGLEVEL": "DEBUG"}
PATIENT = {"lease_timeout": 60}
"""Nobody is taken for dead in these tests: whoever waits for a lease, waits too long."""

ALONE = ("--alone-below", 99)
CLOSED = "closed verdict="

NOTICE_S = 1.0
"""Within which a waiting node has left a run that was closed."""
TEARDOWN_S = 20.0
"""What the end of a Python process with torch in it may take on a loaded machine; it has left the run before.

Far less than a lease."""


def wait_joined(host: Node, infra_rank: int, cycle: int = 1) -> None:
    host.wait_for(rf"joined cycle={cycle} node=infra rank {infra_rank} at .* spare=True")


def gone_at(host: Node, infra_rank: int) -> float:
    """When the host read a node's goodbye."""
    return host.logged_at(rf"gone cycle=\d+ node=infra rank {infra_rank} at ")


def assert_left_at_once(node: Node, host: Node, infra_rank: int) -> None:
    """It ends well, and has left within a second of the close; both moments are of the store host's log."""
    assert node.wait_exit() == 0, node.tail()
    exited_at = time.time()
    closed_at = host.logged_at(CLOSED)
    assert gone_at(host, infra_rank) - closed_at < NOTICE_S
    assert exited_at - closed_at < NOTICE_S + TEARDOWN_S
    assert_quiet(node)


def assert_ends_with_child_failure(node: Node, rank: int) -> None:
    """The last error in the log is torchrun's own, with its table of who failed."""
    _, _, last = node.log.rpartition("Traceback (most recent call last)")
    assert "ChildFailedError:" in last, node.tail()
    assert f"rank      : {rank} " in last, node.tail()
    assert f"exitcode  : {EXIT_ON_PURPOSE} " in last, node.tail()


# --- success ----------------------------------------------------------------------------------------


def test_the_host_leaves_last(cluster: Cluster) -> None:
    done, last = cluster.path("done"), cluster.path("last")
    conf = {**PATIENT, "store_grace": 0.2}
    job = cluster.job("2:4", conf=conf, worker=["--until", done, "--linger-until", last], env=TELL_ALL)
    verdict_path = cluster.path("verdict.json")
    host = job.start("n0", is_host=True, infra_rank=0, conf={"verdict_file": verdict_path})
    slow = job.start("n1", is_host=False, infra_rank=1)
    host.wait_for("sealed cycle=1")
    spare, late = [job.start(f"n{index}", is_host=False, infra_rank=index) for index in (2, 3)]
    for infra_rank in (2, 3):
        wait_joined(host, infra_rank)
    done.touch()
    # Rank 0 has finished; the barrier is not complete, so nobody leaves.
    host.wait_for("finished in cycle=1: waiting for the other nodes")
    assert slow.workers()
    assert not host.lines(CLOSED)
    assert not verdict_path.exists()
    assert not any(node.has_exited for node in job.nodes)
    # One that cannot hear of the close yet is waited for: not for a fixed time, but until it has gone.
    late.pause()
    last.touch()
    host.wait_for(f"{CLOSED}succeeded")
    assert read_verdict(verdict_path)["verdict"] == "succeeded"
    assert_left_at_once(spare, host, infra_rank=2)
    assert slow.wait_exit() == 0
    host.wait_for("this node hosts the store: staying until every other node has gone")
    assert not host.has_exited
    late.resume()
    job.assert_succeeds()
    assert_quiet(*job.nodes)
    assert max(gone_at(host, infra_rank) for infra_rank in (0, 1, 2)) <= gone_at(host, 3)
    assert [ranks_of(node, 1) for node in job.nodes] == [[0], [1], [], []]
    assert job.ranks_and_sums(cycle=1) == [(0, 3), (1, 3)]
    verdict = read_verdict(verdict_path)
    assert (verdict["run_id"], verdict["cycle"], verdict["first_failure"]) == (job.run_id, 1, None)


def test_standbys_leave_with_the_others(cluster: Cluster) -> None:
    # All come at once, so that all have arrived before the seal.
    gate = cluster.gate()
    conf = {**PATIENT, **gate.conf, "settle_s": 3}
    job = cluster.job("2:4", conf=conf, worker=["--steps", 3, *ALONE], env=TELL_ALL)
    actives = [job.start(f"n{index}", is_host=False, infra_rank=index) for index in (0, 1)]
    standby = job.start("n2", is_host=False, infra_rank=2)
    host = job.start("n3", is_host=True, infra_rank=3)
    gate.open_for(job.nodes)
    host.wait_for("sealed cycle=1 active=2 standby=2")
    for node in actives:
        assert node.wait_exit() == 0
    assert_left_at_once(standby, host, infra_rank=2)
    assert_left_at_once(host, host, infra_rank=3)
    assert_quiet(*actives)
    assert host.lines(f"{CLOSED}succeeded")
    assert [ranks_of(node, 1) for node in job.nodes] == [[0], [1], [], []]
    for node in (standby, host):
        assert node.lines("spare in cycle=1: waiting"), node.tail()


RAISING = (sys.executable, str(HERE / "workers" / "raise_in_exit_barrier.py"))


def test_a_node_whose_exit_barrier_raises_finishes_by_itself(cluster: Cluster) -> None:
    last = cluster.path("last")
    # Torch's agent logs the error of its barrier, forgets it, and would leave as the first node.
    job = cluster.job("2:2", conf=PATIENT, worker=["--linger-until", last], env=TELL_ALL)
    raising = job.start("n0", is_host=False, infra_rank=0, launcher=RAISING)
    host = job.start("n1", is_host=True, infra_rank=1)
    raising.wait_for("ft-test raises in the exit barrier")
    raising.wait_for("finished in cycle=1: waiting for the other nodes")
    assert host.workers()
    last.touch()
    job.assert_succeeds()
    assert host.lines(f"{CLOSED}succeeded"), host.tail()
    assert not host.lines("opened cycle=2"), host.tail()
    assert gone_at(host, 0) >= host.logged_at(CLOSED)


# --- failure ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("budget", ["agents", "run"])
def test_failure_for_good(cluster: Cluster, budget: str) -> None:
    verdict_path, now = cluster.path("verdict.json"), cluster.path("now")
    has_restarts = budget == "run"
    conf = {**PATIENT, "max_cycles": 2 if has_restarts else 0}
    worker = ["--until", cluster.path("never"), "--fail-below", 9, "--fail-rank", 1, "--fail-when", now, *ALONE]
    job = cluster.job("2:3", conf=conf, max_restarts=9 if has_restarts else 0, worker=worker, env=TELL_ALL)
    host = job.start("n0", is_host=True, infra_rank=0, conf={"verdict_file": verdict_path})
    failing = job.start("n1", is_host=False, infra_rank=1)
    host.wait_for("sealed cycle=1")
    spare = job.start("n2", is_host=False, infra_rank=2)
    wait_joined(host, 2)
    now.touch()
    for node in job.nodes:
        node.assert_fails()
    verdict = read_verdict(verdict_path)
    assert (verdict["verdict"], verdict["cycle"]) == ("failed", 3)
    wanted = "max_cycles=2" if has_restarts else "1 agent spent all restarts"
    assert wanted in verdict["reason"]
    assert host.lines(re.escape(f"{CLOSED}failed({verdict['reason']})")), host.tail()
    first = verdict["first_failure"]
    assert (first["rank"], first["exit_code"], first["cycle"]) == (1, EXIT_ON_PURPOSE, 2)
    closed = [host]
    if has_restarts:
        closed += [failing, spare]
        assert [int(report["cycle"]) for report in failing.reports("fail")] == [1, 2]
        assert spare.reports("begin") == []
        assert_ends_with_child_failure(failing, rank=1)
    else:
        # Each took rank 1, failed, and had no other try; the host, alone, cannot go on.
        for cycle, node in ((1, failing), (2, spare)):
            assert [int(report["cycle"]) for report in node.reports("fail")] == [cycle]
            assert_ends_with_child_failure(node, rank=1)
    for node in closed:
        assert node.lines(rf"^\[ft .* ERROR\] run .* is closed: failed\(.*{wanted}"), node.tail()


def test_a_failing_agent_tells_its_own_error_though_the_store_is_gone(cluster: Cluster) -> None:
    go, now = cluster.path("go"), cluster.path("now")
    worker = ["--until", cluster.path("never"), "--fail-below", 9, "--fail-rank", 1, "--fail-when", now, *ALONE]
    job = cluster.job(
        "2:2", conf=PATIENT, max_restarts=0, worker=[*worker, "--stay-rank", 2, "--stay-until", go], env=TELL_ALL
    )
    host = job.start("host", is_host=True, infra_rank=0)
    # One of its workers fails, and the other takes its time to end.
    failing = job.start("failing", is_host=False, infra_rank=1, nproc=2)
    failing.wait_report("step", rank=2)
    now.touch()
    failing.wait_report("stay", rank=2, signal="SIGTERM")
    host.kill()
    go.touch()
    failing.assert_fails()
    assert_ends_with_child_failure(failing, rank=1)
    assert failing.log.count("Traceback") == 1, failing.tail()


# --- a host whose own part is over ------------------------------------------------------------------


@pytest.mark.parametrize("end", ["failed", "quarantined", "left", "drained"])
def test_a_host_whose_part_is_over_keeps_the_store(cluster: Cluster, end: str) -> None:
    done, now, verdict_path = cluster.path("done"), cluster.path("now"), cluster.path("verdict.json")
    worker = ["--until", done, "--alone-below", 2]
    if end in ("failed", "quarantined"):
        worker += ["--fail-below", 2, "--fail-rank", 0, "--fail-when", now]
    conf = {**PATIENT, "drain_grace_s": 0.5, "max_node_failures": 1}
    job = cluster.job("2:3", conf=conf, worker=worker, env=TELL_ALL)
    host = job.start(
        "n0",
        is_host=True,
        infra_rank=0,
        max_restarts=9 if end == "quarantined" else 0,
        conf={"verdict_file": verdict_path},
    )
    other = job.start("n1", is_host=False, infra_rank=1)
    host.wait_report("step", cycle=1, rank=0)
    spare = job.start("n2", is_host=False, infra_rank=2)
    wait_joined(host, 2)
    match end:
        case "failed" | "quarantined":
            now.touch()
        case "left":
            host.signal(signal.SIGTERM)
        case "drained":
            host.signal(signal.SIGUSR1)
    for node in (other, spare):
        node.wait_report("step", cycle=2, world=2, sum=3)
    host.wait_for("this node hosts the store: staying until every other node has gone")
    assert host.workers() == []
    # As SLURM does, all over again, and with its warning before a time limit: it stays.
    host.signal(signal.SIGUSR1)
    host.signal(signal.SIGTERM)
    host.wait_for("SIGTERM: staying, because other nodes need the store on this node")
    seen = int(spare.reports("step")[-1]["step"])
    spare.wait_report("step", cycle=2, step=seen + 3)
    assert not host.has_exited
    done.touch()
    for node in (other, spare):
        assert node.wait_exit() == 0, node.tail()
    assert host.wait_exit() == (0 if end == "drained" else 1), host.tail()
    assert_quiet(spare, other)
    assert host.lines(f"{CLOSED}succeeded")
    if end == "quarantined":
        assert host.lines("fenced cycle=2 node=infra rank 0 at .*: quarantined for"), host.tail()
        assert host.lines("ERROR. this node was refused: quarantined for"), host.tail()
    else:
        assert host.lines(rf"gone cycle=\d+ node=infra rank 0 at .* outcome={end}"), host.tail()
        assert host.logged_at(CLOSED) > gone_at(host, 0)
    assert max(gone_at(host, infra_rank) for infra_rank in (1, 2)) > host.logged_at(CLOSED)
    assert read_verdict(verdict_path)["verdict"] == "succeeded"
    assert [ranks_of(node, 2) for node in (spare, other, host)] == [[0], [1], []]
    assert job.ranks_and_sums(cycle=2) == [(0, 3), (1, 3)]
    assert not host.lines("opened cycle=3")
    match end:
        case "failed":
            assert_ends_with_child_failure(host, rank=0)
        case "left":
            assert "SignalException" in host.log
        case "drained":
            assert_quiet(host)
