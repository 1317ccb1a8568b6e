"""Workers that fail, and agents that do or do not start them again."""

from __future__ import annotations

from tests.integration.workers.train import EXIT_ON_PURPOSE
from tests.support.torchrun_cluster import Cluster, ranks_of


def test_five_failures_in_a_row(cluster: Cluster) -> None:
    # Five at their start on one error would be a crash loop; that one node fails first is borne, for there is no other.
    job = cluster.job("2:2", conf={"crash_loop": 0}, worker=["--fail-below", 6, "--fail-rank", 1])
    n0, n1 = job.start_all(2)
    job.assert_succeeds()
    for cycle in range(1, 7):
        assert ranks_of(n0, cycle) == [0]
        assert ranks_of(n1, cycle) == [1]
        assert [r["sum"] for r in n1.reports("step", cycle=cycle)] == ["3"]
    assert [int(r["cycle"]) for r in n1.reports("fail")] == [1, 2, 3, 4, 5]
    assert job.ranks_and_sums(cycle=6) == [(0, 3), (1, 3)]
    ports = [r["master_port"] for r in n0.reports("begin")]
    assert ports == [r["master_port"] for r in n1.reports("begin")]
    assert len(set(ports)) == 6, f"a bootstrap port was used twice: {ports}"
    assert str(job.port) not in ports
    # Every cycle has its story in the host's log: who failed, and that the next one came of it.
    assert len(n0.lines(r"opened cycle=\d+ because workers failed on")) == 5
    assert len(n0.lines(r"sealed cycle=\d+ active=2 standby=0")) == 6


def test_no_restarts_left(cluster: Cluster) -> None:
    never = cluster.path("never")
    # Nobody waits for a replacement: it is not that a node was lost.
    job = cluster.job("2:2", max_restarts=0, worker=["--fail-below", 9, "--fail-rank", 1, "--until", never])
    n0, n1 = job.start_all(2)
    n1.assert_fails()
    n0.assert_fails()
    end = n1.log.splitlines()[-40:]
    assert any("ChildFailedError" in line for line in end), n1.tail()
    assert any(f"exitcode  : {EXIT_ON_PURPOSE}" in line for line in end), n1.tail()
    assert [int(r["cycle"]) for node in (n0, n1) for r in node.reports("begin")] == [1, 1]
    assert n0.lines(rf"closed verdict=failed\(1 agent spent .* first failure: .*rank 1.* exit code {EXIT_ON_PURPOSE}")


def test_a_failure_after_others_have_finished(cluster: Cluster) -> None:
    # Rank 0 has ended well and cannot train again when rank 1 fails: the run has failed, for everybody.
    job = cluster.job("2:2", worker=["--fail-below", 9, "--fail-rank", 1, "--fail-late", "--linger-s", 4])
    n0, n1 = job.start_all(2)
    for node in (n0, n1):
        node.assert_fails()
    assert len(n0.reports("end", cycle=1)) == 1
    assert len(n1.reports("fail", cycle=1)) == 1
    assert n0.lines("closed verdict=failed.*1 node finished and cannot train again"), n0.tail()
