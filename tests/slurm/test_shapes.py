"""Jobs of other shapes: a job array that is one run, a heterogeneous job, a store beside the allocation."""

from __future__ import annotations

import contextlib
import re
import shlex
import socket
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.slurm.jobs import LAUNCHER, START_S, Job, Run, Submitter, conf_text
from tests.slurm.slurm_cluster import SlurmCluster, free_ports
from tests.support.waiting import wait_until

TASKS, NODES_PER_TASK = 3, 2


@dataclass
class Array:
    """Three tasks of two nodes, of which two tasks train."""

    run: Run
    tasks: list[Job]
    ranks: dict[int, int]
    active: int
    """The task that trains and does not host the store."""
    spare: int

    @classmethod
    def started(cls, submitter: Submitter) -> Array:
        job = submitter.example("job_array.sbatch", submitter.until_done())
        run = Run(job, submitter.path("ft-logs") / job.id, NODES_PER_TASK)
        ranks = run.wait_ranks(1, 4)
        run.wait_reports("step", 4, cycle=1)
        run.wait_log(r"(spare|standby) in cycle=1")
        assert task_of(run.host) == 0, run.explain()
        (active,) = {task_of(node) for node in ranks} - {0}
        # A task trains whole or not at all.
        assert sorted(ranks) == [0, 1, *nodes_of(active)], run.explain()
        return cls(run, submitter.tasks_of(job, TASKS), ranks, active, 3 - active)

    def assert_spare_takes_over(self) -> None:
        """The spare task's nodes have the places of the active task's; the others keep theirs."""
        after = self.run.wait_ranks(2, 4)
        assert {node: rank for node, rank in after.items() if node in self.ranks} == {
            node: rank for node, rank in self.ranks.items() if task_of(node) == 0
        }
        assert sorted(after) == [0, 1, *nodes_of(self.spare)]

    def assert_ends(self, active_state: str) -> None:
        """The two tasks that train end well, the one that was lost as it must."""
        states = {0: "COMPLETED", self.active: active_state, self.spare: "COMPLETED"}
        for number, task in enumerate(self.tasks):
            assert task.wait_end() == states[number], f"task {number}\n{self.run.explain()}"
        assert [self.tasks[0].exit_code, self.tasks[self.spare].exit_code] == [0, 0]
        assert (self.run.verdict["verdict"], self.run.verdict["run_id"]) == ("succeeded", self.run.job.id)


def task_of(node: int) -> int:
    return node // NODES_PER_TASK


def nodes_of(task: int) -> list[int]:
    return [node for node in range(TASKS * NODES_PER_TASK) if task_of(node) == task]


def test_the_spare_task_of_an_array_takes_the_place_of_one_that_ends(
    submitter: Submitter, cluster: SlurmCluster
) -> None:
    array = Array.started(submitter)
    cluster.run("scancel", array.tasks[array.active].id)
    array.assert_spare_takes_over()
    submitter.done.touch()
    array.assert_ends("CANCELLED")
    cluster.assert_nothing_runs()


def test_a_task_that_lost_its_batch_script_ends_with_the_run(submitter: Submitter, cluster: SlurmCluster) -> None:
    """Its other node has nothing to end it but itself: SLURM would keep the job until the time limit."""
    array = Array.started(submitter)
    lost = array.tasks[array.active].fact("BatchHost")
    cluster.lose(lost)
    array.assert_spare_takes_over()
    cluster.wait_down(lost)
    submitter.done.touch()
    array.assert_ends("CANCELLED")
    cluster.assert_nothing_runs()


def test_an_array_whose_store_is_elsewhere_outlives_its_first_task(submitter: Submitter, cluster: SlurmCluster) -> None:
    endpoint = f"{socket.gethostname()}:{free_ports(1)[0]}"
    told = ["--active", 4, "--store", endpoint, f"--rdzv-conf={conf_text(None)}"]
    # Held, so that the last task comes last.
    array = submitter.submit("--hold", "--array=0-2", "--nodes=2", LAUNCHER, *told, "--", *submitter.until_done())
    tasks = [Job(cluster, f"{array.id}_{task}", submitter.path("none")) for task in range(TASKS)]
    run = Run(tasks[1], submitter.path("ft-logs") / array.id, NODES_PER_TASK)
    cluster.run("scontrol", "release", tasks[0].id)
    cluster.run("scontrol", "release", tasks[1].id)
    with served(submitter) as store:
        assert sorted(run.wait_ranks(1, 4)) == [0, 1, 2, 3]
        cluster.run("scontrol", "release", tasks[2].id)
        run.wait_log(r"(spare|standby) in cycle=1")
        cluster.run("scancel", tasks[0].id)
        assert sorted(run.wait_ranks(2, 4)) == [2, 3, 4, 5]
        submitter.done.touch()
        assert [task.wait_end() for task in tasks] == ["CANCELLED", "COMPLETED", "COMPLETED"], run.explain()
        assert store.wait(START_S) == 0
    assert (run.verdict["verdict"], run.verdict["run_id"]) == ("succeeded", array.id)
    assert not (run.log_dir / "endpoint").exists(), "nobody needs it"
    cluster.assert_nothing_runs()


