"""Warm workers with real torchrun: PYTHON_EXEC=ftr-python, and a script that does not know it."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import pytest

from tests.support.torchrun_cluster import HERE, QUICK, TORCHRUN, Cluster, Job, Node, find_processes, is_alive
from tests.support.waiting import wait_until

SCRIPT = HERE / "workers" / "warm_train.py"
WARM = {"PYTHON_EXEC": "ftr-python", "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def warm_job(cluster: Cluster, nnodes: str, fail_cycle: int = 0, how: object = "1", **options: object) -> Job:
    conf = {**QUICK, **options.pop("conf", {})}  # type: ignore[dict-item]
    worker = (fail_cycle, how, cluster.path("done"))
    return cluster.job(nnodes, script=SCRIPT, worker=worker, env=WARM, conf=conf, **options)


def nursery_of(node: Node) -> int:
    """The pid of the node's nursery."""
    pids = [each.pid for each in find_processes(node.marker) if "nursery_main.py" in each.command]
    children = [pid for pid in pids if f"PPid:\t{node.pid}\n" in Path(f"/proc/{pid}/status").read_text()]
    assert len(children) == 1, pids
    return children[0]


def assert_warm(*nodes: Node) -> None:
    for node in nodes:
        assert "starts cold" not in node.log, node.tail()
        assert {report["is_warm"] for report in node.reports("begin")} <= {"True"}
    assert any(node.reports("begin") for node in nodes)


def test_failed_workers_and_a_lost_node_are_replaced_warm(cluster: Cluster) -> None:
    job = warm_job(cluster, "2:3", fail_cycle=1, how=17, nproc=2)
    n0, n1, spare = job.start_all(3)
    n0.wait_report("step", cycle=2, step=5)
    failed = next(node for node in (n0, n1, spare) if node.reports("begin", cycle=1, rank=0))
    assert failed.lines("worker failed first on this node: .*17"), failed.tail()
    idle = next(node for node in (n0, n1, spare) if not node.reports("begin"))
    assert nursery_of(idle) > 0, "a spare has a nursery"
    lost = next(node for node in (n1, spare) if node is not idle)
    lost.kill()
    idle.wait_report("step", cycle=3, step=5)
    cluster.path("done").touch()
    job.assert_succeeds(but=[lost])
    assert_warm(n0, n1, spare)


@pytest.mark.parametrize("how", [-signal.SIGSEGV, 3])
def test_the_first_failure_has_its_exact_end(cluster: Cluster, how: int) -> None:
    job = warm_job(cluster, "1", fail_cycle=1, how=int(how), nproc=2)
    (node,) = job.start_all(1)
    node.wait_report("step", cycle=2, step=5)
    cluster.path("done").touch()
    job.assert_succeeds()
    said = node.lines("worker failed first on this node")[0]
    assert ("SIGSEGV" if how < 0 else "3") in said
    assert_warm(node)


def test_output_goes_where_torchrun_sends_it(cluster: Cluster) -> None:
    logs = cluster.directory / "logs"
    cluster.path("done").touch()
    job = warm_job(cluster, "1", nproc=2)
    launcher = (*TORCHRUN, "--logs-specs=ft", f"--log-dir={logs}", "--redirects=1", "--tee=2")
    node = job.start("n0", is_host=True, launcher=launcher)
    job.assert_succeeds()
    files = {str(path.relative_to(logs)): path.read_text() for path in logs.rglob("*.log")}
    assert len(files) == 4, files.keys()
    for name, text in files.items():
        assert ("ft-test step" in text) == ("stdout" in name), name
        assert ("to standard error" in text) == ("stderr" in name), name
    assert "ft-test step" not in node.log
    assert len(node.lines(r"\[default\d\]:to standard error")) == 2


@pytest.mark.parametrize("victim", ["agent", "client", "worker", "nursery"])
def test_no_kill_leaves_a_process(cluster: Cluster, victim: str) -> None:
    job = warm_job(cluster, "1")
    node = job.start("n0", is_host=True)
    report = node.wait_report("step", step=3) and node.reports("begin")[0]
    worker, guardian = int(report["pid"]), int(report["parent"])
    nursery = nursery_of(node)
    clients = [each.pid for each in find_processes(node.marker) if "client.py" in each.command]
    assert len(clients) == 1
    if victim == "agent":
        node.kill(with_workers=False)
        wait_until("all are gone", lambda: not any(map(is_alive, (worker, guardian, nursery, *clients))))
        return
    os.kill({"client": clients[0], "worker": worker, "nursery": nursery}[victim], signal.SIGKILL)
    if victim == "nursery":
        os.kill(worker, signal.SIGKILL)
    node.wait_report("step", cycle=2, step=3)
    assert not any(map(is_alive, (worker, guardian, *clients)))
    assert node.lines("worker failed first on this node: .*SIGKILL")
    if victim == "nursery":
        assert node.lines("the nursery has ended exit_code=-9: starting another one")
        assert nursery_of(node) != nursery
    assert_warm(node)
    cluster.path("done").touch()
    job.assert_succeeds()


