"""Worlds that shrink and grow: who trains on, with which rank, and from which step."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

from tests.support.torchrun_cluster import QUICK, Cluster, Node, assert_quiet, ranks_of, send, wait_further

TELL_JOINS = {"FT_LOGLEVEL": "DEBUG"}
ALONE = ("--alone-below", 99)

LAST_CALL_S = 5
"""Longer than a lease, and than a survivor takes to stop its workers on a loaded machine."""
ELASTIC = {**QUICK, "policy": "elastic", "last_call_timeout": LAST_CALL_S}
PATIENT = {**QUICK, "policy": "elastic", "last_call_timeout": 300}
"""Whoever waits for a last call waits too long."""


def saving(checkpoint: Path, every: int = 1) -> list[object]:
    """What makes rank 0 save every so many steps, and all go on after the last step that was saved."""
    return ["--checkpoint", checkpoint, "--save-rank", 0, "--save-every", every]


def saved_in(checkpoint: Path) -> list[tuple[int, int]]:
    """(cycle, step) of all that was saved, oldest first."""
    saved = [dict(item.partition("=")[::2] for item in line.split()) for line in checkpoint.read_text().splitlines()]
    return [(int(report["cycle"]), int(report["step"])) for report in saved]


def steps_of(cluster: Cluster) -> dict[tuple[int, int], list[int]]:
    """Which steps were done in every cycle by every rank, in the order they were done."""
    steps: dict[tuple[int, int], list[int]] = {}
    for report in (report for node in cluster.nodes for report in node.reports("step")):
        steps.setdefault((int(report["cycle"]), int(report["rank"])), []).append(int(report["step"]))
    return steps


def assert_resumed(cluster: Cluster, checkpoint: Path) -> None:
    """Every rank began every cycle with the step after the last checkpoint, and left none out."""
    saved = saved_in(checkpoint)
    assert [step for _, step in saved] == sorted({step for _, step in saved}), "a step was saved again"
    for (cycle, rank), steps in steps_of(cluster).items():
        first = max((step for at, step in saved if at < cycle), default=-1) + 1
        assert steps == list(range(first, first + len(steps))), f"cycle {cycle}, rank {rank}: not from {first}"


def wait_world(nodes: Sequence[Node], cycle: int) -> None:
    """All of them do steps with each other, in ranks 0, 1, ... of as many."""
    world = len(nodes)
    for rank, node in enumerate(nodes):
        node.wait_report("step", cycle=cycle, rank=rank, world=world, sum=world * (world + 1) // 2)


def wait_joined(host: Node, newcomer: Node) -> None:
    host.wait_for(rf"joined cycle=1 node=.* pid {newcomer.pid} spare=True")
    newcomer.wait_for("spare in cycle=1: waiting for the next cycle")


# --- the first world --------------------------------------------------------------------------------


def test_the_first_world_waits_for_max_nodes_until_the_last_call(cluster: Cluster) -> None:
    gate = cluster.gate()
    job = cluster.job("2:4", conf={**ELASTIC, **gate.conf}, worker=["--steps", 3, *ALONE])
    n0, n1, n2 = job.start_all(3)
    gate.open_for(job.nodes)
    n0.wait_for("waiting cycle=1: a world of 3 is possible; last call for 4")
    job.assert_succeeds()
    assert_quiet(*job.nodes)
    sealed = n0.wait_for(r"sealed cycle=1 active=3 standby=0 after_s=(\S+)")
    assert float(sealed[1]) >= LAST_CALL_S
    assert [ranks_of(node, 1) for node in (n0, n1, n2)] == [[0], [1], [2]]


def test_the_first_world_waits_for_nobody_beyond_max_nodes(cluster: Cluster) -> None:
    job = cluster.job("2:4", conf=PATIENT, worker=["--steps", 3, *ALONE])
    nodes = job.start_all(4)
    job.assert_succeeds()
    assert_quiet(*nodes)
    assert nodes[0].lines("sealed cycle=1 active=4 standby=0")
    assert [ranks_of(node, 1) for node in nodes] == [[0], [1], [2], [3]]


# --- shrinking --------------------------------------------------------------------------------------


def test_a_world_shrinks_and_grows_again(cluster: Cluster) -> None:
    done, checkpoint, gate = cluster.path("done"), cluster.path("checkpoint"), cluster.gate()
    job = cluster.job("2:4", conf={**ELASTIC, **gate.conf}, worker=["--until", done, *saving(checkpoint)])
    n0, n1, n2, n3 = job.start_all(4)
    gate.open_for(job.nodes)
    wait_world([n0, n1, n2, n3], cycle=1)
    wait_further(n0)
    n1.kill()
    n0.wait_for("waiting cycle=2: a world of 3 is possible; last call for 4")
    # The last rank fills the gap: two of three stay where they were.
    wait_world([n0, n3, n2], cycle=2)
    n4 = job.start("n4", is_host=False, infra_rank=4)
    wait_world([n0, n3, n2, n4], cycle=3)
    done.touch()
    job.assert_succeeds(but=[n1])
    assert_quiet(n4)
    assert_resumed(cluster, checkpoint)
    assert n0.lines("opened cycle=3 because the world can grow from 3 to 4 nodes")
    assert not n0.lines("opened cycle=4")


def test_a_world_never_shrinks_below_min_nodes(cluster: Cluster) -> None:
    done, checkpoint = cluster.path("done"), cluster.path("checkpoint")
    job = cluster.job("2:4", conf=ELASTIC, worker=["--until", done, *saving(checkpoint)])
    n0, n1 = job.start_pair()
    wait_further(n0)
    n1.kill()
    n0.wait_for(r"waiting cycle=2: 1 of 2 nodes have arrived; missing: infra rank 1 at .* \(rank 1\)")
    assert not n0.lines("sealed cycle=2")
    n2 = job.start("n2", is_host=False, infra_rank=2)
    wait_world([n0, n2], cycle=2)
    done.touch()
    job.assert_succeeds(but=[n1])
    assert_quiet(n2)
    assert_resumed(cluster, checkpoint)
    assert not n0.lines("sealed cycle=.* active=1|opened cycle=3")


def test_nobody_waits_in_place_of_a_drained_node(cluster: Cluster) -> None:
    done = cluster.path("done")
    job = cluster.job("2:3", conf={**PATIENT, "drain_grace_s": 0.5}, worker=["--until", done, *ALONE])
    n0, n1, n2 = job.start_all(3)
    n1.wait_report("step", cycle=1, world=3)
    n1.signal(signal.SIGUSR1)
    for node in (n0, n2):
        node.wait_report("step", cycle=2, world=2)
    assert n1.wait_exit() == 0, n1.tail()
    done.touch()
    job.assert_succeeds()
    assert_quiet(*job.nodes)
    assert [ranks_of(node, 2) for node in (n0, n2, n1)] == [[0], [1], []]


# --- growing ----------------------------------------------------------------------------------------


def test_a_world_grows_at_the_next_cycle(cluster: Cluster) -> None:
    done, checkpoint = cluster.path("done"), cluster.path("checkpoint")
    conf = {**ELASTIC, "grow": "next"}
    job = cluster.job("2:4", conf=conf, worker=["--until", done, *saving(checkpoint)], env=TELL_JOINS)
    n0, n1 = job.start_pair()
    pids = n0.workers(), n1.workers()
    n2 = job.start("n2", is_host=False, infra_rank=2)
    wait_joined(n0, n2)
    wait_further(n1)
    assert (n0.workers(), n1.workers()) == pids
    send(pids[1][0], signal.SIGKILL)
    wait_world([n0, n1, n2], cycle=2)
    done.touch()
    job.assert_succeeds()
    assert_quiet(n2)
    assert_resumed(cluster, checkpoint)
    assert n0.lines("opened cycle=2 because workers failed on infra rank 1 at ")
    assert not n0.lines("opened cycle=3")


def test_a_world_grows_at_a_checkpoint(cluster: Cluster) -> None:
    checkpoint, bound = cluster.path("checkpoint"), cluster.path("bound")
    bound.write_text("1")
    conf = {**ELASTIC, "grow": "checkpoint"}
    worker = ["--steps", 10, *saving(checkpoint, every=5), "--bound", bound]
    job = cluster.job("2:4", conf=conf, worker=worker, env=TELL_JOINS)
    n0, n1 = job.start_pair()
    n2 = job.start("n2", is_host=False, infra_rank=2)
    wait_joined(n0, n2)
    n0.wait_for("calling cycle=2 at the next checkpoint: the world can grow from 2 to 3 nodes")
    bound.write_text("3")
    for node in (n0, n1):
        node.wait_report("step", cycle=1, step=3)
    assert not n0.lines("opened cycle=2")
    # The one step that is saved; none is begun before the next cycle.
    bound.write_text("4")
    n2.wait_report("begin", cycle=2)
    bound.write_text("9")
    job.assert_succeeds()
    assert_quiet(n2)
    assert_resumed(cluster, checkpoint)
    assert saved_in(checkpoint) == [(1, 4), (2, 9)]
    before, after = [0, 1, 2, 3, 4], [5, 6, 7, 8, 9]
    assert steps_of(cluster) == {(1, 0): before, (1, 1): before, (2, 0): after, (2, 1): after, (2, 2): after}


def test_a_world_that_has_begun_to_finish_does_not_grow(cluster: Cluster) -> None:
    last = cluster.path("last")
    job = cluster.job("2:4", conf=ELASTIC, worker=["--linger-until", last, *ALONE], env=TELL_JOINS)
    n0, n1 = job.start_pair()
    n0.wait_for("finished in cycle=1: waiting for the other nodes")
    # With them there is one more than trained, though one of those has ended.
    newcomers = [job.start(f"n{index}", is_host=False, infra_rank=index) for index in (2, 3)]
    for node in newcomers:
        wait_joined(n0, node)
    last.touch()
    job.assert_succeeds()
    assert_quiet(*job.nodes)
    assert not n0.lines("opened cycle=2")
    assert [ranks_of(node, 1) for node in (n0, n1, *newcomers)] == [[0], [1], [], []]


def test_a_survivor_that_comes_late_is_nobody_to_grow_for(cluster: Cluster) -> None:
    done, may_go = cluster.path("done"), cluster.path("may-go")
    worker = ["--until", done, *ALONE, "--stay-rank", 2, "--stay-until", may_go]
    job = cluster.job("2:3", conf=ELASTIC, worker=worker)
    n0, n1, n2 = job.start_all(3)
    for node in (n0, n1, n2):
        node.wait_report("step", cycle=1, world=3)
    (failing,) = n1.workers()
    send(failing, signal.SIGKILL)
    n2.wait_report("stay", cycle=1, rank=2)
    for node in (n0, n1):
        node.wait_report("step", cycle=2, world=2)
        wait_further(node, steps=20)
    assert not n0.lines("opened cycle=3")
    may_go.touch()
    n2.wait_report("step", cycle=3, rank=2, world=3)
    done.touch()
    job.assert_succeeds()
    assert n0.lines("opened cycle=3 because the world can grow from 2 to 3 nodes")
    assert not n0.lines("opened cycle=4")
