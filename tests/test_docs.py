"""The README says what the code does: its settings table is the code's own."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ft_rendezvous.cli.main import app
from ft_rendezvous.config.settings import settings_table

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def _between(start: str, end: str) -> str:
    return README.partition(start)[2].partition(end)[0].strip()


def test_the_readme_shows_the_generated_settings_table() -> None:
    assert _between("<!-- settings -->", "<!-- /settings -->") == settings_table()


def test_the_readme_has_the_two_commands_ci_runs() -> None:
    for name in ("demo", "tests"):
        assert "```bash" in README.partition(f"<!-- ci: {name} -->")[2].partition("\n\n")[0]


def test_the_example_of_placement_is_what_explain_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "placement.md").read_text()
    shown = page.partition("<!-- explain -->\n```console\n")[2].partition("```")[0]
    roster, _, said = shown.removeprefix("$ cat roster.json\n").partition("$ ftr ")
    command, _, told = said.partition("\n")
    (tmp_path / "roster.json").write_text(roster)
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, shlex.split(command)).stdout == told
