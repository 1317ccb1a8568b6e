"""Commands of the system: results, errors, timeouts."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ft_rendezvous.config import commands
from ft_rendezvous.config.commands import CommandNotStarted, CommandTimeout, run_command


def shell(script: str, timeout_s: float = 20.0, **env: str) -> commands.CommandResult:
    return run_command(["/bin/sh", "-c", script], timeout_s=timeout_s, env={**os.environ, **env})


def test_outputs_and_exit_code_are_returned() -> None:
    done = shell("echo $WHAT; echo no >&2; exit 3", WHAT="yes")
    assert (done.exit_code, done.stdout, done.stderr) == (3, b"yes\n", b"no\n")


@pytest.mark.parametrize(
    ("script", "message"),
    [("echo out; echo one >&2; echo two >&2", "one\ntwo"), ("echo out", "out"), ("exit 1", "nothing")],
)
def test_the_message_is_its_errors_or_else_its_output(script: str, message: str) -> None:
    done = shell(script)
    assert done.message == message
    assert done.last_line == message.splitlines()[-1]


def test_a_program_that_does_not_exist_is_an_error_of_its_own() -> None:
    with pytest.raises(CommandNotStarted, match="No such file"):
        run_command(["/nowhere/program"], timeout_s=1.0)


def test_a_command_that_takes_too_long_is_killed_with_all_that_it_started(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(CommandTimeout, match="it has not ended within 1 s"):
        shell(f"sleep 600 & echo $! >{tmp_path}/pid; wait", timeout_s=1.0)
    assert time.monotonic() - began < 20
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 10
    while (state := _state_of(pid)) not in ("gone", "Z") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert state in ("gone", "Z")


def _state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"


def test_a_process_in_the_background_is_not_waited_for() -> None:
    began = time.monotonic()
    assert shell("sleep 5 & echo here").stdout == b"here\n"
    assert time.monotonic() - began < 4


def test_output_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "MAX_OUTPUT_BYTES", 10)
    assert shell("yes | head -c 1000").stdout == b"y\n" * 5
