"""Nodes that are asked to go, by signals, by their workers and by people: who takes over, and how they leave."""

from __future__ import annotations

import re
import signal
import sys

import pytest

from tests.support.torchrun_cluster import (
    Cluster,
    Node,
    assert_quiet,
    free_port,
    is_alive,
    ranks_of,
    read_verdict,
    wait_further,
)

FTR = (sys.executable, "-m", "ft_rendezvous.cli.main")

TELL_ALL = {"FT_LOGLEVEL": "DEBUG"}
PATIENT = {"lease_timeout": 60, "beat_interval": 1}
"""Whoever waits for a lease, or for a node to be given up, waits too long."""


def wait_joined(host: Node, *infra_ranks: int) -> None:
    for infra_rank in infra_ranks:
        host.wait_for(rf"joined cycle=\d+ node=infra rank {infra_rank} at .* spare=True")


# --- SIGTERM and SIGINT -----------------------------------------------------------------------------


def test_an_agent_says_goodbye_before_it_stops_its_workers(cluster: Cluster) -> None:
    done, may_go = cluster.path("done"), cluster.path("may-go")
    worker = ["--until", done, "--alone-below", 3, "--stay-rank", 1, "--stay-until", may_go]
    job = cluster.job("2:5", conf=PATIENT, worker=worker, env=TELL_ALL)
    n0, n1 = job.start_pair()
    spares = [job.start(f"n{index}", is_host=False, infra_rank=index) for index in (2, 3, 4)]
    wait_joined(n0, 2, 3, 4)
    n2, n3, n4 = spares

    # A node that has never started workers.
    pids = n0.workers(), n1.workers()
    n4.signal(signal.SIGTERM)
    n0.wait_for("gone cycle=1 node=infra rank 4 at .* outcome=left")
    n4.assert_fails()
    for node in (n0, n1):
        wait_further(node)
    assert (n0.workers(), n1.workers()) == pids

    # Two that train, one after the other in the same place; their workers do not end.
    for cycle, (leaving, successor, signum) in enumerate([(n1, n2, signal.SIGTERM), (n2, n3, signal.SIGINT)], start=2):
        # As SLURM does: once for the step, and at once again for the job.
        leaving.signal(signum)
        leaving.signal(signum)
        leaving.wait_report("stay", cycle=cycle - 1, rank=1, signal=signum.name)
        successor.wait_report("step", cycle=cycle, rank=1)
        n0.wait_report("step", cycle=cycle, rank=0)
        assert not leaving.has_exited
        assert leaving.workers()
    may_go.touch()
    for node in (n1, n2):
        node.assert_fails()
    done.touch()
    job.assert_succeeds(but=[n1, n2, n4])
    assert_quiet(n3)
    assert [ranks_of(n0, cycle) for cycle in (1, 2, 3)] == [[0]] * 3
    assert [len(node.reports("begin")) for node in (n1, n2, n3, n4)] == [1, 1, 1, 0]
    assert job.ranks_and_sums(cycle=3) == [(0, 3), (1, 3)]
    assert not n0.lines("fenced|opened cycle=4")


# --- SIGUSR1 ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "saving",
    [("--on-usr1", "checkpoint"), ("--on-usr1", "tell", "--save-rank", 0)],
    ids=["the drained node saves once", "rank 0 saves again and again"],
)
def test_a_drained_node_goes_at_a_checkpoint(cluster: Cluster, saving: tuple[object, ...]) -> None:
    done = cluster.path("done")
    conf = {**PATIENT, "drain_grace_s": 300}
    job = cluster.job("3:4", conf=conf, worker=["--until", done, "--alone-below", 2, *saving], env=TELL_ALL)
    n0, n1, n2 = job.start_all(3)
    for node in (n0, n1, n2):
        node.wait_report("step", cycle=1)
    spare = job.start("n3", is_host=False, infra_rank=3)
    wait_joined(n0, 3)
    n1.signal(signal.SIGUSR1)
    n1.wait_for("SIGUSR1: this node is draining")
    n1.signal(signal.SIGUSR1)
    spare.wait_report("step", cycle=2, rank=1, sum=6)
    assert n1.wait_exit() == 0, n1.tail()
    done.touch()
    job.assert_succeeds()
    assert_quiet(n1, spare)
    assert [ranks_of(node, 2) for node in (n0, spare, n2, n1)] == [[0], [1], [2], []]
    assert job.ranks_and_sums(cycle=2) == [(0, 6), (1, 6), (2, 6)]
    # The workers of this node alone, and once.
    assert [len(node.reports("usr1")) for node in (n0, n1, n2)] == [0, 1, 0]
    assert n0.lines("opened cycle=2 because draining infra rank 1 at "), n0.tail()
    assert n2.lines("over cycle=1: draining infra rank 1 at "), n2.tail()
    assert not n0.lines("fenced|opened cycle=3")


