"""What the pages about the state show is run: the Python snippets and the line of the log."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from ft_rendezvous.core.lifecycle import NodeStep, roles_after
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.events import decode_line, encode_line
from tests.state.layout import lay_out
from tests.state.story import tell_story
from tests.state.web.servers import live_run_of, serving

DOCS = Path(__file__).parents[2] / "docs"


def snippets(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def test_the_log_is_read_as_the_page_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = snippets("state.md", "python")
    lay_out(tmp_path, tell_story().lines)
    assert "/shared/ft-state" in code
    exec(compile(code.replace("/shared/ft-state", str(tmp_path)), "state.md", "exec"), {})
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "llm-7b FINISHED lost 27 s 0 events missing"
    assert "1 ERRORED the run begins" in lines
    assert "infra rank 6 at 10.0.0.16 pid 4506 left" in lines


def test_the_line_of_the_log_is_an_event() -> None:
    (line,) = snippets("state.md", "json")
    event = decode_line(line.encode())
    assert isinstance(event.event, journal.CycleOpened)
    assert event.event.roles == roles_after(NodeStep.REOPEN)
    assert encode_line(event).decode() == line


def test_events_are_followed_as_the_page_shows(capsys: pytest.CaptureFixture[str]) -> None:
    (code,) = snippets("state-api.md", "python")
    story = tell_story()
    live_run = live_run_of(story.lines)
    live_run.end()
    with serving(live_run) as server:
        there = code.replace("localhost:8450", f"127.0.0.1:{server.port}").replace("llama-70b", "llm-7b")
        exec(compile(there.replace("timeout=None", "timeout=None, trust_env=False"), "state-api.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(story.lines)
    assert lines[0].startswith("1 RunBegan {")
