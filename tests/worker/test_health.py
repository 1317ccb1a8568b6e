"""A command says whether a node is healthy, in bounded time. A command that is killed leaves no process."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ft_rendezvous.agent import health
from ft_rendezvous.agent.health import check_health
from ft_rendezvous.text import MAX_REASON_CHARS
from tests.support.torchrun_cluster import MARKER, find_processes, send
from tests.support.waiting import wait_until
from tests.worker.inbox_rig import open_fds

PATIENCE_S = 120.0
SCRIPT = Path(__file__).with_name("interrupted.py")
ROOT = SCRIPT.parent.parent.parent


@pytest.fixture(autouse=True)
def marker(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """All processes of a test have a marker variable. At the end no process, thread or descriptor is left."""
    marker = f"health-{secrets.token_hex(8)}"
    monkeypatch.setenv(MARKER, marker)
    before = open_fds()
    yield marker
    for process in find_processes(marker):
        send(process.pid, signal.SIGKILL)
    wait_until("nothing lives", lambda: is_empty(marker))
    wait_until("no thread is left", lambda: not any(thread.name == "ft-health" for thread in threading.enumerate()))
    assert open_fds() == before


def is_empty(marker: str) -> bool:
    return [process for process in find_processes(marker) if process.pid != os.getpid()] == []


def check(command: str, timeout_s: float = PATIENCE_S) -> str | None:
    return check_health(command, timeout_s, gpu=False)


# --- how a command ends -----------------------------------------------------------------------------


def test_no_command_is_healthy() -> None:
    assert check_health(None, PATIENCE_S, gpu=False) is None
    assert check_health("", PATIENCE_S, gpu=False) is None


@pytest.mark.parametrize("command", ["true", "echo all is well; echo really >&2", "exec >&- 2>&-; exit 0"])
def test_a_command_that_succeeds_is_healthy(command: str) -> None:
    assert check(command) is None


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("exit 3", "the health check exited with 3"),
        ("echo one; echo 'ECC errors on GPU 2' >&2; exit 1", "the health check exited with 1: ECC errors on GPU 2"),
        ("printf 'last\\n\\n  \\n'; exit 1", "the health check exited with 1: last"),
        (
            "printf '\\033[31mred\\377\\a\\n'; exit 1",
            "the health check exited with 1: [31mred\N{REPLACEMENT CHARACTER}",
        ),
        ("kill -9 $$", "the health check exited with -9"),
        ("exec >&- 2>&-; exit 4", "the health check exited with 4"),
        ("cat; exit 5", "the health check exited with 5"),
    ],
)
def test_a_command_that_fails_says_why(command: str, reason: str) -> None:
    assert check(command) == reason


def test_a_command_that_is_not_there_is_unhealthy() -> None:
    reason = check("/nowhere/check-node")
    assert reason is not None
    assert reason.startswith("the health check exited with 127: ")


@pytest.mark.parametrize("command", ["a\0b", "x" * 10_000_000])
def test_a_command_that_cannot_be_started_is_unhealthy(command: str) -> None:
    reason = check(command)
    assert reason is not None
    assert reason.startswith("the health check could not be started: ")


def test_a_long_line_is_cut_and_a_flood_is_bounded() -> None:
    reason = check("head -c 50000000 /dev/zero | tr '\\0' x; exit 1")
    assert reason == f"the health check exited with 1: {'x' * MAX_REASON_CHARS}"


def test_output_that_comes_before_the_first_look_is_not_lost() -> None:
    with subprocess.Popen(("echo", "broken"), stdout=subprocess.PIPE) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert process.stdout is not None
        assert health._watch(process, process.stdout.fileno(), float("inf"), threading.Event()) == b"broken\n"


def test_the_end_is_the_shells_and_what_it_leaves_lives_on(marker: str) -> None:
    assert check("echo broken; sleep 600 & exit 1") == "the health check exited with 1: broken"
    # A child is still the shell until it runs its own program.
    wait_until("it sleeps", lambda: [process.command for process in find_processes(marker)] == ["sleep 600"])


# --- a command that does not end --------------------------------------------------------------------


@pytest.mark.parametrize("ending", ["wait", "exec >&- 2>&-; wait", "trap '' TERM INT HUP; wait", "yes"])
def test_a_timeout_ends_the_command_and_its_children(ending: str, marker: str, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = f"echo stuck; (sleep 600 & echo $! > {pid_file}.new; mv {pid_file}.new {pid_file}; wait) & {ending}"
    said = "y" if ending == "yes" else "stuck"
    for timeout_s in (0.5, 2.0, 8.0, 32.0):
        reason = check(command, timeout_s)
        if pid_file.exists():
            break
    assert pid_file.exists(), "a machine this slow cannot test this"
    wait_until("the command and its children are gone", lambda: is_empty(marker))
    assert reason == f"the health check has not ended within {timeout_s:g} s: {said}"


@pytest.mark.parametrize("what", ["command", "gpu"])
def test_a_signal_interrupts_a_check_and_ends_its_command(what: str, marker: str, tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    arguments = (f"sleep 600 & touch {ready}; wait",) if what == "command" else ("--gpu", str(ready))
    interrupted = subprocess.Popen(
        (sys.executable, "-m", "tests.worker.interrupted", *arguments), cwd=ROOT, stdout=subprocess.PIPE
    )
    with interrupted:
        try:
            wait_until("the check runs", ready.exists)
            interrupted.send_signal(signal.SIGTERM)
            assert interrupted.stdout is not None
            assert interrupted.stdout.read() == b"interrupted\n"
            assert interrupted.wait() == 0
        finally:
            interrupted.kill()
    wait_until("the command and its children are gone", lambda: is_empty(marker))
