"""What the commands that look at a run print, in the docs and beyond: `FT_REWRITE=1` writes it anew.

`<!-- at: MOMENT -->` before a console block names a moment of the story in tests/state/story.py, and `<!-- at: groups:
MOMENT -->` one of the story in tests/state/group_story.py, and `<!-- at: watched: MOMENT -->` one of a run that looks
for hangs; the run is looked at just then, from its state_dir.
"""

from __future__ import annotations

import os
import re
import shlex
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ft_rendezvous.cli import state_watch
from ft_rendezvous.cli.main import app
from ft_rendezvous.state.model.events import decode_line
from tests.state.group_story import GroupStory, tell_group_story
from tests.state.layout import lay_out
from tests.state.story import Story, tell_story, tell_watched_story

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "docs" / "state-terminal.md", ROOT / "docs" / "hangs.md", Path(__file__).parent / "state_shown.md"]
SHOWN = re.compile(r"(<!-- at: ([^>]+) -->\n```console\n\$ ftr ([^\n]*)\n)(.*?)(```\n)", re.DOTALL)

STORIES: dict[str, Callable[[], Story | GroupStory]] = {
    "groups: ": tell_group_story,
    "watched: ": tell_watched_story,
    "": tell_story,
}
"""By how the name of a moment begins."""


@pytest.fixture(autouse=True)
def utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


def run(command: str, moment: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    prefix = next(prefix for prefix in STORIES if moment.startswith(prefix))
    story, moment = STORIES[prefix](), moment.removeprefix(prefix)
    lines = story.lines[: story.marks.get(moment)]
    assert moment in story.marks or moment == "the end"
    folder = lay_out(place / "ft-state", lines)
    last_ns = decode_line(lines[-1]).timestamp_ns
    monkeypatch.setattr(state_watch, "now_ns", lambda: last_ns)
    monkeypatch.chdir(place)
    done = CliRunner().invoke(app, shlex.split(command))
    assert done.exit_code == 0, done.output
    assert folder.is_dir()
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_is_shown_is_what_is_printed(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = page.read_text()
    shown = list(SHOWN.finditer(text))
    assert shown
    for number, match in enumerate(shown):
        head, moment, command, told, _ = match.groups()
        seen = run(command, moment, tmp_path / str(number), monkeypatch)
        if os.environ.get("FT_REWRITE"):
            text = text.replace(f"{head}{told}```", f"{head}{seen}```")
            page.write_text(text)
        else:
            assert seen == told, f"{page.name}: $ ftr {command}"
