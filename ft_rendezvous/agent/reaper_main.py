"""The reaper's own process: waits for the agent to end. If the agent did not dismiss it, it kills the agent's workers.

An isolated interpreter runs this file by its path: to import the package, or more of the standard library, would double
the time until it has started. It finds processes by an exact entry: in the environment that they were started with, or
as the name of a file in memory that they hold, which a fork of the agent inherits. It trusts no process id: it checks a
process again while it holds a descriptor of it, and only then kills it.
"""

from __future__ import annotations

import _socket
import os
import select
import signal
import sys
import time

DISMISS_WORD = b"."
LIFELINE_WORD = b"L"
"""Comes with the descriptor of a lifeline."""
FD_BYTES = 4

SCAN_INTERVAL_S = 0.05
EMPTY_SCANS_NEEDED = 2
"""So many scans in a row must find no process: a scan does not see a worker in the middle of a fork or an exec."""

REAP_TIMEOUT_S = 5.0
"""After this time the reaper gives up. A driver can keep a killed process for long, and nothing can end it."""


class Control:
    """The reaper's end of what connects it to the agent."""

    def __init__(self, fd: int) -> None:
        # The module behind `socket`, which alone takes longer to import than all else here.
        self._socket = _socket.socket(fileno=fd)
        self._socket.setblocking(False)
        self.lifeline_fd: int | None = None
        """The agent's newest lifeline."""
        self.is_dismissed = False
        self.is_closed = False

    def read(self) -> None:
        """Take all that the agent has sent."""
        while not (self.is_dismissed or self.is_closed):
            try:
                word, attached, _, _ = self._socket.recvmsg(16, _socket.CMSG_SPACE(FD_BYTES))
            except BlockingIOError:
                return
            except OSError:
                word, attached = b"", []
            fds = [int.from_bytes(data[:FD_BYTES], sys.byteorder) for _, _, data in attached]
            self.is_dismissed = word == DISMISS_WORD
            self.is_closed = not word
            if fds:
                if self.lifeline_fd is not None:
                    os.close(self.lifeline_fd)
                self.lifeline_fd = fds[0]

    def say_dead(self) -> None:
        """Tell the host that the agent has ended. A lifeline that has ended says nothing any more."""
        if self.lifeline_fd is not None:
            try:
                os.set_blocking(self.lifeline_fd, False)
                os.write(self.lifeline_fd, b"dead\n")
            except OSError:
                pass


def has_ended_without_dismissal(agent_fd: int, control_fd: int, control: Control) -> bool:
    """Wait until the agent ends or dismisses the reaper."""
    poller = select.poll()
    poller.register(agent_fd, select.POLLIN)
    poller.register(control_fd, select.POLLIN)
    while True:
        has_ended = agent_fd in dict(poller.poll())
        # Read after the poll: an agent writes before it ends. If it has ended, what it wrote is here.
        control.read()
        if control.is_dismissed:
            return False
        if has_ended:
            return True
        if control.is_closed:
            poller.unregister(control_fd)  # Closed, not dismissed: the agent may still live.
            control.is_closed = False


def end_carriers(entry: bytes) -> None:
    """Kill all processes that carry this entry, until no scan finds one or the time is over."""
    deadline = time.monotonic() + REAP_TIMEOUT_S
    empty_scans = 0
    while empty_scans < EMPTY_SCANS_NEEDED and time.monotonic() < deadline:
        found = find_carriers(entry)
        for pid in found:
            _kill(pid, entry)
        empty_scans = 0 if found else empty_scans + 1
        time.sleep(SCAN_INTERVAL_S)


def find_carriers(entry: bytes) -> list[int]:
    """The processes that carry this entry, without this process."""
    return [pid for pid in _other_processes() if _carries(pid, entry)]


def _other_processes() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != os.getpid()]


def _carries(pid: int, entry: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as environment:
            return entry in environment.read().split(b"\0") or _holds(pid, b"/memfd:%b (deleted)" % entry)
    except OSError:  # It is gone, or belongs to another user.
        return False


def _holds(pid: int, file: bytes) -> bool:
    folder = b"/proc/%d/fd/" % pid
    for name in os.listdir(folder):
        try:
            if os.readlink(folder + name) == file:
                return True
        except FileNotFoundError:  # It has closed this one.
            continue
    return False


def _kill(pid: int, entry: bytes) -> None:
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return
    try:
        # Another process may have got the id before the descriptor was opened.
        if _carries(pid, entry):
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    except OSError:  # It ended by itself.
        return
    finally:
        os.close(pidfd)


def main(agent_fd: int, control_fd: int, entry: str) -> None:
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    control = Control(control_fd)
    if has_ended_without_dismissal(agent_fd, control_fd, control):
        control.say_dead()
        end_carriers(os.fsencode(entry))


if __name__ == "__main__":
    main(agent_fd=int(sys.argv[1]), control_fd=int(sys.argv[2]), entry=sys.argv[3])
