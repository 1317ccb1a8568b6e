"""The commands of a run on Ray: those of the other launchers, with what Ray needs."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.local import OUTER_JOB_VARIABLES
from ft_rendezvous.launch.plan import LaunchedRun
from ft_rendezvous.launch.ray.commands import (
    dry_run,
    has_own_directory,
    log_dir_of,
    node_process,
    plan_run,
    script_file,
    store_process,
)
from ft_rendezvous.launch.ray.request import RayRequest


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RAY_JOB_CONFIG_JSON_ENV_VAR", "FT_STATE_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def request(**changes: Any) -> RayRequest:
    return RayRequest(**{"script": ("train.py", "--x"), **changes})


def plan(asked: RayRequest) -> LaunchedRun:
    return plan_run(asked, "r-1", "10.0.0.1:4000", Path("/logs"))


def conf_of(command: list[str]) -> dict[str, str]:
    (text,) = (word.removeprefix("--rdzv-conf=") for word in command if word.startswith("--rdzv-conf="))
    return dict(pair.split("=", 1) for pair in text.split(","))


@pytest.mark.parametrize(
    ("nnodes", "spares", "expected", "policy"),
    [
        ("2", 0, "2:2", None),
        ("2", 1, "2:3", None),
        ("2:4", 0, "2:4", "elastic"),
        ("2:4", 1, "2:4", "elastic"),
    ],
    ids=["fixed", "with spares", "elastic", "elastic with spares"],
)
def test_spares_of_a_fixed_run_count_towards_max(nnodes: str, spares: int, expected: str, policy: str | None) -> None:
    run = plan(request(nnodes=nnodes, spares=spares))
    assert run.nnodes == expected
    assert run.conf.get("policy") == policy
    assert run.conf["identical_workers"] == "true"
    assert run.verdict_path == Path("/logs/verdict.json")
    assert run.endpoint == "10.0.0.1:4000"


def test_the_users_settings_win() -> None:
    run = plan(request(nnodes="2:4", rdzv_conf={"policy": "fixed", "verdict_file": "/elsewhere.json"}))
    assert run.conf["policy"] == "fixed"
    assert run.verdict_path == Path("/elsewhere.json")


def test_settings_that_cannot_work_are_refused_before_anything_starts() -> None:
    with pytest.raises(ConfigError, match="lease_timeout"):
        plan(request(rdzv_conf={"lease_timeuot": "5"}))


def test_a_node_is_one_torchrun() -> None:
    asked = request(nnodes="2", spares=1, nproc_per_node="4", max_restarts=7)
    process = node_process(asked, plan(asked), 2)
    assert process.command[:3] == ["python", "-m", "torch.distributed.run"]
    assert process.command[-2:] == ["train.py", "--x"]
    for word in ("--nnodes=2:3", "--nproc-per-node=4", "--max-restarts=7", "--rdzv-backend=ft", "--rdzv-id=r-1"):
        assert word in process.command
    assert "--rdzv-endpoint=10.0.0.1:4000" in process.command
    assert conf_of(process.command)["is_host"] == "false", "the store has an actor of its own"
    assert process.log == "/logs/node-2.log"
    assert process.env == {"FT_INFRA_RANK": "2"}
    assert process.unset == list(OUTER_JOB_VARIABLES)
    assert process.cwd == os.getcwd(), "all machines share the driver's directory"


def test_the_store_is_hosted_apart_from_the_nodes() -> None:
    asked = request(nnodes="2:4")
    process = store_process(asked, plan(asked))
    assert process.command[:4] == ["python", "-m", "ft_rendezvous.cli.main", "serve"]
    assert "--endpoint=10.0.0.1:4000" in process.command
    assert "--nnodes=2:4" in process.command
    assert "is_host" not in conf_of(process.command)
    assert process.log == "/logs/store.log"
    assert process.env == {}


def test_a_token_is_in_the_environment_and_in_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FT_STATE_TOKEN", "secret")
    asked = request()
    for process in (node_process(asked, plan(asked), 0), store_process(asked, plan(asked))):
        assert process.env["FT_STATE_TOKEN"] == "secret"
        assert "secret" not in shlex.join(process.command)
    assert "secret" not in "\n".join(dry_run(asked))


def test_with_a_working_dir_every_process_starts_in_its_copy() -> None:
    asked = request(runtime_env='{"working_dir": "."}')
    assert has_own_directory(asked)
    assert node_process(asked, plan(asked), 0).cwd == ""
    assert not has_own_directory(request(runtime_env='{"env_vars": {}}'))


def test_a_job_that_was_submitted_has_a_copy_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
    assert has_own_directory(request())


def test_logs_are_where_the_user_wants_them(tmp_path: Path) -> None:
    assert log_dir_of(request(log_dir=Path("mine")), "r") == tmp_path / "mine"
    assert log_dir_of(request(log_dir=Path("/mine")), "r") == Path("/mine")
    assert log_dir_of(request(), "r") == tmp_path / "ft-logs" / "r"


def test_logs_are_not_in_a_copy_that_ray_deletes(tmp_path: Path) -> None:
    log_dir = log_dir_of(request(runtime_env='{"working_dir": "."}'), "r")
    assert log_dir.is_absolute()
    assert not log_dir.is_relative_to(tmp_path)
    assert log_dir.parts[-2:] == ("ft-logs", "r")


@pytest.mark.parametrize(
    ("script", "file"),
    [(("train.py", "--x"), "train.py"), (("/a/b.py",), "/a/b.py"), (("-m", "train"), ""), (("--no-python", "x"), "")],
)
def test_a_module_is_no_file(script: tuple[str, ...], file: str) -> None:
    assert script_file(request(script=script)) == file


def test_a_dry_run_says_what_would_be_asked_of_ray() -> None:
    lines = dry_run(request(nnodes="2:3", spares=1, gpus_per_node=1.0, name="mine"))
    assert lines[:4] == [
        "# placement group min: 2 bundles of 1 CPU, 1 GPU, strategy STRICT_SPREAD",
        "# placement group node-2: 1 bundle of 1 CPU, 1 GPU",
        "# placement group node-3: 1 bundle of 1 CPU, 1 GPU",
        "# one actor without CPUs (head):",
    ]
    assert shlex.split(lines[4])[3:6] == ["serve", "--endpoint=store-host:29400", "--rdzv-id=mine"]
    assert lines[5] == "# 4 actors, node N with FT_INFRA_RANK=N:"
    assert "--rdzv-endpoint=store-host:29400" in shlex.split(lines[6])
    assert len(lines) == 7


def test_a_dry_run_with_a_store_elsewhere_starts_none() -> None:
    lines = dry_run(request(nnodes="2", store="there:4000", strategy="PACK"))
    assert lines[:2] == [
        "# placement group min: 2 bundles of 1 CPU, strategy PACK",
        "# 2 actors, node N with FT_INFRA_RANK=N:",
    ]
    assert "--rdzv-endpoint=there:4000" in shlex.split(lines[2])
    assert len(lines) == 3


def test_a_dry_run_counts_one_as_one() -> None:
    lines = dry_run(request(store="10.0.0.1:29400"))
    assert lines[0] == "# placement group min: 1 bundle of 1 CPU, strategy STRICT_SPREAD"
    assert lines[1] == "# 1 actor, node N with FT_INFRA_RANK=N:"
