"""A log whose reader has stopped: no thread of a run waits for it."""

from __future__ import annotations

import logging
import os
import select
import subprocess
import sys
import threading
from pathlib import Path

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


def test_a_line_that_cannot_be_made_does_not_stop_the_thread_that_logs_it(slow: SlowPipe) -> None:
    class Unspeakable:
        def __str__(self) -> str:
            raise ValueError

    handler = QueuedHandler(slow.write)
    slow.may_write.set()
    logger_of(handler).info("node %s", Unspeakable())
    assert handler.drain(LONG_S)
    (line,) = slow.lines
    assert line.startswith("a line has no text")
    assert __file__ in line
    assert line.endswith("ValueError")


def test_a_pipe_that_does_not_block_loses_no_line() -> None:
    """The programs that share a pipe share this mode of it: one of them may have set it."""
    code = (
        "import logging\n"
        "from ft_rendezvous.host.logs import set_up_logging\n"
        "set_up_logging('INFO')\n"
        "for number in range(2_000): logging.getLogger('ft_rendezvous').info('%s %d', 'x' * 100, number)\n"
        "print('logged', flush=True)\n"
        "logging.getLogger('ft_rendezvous').handlers[0].drain(60.0)\n"
    )
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=write_end, text=True)
    os.close(write_end)
    assert process.stdout is not None
    assert process.stdout.readline() == "logged\n"
    with open(read_end) as log:
        numbers = [line.split()[-1] for line in log]
    process.communicate(timeout=LONG_S)
    assert numbers == [str(number) for number in range(2_000)]


def test_a_process_without_standard_error_writes_no_line_into_a_file_that_has_its_number(tmp_path: Path) -> None:
    code = (
        "import logging, os, sys\n"
        "from ft_rendezvous.host.logs import set_up_logging\n"
        "os.dup2(os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY), 2)\n"
        "set_up_logging('INFO')\n"
        "logging.getLogger('ft_rendezvous').error('line')\n"
    )
    path = tmp_path / "other"
    words = ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", sys.executable, "-c", code, str(path)]
    subprocess.run(words, check=True, timeout=LONG_S)
    assert path.read_text() == ""


def test_a_full_pipe_stops_no_thread_of_a_program_that_has_configured_logging() -> None:
    code = (
        "import logging\n"
        "from ft_rendezvous.host.logs import set_up_logging\n"
        "logging.basicConfig(level='INFO')\n"
        "set_up_logging('INFO')\n"
        "for number in range(20_000): logging.getLogger('ft_rendezvous').info('line %d', number)\n"
        "print('logged', flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    try:
        is_logged, _, _ = select.select([process.stdout], [], [], LONG_S)
        assert process.wait(LONG_S) == 0, "its end does not wait for the log either"
    finally:
        process.kill()
        process.communicate()
    assert is_logged


def test_a_program_that_has_configured_logging_gets_our_lines_in_its_own_form() -> None:
    code = (
        "import logging\n"
        "from ft_rendezvous.host.logs import set_up_logging\n"
        "logging.basicConfig(level='INFO', format='mine %(levelname)s %(name)s: %(message)s')\n"
        "set_up_logging('DEBUG')\n"
        "nodes = ['a']\n"
        "log = logging.getLogger('ft_rendezvous')\n"
        "log.info('nodes %s', nodes)\n"
        "nodes.append('b')\n"
        "log.debug('its level holds')\n"
        "try: 1 / 0\n"
        "except ZeroDivisionError: log.exception('it failed')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=LONG_S, check=True)
    lines = done.stderr.splitlines()
    assert lines[:2] == ["mine INFO ft_rendezvous: nodes ['a']", "mine ERROR ft_rendezvous: it failed"]
    assert lines[-1] == "ZeroDivisionError: division by zero"
    assert done.stderr.count("Traceback") == 1
