"""The README says what the code does: its settings table is the code's own."""

from __future__ import annotations

from pathlib import Path

from ft_rendezvous.settings import settings_table

README = (Path(__file__).parent.parent / "README.md").read_text()


def _between(start: str, end: str) -> str:
    return README.partition(start)[2].partition(end)[0].strip()


def test_the_readme_shows_the_generated_settings_table() -> None:
    assert _between("<!-- settings -->", "<!-- /settings -->") == settings_table()


def test_the_readme_has_the_two_commands_ci_runs() -> None:
    for name in ("demo", "tests"):
        assert "```bash" in README.partition(f"<!-- ci: {name} -->")[2].partition("\n\n")[0]
