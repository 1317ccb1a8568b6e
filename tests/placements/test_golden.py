"""Placements as `ftr explain` shows them: a roster beside each transcript, reviewed as a diff.

A transcript's first line is the command; `FT_REWRITE=1` writes the rest again.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ft_rendezvous.cli.main import app

HERE = Path(__file__).parent
TRANSCRIPTS = sorted(HERE.glob("*.txt"))


def run(command: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(HERE)
    program, *arguments = shlex.split(command.removeprefix("$ "))
    assert program == "ftr"
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.parametrize("path", TRANSCRIPTS, ids=lambda path: path.stem)
def test_transcript(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command, _, expected = path.read_text().partition("\n")
    seen = run(command, monkeypatch)
    if os.environ.get("FT_REWRITE"):
        path.write_text(f"{command}\n{seen}")
        return
    assert seen == expected


def test_every_roster_has_a_transcript() -> None:
    commands = " ".join(path.read_text().partition("\n")[0] for path in TRANSCRIPTS)
    rosters = sorted(path.name for path in HERE.glob("*.json"))
    assert rosters
    assert [name for name in rosters if name not in commands] == []