def test_drains_without_a_checkpoint(cluster: Cluster) -> None:
    done, verdict_path, grace_s = cluster.path("done"), cluster.path("verdict.json"), 1.0
    # No worker catches the signal, and none dies of it.
    worker = ["--until", done, "--alone-below", 9]
    job = cluster.job("2:4", conf={**PATIENT, "drain_grace_s": grace_s}, worker=worker, env=TELL_ALL)
    n0 = job.start("n0", is_host=True, infra_rank=0, conf={"verdict_file": verdict_path})
    n1 = job.start("n1", is_host=False, infra_rank=1)
    n0.wait_for("sealed cycle=1")
    n2, n3 = [job.start(f"n{index}", is_host=False, infra_rank=index) for index in (2, 3)]
    wait_joined(n0, 2, 3)

    # It holds no place, and may go at once.
    n3.signal(signal.SIGUSR1)
    assert n3.wait_exit() == 0, n3.tail()
    # It holds one, and a spare is there.
    worker_pid = int(n1.wait_report("step", cycle=1)["pid"])
    n1.signal(signal.SIGUSR1)
    n1.wait_for("SIGUSR1 forwarded to 0 of 1 workers")
    n2.wait_report("step", cycle=2, rank=1)
    assert n1.wait_exit() == 0, n1.tail()
    assert not is_alive(worker_pid)
    assert n0.logged_at("opened cycle=2") - n0.logged_at("draining cycle=1") >= grace_s

    # Too few would remain: nothing is opened, however long the grace has been over.
    n0.wait_report("step", cycle=2, rank=0)
    pids = n0.workers(), n2.workers()
    for node in (n0, n2):
        node.signal(signal.SIGUSR1)
    for infra_rank in (0, 2):
        n0.wait_for(rf"draining cycle=2 .*infra rank {infra_rank} at .*SIGUSR1")
    for node in (n0, n2):
        wait_further(node, steps=20)
    assert (n0.workers(), n2.workers()) == pids
    assert not any(node.has_exited for node in (n0, n2))
    done.touch()
    job.assert_succeeds()
    assert_quiet(*job.nodes)
    verdict = read_verdict(verdict_path)
    assert (verdict["verdict"], verdict["cycle"]) == ("cancelled", 2), verdict
    assert verdict["reason"].startswith("drained")
    assert n0.lines(r"closed verdict=cancelled\(drained"), n0.tail()
    assert not n0.lines("fenced|opened cycle=3|failed cycle=")
    assert [ranks_of(node, 1) for node in job.nodes] == [[0], [1], [], []]
    assert [ranks_of(node, 2) for node in job.nodes] == [[0], [], [1], []]
    assert [len(node.reports("end", cycle=2)) for node in (n0, n2)] == [1, 1]


# --- what workers ask for ---------------------------------------------------------------------------


