"""What the system knows about a process: a descriptor that means it alone, how it ended, which signals it catches.

Nothing here raises because a process is gone: processes end when they like.
"""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterable

_P_PIDFD = getattr(os, "P_PIDFD", 3)  # A Python that was built with older headers does not name it.


def open_pidfd(pid: int) -> int:
    """A descriptor of this very process, even after its id went to another. Raises OSError where there are none."""
    if not hasattr(os, "pidfd_open"):
        raise OSError(errno.ENOSYS, "this system or this Python has no pidfd_open")
    return os.pidfd_open(pid)


def wait_for_any(fds: Iterable[int]) -> set[int]:
    """Wait until something can be read, or a process has ended, and say where."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return {fd for fd, _ in poller.poll()}


def exit_code_of(pidfd: int) -> int | None:
    """How a child ended that has ended: as subprocess has it, None if it was reaped already. Does not reap it.

    May wait, for as long as a debugger holds the child's end back.
    """
    try:
        end = os.waitid(_P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return None
    assert end is not None, "only a wait that does not block comes back without an answer"
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def catches(pid: int, signum: int) -> bool:
    """Whether a process has a handler for this signal; one that is gone, or that nobody may look at, has none."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            caught = next((int(line.split()[1], 16) for line in status if line.startswith(b"SigCgt:")), 0)
    except OSError:
        return False
    return bool(caught >> (signum - 1) & 1)


def forward(signum: int, pids: Iterable[int]) -> list[int]:
    """Send a signal to those who catch it, and say who they are.

    The others are left alone: a SIGUSR1 without a handler is a death sentence. A worker that is still starting has
    no handler yet, so it gets nothing.
    """
    reached: list[int] = []
    for pid in pids:
        if not catches(pid, signum):
            continue
        try:
            os.kill(pid, signum)
        except OSError:  # It ended meanwhile, or became another user's.
            continue
        reached.append(pid)
    return reached
