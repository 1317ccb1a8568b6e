"""`ftr doctor` as every task of a real srun."""

from __future__ import annotations

from pathlib import Path

from tests.slurm.slurm_cluster import SlurmCluster, free_ports

CONF = "domain_from=slurm-topology"


def submit(cluster: SlurmCluster, place: Path, options: str, commands: str) -> str:
    """What a batch job printed, once it has ended."""
    script = place / "doctor.sbatch"
    script.write_text(f"#!/bin/bash\n#SBATCH {options}\n{commands}\n")
    cluster.run("sbatch", "--wait", f"--output={place / 'out'}", script, check=False, timeout_s=240)
    return (place / "out").read_text()


def test_six_nodes_of_a_job_are_examined(cluster: SlurmCluster, tmp_path: Path) -> None:
    (port,) = free_ports(1)
    doctor = f"ftr doctor --endpoint $(hostname):{port} --nnodes 4:6 --rdzv-conf {CONF} --timeout 150"
    told = submit(cluster, tmp_path, "--nodes=6 --no-kill", f"srun --ntasks-per-node=1 {doctor}; echo code $?")
    assert "all 6 nodes reported" in told
    assert "pass  no-kill" in told
    assert "4 of 6 nodes in 2 domains would train; spares cover any 2 nodes" in told
    assert "0 failed" in told
    assert told.endswith("code 0\n")


def test_a_flag_that_defeats_spares_fails_and_is_still_told(cluster: SlurmCluster, tmp_path: Path) -> None:
    """srun ends the step with the first task that exits 1: the table must be out by then."""
    (port,) = free_ports(1)
    doctor = f"ftr doctor --endpoint $(hostname):{port} --timeout 150"
    commands = f"export SLURM_KILL_BAD_EXIT=1\nsrun --ntasks-per-node=1 --wait=99 {doctor}; echo code $?"
    told = submit(cluster, tmp_path, "--nodes=3", commands)
    assert "SLURM_KILL_BAD_EXIT is set: srun ends all nodes when one of them fails" in told
    assert "the batch script passes --wait=99 to srun" in told
    assert "warn  no-kill" in told
    assert "3 nodes examined" in told
    assert told.endswith("code 1\n")
