"""launcher.sh under sbatch: how a job with spares ends well, outlives a node, and fails for good."""

from __future__ import annotations

import os
import signal

import pytest

from tests.integration.workers.train import EXIT_ON_PURPOSE
from tests.slurm.jobs import Submitter
from tests.slurm.slurm_cluster import SlurmCluster

SECONDS_AFTER_THE_LAST_STEP = 10.0
"""In which all nodes hear of the end and leave; Python processes with torch in them take their time to end."""


def test_a_job_with_spares_is_over_when_training_is(submitter: Submitter, cluster: SlurmCluster) -> None:
    job = submitter.example("hot_spares.sbatch", submitter.train(20))
    run = submitter.run_of(job)
    run.assert_ends("COMPLETED", 0)
    assert "error" not in job.text, "nor does SLURM complain of anything"
    # The last step writes the last checkpoint.
    assert job.ended_at - submitter.checkpoint.stat().st_mtime < SECONDS_AFTER_THE_LAST_STEP
    cluster.assert_nothing_runs()
    verdict = run.verdict
    assert (verdict["verdict"], verdict["run_id"], verdict["cycle"]) == ("succeeded", f"{job.id}.0", 1)
    # Six nodes, four of them with ranks; every node has a log.
    assert sorted(run.logs()) == [0, 1, 2, 3, 4, 5]
    assert sorted(run.ranks(1).values()) == [0, 1, 2, 3]
    assert any("step 20 loss" in log for log in run.logs().values())


def test_a_spare_takes_the_rank_of_a_lost_node(submitter: Submitter, cluster: SlurmCluster) -> None:
    worker = [*submitter.until_done(), "--alone-below", 0]  # Real all_reduces: the loss is felt.
    run = submitter.launch(6, worker, launcher=["--active", 4])
    before = run.wait_ranks(1, 4)
    run.wait_reports("step", 4, cycle=1)
    # What the launcher found out for them: as many workers everywhere, and the switches.
    assert run.worker_variables("TORCH_ELASTIC_WORKER_IDENTICAL") == {"1"}
    assert {report["domain"] for report in run.reports("begin", cycle=1)} == {"top.s1", "top.s2"}
    # Neither the store host nor the batch host, without which SLURM runs no script.
    lost = next(node for node in before if node not in (run.host, 0))
    name = run.agent(lost).node
    cluster.lose(name)
    after = run.wait_ranks(2, 4)
    run.wait_reports("step", 4, cycle=2)
    assert {node: rank for node, rank in after.items() if node in before} == {
        node: rank for node, rank in before.items() if node != lost
    }, "who was not lost keeps the rank"
    (spare,) = set(after) - set(before)
    assert after[spare] == before[lost]

    cluster.wait_down(name)
    assert run.job.state == "RUNNING"
    submitter.done.touch()
    run.assert_ends("COMPLETED", 0)
    assert run.verdict["verdict"] == "succeeded"
    assert f"Node failure on {name}" in run.job.text
    cluster.assert_nothing_runs()

    # What workers wrote is kept by node and cycle, of the lost node too.
    for cycle, ranks in ((1, before), (2, after)):
        for node, rank in ranks.items():
            text = (run.log_dir / f"node-{node}" / f"cycle-{cycle}" / "0" / "stdout.log").read_text()
            assert f"ft-test step cycle={cycle} rank={rank} " in text
    assert sorted(path.name for path in (run.log_dir / f"node-{lost}").iterdir()) == ["cycle-1"]


@pytest.mark.parametrize("habit", ["SLURM_KILL_BAD_EXIT=1", "SLURM_WAIT=1"])
def test_a_node_that_ends_does_not_end_the_others(submitter: Submitter, cluster: SlurmCluster, habit: str) -> None:
    """Whatever the site tells srun to do when a task has ended, or has ended badly, a second later."""
    run = submitter.launch(4, submitter.until_done(), launcher=["--active", 2], sbatch=[f"--export=ALL,{habit}"])
    ranks = run.wait_ranks(1, 2)
    run.wait_reports("step", 2, cycle=1)
    spare = next(node for node in range(4) if node not in (*ranks, run.host))
    os.kill(run.agent(spare).pid, signal.SIGKILL)
    run.job.wait_until("srun has noticed", lambda: f"task {spare}: Killed" in run.job.text)
    told = len(run.reports("step", rank=0))
    run.job.wait_until("three seconds of steps", lambda: len(run.reports("step", rank=0)) > told + 30)
    submitter.done.touch()
    run.assert_ends("COMPLETED", 0)
    cluster.assert_nothing_runs()


def test_a_script_that_always_fails_fails_the_job_once(submitter: Submitter, cluster: SlurmCluster) -> None:
    """The verdict tells why, and that queueing the job again would not help, so it is not done."""
    worker = submitter.until_done("--fail-below", 99, "--fail-rank", 1)
    run = submitter.launch(2, worker, launcher=["--requeue", 3], conf={"crash_loop": 2})
    run.assert_ends("FAILED", 1)
    assert run.job.fact("Restarts") == "0"
    verdict = run.verdict
    assert verdict["verdict"] == "failed"
    assert "crash loop" in verdict["reason"]
    assert verdict["is_retryable"] is False
    assert verdict["first_failure"]["exit_code"] == EXIT_ON_PURPOSE
    assert verdict["first_failure"]["rank"] == 1
    # Whoever looks at the job's output only is told too.
    assert "crash loop" in run.job.text
    assert str(run.log_dir.name) in run.job.text
    cluster.assert_nothing_runs()


def test_wrong_options_fail_the_job_with_their_own_code(submitter: Submitter) -> None:
    run = submitter.launch(1, submitter.until_done(), launcher=["--active", 2])
    run.assert_ends("FAILED", 2)
    assert "--active 2 is not between 1 and the allocation's 1 nodes" in run.job.text
