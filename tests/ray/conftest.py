"""One Ray cluster for all tests of this folder, and a check after each that nothing is left of its runs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ft_rendezvous.launch.ray import operate
from tests.ray.ray_cluster import QUICK_LEASE, WORKER, RayCluster, RayCommand

Start = Callable[..., RayCommand]


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[RayCluster]:
    # Ray's sockets must have short paths.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder, pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith(("RAY_", "SLURM_", "FT_"))]:
            patch.delenv(name)
        cluster = RayCluster(Path(folder))
        try:
            yield cluster
        finally:
            cluster.close()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """For a cluster of a test's own: Ray's sockets must have short paths."""
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture
def start(ray_cluster: RayCluster, tmp_path: Path) -> Iterator[Start]:
    """Starts `ftr ray` with these words; the training runs until the file `done` exists."""
    begun: list[RayCommand] = []

    def start_run(*words: str, train: tuple[str, ...] = (), name: str = "job", conf: str = "") -> RayCommand:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        settings = ",".join(filter(None, (QUICK_LEASE, conf)))
        command: list[str | Path] = ["--address", ray_cluster.address, "--name", name, "--log-dir", folder / "logs"]
        command += ["--rdzv-conf", settings, *words, "--", WORKER, "--until", folder / "done", *train]
        begun.append(RayCommand(ray_cluster, folder, command))
        return begun[-1]

    try:
        yield start_run
        ray_cluster.assert_nothing_is_left()
    finally:
        for run in begun:
            run.end()
        for name in _left(ray_cluster):
            operate.stop_run(name, ray_cluster.address)


def _left(cluster: RayCluster) -> list[str]:
    return sorted({row[0] for row in operate.describe_runs("", cluster.address)})
