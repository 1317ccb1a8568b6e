"""Which worker failed first: a thread that sees the end of a worker at once, and leaves the zombie to torch's Popen.

Torch's agent looks ten times a second, and stops the other workers before it says which one failed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ft_rendezvous.agent.processes import child_exit_code, open_pidfd, wait_for_any

log = logging.getLogger("ft_rendezvous")

STOP_TIMEOUT_S = 1.0
"""How long `stop` waits for a report on its way: the caller may hold a lock that the report needs."""


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """The first worker of this node that did not end well. Of several seen at once, the one with the lowest rank."""

    local_rank: int
    exit_code: int | None
    """As in subprocess: negative for a signal. None if the agent reaped the worker first; it may have ended well."""
    seen_at: float
    """When the watch saw its end, on the monotonic clock."""


class WorkerWatch:
    """Watches the workers of one cycle, which are children of this process, and reports one failure at most."""

    def __init__(self, pids: Mapping[int, int], on_failure: Callable[[FirstFailure], None]) -> None:
        """`pids` are by local rank. The thread calls `on_failure`."""
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._is_stopped = False
        self._fds = contextlib.ExitStack()
        self._ranks: dict[int, int] = {}
        self._already_gone: list[FirstFailure] = []
        self._wake_fd: int | None = None
        try:
            for local_rank, pid in pids.items():
                self._add(local_rank, pid)
            self._wake_fd = os.eventfd(0)
            self._fds.callback(os.close, self._wake_fd)
        except OSError as error:
            log.warning("no watch on the workers: this node cannot say which worker fails first reason=%s", error)
            self._ranks.clear()
        self._thread = threading.Thread(target=self._run, name="ft-worker-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch. It still reports a failure from before this call, and none after this call has returned."""
        with self._lock:
            if self._wake_fd is not None:
                os.eventfd_write(self._wake_fd, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_TIMEOUT_S)
        with self._lock:
            self._is_stopped = True

    def _add(self, local_rank: int, pid: int) -> None:
        try:
            pidfd = open_pidfd(pid)
        except ProcessLookupError:
            self._already_gone.append(FirstFailure(local_rank, None, time.monotonic()))
            return
        self._fds.callback(os.close, pidfd)
        self._ranks[pidfd] = local_rank

    def _run(self) -> None:
        failure = self._await_failure()
        with self._lock:
            self._wake_fd = None
            self._fds.close()
            if failure is None or self._is_stopped:
                return
        self._on_failure(failure)

    def _await_failure(self) -> FirstFailure | None:
        """The first failure; None when all workers have ended well or the watch is stopped."""
        failures, is_woken = self._already_gone, False
        while self._wake_fd is not None and self._ranks and not failures and not is_woken:
            ready = wait_for_any((self._wake_fd, *self._ranks))
            seen_at = time.monotonic()
            is_woken = self._wake_fd in ready
            ended = {self._ranks.pop(pidfd): child_exit_code(pidfd) for pidfd in ready & self._ranks.keys()}
            failures = [FirstFailure(local_rank, code, seen_at) for local_rank, code in ended.items() if code != 0]
        # The order of several ends is unknown. A failure with an exit code says more than one without.
        return min(failures, key=lambda failure: (failure.exit_code is None, failure.local_rank), default=None)
