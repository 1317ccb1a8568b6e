"""The head is lost: Ray's control plane and its raylet are killed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.ray.ray_cluster import FTR, QUICK_LEASE, WORKER, RayCluster, RayCommand
from tests.support.ray_machines import MARK_NAME
from tests.support.waiting import wait_until


def test_the_driver_says_so_and_nothing_is_left(
    short_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("RAY_TMPDIR", MARK_NAME, "PATH"):  # A cluster sets these. They are put back afterwards.
        monkeypatch.setenv(name, os.environ.get(name, ""))
    cluster = RayCluster(short_folder, "127.0.2.9")
    cluster.have(1)
    folder = tmp_path / "job"
    folder.mkdir()
    words = ("--address", cluster.address, "--name", "job", "--log-dir", folder / "logs", "--rdzv-conf", QUICK_LEASE)
    run = RayCommand(cluster, folder, (*words, "--nnodes", "1", "--", WORKER, "--until", folder / "done"))
    try:
        run.wait_trained(world=1)
        address = cluster.address
        cluster.lose_head()
        for operation in (("status",), ("stop", "job")):
            asked = subprocess.run(
                [FTR, "ray", *operation, "--address", address], capture_output=True, text=True, timeout=60, check=False
            )
            assert asked.returncode == 2
            assert f"no Ray cluster answers at {address}: Connection refused" in asked.stderr, asked.stderr
        assert run.wait_exit(90.0) == 1, run.explain()
        last = run.output.splitlines()[-1]
        assert last.startswith(f"ftr: the head of the Ray cluster at {address} has not answered for 3"), run.output
        assert "run job is lost with it, and its nodes end; start the cluster again" in last
        wait_until("no process of the run lives", lambda: not cluster.processes(), 150.0, run.explain)
    finally:
        run.end()
        cluster.close()
