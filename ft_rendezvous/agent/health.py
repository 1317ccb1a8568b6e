"""Is this node fit to train? A command of the user's, and the GPU and NIC checks of nvidia-resiliency-ext.

Each runs in a thread of its own, so that a signal interrupts the wait for a check and never the check itself: torch's
SignalException is an Exception, and would be lost wherever a check catches everything. A check that hangs, as drivers
of broken GPUs do, in system calls that no signal ends, is left behind: it costs its timeout and not the agent.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ft_rendezvous.agent.nvidia_health import ask_nvidia
from ft_rendezvous.text import one_line

GLANCE_S = 0.05
"""How often to look whether a command has ended while something it started holds its output open."""

KILL_S = 1.0
"""How long a killed command may take to be gone."""

TAIL_BYTES = 1 << 16
"""How much of a command's output is kept: its end, and as much as a pipe holds."""

_GPU_DEVICE = Path("/dev/nvidiactl")


def check_health(command: str | None, timeout_s: float, gpu: bool) -> str | None:
    """None if this node is fit to train, else one line that says why not. Each check may take `timeout_s`."""
    reason = _check_command(command, timeout_s) if command else None
    if reason is None and gpu and _GPU_DEVICE.exists():
        reason = _check_nvidia(timeout_s)
    return reason


class _Aside:
    """A check in a thread of its own.

    Waited for by an event: once a signal has interrupted a join, Python 3.11 takes the thread for ended.
    """

    def __init__(self, check: Callable[[], str | None]) -> None:
        self._check = check
        self._done = threading.Event()
        self.reason: str | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name="ft-health", daemon=True).start()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the check has ended."""
        return self._done.wait(timeout_s)

    def _run(self) -> None:
        try:
            self.reason = self._check()
        finally:
            self._done.set()


def _check_command(command: str, timeout_s: float) -> str | None:
    is_over = threading.Event()
    aside = _Aside(lambda: _judge_command(command, timeout_s, is_over))
    try:
        aside.start()
        aside.wait()
    finally:
        is_over.set()
        aside.wait(2 * KILL_S)  # Whoever was interrupted finds the command gone.
    return aside.reason


def _check_nvidia(timeout_s: float) -> str | None:
    aside = _Aside(ask_nvidia)
    aside.start()
    if aside.wait(timeout_s):
        return aside.reason
    # A GPU that the driver gets no answer from is the very thing to find.
    return f"the GPU and NIC checks have not ended within {timeout_s:g} s"


# --- the command ------------------------------------------------------------------------------------


def _judge_command(command: str, timeout_s: float, is_over: threading.Event) -> str | None:
    try:
        process = subprocess.Popen(
            ("/bin/sh", "-c", command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    except (OSError, ValueError) as error:
        return one_line(f"the health check could not be started: {error}")
    assert process.stdout is not None
    try:
        with process.stdout:
            said = _last_line(_watch(process, process.stdout.fileno(), time.monotonic() + timeout_s, is_over))
    finally:
        exit_code = process.returncode
        if exit_code is None:
            _kill(process)
    if exit_code == 0:
        return None
    ended = f"has not ended within {timeout_s:g} s" if exit_code is None else f"exited with {exit_code}"
    return f"the health check {ended}" + (f": {said}" if said else "")


def _watch(process: subprocess.Popen[bytes], fd: int, deadline: float, is_over: threading.Event) -> bytes:
    """Follow a command until it has ended, or must; the end of what it said.

    Its end is the shell's: what it leaves in the background may hold the output open for as long as it likes.
    """
    output = select.poll()
    output.register(fd, select.POLLIN)
    tail, is_open = b"", True
    while process.poll() is None and time.monotonic() < deadline and not is_over.is_set():
        if not is_open:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GLANCE_S)
        elif output.poll(GLANCE_S * 1000):
            part = os.read(fd, TAIL_BYTES)
            tail, is_open = (tail + part)[-TAIL_BYTES:], bool(part)
    last = os.read(fd, TAIL_BYTES) if output.poll(0) else b""
    return (tail + last)[-TAIL_BYTES:]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the command and all it started, as far as a signal can. It was not reaped, so its group is still its own."""
    with contextlib.suppress(OSError):  # All of it became another user's.
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_S)


def _last_line(output: bytes) -> str:
    lines = map(one_line, reversed(output.decode(errors="replace").splitlines()))
    return next(filter(None, lines), "")
