"""A call in a thread of its own: the caller learns how it ended, and that it could not begin."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import NoReturn

import pytest

from ft_rendezvous.agent.exit_description import read_words
from ft_rendezvous.agent.health import check_health
from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.model import Verdict, VerdictKind
from ft_rendezvous.host.serve import serve
from ft_rendezvous.host.side_call import SideCall
from ft_rendezvous.protocol.ops import perform_move

LONG_S = 20.0
NO_THREAD = "can't start new thread"
"""Python's own words where a limit on processes and threads is reached (ulimit -u, pids.max)."""


def raise_error() -> NoReturn:
    raise ValueError("embedded null byte")


@pytest.fixture
def no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_thread: threading.Thread) -> NoReturn:
        raise RuntimeError(NO_THREAD)

    monkeypatch.setattr(threading.Thread, "start", fail)


def test_what_a_call_returns() -> None:
    call = SideCall(lambda: 5, "test")
    call.start()
    assert call.wait(LONG_S)
    assert (call.value, call.error) == (5, None)


def test_what_a_call_raises() -> None:
    call = SideCall(raise_error, "test")
    call.start()
    assert call.wait(LONG_S)
    assert call.value is None
    assert isinstance(call.error, ValueError)


@pytest.mark.usefixtures("no_threads")
def test_a_call_that_cannot_begin_has_ended() -> None:
    call = SideCall(lambda: 5, "test")
    call.start()
    assert call.wait(0.0)
    assert call.value is None
    assert str(call.error) == NO_THREAD


@pytest.mark.usefixtures("no_threads")
def test_a_failure_is_reported_without_its_words_where_no_thread_is_left(tmp_path: Path) -> None:
    """A worker may have failed for the same lack of threads."""
    assert read_words(str(tmp_path / "error.json"), "") == ("", "")


@pytest.mark.usefixtures("no_threads")
def test_a_health_check_that_cannot_begin_finds_no_node_fit() -> None:
    assert NO_THREAD in (check_health("true", 1.0, gpu=False) or "")


@pytest.mark.parametrize("path", [Path("verdict"), Path("null\0byte")], ids=["no thread", "no such path"])
def test_a_run_is_closed_with_its_verdict_although_the_file_cannot_be_written(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settings = RunSettings(run_id="job", min_nodes=1, max_nodes=1, store_grace_s=0.1)
    host = serve(settings, 0, verdict_path=tmp_path / path)
    start = threading.Thread.start

    def start_others(thread: threading.Thread) -> None:
        if thread.name == "ft-verdict-file" and path.name == "verdict":
            raise RuntimeError(NO_THREAD)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_others)
    try:
        perform_move(host._served, host.coordinator.close(Verdict(VerdictKind.SUCCEEDED)))
        assert str(host.verdict) == "succeeded"
    finally:
        host.stop()
    assert "the verdict could not be written" in caplog.text