def test_what_workers_ask_for(cluster: Cluster) -> None:
    done = cluster.path("done")
    # A restart that is asked for is not held against the run: its budget allows no failure.
    conf = {**PATIENT, "max_cycles": 1, "drain_grace_s": 0.5}
    worker = ["--until", done, "--alone-below", 3, "--ask-rank", 1, "--ask", "restart:1", "--ask", "drain:2"]
    job = cluster.job("2:3", conf=conf, worker=[*worker, "--tell-info"], env=TELL_ALL)
    n0 = job.start("n0", is_host=True, infra_rank=0)
    n1 = job.start("n1", is_host=False, infra_rank=1, env={"FT_DOMAIN_ID": "rack7"})
    n0.wait_report("step", cycle=2, rank=0)
    spare = job.start("n2", is_host=False, infra_rank=2)
    spare.wait_report("step", cycle=3, rank=1, sum=3)
    assert n1.wait_exit() == 0, n1.tail()
    done.touch()
    job.assert_succeeds()
    assert_quiet(n1, spare)
    assert n0.lines(r"opened cycle=2 because infra rank 1 at .*\(rank 1\) asked for a restart: it wants to"), n0.tail()
    assert n0.lines("draining cycle=2 nodes=1: infra rank 1 at .*: it wants to"), n0.tail()
    assert n0.lines("opened cycle=3 because draining infra rank 1 at "), n0.tail()
    # In the first cycle, its worker may not have begun.
    assert [ranks_of(n0, cycle) for cycle in (2, 3)] == [[0], [0]]
    assert [ranks_of(n1, cycle) for cycle in (1, 2, 3)] == [[1], [1], []]
    assert [report["is_heard"] for report in n1.reports("ask")] == ["True", "True"]
    assert job.ranks_and_sums(cycle=3) == [(0, 3), (1, 3)]
    assert not n0.lines("opened cycle=4|failed cycle=")
    shared = {"run_id": job.run_id, "world_size": "2", "role": "default", "group": "0", "group_count": "1"}
    assert n1.reports("info")[1] == shared | {
        "cycle_id": "2",
        "rank": "1",
        "rank_over_groups": "1",
        "node_rank": "1",
        "domain": "rack7",
        "infra_rank": "1",
    }
    assert n0.reports("info")[-1] == shared | {
        "cycle_id": "3",
        "rank": "0",
        "rank_over_groups": "0",
        "node_rank": "0",
        "domain": "None",
        "infra_rank": "0",
    }


# --- what people ask for ----------------------------------------------------------------------------


def test_what_people_ask_for(cluster: Cluster) -> None:
    verdict_path = cluster.path("verdict.json")
    conf = {**PATIENT, "drain_grace_s": 0.5}
    job = cluster.job("2:3", conf=conf, worker=["--until", cluster.path("never"), "--alone-below", 9], env=TELL_ALL)

    def ask(command: str, *options: str, endpoint: str = job.endpoint) -> Node:
        return cluster.spawn(f"ftr-{command}", [*FTR, command, endpoint, *options])

    def assert_answer(asked: Node, code: int, answer: str) -> None:
        assert asked.wait_exit() == code, asked.tail()
        # Python and torch may warn of something; the command itself says one line.
        (said,) = asked.lines(r"^(ftr: |run ')")
        assert re.search(answer, said), said
        assert_quiet(asked)

    nowhere = f"127.0.0.1:{free_port()}"
    lost = ask("restart", endpoint=nowhere)
    n0 = job.start("n0", is_host=True, infra_rank=0, conf={"verdict_file": verdict_path})
    n1 = job.start("n1", is_host=False, infra_rank=1)
    n0.wait_for("sealed cycle=1")
    stranger = ask("drain", "--node", "9")
    spare = job.start("n2", is_host=False, infra_rank=2)
    wait_joined(n0, 2)
    assert_answer(lost, 2, f"^ftr: no run at {nowhere}: ")
    assert_answer(stranger, 1, "no live node '9' that is not draining$")
    assert not n0.lines("opened cycle=2")

    assert_answer(
        ask("restart", "--reason", "new weather"),
        0,
        rf"^run '{job.run_id}': cycle 1 ends, the next one opens$",
    )
    n0.wait_for("opened cycle=2 because an operator asked for a restart: new weather")
    for node in (n0, n1):
        node.wait_report("step", cycle=2)
    assert_answer(ask("drain", "--node", "1"), 0, r"asked to go: infra rank 1 at 127.0.0.1 pid \d+ \(rank 1\)$")
    spare.wait_report("step", cycle=3, rank=1)
    assert n1.wait_exit() == 0, n1.tail()
    assert_answer(ask("close", "--reason", "the budget ends"), 0, "closed$")
    for node in (n0, spare):
        node.assert_fails()
        assert node.lines(r"^\[ft .* ERROR\] run .* is closed: cancelled\(closed by an operator"), node.tail()
        assert node.workers() == []
    assert_quiet(n1)
    verdict = read_verdict(verdict_path)
    assert (verdict["verdict"], verdict["cycle"], verdict["first_failure"]) == ("cancelled", 3, None)
    assert verdict["reason"] == "closed by an operator: the budget ends"
    assert [ranks_of(node, 2) for node in (n0, n1, spare)] == [[0], [1], []]
    assert [ranks_of(node, 3) for node in (n0, n1, spare)] == [[0], [], [1]]
