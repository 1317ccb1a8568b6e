"""Domains, segments and units: who trains next to whom, and who takes over from whom."""

from __future__ import annotations

from collections.abc import Sequence

from tests.support.torchrun_cluster import QUICK, Cluster, Job, Node, assert_quiet, ranks_of

TELL_JOINS = {"FT_LOGLEVEL": "DEBUG"}
ALONE = ("--alone-below", 99)
"""These tests are about who trains, not about training."""


def start(job: Job, *names: str, says: str = "FT_DOMAIN_ID") -> list[Node]:
    """Nodes a0, a1, ... of A, b0, ... of B, as a variable says, with infra ranks in this order. b0 hosts the store."""
    return [
        job.start(name, is_host=name == "b0", infra_rank=len(job.nodes), env={says: name[0].upper()}) for name in names
    ]


def start_spares(job: Job, host: Node, *names: str, says: str = "FT_DOMAIN_ID") -> list[Node]:
    """The same, once the others are in their places."""
    host.wait_for("sealed cycle=1")
    spares = start(job, *names, says=says)
    for spare in spares:
        host.wait_for(rf"joined cycle=1 node=.* pid {spare.pid} spare=True")
    return spares


def wait_training(nodes: Sequence[Node], cycle: int) -> None:
    """All of them do steps in this cycle, in ranks 0, 1, ... of as many."""
    for rank, node in enumerate(nodes):
        node.wait_report("step", cycle=cycle, rank=rank, world=len(nodes))


def domains_by_rank(cluster: Cluster) -> dict[int, str]:
    """The domains of ranks 0, 1, ... in every cycle, as in AABB, as the workers tell."""
    begun = [report for node in cluster.nodes for report in node.reports("begin")]
    told = sorted((int(report["cycle"]), int(report["rank"]), report["domain"]) for report in begun)
    return {cycle: "".join(domain for at, _, domain in told if at == cycle) for cycle, _, _ in told}


def assert_told_once(host: Node, cycles: int) -> None:
    """Every seal, and nothing else, is followed by its line."""
    told = [line.partition("] ")[2].split()[:2] for line in host.lines(r"(sealed|placed) cycle=")]
    assert told == [[what, f"cycle={cycle}"] for cycle in range(1, cycles + 1) for what in ("sealed", "placed")]


# --- segments ---------------------------------------------------------------------------------------


def test_a_segment_is_filled_from_its_own_domain_or_not_at_all(cluster: Cluster) -> None:
    done = cluster.path("done")
    job = cluster.job("4:6", conf={**QUICK, "segment": 2}, worker=["--until", done, *ALONE], env=TELL_JOINS)
    a0, a1, b0, b1 = start(job, "a0", "a1", "b0", "b1")
    a2, b2 = start_spares(job, b0, "a2", "b2")
    wait_training([a0, a1, b0, b1], cycle=1)
    a0.kill()
    wait_training([a2, a1, b0, b1], cycle=2)
    b0.wait_for(
        r"placed cycle=2 kept=3 moved=0 new=1 benched=0; .*: rank 0 infra rank 4 at .*, in place of infra rank 0 "
        "at .*, of the same domain"
    )
    a1.kill()
    # There are four nodes, but no two of one domain for the other segment.
    b0.wait_for(r"waiting cycle=3: 1 of 2 segments of 2 can be filled; left over: 1 in domain A, 1 in domain B")
    assert not b0.lines("sealed cycle=3")
    (a3,) = start(job, "a3")
    wait_training([a2, a3, b0, b1], cycle=3)
    done.touch()
    job.assert_succeeds(but=[a0, a1])
    assert_quiet(a2, a3, b0, b1, b2)
    assert domains_by_rank(cluster) == {1: "AABB", 2: "AABB", 3: "AABB"}
    assert b2.reports("begin") == []
    assert_told_once(b0, cycles=3)


def test_a_segment_moves_as_a_whole(cluster: Cluster) -> None:
    done = cluster.path("done")
    job = cluster.job("4:6", conf={**QUICK, "segment": 2}, worker=["--until", done, *ALONE], env=TELL_JOINS)
    a0, a1, b0, b1 = start(job, "a0", "a1", "b0", "b1")
    c0, c1 = start_spares(job, b0, "c0", "c1")
    wait_training([a0, a1, b0, b1], cycle=1)
    a0.kill()
    wait_training([c0, c1, b0, b1], cycle=2)
    a1.wait_for("spare in cycle=2: waiting")
    done.touch()
    job.assert_succeeds(but=[a0])
    assert_quiet(*job.nodes)
    assert domains_by_rank(cluster) == {1: "AABB", 2: "CCBB"}
    assert ranks_of(a1, 2) == []
    assert b0.lines("placed cycle=2 kept=2 moved=0 new=2 benched=1; .*, of domain A, which is a spare now")
    assert_told_once(b0, cycles=2)


# --- units ------------------------------------------------------------------------------------------


def test_a_torn_unit_is_swapped_for_a_complete_one(cluster: Cluster) -> None:
    done = cluster.path("done")
    conf = {**QUICK, "unit_size": 2, "unit_from": "env:BLOCK"}
    job = cluster.job("4:6", conf=conf, worker=["--until", done, *ALONE], env=TELL_JOINS)
    a0, a1, b0, b1 = start(job, "a0", "a1", "b0", "b1", says="BLOCK")
    c0, c1 = start_spares(job, b0, "c0", "c1", says="BLOCK")
    wait_training([a0, a1, b0, b1], cycle=1)
    a1.kill()
    wait_training([c0, c1, b0, b1], cycle=2)
    a0.wait_for("spare in cycle=2: waiting")
    done.touch()
    job.assert_succeeds(but=[a1])
    assert_quiet(*job.nodes)
    assert ranks_of(a0, 2) == []
    assert b0.lines("placed cycle=2 kept=2 moved=0 new=2 benched=1; spares cover no loss")
    assert_told_once(b0, cycles=2)


# --- spares -----------------------------------------------------------------------------------------


def test_spares_are_spread_over_the_domains(cluster: Cluster) -> None:
    # All are there before the seal: whoever came first would train otherwise.
    gate = cluster.gate()
    conf = {**QUICK, **gate.conf, "settle_s": 3, "spread": "domains"}
    job = cluster.job("4:6", conf=conf, worker=["--steps", 3, *ALONE])
    a0, a1, a2, b0, b1, b2 = start(job, "a0", "a1", "a2", "b0", "b1", "b2")
    gate.open_for(job.nodes)
    wait_training([a0, a1, b0, b1], cycle=1)
    job.assert_succeeds()
    assert_quiet(*job.nodes)
    assert domains_by_rank(cluster) == {1: "AABB"}
    assert a2.reports("begin") == b2.reports("begin") == []
    cover = "any 2 nodes, 4 of 4 single nodes, 0 of 2 single domains"
    assert b0.lines(f"placed cycle=1 kept=0 moved=0 new=4 benched=0; spares cover {cover}$")
    assert_told_once(b0, cycles=1)
