"""What cannot work is told in one line, with the next step, and leaves nothing behind."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

import pytest

from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.ray import cluster
from tests.ray.conftest import Start
from tests.ray.ray_cluster import FTR, WORKER, RayCluster, RayCommand
from tests.support.waiting import wait_until

MISUSED = 2


def assert_refused(run: RayCommand, message: str) -> None:
    assert run.wait_exit() == MISUSED, run.explain()
    assert "Traceback" not in run.output
    assert message in run.output.splitlines()[-1], run.output


def test_what_the_cluster_cannot_hold_is_refused(ray_cluster: RayCluster, start: Start) -> None:
    ray_cluster.have(1)
    assert_refused(
        start("--nnodes", "3"),
        "3 nodes with 1 CPU each do not fit: the cluster holds 1 with SPREAD; ask for less, or wait for machines with "
        "--pending-timeout",
    )
    assert_refused(
        start("--cpus-per-node", "4", "--resources", "tpu=2"),
        "no machine of the cluster has 4 CPU, 2 tpu: the largest have 1 CPU, 0 tpu; ask for less per node",
    )
    assert_refused(start("--nnodes", "3", "--pending-timeout", "3"), "--pending-timeout is over")


def test_a_port_that_is_taken_is_refused(ray_cluster: RayCluster, start: Start) -> None:
    ray_cluster.have(1)
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert_refused(start("--port", str(port)), f"port {port} is taken on this machine")


def test_of_two_runs_with_one_name_the_first_lives(ray_cluster: RayCluster, start: Start) -> None:
    ray_cluster.have(1)
    runs = [start(), start()]
    loser = wait_until(
        "one has ended", lambda: next((run for run in runs if run.process.poll() is not None), None), 60.0
    )
    (winner,) = (run for run in runs if run is not loser)
    assert_refused(loser, "choose another --name")
    winner.wait_trained()
    (winner.folder / "done").touch()
    assert winner.wait_exit() == 0, winner.explain()


def test_a_script_that_the_nodes_do_not_have_is_refused(ray_cluster: RayCluster, tmp_path: Path, start: Start) -> None:
    ray_cluster.have(1)
    (tmp_path / "job").mkdir()
    words = ("--address", ray_cluster.address, "--log-dir", tmp_path / "job" / "logs", "--", "no_such_script.py")
    assert_refused(RayCommand(ray_cluster, tmp_path / "job", words), "the script no_such_script.py does not exist in")
    assert callable(start), "which looks for what is left"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("127.0.0.9:1", "no Ray cluster answers at 127.0.0.9:"),
        ("ray://127.0.0.9:10001", "is Ray Client: start the launcher inside, with `ray job submit"),
        ("nowhere", "--address nowhere is not HOST:PORT"),
    ],
)
def test_an_address_without_a_cluster_is_refused(
    ray_cluster: RayCluster, tmp_path: Path, address: str, message: str
) -> None:
    assert_refused(RayCommand(ray_cluster, tmp_path, ("--address", address, "--", WORKER)), message)


def test_a_cluster_with_other_versions_is_refused(monkeypatch: pytest.MonkeyPatch, ray_cluster: RayCluster) -> None:
    """Ray itself compares versions, and raises this."""

    def init(**_: object) -> None:
        raise RuntimeError("Version mismatch: The cluster was started with:\n    Ray: 2.1\nThis process ...")

    monkeypatch.setattr("ray.init", init)
    with (
        pytest.raises(ConfigError, match=r"Version mismatch.*use its versions of Python and Ray"),
        cluster.connected(ray_cluster.address),
    ):
        pass


def test_a_cluster_that_was_here_and_is_gone_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray remembers the last cluster of this machine, and would try for minutes to reach it.

    It prefers a cluster that runs. So the command sees no other process of this machine.
    """
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("127.0.0.9:1")
    for operation in (("status",), ("stop", "job"), ("--nnodes", "1", "--", str(WORKER))):
        words = ["unshare", "--user", "--map-root-user", "--fork", "--pid", "--mount-proc", FTR, "ray", *operation]
        asked = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
        assert asked.returncode == MISUSED
        assert "ftr: no Ray cluster answers at 127.0.0.9:1: Connection refused" in asked.stderr, asked.stderr
