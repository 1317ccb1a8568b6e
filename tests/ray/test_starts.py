"""All ways to start a run: from Python, as a submitted job, with a store elsewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.local import free_port
from ft_rendezvous.launch.ray import run
from tests.ray.conftest import Start
from tests.ray.ray_cluster import RayCluster, connected
from tests.support.ray_machines import MARK_NAME, START_S
from tests.support.waiting import wait_until

HELLO = "import os; print('hello', os.environ.get('A'), os.environ.get('B'), os.path.basename(os.getcwd()))\n"
PROGRAM = """
import os, sys, json, ray
from pathlib import Path
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.ray import run
from ft_rendezvous.launch.run_end import launcher_exit_code

address, name, is_connected, environment = sys.argv[1:]
if is_connected == "yes":
    ray.init(address, namespace="mine", runtime_env={"env_vars": {"A": "1"}}, log_to_driver=False)
try:
    ended = run("hello.py", address=address, name=name, log_dir=Path("logs"), runtime_env=environment)
except ConfigError as error:
    print("refused:", error)
else:
    print("verdict", ended.report.verdict, launcher_exit_code(ended))
print("connected", ray.is_initialized())
if is_connected == "yes":
    print("asked", ray.available_resources().get("CPU", 0) >= 0)
"""


def start_program(folder: Path, words: Sequence[str]) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    (folder / "hello.py").write_text(HELLO)
    (folder / "program.py").write_text(PROGRAM)
    env = {name: value for name, value in os.environ.items() if name != MARK_NAME}
    command = [sys.executable, "program.py", *words]
    return subprocess.Popen(command, cwd=folder, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_run_is_started_from_python(ray_cluster: RayCluster, tmp_path: Path, start: Start) -> None:
    """With and without an earlier `ray.init`: the runtime environment reaches the workers, the connection stays."""
    ray_cluster.have(2)
    environment = '{"env_vars": {"B": "2"}}'
    alone = start_program(tmp_path / "alone", (ray_cluster.address, "alone", "no", environment))
    inside = start_program(tmp_path / "inside", (ray_cluster.address, "inside", "yes", environment))
    for program in (alone, inside):
        output, _ = program.communicate(timeout=START_S)
        assert "verdict succeeded 0" in output, output
        assert f"connected {program is inside}" in output, output
    assert "hello None 2 alone" in (tmp_path / "alone" / "logs" / "node-0.log").read_text()
    assert "hello 1 2 inside" in (tmp_path / "inside" / "logs" / "node-0.log").read_text()
    refused = start_program(tmp_path / "inside", (ray_cluster.address, "inside", "yes", '{"working_dir": "."}'))
    other = start_program(tmp_path / "alone", ("127.0.0.9:1", "alone", "no", ""))
    output, _ = refused.communicate(timeout=START_S)
    assert "refused: this process has called ray.init, and after that Ray takes no working_dir . of this" in output
    output, _ = other.communicate(timeout=START_S)
    assert "refused: no Ray cluster answers at 127.0.0.9:1" in output, output
    assert callable(start), "which looks for what is left"


def test_another_cluster_than_the_connected_one_is_refused(ray_cluster: RayCluster) -> None:
    with connected(ray_cluster.address), pytest.raises(ConfigError, match=r"already, and not to 127\.0\.0\.9:1"):
        run("train.py", address="127.0.0.9:1")


def test_a_store_may_be_elsewhere(ray_cluster: RayCluster, tmp_path: Path, start: Start) -> None:
    """A run that succeeds and one that fails for good: both end, although no actor knows their stores."""
    ray_cluster.have(2)
    ports = free_port(), free_port()
    good = start("--nnodes", "1", "--store", f"127.0.0.1:{ports[0]}", name="good")
    fails = ("--fail-rank", "0", "--exit-code", "3", "--fail-below", "9")
    bad = start("--nnodes", "1", "--store", f"127.0.0.1:{ports[1]}", name="bad", train=fails, conf="max_cycles=1")
    stores = []
    try:
        for each in (good, bad):
            command = each.wait_said(r"start its store on that host: python (.*)").group(1)
            stores.append(
                subprocess.Popen([sys.executable, *shlex.split(command)], cwd=tmp_path, stderr=subprocess.DEVNULL)
            )
        good.wait_trained(world=1)
        (good.folder / "done").touch()
        assert good.wait_exit() == 0, good.explain()
        assert bad.wait_exit() == 1, bad.explain()
        assert [store.wait(START_S) for store in stores] == [0, 1]
    finally:
        for store in stores:
            store.kill()
            store.wait()


def test_a_job_is_submitted(short_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a cluster with a dashboard, which takes jobs: `ray job submit --working-dir . -- ftr ray ...`."""
    monkeypatch.setenv("RAY_TMPDIR", str(short_folder))  # Put back afterwards, like the mark.
    monkeypatch.setenv(MARK_NAME, "")
    monkeypatch.setenv("PATH", os.environ["PATH"])
    port = free_port()
    cluster = RayCluster(short_folder, "127.0.1.9", dashboard_port=port)
    try:
        cluster.have(1)
        (tmp_path / "hello.py").write_text("import os; print('hello from', os.getcwd())\n")
        env = {name: value for name, value in os.environ.items() if name != MARK_NAME}
        words = ["ray", "job", "submit", "--address", f"http://127.0.0.1:{port}", "--working-dir", ".", "--"]
        words += ["ftr", "ray", "--name", "sent", "--log-dir", str(tmp_path / "logs"), "--", "hello.py"]
        submitted = wait_until("the dashboard takes jobs", lambda: submit(words, tmp_path, env), START_S)
        assert submitted.returncode == 0, submitted.stdout + submitted.stderr
        assert "run sent succeeded in cycle 1" in submitted.stdout + submitted.stderr
        log = (tmp_path / "logs" / "node-0.log").read_text()
        assert re.search("hello from .*/working_dir_files/", log), log
        cluster.assert_nothing_is_left(jobs=True)
    finally:
        cluster.close()


def submit(words: list[str], folder: Path, env: dict[str, str]) -> subprocess.CompletedProcess[str] | None:
    """Submit it; None if the dashboard or its agent is not up yet."""
    done = subprocess.run(words, cwd=folder, env=env, capture_output=True, text=True, timeout=START_S, check=False)
    is_early = any(why in done.stdout + done.stderr for why in ("Failed to connect", "No available agent"))
    return None if is_early else done
