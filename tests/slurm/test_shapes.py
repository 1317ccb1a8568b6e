"""Jobs of other shapes: a job array that is one run, a heterogeneous job, a store beside the allocation."""

from __future__ import annotations

import subprocess

from tests.slurm.cluster import SlurmCluster
from tests.slurm.jobs import LAUNCHER, Run, Submitter, conf_text

TASKS, NODES_PER_TASK = 3, 2


def task_of(node: int) -> int:
    return node // NODES_PER_TASK


def test_the_spare_task_of_an_array_takes_the_place_of_one_that_ends(
    submitter: Submitter, cluster: SlurmCluster
) -> None:
    array = submitter.example("job_array.sbatch", submitter.until_done())
    run = Run(array, submitter.path("ft-logs") / array.id, NODES_PER_TASK)
    before = run.wait_ranks(1, 4)
    run.wait_reports("step", 4, cycle=1)
    assert task_of(run.host) == 0
    assert sorted(before.values()) == [0, 1, 2, 3]
    active = {task_of(node) for node in before}
    assert len(active) == 2, "a task trains whole or not at all"
    run.wait_log(r"spare in cycle=1|standby in cycle=1")

    (ended,) = active - {0} or {None}
    assert ended is not None, "the task of the store host and one more train"
    tasks = submitter.tasks_of(array, TASKS)
    cluster.run("scancel", tasks[ended].id)
    after = run.wait_ranks(2, 4)
    (spare,) = {0, 1, 2} - active
    assert {task_of(node) for node in after} == {0, spare}
    assert {node: rank for node, rank in after.items() if task_of(node) == 0} == {
        node: rank for node, rank in before.items() if task_of(node) == 0
    }, "who was not ended keeps the rank"

    submitter.done.touch()
    for task in tasks:
        assert task.wait_end() == ("CANCELLED" if task is tasks[ended] else "COMPLETED"), run.explain()
    assert [tasks[0].exit_code, tasks[spare].exit_code] == [0, 0], run.explain()
    assert (run.verdict["verdict"], run.verdict["run_id"]) == ("succeeded", array.id)
    cluster.assert_nothing_runs()


def test_parts_of_a_heterogeneous_job_train_together(submitter: Submitter, cluster: SlurmCluster) -> None:
    job = submitter.example("heterogeneous.sbatch", submitter.until_done(), ACTIVE=5, NPROC="2,1")
    run = submitter.run_of(job)
    run.wait_reports("step", 7, cycle=1)
    begun = run.reports("begin", cycle=1)
    assert sorted(int(report["rank"]) for report in begun) == list(range(7))
    assert {report["world"] for report in begun} == {"7"}
    assert sorted(int(report["local_world"]) for report in begun) == [1, 1, 1, 2, 2, 2, 2]
    submitter.done.touch()
    run.assert_ends("COMPLETED", 0)
    run.assert_all_exited_well()
    assert run.verdict["verdict"] == "succeeded"
    cluster.assert_nothing_runs()


def test_a_store_beside_the_allocation_survives_its_first_node(submitter: Submitter, cluster: SlurmCluster) -> None:
    """Under salloc the launcher runs where salloc does, which is no node of the job."""
    output = submitter.path("salloc.out")
    command = [
        *("salloc", "--no-kill", "--nodes=3", "--ntasks-per-node=1", f"--job-name={submitter.directory.name}"),
        *(LAUNCHER, "--store", "batch-host", "--active", 2, f"--rdzv-conf={conf_text(None)}"),
        *("--log-dir", submitter.path("logs"), "--", *submitter.until_done()),
    ]
    with output.open("wb") as file:
        salloc = subprocess.Popen(
            [str(word) for word in command],
            env=cluster.env,
            cwd=submitter.directory,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    try:
        job = submitter.salloc_job(output)
        run = Run(job, submitter.path("logs"))
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
    finally:
        salloc.kill()
        salloc.wait()
    assert run.verdict["verdict"] == "succeeded"
    cluster.assert_nothing_runs()
