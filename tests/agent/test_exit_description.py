"""How a worker ended, in words, from files that may be missing, broken, or on a file system that hangs."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ft_rendezvous.agent.exit_description import (
    ERROR_FILE_TIMEOUT_S,
    LOG_TAIL_BYTES,
    describe_exit,
    last_line_of,
    message_in,
    read_words,
)
from tests.support.waiting import wait_until


@pytest.fixture
def hanging_file(tmp_path: Path) -> Iterator[Path]:
    """A file that no process can read to its end: a pipe without a writer."""
    path = tmp_path / "hanging"
    os.mkfifo(path)
    yield path
    # Let the thread of the test end: it waits for a writer.
    os.close(os.open(path, os.O_RDWR))
    wait_until("no reader is left", lambda: not readers())


def readers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ft-last-words"]


@pytest.mark.parametrize(
    ("exit_code", "message", "text"),
    [
        (1, "no GPU", "exit code 1: no GPU"),
        (17, "", "exit code 17"),
        (-9, "", "killed by SIGKILL"),
        (-200, "", "killed by signal 200"),
    ],
)
def test_an_end_is_described_by_its_code_and_the_workers_message(exit_code: int, message: str, text: str) -> None:
    assert describe_exit(exit_code, message) == text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"message": {"message": "RuntimeError: no GPU\nat line 3", "extraInfo": {}}}, "RuntimeError: no GPU"),
        ({"message": "it broke"}, "it broke"),
        ({"message": {}}, ""),
        ({}, ""),
        ([], ""),
    ],
)
def test_the_message_is_the_first_line_in_the_error_file(tmp_path: Path, content: object, message: str) -> None:
    path = tmp_path / "error.json"
    path.write_text(json.dumps(content))
    assert message_in(str(path)) == message


def test_without_an_error_file_there_is_no_message(tmp_path: Path) -> None:
    empty = tmp_path / "empty.json"
    empty.touch()
    for path in (None, str(empty), str(tmp_path / "missing.json"), "/"):
        assert message_in(path) == ""


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", ""),
        (b"\n \n", ""),
        (b"Traceback (most recent call last):\n  File ...\nRuntimeError: boom\n", "RuntimeError: boom"),
        (b"no newline at the end", "no newline at the end"),
        (b"x" * 3 * LOG_TAIL_BYTES + b"\nValueError: late\n\n", "ValueError: late"),
        (b"caf\xe9 \x1b[31mred\x1b[0m\n", "caf\N{REPLACEMENT CHARACTER} [31mred [0m"),
        (b"y" * 3 * LOG_TAIL_BYTES, "y" * 150),
    ],
)
def test_the_last_line_is_short_and_printable(tmp_path: Path, content: bytes, line: str) -> None:
    log = tmp_path / "stderr.log"
    log.write_bytes(content)
    assert last_line_of(str(log)) == line


@pytest.mark.parametrize("path", ["", "/nonexistent/stderr.log", "/"])
def test_without_a_log_there_is_no_last_line(path: str) -> None:
    assert last_line_of(path) == ""


def test_both_files_are_read(tmp_path: Path) -> None:
    error_file, log = tmp_path / "error.json", tmp_path / "stderr.log"
    error_file.write_text(json.dumps({"message": "it broke"}))
    log.write_text("RuntimeError: it broke\n")
    assert read_words(str(error_file), str(log)) == ("it broke", "RuntimeError: it broke")


@pytest.mark.parametrize("which", ["error file", "log"])
def test_a_file_that_hangs_costs_a_short_time(
    which: str, hanging_file: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    good = str(tmp_path / "missing")
    began = time.monotonic()
    files = (str(hanging_file), good) if which == "error file" else (good, str(hanging_file))
    assert read_words(*files) == ("", "")
    assert time.monotonic() - began >= ERROR_FILE_TIMEOUT_S
    assert readers() != [], "the read still hangs, and nothing waits for it"
    assert str(hanging_file) in caplog.text
