"""Who failed first: a thread that sees a worker's end when it happens, and leaves the zombie to the agent's Popen.

The agent itself looks now and then, and stops the siblings of a failed worker before it says a word.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ft_rendezvous.agent.processes import exit_code_of, open_pidfd, wait_for_any

log = logging.getLogger("ft_rendezvous")

STOP_S = 1.0
"""How long `stop` waits for a report on its way: whoever stops may hold what the report waits for."""


@dataclass(frozen=True, slots=True)
class FirstFailure:
    """The first worker of this node that did not end well; of several seen at once, the lowest local rank."""

    local_rank: int
    exit_code: int | None
    """As subprocess has it, negative for a signal. None if the agent reaped it first: it may even have ended well."""
    after_s: float
    """From the seal until its end was seen."""


class WorkerWatch:
    """Watches the workers of one cycle, which are children of this process, and reports one failure at most."""

    def __init__(self, pids: Mapping[int, int], since: float, on_failure: Callable[[FirstFailure], None]) -> None:
        """`pids` by local rank; `since` is the seal on the monotonic clock. The thread calls `on_failure`."""
        self._since, self._on_failure = since, on_failure
        self.failure: FirstFailure | None = None
        """What was seen so far."""
        self._lock = threading.Lock()
        self._is_stopped = False
        self._fds = contextlib.ExitStack()
        self._ranks: dict[int, int] = {}
        self._lost: list[FirstFailure] = []
        self._wake_fd: int | None = None
        try:
            for local_rank, pid in pids.items():
                self._add(local_rank, pid)
            self._wake_fd = os.eventfd(0)
            self._fds.callback(os.close, self._wake_fd)
        except OSError as error:
            log.warning("no watch on the workers: who fails first will not be known reason=%s", error)
            self._ranks.clear()
        self._thread = threading.Thread(target=self._run, name="ft-worker-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the watch. A failure from before this call is still reported, none once it has returned."""
        with self._lock:
            if self._wake_fd is not None:
                os.eventfd_write(self._wake_fd, 1)
        if threading.current_thread() is not self._thread:
            self._thread.join(STOP_S)
        with self._lock:
            self._is_stopped = True

    def _add(self, local_rank: int, pid: int) -> None:
        try:
            pidfd = open_pidfd(pid)
        except ProcessLookupError:
            self._lost.append(FirstFailure(local_rank, None, time.monotonic() - self._since))
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
            self.failure = failure
        self._on_failure(failure)

    def _await_failure(self) -> FirstFailure | None:
        """The first failure; None when all have ended well or the watch is stopped."""
        failures, is_woken = self._lost, False
        while self._wake_fd is not None and self._ranks and not failures and not is_woken:
            ready = wait_for_any((self._wake_fd, *self._ranks))
            after_s = time.monotonic() - self._since
            is_woken = self._wake_fd in ready
            ended = {self._ranks.pop(pidfd): exit_code_of(pidfd) for pidfd in ready & self._ranks.keys()}
            failures = [FirstFailure(local_rank, code, after_s) for local_rank, code in ended.items() if code != 0]
        # Nobody can say who of several was first; one whose exit code is known tells more than one without.
        return min(failures, key=lambda failure: (failure.exit_code is None, failure.local_rank), default=None)
