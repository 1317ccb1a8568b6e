"""Ends the workers of a killed agent: a small process that outlives the agent by a moment.

Torch starts workers in sessions of their own, and a killed agent runs no code, so the agent itself cannot end them.
The reaper holds the agent's pidfd, which the agent opened before it started the reaper. It finds the workers by a
marker that they inherit:

- a program that was started anew has it as a variable in its environment;
- a fork of the agent (`start_method="fork"`) shows the environment that the agent itself was started with. But it
  inherits the agent's descriptors, so it holds a file without a place on any disk that has the marker as its name.

It must not:

- act after an orderly end: a helper that a worker started, for example an uploader, may outlive the agent;
- die before the agent: SLURM's scancel sends SIGTERM to every process of the step;
- carry the marker of this agent or of an outer agent, or keep any file, pipe or socket of the agent open.
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

DISMISS_TIMEOUT_S = 1.0
"""How long a dismissed reaper may take to end before the agent kills it."""

_PROGRAM = Path(__file__).with_name("reaper_main.py")
_SURVIVED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


@dataclass(frozen=True, slots=True)
class _Child:
    process: subprocess.Popen[bytes]
    dismiss_fd: int
    mark_fd: int
    """Forks of the agent inherit it. A program that is started anew does not."""


class Reaper:
    """The agent's side of the reaper. Start it before the first worker, and dismiss it at every orderly end."""

    def __init__(self, child: _Child | None) -> None:
        self._child = child

    @classmethod
    def start(cls, marker: str) -> Reaper:
        """A reaper of all processes that inherit FT_AGENT_ID=`marker`. Does nothing where the system has no pidfds."""
        try:
            return cls(_start_child(f"{MARKER_VARIABLE}={marker}"))
        except OSError as error:
            log.warning("no reaper: if this agent is killed, its workers live on reason=%s", error)
            return cls(None)

    @property
    def pid(self) -> int | None:
        """The reaper's process id; None if there is no reaper, or it was dismissed."""
        return self._child.process.pid if self._child is not None else None

    def dismiss(self) -> None:
        """End the reaper before it acts, and reap it. Never raises; a second call does nothing."""
        child, self._child = self._child, None
        if child is None:
            return
        if child.process.poll() is not None:
            log.warning("the reaper ended before its agent exit_code=%d", child.process.returncode)
        with contextlib.suppress(OSError):  # The reaper may have ended.
            os.write(child.dismiss_fd, b".")
        os.close(child.dismiss_fd)
        os.close(child.mark_fd)
        try:
            child.process.wait(DISMISS_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(DISMISS_TIMEOUT_S)


def _start_child(entry: str) -> _Child:
    with contextlib.ExitStack() as for_child, contextlib.ExitStack() as kept:
        agent_fd = open_pidfd(os.getpid())
        for_child.callback(os.close, agent_fd)
        listen_fd, dismiss_fd = os.pipe()
        for_child.callback(os.close, listen_fd)
        kept.callback(os.close, dismiss_fd)
        mark_fd = os.memfd_create(entry)
        kept.callback(os.close, mark_fd)
        # `env` removes the marker and keeps the rest: the interpreter may need LD_LIBRARY_PATH.
        without_marker = ("env", "-u", MARKER_VARIABLE)
        isolated_python = (sys.executable, "-I", "-S", str(_PROGRAM))
        # A child inherits the blocked signals, so it survives them from its first instruction on.
        former_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SURVIVED_SIGNALS)
        try:
            process = subprocess.Popen(
                (*without_marker, *isolated_python, str(agent_fd), str(listen_fd), entry),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=(agent_fd, listen_fd),
                cwd="/",
                start_new_session=True,
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, former_mask)
        kept.pop_all()
        return _Child(process, dismiss_fd, mark_fd)
