"""Jobs that must go: drained, queued again, out of time, pushed aside by others. What was saved is not lost."""

from __future__ import annotations

import os
import re
import signal
from datetime import datetime, timedelta

from tests.slurm.jobs import START_S, Run, Submitter
from tests.slurm.slurm_cluster import SlurmCluster

TIME_LOOK_S = 30.0
"""How often slurmctld looks at time limits."""
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
    """As --signal=USR1@120 does it before the time limit, with workers that end well, as docs/slurm.md asks them to."""
    worker = submitter.until_done("--on-usr1", "end", "--checkpoint", submitter.checkpoint, "--save-rank", 0)
    run = submitter.launch(2, worker, launcher=["--requeue", 1])
    run.wait_reports("step", 2, cycle=1)
    cluster.run("scancel", "--signal=USR1", run.job.id)
    second = submitter.run_of(run.job, restarts=1)
    second.wait_ranks(1, 2, REQUEUE_S + START_S)
    second.wait_reports("step", 2, cycle=1)
    assert int(second.reports("step", rank=0)[0]["step"]) > int(run.reports("step", rank=0)[0]["step"])
    assert run.job.fact("Restarts") == "1"
    verdict = run.verdict
    assert (verdict["verdict"], verdict["is_retryable"]) == ("cancelled", True)
    assert "drained" in verdict["reason"]
    assert {report["rank"] for report in run.reports("usr1")} == {"0", "1"}
    # Once is what was asked for: drained again, the job is over. With --signal=B:USR1 the launcher alone is told.
    cluster.run("scancel", "--batch", "--signal=USR1", run.job.id)
    second.assert_ends("FAILED", 3)
    assert {report["rank"] for report in second.reports("usr1")} == {"0", "1"}
    assert "--requeue 1" in run.job.text
    cluster.assert_nothing_runs()


def test_a_cancelled_job_is_not_queued_again(submitter: Submitter, cluster: SlurmCluster) -> None:
    run = submitter.launch(2, submitter.until_done(), launcher=["--requeue", 1])
    run.wait_reports("step", 2, cycle=1)
    cluster.run("scancel", run.job.id)
    assert run.job.wait_end() == "CANCELLED", run.explain()
    assert run.job.fact("Restarts") == "0"
    assert run.verdict["verdict"] == "cancelled"
    assert "not queued again: a signal asked for the end of the job" in run.job.text
    cluster.assert_nothing_runs()


def test_scontrol_requeue_resumes_in_a_new_run(submitter: Submitter, cluster: SlurmCluster) -> None:
    job = submitter.example(
        "plain.sbatch", submitter.train(40, "--step-s", 0.05), sbatch=["--nodes=2", "--open-mode=append"]
    )
    run = submitter.run_of(job)
    wait_steps(run, 4)
    cluster.run("scontrol", "requeue", job.id)
    second = assert_resumes(submitter, run)
    second.assert_ends("COMPLETED", 0)
    assert second.verdict["run_id"] == f"{job.id}.1"
    assert second.verdict["verdict"] == "succeeded"
    assert any("step 40 loss" in log for log in second.logs().values())
    cluster.assert_nothing_runs()


def end_in(run: Run, seconds: float) -> None:
    """Set the job's time limit, which has minutes, by the time of its end, which has seconds."""
    ends_at = datetime.now() + timedelta(seconds=seconds)
    run.job.cluster.run("scontrol", "update", f"JobId={run.job.id}", f"EndTime={ends_at.isoformat(timespec='seconds')}")


def test_the_time_limit_ends_a_job_that_was_told_before(submitter: Submitter, cluster: SlurmCluster) -> None:
    worker = submitter.until_done("--on-usr1", "tell", "--checkpoint", submitter.checkpoint, "--save-rank", 0)
    run = submitter.launch(2, worker, sbatch=["--time=10"])
    run.wait_reports("step", 2, cycle=1)
    assert run.reports("usr1") == []
    # launcher.sh itself asks to be warned two minutes before the end.
    end_in(run, 115)
    run.wait_reports("usr1", 2, cycle=1)
    run.job.wait_state("RUNNING")  # It is SIGNALING for a moment.
    end_in(run, 1)
    assert run.job.wait_end(3 * TIME_LOOK_S) == "TIMEOUT", run.explain()
    verdict = run.verdict
    assert (verdict["verdict"], verdict["is_retryable"]) == ("cancelled", True)
    assert "step=" in submitter.checkpoint.read_text()
    cluster.assert_nothing_runs()


def test_a_preempted_job_resumes_when_there_is_room(submitter: Submitter, cluster: SlurmCluster) -> None:
    worker = submitter.train(40, "--step-s", 0.05)
    job = submitter.example("preemptible.sbatch", worker, sbatch=["--partition=low", "--nodes=3"], ACTIVE=2)
    run = submitter.run_of(job)
    wait_steps(run, 4)
    other = submitter.submit("--partition=main", "--nodes=6", "--ntasks-per-node=1", "--wrap", "srun hostname")
    assert other.wait_end(REQUEUE_S) == "COMPLETED", other.explain()
    assert job.state in ("PENDING", "RUNNING")
    second = assert_resumes(submitter, run)
    second.assert_ends("COMPLETED", 0)
    assert second.verdict["verdict"] == "succeeded"
    cluster.assert_nothing_runs()


def test_a_job_whose_batch_script_is_lost_does_not_stay(submitter: Submitter, cluster: SlurmCluster) -> None:
    """The first node has the batch script and the store. SLURM would keep the job, with nobody to end it."""
    launcher = ["--active", 2, "--requeue", 1, f"--srun-args={submitter.first_node_hosts()}"]
    run = submitter.launch(3, submitter.until_done(), launcher=launcher)
    run.wait_ranks(1, 2)
    run.wait_reports("step", 2, cycle=1)
    assert run.host == 0
    cluster.lose(run.agent(0).node)
    second = submitter.run_of(run.job, restarts=1)
    second.wait_ranks(1, 2, REQUEUE_S + START_S)
    assert run.job.fact("Restarts") == "1"
    submitter.done.touch()
    second.assert_ends("COMPLETED", 0)
    cluster.assert_nothing_runs()
