"""One SLURM cluster for all tests that need one, and a clean one for each."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.slurm.jobs import Submitter
from tests.slurm.slurm_cluster import INSTALL, SlurmCluster, is_installed


@pytest.fixture(scope="session")
def running_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """The one cluster: all tests of this directory run in one worker of pytest-xdist."""
    if not is_installed():
        pytest.skip(f"no SLURM here, or not root: {INSTALL}")
    with SlurmCluster(tmp_path_factory.mktemp("slurm")).running() as cluster:
        yield cluster
    assert cluster.processes() == [], "processes are left"


@pytest.fixture
def cluster(running_cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """All nodes idle, no job. What a test breaks is whole again for the next."""
    yield running_cluster
    running_cluster.repair()


@pytest.fixture
def submitter(cluster: SlurmCluster, tmp_path: Path) -> Submitter:
    """Submits the jobs of one test."""
    return Submitter(cluster, tmp_path)
