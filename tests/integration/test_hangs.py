"""Workers that hang without an end: found, named, and replaced; and long pauses that are none."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable

import pytest

from tests.support.torchrun_cluster import HERE, QUICK, TORCHRUN, Cluster, Job, Node, find_processes, send

HANG = HERE / "workers" / "hang.py"
HANG_TIMEOUT_S = 6

Report = Callable[[str, object], None]


def hanging_job(cluster: Cluster, *worker: object, nnodes: str = "3:4", **conf: object) -> Job:
    return Job(cluster, nnodes, worker=worker, script=HANG, conf={**QUICK, **conf})


def hang_line(host: Node) -> str:
    host.wait_for(r"hang cycle=1")
    return host.lines(r"hang cycle=1 ")[0]


def seconds_to_new_world(hung: Node, host: Node) -> float:
    """From the hang until the next world is sealed, on the machine's clock."""
    return host.logged_at(r"sealed cycle=2") - float(hung.reports("hang")[0]["at"])


def test_a_rank_that_hangs_in_its_loader_is_named_and_a_spare_has_its_place(
    cluster: Cluster, record_property: Report
) -> None:
    job = hanging_job(cluster, "--mode=loader", "--tells", hang_timeout=HANG_TIMEOUT_S, max_node_failures=1)
    nodes = job.start_all(4)
    host = nodes[0]
    line = hang_line(host)
    hung = next(node for node in nodes if node.reports("hang"))
    index = nodes.index(hung)
    assert re.search(
        rf"blamed=infra rank {index} at .*after step 4: 2 ranks wait in all_reduce, called at hang.py", line
    )
    assert re.search(r"rank 1 is in sleep_in_loader \(hang.py:\d+\)", line)
    host.wait_for(rf"fenced cycle=\d+ node=infra rank {index} .*quarantined")
    hung.assert_fails()
    job.assert_succeeds(but=[hung])
    assert job.ranks_and_sums(cycle=2) == [(0, 6), (1, 6), (2, 6)], "training went on with the spare"
    took_s = seconds_to_new_world(hung, host)
    record_property("seconds_from_hang_to_new_world", took_s)
    assert took_s >= HANG_TIMEOUT_S
    print(f"from the hang to the new world: {took_s:.2f} s with hang_timeout={HANG_TIMEOUT_S}")


def test_a_rank_that_loops_in_c_and_holds_the_interpreter_is_found_and_ended(
    cluster: Cluster, record_property: Report
) -> None:
    job = hanging_job(cluster, "--mode=gil", "--tells", nnodes="3", hang_timeout=HANG_TIMEOUT_S)
    nodes = job.start_all(3)
    line = hang_line(nodes[0])
    hung = next(node for node in nodes if node.reports("hang"))
    assert re.search(r"rank 1 is in loop_in_c \(hang.py:\d+\)", line)
    assert "blamed=infra rank" in line
    job.assert_succeeds()
    assert job.ranks_and_sums(cycle=2) == [(0, 6), (1, 6), (2, 6)]
    took_s = seconds_to_new_world(hung, nodes[0])
    record_property("seconds_from_hang_to_new_world", took_s)
    assert took_s < 30, "torch's patience with SIGTERM was not waited for"


def test_a_deadlock_at_the_start_is_found(cluster: Cluster) -> None:
    job = hanging_job(cluster, "--mode=start", "--tells", nnodes="3", startup_timeout=20)
    nodes = job.start_all(3)
    line = hang_line(nodes[0])
    assert re.search(r"blamed=infra rank \d at .*no progress within .* of the start", line)
    assert re.search(r"rank 1 is in lock_twice \(hang.py:\d+\)", line)
    job.assert_succeeds()
    assert job.ranks_and_sums(cycle=2) == [(0, 6), (1, 6), (2, 6)]


def test_a_long_checkpoint_within_a_pause_is_no_hang(cluster: Cluster) -> None:
    """One rank saves, and the ranks of other nodes wait for it in a collective."""
    timeout_s = 4
    worker = ("--mode=checkpoint", "--tells", f"--pause-s={3 * timeout_s}")
    job = hanging_job(cluster, *worker, nnodes="2", hang_timeout=timeout_s)
    nodes = job.start_all(2)
    nodes[0].wait_for(r"no hang in cycle=1, although rank=0 is late: a pause was announced, rank 1: checkpoint")
    job.assert_succeeds()
    assert nodes[0].lines("opened cycle=2") == []
    assert {report["cycle"] for node in nodes for report in node.reports("end")} == {"1"}


def test_machines_that_stand_still_do_not_hang(cluster: Cluster) -> None:
    """All processes of two nodes stop for longer than `hang_timeout`. At most their leases are lost by that."""
    job = hanging_job(cluster, "--mode=checkpoint", "--tells", "--rank=-1", "--steps=100", nnodes="2", hang_timeout=4)
    nodes = job.start_all(2)
    for node in nodes:
        node.wait_report("step", step=3)
    processes = [process.pid for node in nodes for process in find_processes(node.marker)]
    for pid in processes:
        send(pid, signal.SIGSTOP)
    time.sleep(3 * 4)
    for pid in processes:
        send(pid, signal.SIGCONT)
    job.assert_succeeds()
    for node in nodes:
        assert node.lines(r"hang cycle=| late cycle=|is late") == []


def test_output_is_progress_where_that_is_asked_for(cluster: Cluster) -> None:
    job = hanging_job(cluster, "--mode=loader", nnodes="2", hang_timeout=HANG_TIMEOUT_S, progress_from="log")
    launcher = (*TORCHRUN, f"--log-dir={cluster.directory / 'logs'}", "--tee=3")
    nodes = [job.start(f"n{i}", is_host=i == 0, infra_rank=i, launcher=launcher) for i in range(2)]
    line = hang_line(nodes[0])
    assert "blamed=None" in line, "one of two ranks is no majority"
    assert "sleep_in_loader" in line
    job.assert_succeeds()
    assert job.ranks_and_sums(cycle=2) == [(0, 3), (1, 3)]


@pytest.mark.parametrize("conf", [{"hang_timeout": "soon"}, {"startup_timeout": 1}])
def test_a_timeout_that_cannot_be_is_refused(cluster: Cluster, conf: dict[str, object]) -> None:
    node = hanging_job(cluster, "--mode=loader", nnodes="1", **conf).start("n0", is_host=True)
    node.assert_fails()
    assert next(iter(conf)) in node.log
