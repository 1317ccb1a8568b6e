"""The agent's side of its nursery: starts it, replaces it if it has ended, and ends it with the agent.

The nursery carries the agent's marker, and so do its forks: the reaper of a killed agent finds them all. Its socket
listens before it imports, and ends with it: a client that comes while the nursery imports waits, and one that comes
after its end is refused at once and starts cold.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from ft_rendezvous.config.load import own_environment
from ft_rendezvous.env_names import MARKER_VARIABLE, NURSERY_VARIABLE
from ft_rendezvous.host.side_process import SURVIVED_SIGNALS
from ft_rendezvous.warm.nursery_main import READY_NAME

log = logging.getLogger("ft_rendezvous")

PROGRAM = "ftr-python"
"""What PYTHON_EXEC names for warm workers."""
CLIENT = Path(__file__).with_name("client.py")
MAX_STARTS = 5
"""A nursery that ends again and again is not worth its imports."""
END_TIMEOUT_S = 5.0
BACKLOG = 1024

ALWAYS = ("torch", "torch._dynamo")
"""Torch imports the second one when the first optimizer is made. That takes as long as all else."""

_PROGRAM_FILE = Path(__file__).with_name("nursery_main.py")


def find_command(entrypoint: object, args: Sequence[object]) -> tuple[str, tuple[object, ...]] | None:
    """The command that starts a client, if this is the entry point of warm workers of this Python; else None.

    Torchrun would start the console script, whose interpreter reads all of site-packages first.
    """
    if not isinstance(entrypoint, str) or os.path.basename(entrypoint) != PROGRAM:
        return None
    found = shutil.which(entrypoint)
    if found is not None and os.path.realpath(os.path.dirname(found)) != _own_folder():
        log.warning("%s belongs to another Python than this torchrun: workers start cold", found)
        return None
    return sys.executable, ("-I", "-S", str(CLIENT), *args)


def is_ready(pid: int) -> bool:
    """Whether this process is a nursery that has done its imports."""
    try:
        with open(f"/proc/{pid}/comm", "rb") as name:
            return name.read().rstrip(b"\n") == READY_NAME
    except OSError:  # It has ended.
        return False


def _own_folder() -> str:
    return os.path.realpath(os.path.dirname(sys.executable))


class Nursery:
    """The nursery of one agent."""

    def __init__(self, marker: str, modules: Sequence[str] = ALWAYS) -> None:
        """Start it, to import these modules and those of FT_PRELOAD. Raises OSError where there can be none."""
        self._marker = marker
        self._modules = modules
        self._name = f"@ft-rendezvous/nursery/{secrets.token_hex(16)}"
        self.address = f"{self._name}:{os.getpid()}:{secrets.token_hex(16)}"
        """What workers find as FT_NURSERY; see `client.parse_address`."""
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def keep(self) -> None:
        """Start another nursery if this one has ended. Never raises: workers start cold without it."""
        process = self._process
        if process is None or process.poll() is None:
            return
        if self._starts >= MAX_STARTS:
            log.warning("the nursery has ended %d times: workers start cold from now on", self._starts)
            self._process = None
            return
        log.warning("the nursery has ended exit_code=%d: starting another one", process.returncode)
        try:
            self._start()
        except OSError as error:
            # It may be possible later, for the next workers.
            log.warning("no nursery: workers start cold reason=%s", error)
            self._starts += 1

    def end(self) -> None:
        """End it. Workers that it has forked are not touched. Never raises."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(END_TIMEOUT_S)

    def _start(self) -> None:
        if not hasattr(os, "pidfd_open"):
            raise OSError(errno.ENOSYS, "this system or this Python has no pidfd_open")
        with contextlib.ExitStack() as for_child:
            listener = for_child.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            listener.bind("\0" + self._name[1:])
            listener.listen(BACKLOG)
            agent_fd = os.pidfd_open(os.getpid())
            for_child.callback(os.close, agent_fd)
            fds = (listener.fileno(), agent_fd)
            program = (sys.executable, "-u", str(_PROGRAM_FILE))
            # A child inherits the blocked signals: it survives those that a job's end sends to every process.
            former_mask = signal.pthread_sigmask(signal.SIG_BLOCK, SURVIVED_SIGNALS)
            try:
                self._process = subprocess.Popen(
                    (*program, *map(str, fds), *self._modules),
                    env={**own_environment(), MARKER_VARIABLE: self._marker, NURSERY_VARIABLE: self.address},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=fds,
                    start_new_session=True,
                )
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, former_mask)
        self._starts += 1
