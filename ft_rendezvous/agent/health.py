"""Is this node fit to train? The user's own command, and the GPU and NIC checks of nvidia-resiliency-ext, answer.

Each check runs in a thread of its own. So a signal interrupts the wait for a check and never the check itself: torch's
SignalException is an Exception, and a check that catches every Exception would lose it. The driver of a broken GPU can
hang in a system call that no signal ends. The agent leaves such a check behind after its timeout.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
from pathlib import Path

from ft_rendezvous.agent.nvidia_health import ask_nvidia
from ft_rendezvous.host.side_call import SideCall
from ft_rendezvous.text import one_line

COMMAND_POLL_S = 0.05
"""How often to look whether a command has ended while one of its children holds its output open."""

KILL_TIMEOUT_S = 1.0
"""How long a killed command may take to end."""

OUTPUT_TAIL_BYTES = 1 << 16
"""How much of the end of a command's output is kept: as much as a pipe holds."""

_GPU_DEVICE = Path("/dev/nvidiactl")


def check_health(command: str | None, timeout_s: float, gpu: bool) -> str | None:
    """Why this node is unfit to train, in one line; None if it is fit. Each check may take `timeout_s`."""
    reason = _check_command(command, timeout_s) if command else None
    if reason is None and gpu and _GPU_DEVICE.exists():
        reason = _check_nvidia(timeout_s)
    return reason


def _check_command(command: str, timeout_s: float) -> str | None:
    is_over = threading.Event()
    call = SideCall(lambda: _judge_command(command, timeout_s, is_over), "ft-health")
    try:
        call.start()
        call.wait()
    finally:
        is_over.set()
        call.wait(2 * KILL_TIMEOUT_S)  # After a signal too, the command is gone when this returns.
    if call.error is not None:  # A check that broke has not found this node fit.
        return one_line(f"the health check broke: {call.error!r}")
    return call.value


def _check_nvidia(timeout_s: float) -> str | None:
    call = SideCall(ask_nvidia, "ft-health")
    call.start()
    if call.wait(timeout_s):
        return call.value
    # A GPU that does not answer its driver is exactly what this check looks for.
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
            last_line = _last_line(_watch(process, process.stdout.fileno(), time.monotonic() + timeout_s, is_over))
    finally:
        exit_code = process.returncode
        if exit_code is None:
            _kill(process)
    if exit_code == 0:
        return None
    ended = f"has not ended within {timeout_s:g} s" if exit_code is None else f"exited with {exit_code}"
    return f"the health check {ended}" + (f": {last_line}" if last_line else "")


def _watch(process: subprocess.Popen[bytes], fd: int, deadline: float, is_over: threading.Event) -> bytes:
    """Follow a command until it has ended or must end, and return the end of its output.

    It ends when its shell ends. What it leaves in the background may hold the output open much longer.
    """
    output = select.poll()
    output.register(fd, select.POLLIN)
    tail, is_open = b"", True
    while process.poll() is None and time.monotonic() < deadline and not is_over.is_set():
        if not is_open:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(COMMAND_POLL_S)
        elif output.poll(COMMAND_POLL_S * 1000):
            part = os.read(fd, OUTPUT_TAIL_BYTES)
            tail, is_open = (tail + part)[-OUTPUT_TAIL_BYTES:], bool(part)
    last = os.read(fd, OUTPUT_TAIL_BYTES) if output.poll(0) else b""
    return (tail + last)[-OUTPUT_TAIL_BYTES:]


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the command and its children. It was not reaped yet, so no other process can have got its group's id."""
    with contextlib.suppress(OSError):  # All of it belongs to another user now.
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(KILL_TIMEOUT_S)


def _last_line(output: bytes) -> str:
    lines = map(one_line, reversed(output.decode(errors="replace").splitlines()))
    return next(filter(None, lines), "")
