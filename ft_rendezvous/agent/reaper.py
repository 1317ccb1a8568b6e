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
- carry the marker of this agent or of an outer agent, or keep any file, pipe or socket of the agent open, but its
  lifeline. On that it says that the agent is dead: the host need not wait for a sign of life.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
from dataclasses import dataclass
from pathlib import Path

from ft_rendezvous.agent.processes import open_pidfd
from ft_rendezvous.agent.reaper_main import DISMISS_WORD, LIFELINE_WORD
from ft_rendezvous.env_names import MARKER_VARIABLE
from ft_rendezvous.host.side_process import start_beside

log = logging.getLogger("ft_rendezvous")

DISMISS_TIMEOUT_S = 1.0
"""How long a dismissed reaper may take to end before the agent kills it."""

_PROGRAM = Path(__file__).with_name("reaper_main.py")


@dataclass(frozen=True, slots=True)
class _Child:
    process: subprocess.Popen[str]
    control: socket.socket
    """Carries lifelines, and the word that dismisses the reaper."""
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

    def hold_lifeline(self, fd: int) -> None:
        """Let the reaper hold this lifeline, in place of an earlier one. Never raises: a lease is judged without it."""
        child = self._child
        if child is not None:
            with contextlib.suppress(OSError):  # The reaper may have ended.
                socket.send_fds(child.control, [LIFELINE_WORD], [fd], socket.MSG_DONTWAIT)

    def dismiss(self) -> None:
        """End the reaper before it acts, and reap it. Never raises; a second call does nothing."""
        child, self._child = self._child, None
        if child is None:
            return
        if child.process.poll() is not None:
            log.warning("the reaper ended before its agent exit_code=%d", child.process.returncode)
        with contextlib.suppress(OSError):  # The reaper may have ended.
            child.control.send(DISMISS_WORD, socket.MSG_DONTWAIT)
        child.control.close()
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
        control, childs_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for_child.enter_context(childs_end)
        kept.enter_context(control)
        mark_fd = os.memfd_create(entry)
        kept.callback(os.close, mark_fd)
        fds = (agent_fd, childs_end.fileno())
        process = start_beside(_PROGRAM, (*map(str, fds), entry), fds)
        kept.pop_all()
        return _Child(process, control, mark_fd)
