"""Workers' logs: one directory per node and cycle, beside what torch does with the same options."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, Std

from ft_rendezvous.launch.cycle_logs import CycleLogs

ENVS = {0: {"TORCHELASTIC_RUN_ID": "r", "TORCHELASTIC_RESTART_COUNT": "0"}, 1: {}}


@pytest.fixture
def cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FT_CYCLE_ID", "7")
    monkeypatch.setenv("FT_NODE_INFRA_RANK", "3")


def reify(specs: DefaultLogsSpecs) -> tuple[LogsDest, dict[int, dict[str, str]]]:
    envs = {rank: dict(env) for rank, env in ENVS.items()}
    return specs.reify(envs), envs


@pytest.mark.usefixtures("cycle")
def test_logs_are_kept_by_node_and_cycle(tmp_path: Path) -> None:
    found, envs = reify(CycleLogs(str(tmp_path), redirects=Std.ALL))
    folder = tmp_path / "node-3" / "cycle-7"
    assert found.stdouts == {0: str(folder / "0" / "stdout.log"), 1: str(folder / "1" / "stdout.log")}
    assert found.stderrs[1] == str(folder / "1" / "stderr.log")
    assert envs[1]["TORCHELASTIC_ERROR_FILE"] == found.error_files[1] == str(folder / "1" / "error.json")
    assert (folder / "1").is_dir()


@pytest.mark.usefixtures("cycle")
def test_nothing_that_is_there_is_deleted(tmp_path: Path) -> None:
    specs = CycleLogs(str(tmp_path), redirects=Std.ALL)
    first, _ = reify(specs)
    Path(first.stdouts[0]).write_text("kept")
    again, _ = reify(specs)
    assert Path(first.stdouts[0]).read_text() == "kept"
    assert Path(again.stdouts[0]).parent.parent.name == "cycle-7.2"


@pytest.mark.usefixtures("cycle")
def test_a_node_without_an_infra_rank_has_a_name_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FT_NODE_INFRA_RANK", "")
    found, _ = reify(CycleLogs(str(tmp_path), redirects=Std.ALL))
    assert f"-{os.getpid()}/cycle-7/" in found.stdouts[0]


@pytest.mark.usefixtures("cycle")
@pytest.mark.parametrize("redirects", [Std.NONE, Std.OUT, Std.ALL, {0: Std.ERR}])
@pytest.mark.parametrize("tee", [Std.NONE, Std.ERR, Std.ALL, {1: Std.ALL}])
@pytest.mark.parametrize("shown", [None, {1}])
def test_it_is_torchs_own_choice_of_streams(
    tmp_path: Path, redirects: Std | dict[int, Std], tee: Std | dict[int, Std], shown: set[int] | None
) -> None:
    """The same streams to the same kinds of places as torch's, only in other directories."""
    theirs, _ = reify(DefaultLogsSpecs(str(tmp_path / "theirs"), redirects, tee, shown))
    ours, _ = reify(CycleLogs(str(tmp_path / "ours"), redirects, tee, shown))
    for field in dataclasses.fields(LogsDest):
        expected, found = getattr(theirs, field.name), getattr(ours, field.name)
        if isinstance(expected, str):
            expected, found = {0: expected}, {0: found}
        assert expected.keys() == found.keys(), field.name
        for rank, path in expected.items():
            assert Path(path).name == Path(found[rank]).name, field.name
            assert (path == "") == (found[rank] == "")


def test_another_backend_gets_what_torch_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FT_CYCLE_ID", raising=False)
    found, _ = reify(CycleLogs(str(tmp_path), redirects=Std.ALL))
    assert "/attempt_0/0/stdout.log" in found.stdouts[0]


@pytest.mark.usefixtures("cycle")
def test_no_logs_are_no_logs() -> None:
    found, _ = reify(CycleLogs(os.devnull))
    assert set(found.error_files.values()) == {os.devnull}
