"""Takes the stacks of workers from outside, within a bounded time: by py-spy, or by a signal that the worker offers.

A worker that hangs cannot be asked. py-spy reads its memory. A worker that has called `ft_rendezvous.worker` writes its
stacks itself when it gets a signal, even while another thread or a C function holds the interpreter.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ft_rendezvous.agent.processes import catches
from ft_rendezvous.agent.progress_cells import STACK_SIGNAL
from ft_rendezvous.agent.stack_texts import parse_faulthandler, parse_py_spy
from ft_rendezvous.core.stacks import Frame, Stack

PY_SPY_TIMEOUT_S = 1.0
END_TIMEOUT_S = 0.1
"""How long tools that were ended may take to end."""
SIGNAL_TIMEOUT_S = 0.4
SIGNAL_POLL_S = 0.02
STOPPED: Stack = (Frame("stopped by a signal", "", 0, True),)
"""The stack of a worker that was stopped, and that py-spy could not read."""


ENDED_STATES = frozenset({"", "Z", "X"})
"""What `read_state` says of a process that has ended."""


@dataclass(frozen=True, slots=True)
class Target:
    """A worker, and how it can be asked."""

    pid: int
    stack_fd: int | None
    """Its descriptor of the file to which it writes its stacks. None: it does not offer that."""


def find_py_spy() -> str | None:
    """The program, if it is installed: beside this Python, or in the path."""
    return shutil.which("py-spy", path=str(Path(sys.executable).parent)) or shutil.which("py-spy")


def take_stacks(targets: Mapping[int, Target], py_spy: str | None) -> dict[int, Stack]:
    """The stacks by rank, within about 1.5 s. Empty for a worker whose stack cannot be taken."""
    found = _ask_py_spy(targets, py_spy) if py_spy is not None else {}
    rest = {rank: target for rank, target in targets.items() if not found.get(rank)}
    found |= _ask_by_signal({rank: target for rank, target in rest.items() if target.stack_fd is not None})
    for rank, target in rest.items():
        if not found.get(rank):
            found[rank] = STOPPED if read_state(target.pid) == "T" else ()
    return found


def read_state(pid: int) -> str:
    """The kernel's letter for a process: T is stopped, t is held by a debugger. Empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def _ask_py_spy(targets: Mapping[int, Target], program: str) -> dict[int, Stack]:
    deadline = time.monotonic() + PY_SPY_TIMEOUT_S
    started: dict[int, subprocess.Popen[str]] = {}
    for rank, target in targets.items():
        command = [program, "dump", "--nonblocking", "--json", "--pid", str(target.pid)]
        with contextlib.suppress(OSError):
            started[rank] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
            )
    found: dict[int, Stack] = {}
    for rank, process in started.items():
        try:
            text, _ = process.communicate(timeout=max(0.01, deadline - time.monotonic()))
            found[rank] = parse_py_spy(text)
        except (subprocess.TimeoutExpired, ValueError):
            process.kill()
    _leave(started.values(), time.monotonic() + END_TIMEOUT_S)
    return found


def _leave(tools: Iterable[subprocess.Popen[str]], deadline: float) -> None:
    """Reap tools that were ended. One that stands still in the kernel, as its target may, is reaped later."""
    for tool in tools:
        if tool.stdout is not None:
            tool.stdout.close()  # What the tool has started may hold the other end.
        with contextlib.suppress(subprocess.TimeoutExpired):
            tool.wait(max(0.0, deadline - time.monotonic()))


def _ask_by_signal(targets: Mapping[int, Target]) -> dict[int, Stack]:
    sizes: dict[int, int] = {}
    for rank, target in targets.items():
        size = _size(target)
        if size is not None and catches(target.pid, STACK_SIGNAL):
            with contextlib.suppress(OSError):
                os.kill(target.pid, STACK_SIGNAL)
                sizes[rank] = size
    deadline = time.monotonic() + SIGNAL_TIMEOUT_S
    seen: dict[int, int] = dict(sizes)
    is_quiet = False
    while sizes and not is_quiet and time.monotonic() < deadline:
        time.sleep(SIGNAL_POLL_S)
        now = {rank: _size(targets[rank]) or 0 for rank in sizes}
        is_quiet = now == seen and all(now[rank] > sizes[rank] for rank in sizes)
        seen = now
    return {rank: parse_faulthandler(_read_from(targets[rank], size)) for rank, size in sizes.items()}


def _path(target: Target) -> Path:
    return Path(f"/proc/{target.pid}/fd/{target.stack_fd}")


def _size(target: Target) -> int | None:
    try:
        return _path(target).stat().st_size
    except OSError:
        return None


def _read_from(target: Target, offset: int) -> str:
    try:
        with _path(target).open("rb") as file:
            file.seek(offset)
            return file.read(1 << 20).decode(errors="replace")
    except OSError:
        return ""


def kill(pidfd: int) -> None:
    """End a process for good, if it is still there."""
    with contextlib.suppress(OSError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
