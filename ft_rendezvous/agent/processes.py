"""What the system knows about a process: a descriptor for it alone, how it ended, which signals it catches, its boot.

A process can end at any moment, so only `open_pidfd` raises for a process that is gone.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import time
from collections.abc import Iterable

from ft_rendezvous.warm.client import WORKER_FD

_P_PIDFD = getattr(os, "P_PIDFD", 3)  # A Python that was built with older headers lacks the name.


def open_pidfd(pid: int) -> int:
    """A descriptor of this very process, even after another process got its id. Raises OSError if there can be none."""
    if not hasattr(os, "pidfd_open"):
        raise OSError(errno.ENOSYS, "this system or this Python has no pidfd_open")
    return os.pidfd_open(pid)


def wait_for_any(fds: Iterable[int], timeout_ms: int | None = None) -> set[int]:
    """Wait until a descriptor can be read or its process has ended, and return all such descriptors."""
    poller = select.poll()
    for fd in fds:
        poller.register(fd, select.POLLIN)
    return {fd for fd, _ in poller.poll(timeout_ms)}


def child_exit_code(pidfd: int) -> int | None:
    """How a child that has ended did so, as in subprocess; None if it was reaped already. Does not reap it.

    Waits while a debugger holds back the child's end.
    """
    try:
        end = os.waitid(_P_PIDFD, pidfd, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        return None
    assert end is not None, "only a wait with WNOHANG returns None"
    return end.si_status if end.si_code == os.CLD_EXITED else -end.si_status


def read_boot_id() -> str:
    """Names this boot of this machine, in eight characters; empty where the system does not say."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as boot_id:
            return boot_id.read(8)
    except OSError:
        return ""


def catches(pid: int, signum: int) -> bool:
    """Whether a process has a handler for this signal. False if it is gone or may not be read."""
    try:
        with open(f"/proc/{pid}/status", "rb") as status:
            caught = next((int(line.split()[1], 16) for line in status if line.startswith(b"SigCgt:")), 0)
    except OSError:
        return False
    return bool(caught >> (signum - 1) & 1)


def find_worker(pid: int) -> int:
    """The process that does the work of this worker: of a warm worker, torch knows the client alone."""
    try:
        with open(f"/proc/{pid}/fdinfo/{WORKER_FD}", "rb") as info:
            found = next((int(line.split()[1]) for line in info if line.startswith(b"Pid:")), 0)
    except OSError:
        return pid
    return found if found > 0 else pid


def open_workers(pids: Iterable[int]) -> list[int]:
    """A descriptor of each process that works behind one of these. None for a process that does its work itself."""
    fds = []
    for pid in pids:
        worker = find_worker(pid)
        if worker != pid:
            with contextlib.suppress(OSError):  # It has ended.
                fds.append(open_pidfd(worker))
    return fds


def close_after_end(fds: Iterable[int], timeout_s: float) -> int:
    """Wait until the processes of these descriptors have ended, and close them. How many are left after that time."""
    left, deadline = set(fds), time.monotonic() + timeout_s
    while left and (remaining_s := deadline - time.monotonic()) > 0:
        for fd in wait_for_any(left, int(remaining_s * 1000) + 1):
            left.discard(fd)
            os.close(fd)
    for fd in left:
        os.close(fd)
    return len(left)


def forward(signum: int, pids: Iterable[int]) -> list[int]:
    """Send a signal to the processes that catch it, and return their ids.

    The others get nothing, because a SIGUSR1 kills a process without a handler. A worker that is still starting has no
    handler yet, so it gets nothing either.
    """
    reached: list[int] = []
    for pid in map(find_worker, pids):
        if not catches(pid, signum):
            continue
        try:
            os.kill(pid, signum)
        except OSError:  # It has ended, or now belongs to another user.
            continue
        reached.append(pid)
    return reached