@contextlib.contextmanager
def served(submitter: Submitter) -> Iterator[subprocess.Popen[bytes]]:
    """The store that a job's output asks for, started as it says."""

    def look() -> re.Match[str] | None:
        told = "".join(path.read_text() for path in submitter.directory.glob("job-*.out"))
        return re.search(r"start its store on that host, in (\S+): (.*)", told)

    asked = wait_until("the launcher tells how to serve the store", look)
    with running(submitter, shlex.split(asked[2]), submitter.path("store.out"), Path(asked[1])) as store:
        yield store


@contextlib.contextmanager
def running(
    submitter: Submitter, command: Sequence[object], output: Path, place: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process beside the cluster, which is ended with the test."""
    with output.open("wb") as file:
        process = subprocess.Popen(
            [str(word) for word in command],
            env=submitter.cluster.env,
            cwd=place,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_parts_of_a_heterogeneous_job_train_together(submitter: Submitter, cluster: SlurmCluster) -> None:
    job = submitter.example("heterogeneous.sbatch", submitter.until_done(), ACTIVE=5, NPROC="2,1")
    run = submitter.run_of(job)
    run.first_nodes = 2
    run.wait_reports("step", 7, cycle=1)
    begun = run.reports("begin", cycle=1)
    assert sorted(int(report["rank"]) for report in begun) == list(range(7))
    assert {report["world"] for report in begun} == {"7"}
    assert sorted(int(report["local_world"]) for report in begun) == [1, 1, 1, 2, 2, 2, 2]
    assert run.worker_variables("TORCH_ELASTIC_WORKER_IDENTICAL") == {"0"}
    # Infra ranks are counted over both parts.
    assert sorted(path.name for path in run.log_dir.glob("node-?")) == [f"node-{rank}" for rank in range(5)]
    submitter.done.touch()
    run.assert_ends("COMPLETED", 0)
    run.assert_all_exited_well()
    assert run.verdict["verdict"] == "succeeded"
    cluster.assert_nothing_runs()


@contextlib.contextmanager
def under_salloc(submitter: Submitter, nodes: int, *launcher: object) -> Iterator[tuple[subprocess.Popen[bytes], Run]]:
    """launcher.sh with the store where salloc runs, which is no node of the job."""
    output = submitter.path("salloc.out")
    command = [
        *("salloc", "--no-kill", f"--nodes={nodes}", "--ntasks-per-node=1", f"--job-name={submitter.directory.name}"),
        *(LAUNCHER, "--store", "batch-host", "--log-dir", submitter.path("logs"), *launcher),
        *("--", *submitter.until_done()),
    ]
    with running(submitter, command, output, submitter.directory) as salloc:
        yield salloc, Run(submitter.salloc_job(output), submitter.path("logs"))


def test_a_store_beside_the_allocation_survives_its_first_node(submitter: Submitter, cluster: SlurmCluster) -> None:
    launcher = ["--active", 2, f"--rdzv-conf={conf_text(None)}"]
    with under_salloc(submitter, 3, *launcher) as (salloc, run):
        before = run.wait_ranks(1, 2)
        run.wait_reports("step", 2, cycle=1)
        assert not any("hosting the store" in log for log in run.logs().values())
        first = run.agent(0).node
        cluster.lose(first)
        if 0 in before:
            assert sorted(run.wait_ranks(2, 2).values()) == [0, 1]
        cluster.wait_down(first)
        submitter.done.touch()
        assert salloc.wait(60) == 0, run.explain()
    assert run.verdict["verdict"] == "succeeded"
    cluster.assert_nothing_runs()


def test_a_store_beside_the_allocation_survives_every_node(submitter: Submitter, cluster: SlurmCluster) -> None:
    """There is nobody left to train, but somebody to tell so: that queueing the job again would help."""
    with under_salloc(submitter, 2, f"--rdzv-conf={conf_text({'join_timeout': 15})}") as (salloc, run):
        run.wait_ranks(1, 2)
        run.wait_reports("step", 2, cycle=1)
        for node in [run.agent(number).node for number in (0, 1)]:
            cluster.lose(node)
        code = salloc.wait(START_S)
        assert code == 1, run.explain()
    verdict = run.verdict
    assert (verdict["verdict"], verdict["is_retryable"]) == ("failed", True)
    cluster.assert_nothing_runs()
