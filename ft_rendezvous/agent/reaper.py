"""Ends the workers of an agent that was killed: a small process that outlives the agent by a moment.

Torch starts workers in sessions of their own, and a killed agent runs no code, so nothing of the agent's can end
them. The reaper holds the agent's pidfd, opened before it is started, and finds the workers by a marker variable in
their environment. What it must not do:

- act after an orderly end: a worker's helper, say an uploader, may outlive the agent;
- die before the agent: SLURM's scancel sends SIGTERM to every process of the step;
- carry the marker, of this agent or of one further out, or keep any of the agent's files, pipes or sockets open.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from ft_rendezvous.agent.processes import open_pidfd
from ft_rendezvous.env_names import MARKER_VARIABLE

log = logging.getLogger("ft_rendezvous")

FAREWELL_S = 1.0
"""How long a dismissed reaper may take to leave before it is killed."""

_PROGRAM = Path(__file__).with_name("reaper_main.py")
_OUTLIVED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    word_fd: int


class Reaper:
    """The agent's side of it. Start it before the first worker, dismiss it at the end of every orderly way out."""

    def __init__(self, child: _Child | None) -> None:
        self._child = child

    @classmethod
    def start(cls, marker: str) -> Reaper:
        """A reaper of all processes with FT_AGENT_ID=`marker`; one that does nothing where the system has no pidfds."""
        try:
            return cls(_start_child(f"{MARKER_VARIABLE}={marker}"))
        except OSError as error:
            log.warning("no reaper: the workers of a killed agent would live on here reason=%s", error)
            return cls(None)

    @property
    def pid(self) -> int | None:
        """The reaper's process, while there is one to dismiss."""
        return self._child.process.pid if self._child is not None else None

    def dismiss(self) -> None:
        """Send the reaper away with nothing done, and collect it. Never raises; a second call does nothing."""
        child, self._child = self._child, None
        if child is None:
            return
        if child.process.poll() is not None:
            log.warning("the reaper was gone before its agent exit_code=%d", child.process.returncode)
        with contextlib.suppress(OSError):  # Nobody may be there to read it.
            os.write(child.word_fd, b".")
        os.close(child.word_fd)
        try:
            child.process.wait(FAREWELL_S)
        except subprocess.TimeoutExpired:
            child.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(FAREWELL_S)


def _start_child(entry: str) -> _Child:
    with contextlib.ExitStack() as handed_over, contextlib.ExitStack() as kept:
        agent_fd = open_pidfd(os.getpid())
        handed_over.callback(os.close, agent_fd)
        hearing_fd, word_fd = os.pipe()
        handed_over.callback(os.close, hearing_fd)
        kept.callback(os.close, word_fd)
        # `env` takes the marker out and keeps the rest, which the interpreter may need (LD_LIBRARY_PATH).
        without_marker = ("env", "-u", MARKER_VARIABLE)
        isolated_python = (sys.executable, "-I", "-S", str(_PROGRAM))
        # A child inherits what is blocked: so it outlives these signals from its first instruction on.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, _OUTLIVED)
        try:
            process = subprocess.Popen(
                (*without_marker, *isolated_python, str(agent_fd), str(hearing_fd), entry),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(agent_fd, hearing_fd),
                cwd="/",
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        kept.pop_all()
        return _Child(process, word_fd)
