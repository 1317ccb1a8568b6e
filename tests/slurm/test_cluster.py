"""The cluster that the other tests stand on: it is a SLURM, it can lose nodes, and nothing of it is left."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.slurm.jobs import Submitter
from tests.slurm.slurm_cluster import NODES, SlurmCluster, find_processes

SAY_WHERE = 'echo "where=$SLURMD_NODENAME rank=$SLURM_PROCID topology=$SLURM_TOPOLOGY_ADDR"'


def test_a_job_runs_on_six_nodes_below_two_switches(submitter: Submitter) -> None:
    job = submitter.submit("--nodes=6", "--ntasks-per-node=1", "--wrap", f"srun bash -c '{SAY_WHERE}'")
    assert (job.wait_end(), job.exit_code) == ("COMPLETED", 0), job.explain()
    switches = {"n1": "s1", "n2": "s1", "n3": "s1", "n4": "s2", "n5": "s2", "n6": "s2"}
    expected = [f"where={node} rank={rank} topology=top.{switches[node]}.{node}" for rank, node in enumerate(NODES)]
    assert sorted(job.text.splitlines()) == expected


@pytest.mark.usefixtures("cluster")
def test_nothing_is_left_of_a_cluster_that_did_not_come_up(tmp_path: Path) -> None:
    broken = SlurmCluster(tmp_path / "slurm")
    broken.env["PATH"] = f"{tmp_path}:{broken.env['PATH']}"
    (tmp_path / "slurmd").write_text("#!/bin/sh\necho no slurmd today\nexit 1\n")
    (tmp_path / "slurmd").chmod(0o755)
    with pytest.raises(AssertionError, match=r"n1 has ended with 1\n[^\n]*\nno slurmd today"), broken.running():
        pass
    assert find_processes(broken.conf) == []
