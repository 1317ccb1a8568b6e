"""What the commands of an operator ask of a run."""

from __future__ import annotations

from typing import Any

import pytest
from typer.testing import CliRunner

from ft_rendezvous.cli import operate
from ft_rendezvous.cli.main import app
from ft_rendezvous.core.model import RequestKind


@pytest.mark.parametrize(
    ("options", "target"),
    [([], ""), (["--group", "0"], "0"), (["--group", "12"], "12")],
    ids=["all", "the first group", "another group"],
)
def test_a_restart_is_of_all_workers_or_of_one_group(
    options: list[str], target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, RequestKind, str, str]] = []

    def take(*request: Any) -> int:
        asked.append(request)
        return 0

    monkeypatch.setattr(operate, "operate", take)
    done = CliRunner().invoke(app, ["restart", "head:29400", *options, "--reason", "new code"])
    assert done.exit_code == 0, done.output
    assert asked == [("head:29400", RequestKind.RESTART, target, "new code")]


def test_no_group_has_a_number_below_zero() -> None:
    done = CliRunner().invoke(app, ["restart", "head:29400", "--group", "-1"])
    assert done.exit_code == 2