def test_a_drain_reaches_the_worker_that_catches_it(cluster: Cluster) -> None:
    job = warm_job(cluster, "1:2")
    node = job.start("n0", is_host=True)
    node.wait_report("step", step=3)
    node.signal(signal.SIGUSR1)
    node.wait_report("usr1")
    assert node.lines("SIGUSR1 forwarded to 1 of 1 workers")
    cluster.path("done").touch()
    job.wait_all()


def test_two_runs_on_one_machine(cluster: Cluster) -> None:
    jobs = [warm_job(cluster, "1") for _ in range(2)]
    nodes = [job.start(f"run{index}", is_host=True) for index, job in enumerate(jobs)]
    for node in nodes:
        node.wait_report("step", step=3)
    assert len({nursery_of(node) for node in nodes}) == 2
    nodes[0].kill(with_workers=False)
    begun = len(nodes[1].reports("begin"))
    cluster.path("done").touch()
    jobs[1].assert_succeeds()
    assert len(nodes[1].reports("begin")) == begun == 1
    assert_warm(*nodes)


def test_steps_of_an_optimizer_are_progress_without_a_call(cluster: Cluster) -> None:
    conf = {"hang_timeout": 6, "progress_from": "optimizer"}
    job = warm_job(cluster, "1", fail_cycle=1, how="hang", nproc=2, conf=conf)
    node = job.start("n0", is_host=True)
    node.wait_for(r"late cycle=1 .*after step \d")
    node.wait_for(r"hang cycle=1")
    assert re.search(r"end \(warm_train.py:\d+\)", node.log), "py-spy saw the worker, not its client"
    node.wait_report("step", cycle=2, step=5)
    cluster.path("done").touch()
    job.assert_succeeds()
    assert_warm(node)


def test_a_reason_to_start_cold_is_in_the_log_once(cluster: Cluster) -> None:
    cluster.path("done").touch()
    job = warm_job(cluster, "1", nproc=2)
    node = job.start("n0", is_host=True, env={"FT_PRELOAD": "no_such_module"})
    job.assert_succeeds()
    assert len(node.lines("starts cold: FT_PRELOAD names no_such_module, and there is no such module")) == 1
    assert {report["is_warm"] for report in node.reports("begin")} == {"False"}


def test_functions_start_warm_by_a_forkserver(cluster: Cluster) -> None:
    """The documented equivalent for `elastic_launch`: a forkserver that has imported torch, also of a spare."""
    from tests.integration.test_elastic_launch import launch  # noqa: PLC0415

    done = cluster.path("done")
    job = cluster.job("1:2")
    n0 = launch(job, "n0", done, is_host=True, infra_rank=0, LAUNCH_FORKSERVER="1")
    worker = int(n0.wait_report("step", rank=0)["pid"])
    assert n0.reports("step")[0]["had_torch"] == "True"
    spare = launch(job, "spare", done, is_host=False, infra_rank=1, LAUNCH_FORKSERVER="1")
    n0.wait_for("joined cycle=1 node=.* spare=True")
    wait_until("the spare has its server", lambda: any("forkserver" in p.command for p in find_processes(spare.marker)))
    os.kill(worker, signal.SIGKILL)
    assert n0.wait_report("step", cycle=2)["had_torch"] == "True", "its variables are those of its cycle"
    done.touch()
    job.assert_succeeds()
    # A forkserver ends when it sees the end of its agent, and has torch to finalize.
    wait_until("the servers end", lambda: not find_processes(n0.marker) and not find_processes(spare.marker))


def test_functions_of_a_killed_agent_leave_no_process(cluster: Cluster) -> None:
    from tests.integration.test_elastic_launch import launch  # noqa: PLC0415

    job = cluster.job("1:1")
    agent = launch(job, "n0", cluster.path("done"), is_host=True, infra_rank=0, LAUNCH_FORKSERVER="1")
    worker = int(agent.wait_report("step", rank=0)["pid"])
    agent.kill(with_workers=False)
    wait_until("the worker is gone", lambda: not is_alive(worker))
