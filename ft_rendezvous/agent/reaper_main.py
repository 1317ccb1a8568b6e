"""The reaper's own process: waits for the agent to end and, if it went without a word, ends all it left behind.

Run by its path in an isolated interpreter: importing the package, or more of the standard library than this, would
double the time it takes to start. It finds processes by an exact entry in their environment, as it was when they were
started. It trusts no process id: what is killed was looked at while a descriptor held it.
"""

from __future__ import annotations

import os
import select
import signal
import sys
import time

PAUSE_S = 0.05
CALM_SCANS = 2
"""A worker may be caught in the middle of a fork or an exec, where a scan does not see it."""

GIVE_UP_S = 5.0
"""A killed process may stay for long, held by a driver; there is nothing more to do for it."""


def has_ended_without_a_word(agent_fd: int, word_fd: int) -> bool:
    """Wait until the agent ends, or says that it does."""
    poller = select.poll()
    poller.register(agent_fd, select.POLLIN)
    poller.register(word_fd, select.POLLIN)
    os.set_blocking(word_fd, False)
    while True:
        has_ended = agent_fd in dict(poller.poll())
        # Read after the poll: an agent speaks before it ends, so the word of one that has ended is here.
        try:
            word = os.read(word_fd, 1)
        except BlockingIOError:
            word = None
        if word:
            return False
        if has_ended:
            return True
        if word is not None:
            poller.unregister(word_fd)  # Closed, which says nothing: it may have been dropped while the agent lives.


def end_carriers(entry: bytes) -> None:
    """Kill all who have this entry in their environment, until no scan finds one, or it takes too long."""
    deadline = time.monotonic() + GIVE_UP_S
    calm_scans = 0
    while calm_scans < CALM_SCANS and time.monotonic() < deadline:
        found = find_carriers(entry)
        for pid in found:
            _kill(pid, entry)
        calm_scans = 0 if found else calm_scans + 1
        time.sleep(PAUSE_S)


def find_carriers(entry: bytes) -> list[int]:
    """The processes that have this entry in their environment, without this process."""
    return [pid for pid in _other_processes() if _carries(pid, entry)]


def _other_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _carries(pid: int, entry: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environment:
            return entry in environment.read().split(b"\0")
    except OSError:  # It is gone, or another user's.
        return False


def _kill(pid: int, entry: bytes) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        # The id may have gone to another process before the descriptor was opened.
        if _carries(pid, entry):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:  # It was faster.
        return
    finally:
        os.close(pidfd)


if __name__ == "__main__":
    if has_ended_without_a_word(agent_fd=int(sys.argv[1]), word_fd=int(sys.argv[2])):
        end_carriers(os.fsencode(sys.argv[3]))
