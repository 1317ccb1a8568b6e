"""The benchmark on Ray measures what it says, leaves nothing behind, and notices a contender that does not train."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import on_ray, ray_training
from benchmarks.__main__ import main
from benchmarks.baselines import ray_train
from benchmarks.children import prepare_environment
from benchmarks.group_steps import Step, count_together
from benchmarks.machine import ROOT
from benchmarks.measure import OURS, DidNotFinish, WrongResult
from benchmarks.ray_training import SETUPS, SHORT_RUN, Stage
from benchmarks.report import warnings_of
from tests.benchmarks.test_report import MACHINE
from tests.support.ray_machines import MARK_NAME


@pytest.fixture(autouse=True, scope="module")
def _environment() -> None:
    prepare_environment()


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """Without a cluster."""
    no_machines: Any = None
    stage = Stage(no_machines, tmp_path, nodes=2, spares=1)
    (tmp_path / "driver.log").write_text("it says why")
    yield stage
    for driver in stage.drivers:
        driver.kill()
        driver.wait()


def train(count: int, begin: float = 10.0, ranks: int = 2) -> list[Step]:
    """Steps of all ranks, each of them a little later than the one before."""
    return [
        Step(rank, no, ranks, f"w{no}", begin + no + rank / 10, 100 + rank)
        for no in range(1, count + 1)
        for rank in range(ranks)
    ]


# --- contenders -------------------------------------------------------------------------------------


def test_ray_train_takes_part_where_it_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_train, "installed_version", lambda: "2.60.0")
    killed, silent, _ = on_ray.cases(is_quick=False)
    for case in (killed, silent):
        with case.prepare() as contenders:
            assert list(contenders) == [OURS, "Ray Train"]
    assert (killed.rounds, silent.rounds) == (3, 2)


def test_without_ray_train_ours_is_measured_alone_and_a_note_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ray_train, "installed_version", lambda: None)
    with on_ray.cases(is_quick=False)[0].prepare() as contenders:
        assert list(contenders) == [OURS]
    (note,) = warnings_of({**MACHINE, "ray[train]": None})
    assert note == "ray[train] is not installed: Ray Train does not take part (pip install 'ft-rendezvous[bench]')"
    assert warnings_of({**MACHINE, "ray[train]": "2.60.0"}) == []


def test_the_core_of_ray_alone_is_not_ray_train(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "pyarrow"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == missing else object())
    assert ray_train.installed_version() is None
    missing = "none of them"
    assert re.fullmatch(r"2\.\d+\.\d+", ray_train.installed_version() or "")


def test_a_smoke_run_leaves_it_out_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--only", "ray", "--json", str(tmp_path / "quick.json")]) == 0
    assert "note: ray was left out" in capsys.readouterr().out


def test_workers_of_ray_train_train_in_the_process_group_that_they_have(stage: Stage, tmp_path: Path) -> None:
    options = stage.options(steps=3)
    program = (
        "import sys, torch.distributed as dist; from benchmarks.baselines import ray_train;"
        f"dist.init_process_group('gloo', init_method='file://{tmp_path / 'meet'}', rank=0, world_size=1);"
        "ray_train.train({'options': sys.argv[1:]})"
    )
    subprocess.run([sys.executable, "-c", program, *options], cwd=ROOT, check=True, timeout=120)
    assert [step.no for step in stage.steps()] == [1, 2, 3]


# --- what is timed ----------------------------------------------------------------------------------


def test_a_start_takes_until_the_slowest_rank_has_trained() -> None:
    assert ray_training.first_steps_s(train(SHORT_RUN), 2, began=4.0) == pytest.approx(10.0 + 1 + 0.1 - 4.0)


def test_a_start_without_all_ranks_is_caught() -> None:
    for steps in (train(SHORT_RUN - 1), train(SHORT_RUN, ranks=1), [replace(s, groups=1) for s in train(SHORT_RUN)]):
        with pytest.raises(WrongResult, match="not every rank"):
            ray_training.first_steps_s(steps, 2, began=0.0)


def test_a_run_that_ends_instead_of_training_is_not_waited_for(stage: Stage) -> None:
    stage.start_driver(["false"])
    with pytest.raises(AssertionError, match=r"(?s)the run has ended.*it says why"):
        ray_training.wait_trained(stage, lambda: False, 60.0)


def test_a_run_that_does_not_train_again_did_not_finish(stage: Stage) -> None:
    stage.start_driver(["sleep", "60"])
    with pytest.raises(DidNotFinish):
        ray_training.wait_trained(stage, lambda: False, 0.1)


def test_a_run_that_never_trains_is_an_error_and_not_slow(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_training, "START_LIMIT_S", 0.1)
    stage.start_driver(["sleep", "60"])
    with pytest.raises(AssertionError, match=r"(?s)did not begin to train.*it says why"):
        ray_training.wait_trained(stage, lambda: False)


# --- a real cluster ---------------------------------------------------------------------------------


def marked() -> list[str]:
    """Commands of live processes that belong to some cluster of this process."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if any(mark in (folder / "environ").read_bytes() for mark in marks):
                    found.append((folder / "cmdline").read_text())
            except OSError:
                continue
    return found


marks: list[bytes] = []


def test_a_real_machine_is_killed_and_its_rank_trains_again(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[Step]] = []
    lost: list[str] = []

    def remember(stage: Stage, signum: signal.Signals) -> float:
        marks.append(f"{MARK_NAME}={stage.machines.mark}".encode())
        seen.append(stage.steps())
        machines = set(stage.machines.machines)
        at = lose_machine(stage, signum)
        lost.extend(machines - set(stage.machines.machines))
        return at

    lose_machine = ray_training.lose_machine
    monkeypatch.setattr(ray_training, "lose_machine", remember)
    before = dict(os.environ)
    seconds = ray_training.lose(SETUPS[OURS], signal.SIGKILL, nodes=2, spares=1)
    assert 1 < seconds < ray_training.LOSS_LIMIT_S
    assert len(lost) == 1
    assert count_together(seen[0], 2) > ray_training.BEFORE
    assert dict(os.environ) == before
    assert marked() == []


def test_a_real_run_is_started_with_ray_and_without() -> None:
    with ray_training.cluster(1) as machines:
        marks.append(f"{MARK_NAME}={machines.mark}".encode())
        assert ray_training.start_on_ray(machines, 1) > 0
    assert ray_training.start_directly(1) > 0
    assert marked() == []
