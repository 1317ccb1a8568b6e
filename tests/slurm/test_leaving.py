"""Jobs that must go: drained, queued again, out of time, pushed aside by others. What was saved is not lost."""

from __future__ import annotations

import os
import re
import signal
from datetime import datetime, timedelta

from tests.slurm.cluster import SlurmCluster
from tests.slurm.jobs import START_S, Run, Submitter

TIME_CHECK_S = 60.0
"""slurmctld looks at time limits twice a minute."""
REQUEUE_S = 60.0
"""Until a job that was queued again starts: credentials expire, nodes are cleaned up, the scheduler looks."""


def wait_steps(run: Run, steps: int) -> None:
    """examples/train.py has saved so many steps."""
    run.wait_log(rf"step {steps} loss")


def assert_resumes(submitter: Submitter, run: Run) -> Run:
    """The job's next life is another run, which begins where the checkpoint is."""
    second = submitter.run_of(run.job, restarts=1)
    second.wait_log("begins after step", REQUEUE_S + START_S)
    began = max(
        int(match[1]) for log in second.logs().values() for match in re.finditer(r"begins after step (\d+)", log)
    )
    assert began > 0, second.explain()
    # No cycle, failure or node of the first life is known in the second.
    assert any(f"hosting the store of run '{run.job.id}.1'" in log for log in second.logs().values())
    assert any("opened cycle=1 because the run begins" in log for log in second.logs().values())
    return second


def test_a_signal_to_an_agent_drains_its_node(submitter: Submitter, cluster: SlurmCluster) -> None:
    run = submitter.launch(3, submitter.until_done("--on-usr1", "checkpoint"), launcher=["--active", 2])
    before = run.wait_ranks(1, 2)
    run.wait_reports("step", 2, cycle=1)
    run.wait_log("spare in cycle=1|standby in cycle=1")
    drained = next(node for node in before if node != run.host)
    os.kill(run.agent(drained).pid, signal.SIGUSR1)
    after = run.wait_ranks(2, 2)
    (spare,) = set(after) - set(before)
    assert after[spare] == before[drained]
    assert [report["rank"] for report in run.reports("usr1")] == [str(before[drained])], "only its worker is told"
    submitter.done.touch()
    run.assert_ends("COMPLETED", 0)
    run.assert_all_exited_well()
    cluster.assert_nothing_runs()


def test_a_drained_job_is_queued_again(submitter: Submitter, cluster: SlurmCluster) -> None:
    """As --signal=USR1@120 does it before the time limit. Here the signal ends workers that do not catch it, too."""
    run = submitter.launch(2, submitter.train(200), launcher=["--requeue", 1])
    wait_steps(run, 4)
    cluster.run("scancel", "--signal=USR1", run.job.id)
    second = assert_resumes(submitter, run)
    assert run.job.fact("Restarts") == "1"
    verdict = run.verdict
    assert (verdict["verdict"], verdict["is_retryable"]) == ("cancelled", True)
    assert "drained" in verdict["reason"]
    # Once is what was asked for: drained again, the job is over.
    wait_steps(second, 20)
    cluster.run("scancel", "--signal=USR1", run.job.id)
    second.assert_ends("FAILED", 3)
    assert "--requeue 1" in run.job.text
    cluster.assert_nothing_runs()


def test_scontrol_requeue_resumes_in_a_new_run(submitter: Submitter, cluster: SlurmCluster) -> None:
    job = submitter.example("plain.sbatch", submitter.train(40), sbatch=["--nodes=2", "--open-mode=append"])
    run = submitter.run_of(job)
    wait_steps(run, 4)
    cluster.run("scontrol", "requeue", job.id)
    second = assert_resumes(submitter, run)
    second.assert_ends("COMPLETED", 0)
    assert second.verdict["run_id"] == f"{job.id}.1"
    assert second.verdict["verdict"] == "succeeded"
    assert any("step 40 loss" in log for log in second.logs().values())
    cluster.assert_nothing_runs()


def test_the_time_limit_ends_a_job_that_was_told_before(submitter: Submitter, cluster: SlurmCluster) -> None:
    worker = submitter.until_done("--on-usr1", "tell", "--checkpoint", submitter.checkpoint, "--save-rank", 0)
    run = submitter.launch(2, worker, sbatch=["--time=10", "--signal=USR1@30"])
    run.wait_reports("step", 2, cycle=1)
    # A time limit has minutes; the time of its end has seconds.
    ends_at = datetime.now() + timedelta(seconds=5)
    cluster.run("scontrol", "update", f"JobId={run.job.id}", f"EndTime={ends_at.isoformat(timespec='seconds')}")
    assert run.job.wait_end(TIME_CHECK_S + START_S) == "TIMEOUT", run.explain()
    assert {report["rank"] for report in run.reports("usr1")} == {"0", "1"}
    assert run.verdict["verdict"] == "cancelled"
    assert "step=" in submitter.checkpoint.read_text()
    cluster.assert_nothing_runs()


def test_a_preempted_job_resumes_when_there_is_room(submitter: Submitter, cluster: SlurmCluster) -> None:
    alone = ["--cpus-per-task=8"]
    job = submitter.example(
        "preemptible.sbatch", submitter.train(40), sbatch=["--partition=low", "--nodes=3", *alone], ACTIVE=2
    )
    run = submitter.run_of(job)
    wait_steps(run, 4)
    other = submitter.submit("--partition=main", "--nodes=6", "--ntasks-per-node=1", *alone, "--wrap", "srun hostname")
    assert other.wait_end(REQUEUE_S) == "COMPLETED", other.explain()
    assert job.state in ("PENDING", "RUNNING")
    second = assert_resumes(submitter, run)
    second.assert_ends("COMPLETED", 0)
    assert second.verdict["verdict"] == "succeeded"
    cluster.assert_nothing_runs()
