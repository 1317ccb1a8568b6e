"""The cluster that the other tests stand on: it is a SLURM, it can lose nodes, and nothing of it is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.cluster import NODES, SlurmCluster, find_processes
from tests.slurm.jobs import Submitter

SAY_WHERE = 'echo "where=$SLURMD_NODENAME rank=$SLURM_PROCID topology=$SLURM_TOPOLOGY_ADDR"'


def test_a_job_runs_on_six_nodes_below_two_switches(submitter: Submitter) -> None:
    job = submitter.submit("--nodes=6", "--ntasks-per-node=1", "--wrap", f"srun bash -c '{SAY_WHERE}'")
    assert (job.wait_end(), job.exit_code) == ("COMPLETED", 0), job.explain()
    switches = {"n1": "s1", "n2": "s1", "n3": "s1", "n4": "s2", "n5": "s2", "n6": "s2"}
    expected = [f"where={node} rank={rank} topology=top.{switches[node]}.{node}" for rank, node in enumerate(NODES)]
    assert sorted(job.text.splitlines()) == expected


def test_a_lost_node_takes_its_tasks_along_and_no_other(submitter: Submitter, cluster: SlurmCluster) -> None:
    said = submitter.path("said")
    wait = f"until test -e {said}.go; do sleep 0.1; done"
    task = f"echo $SLURMD_NODENAME begins >>{said}; {wait}; echo $SLURMD_NODENAME ends >>{said}"
    script = f"srun --no-kill --kill-on-bad-exit=0 bash -c '{task}'"
    job = submitter.submit("--no-kill", "--nodes=3", "--ntasks-per-node=1", "--wrap", script)
    job.wait_until("all tasks begin", lambda: said.exists() and said.read_text().count("begins") == 3)
    cluster.lose("n2")
    assert not [process for process in cluster.processes() if process.node == "n2"]
    cluster.wait_down("n2")
    Path(f"{said}.go").touch()
    assert (job.wait_end(), job.exit_code) == ("COMPLETED", 0), job.explain()
    assert sorted(line for line in said.read_text().splitlines() if "ends" in line) == ["n1 ends", "n3 ends"]
    assert job.fact("NodeList") == "n[1,3]"
    cluster.revive("n2")
    assert cluster.node_states()["n2"] == "idle"


@pytest.mark.usefixtures("cluster")
def test_nothing_is_left_of_a_cluster_that_did_not_come_up(tmp_path: Path) -> None:
    broken = SlurmCluster(tmp_path / "slurm")
    broken.env["PATH"] = f"{tmp_path}:{broken.env['PATH']}"
    (tmp_path / "slurmd").write_text("#!/bin/sh\necho no slurmd today\nexit 1\n")
    (tmp_path / "slurmd").chmod(0o755)
    with pytest.raises(AssertionError, match=r"n1 has ended with 1\n[^\n]*\nno slurmd today"), broken.running():
        pass
    assert find_processes(broken.conf) == []
