"""The benchmark of updates: what a smoke run leaves out, and a real loss."""

from __future__ import annotations

import pytest

from benchmarks import updates
from benchmarks.children import prepare_environment
from benchmarks.measure import OURS


def test_a_loss_is_left_out_of_a_smoke_run() -> None:
    losses = [case.name for case in updates.cases(False) if "killed" in case.name]
    assert losses == ["2 generators, one is killed: the other answers"]
    assert not any("killed" in case.name for case in updates.cases(True))


def test_without_ray_it_says_what_is_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(updates, "find_spec", lambda _: None)
    assert not any("killed" in case.name for case in updates.cases(False))
    assert "no generator is killed without Ray" in capsys.readouterr().err


def test_a_loss_is_measured_again_and_again() -> None:
    prepare_environment()
    with updates.prepare_loss() as contenders:
        assert [contenders[OURS]() > 0.0 for _ in range(2)] == [True, True]
