"""A log whose reader has stopped: no thread of a run waits for it."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading

import pytest

from ft_rendezvous.host import logs
from ft_rendezvous.host.logs import QueuedHandler

LONG_S = 20.0


class SlowPipe:
    """Takes nothing until it may."""

    def __init__(self) -> None:
        self.may_write = threading.Event()
        self.lines: list[str] = []

    def write(self, text: str) -> None:
        self.may_write.wait(LONG_S)
        self.lines.extend(line.split("] ", 1)[1] for line in text.splitlines())


@pytest.fixture
def slow() -> SlowPipe:
    return SlowPipe()


def logger_of(handler: logging.Handler) -> logging.Logger:
    logger = logging.Logger("test")
    logger.addHandler(handler)
    return logger


def test_a_reader_that_has_stopped_stops_no_thread_and_dropped_lines_are_counted(
    slow: SlowPipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MAX_WAITING_LINES", 3)
    handler = QueuedHandler(slow.write)
    logger = logger_of(handler)
    for number in range(10):
        logger.info("line %d", number)
    assert not handler.drain(0.05)
    slow.may_write.set()
    assert handler.drain(LONG_S)
    logger.info("after")
    assert handler.drain(LONG_S)
    (note,) = [line for line in slow.lines if "dropped" in line]
    written = [line for line in slow.lines if line.startswith("line")]
    assert note.startswith(f"{10 - len(written)} lines")
    assert slow.lines[-1] == "after"


def test_arguments_are_taken_as_they_are_when_the_line_is_logged(slow: SlowPipe) -> None:
    handler = QueuedHandler(slow.write)
    nodes = ["a"]
    logger_of(handler).info("nodes %s", nodes)
    nodes.append("b")
    slow.may_write.set()
    assert handler.drain(LONG_S)
    assert slow.lines == ["nodes ['a']"]


def test_the_last_lines_of_a_process_are_written() -> None:
    code = (
        "import logging\n"
        "from ft_rendezvous.host.logs import set_up_logging\n"
        "set_up_logging('INFO')\n"
        "for number in range(500): logging.getLogger('ft_rendezvous').info('line %d', number)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert [line.split()[-1] for line in done.stderr.splitlines()] == [str(number) for number in range(500)]


def test_a_full_pipe_does_not_keep_a_process() -> None:
    code = (
        "import logging\n"
        "from ft_rendezvous.host.logs import set_up_logging\n"
        "set_up_logging('INFO')\n"
        "for number in range(20_000): logging.getLogger('ft_rendezvous').info('line %d', number)\n"
        "print('logged', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "logged\n"
    process.wait(LONG_S)
    process.communicate()
