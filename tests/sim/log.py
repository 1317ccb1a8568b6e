"""The log of the host, whose reader may be slow or may have stopped: what `host.logs` does with a thread and a queue.

The coordinator does not wait until a line is written. `tests/host/test_logs.py` shows that on real pipes.
"""

from __future__ import annotations

from collections import deque

from ft_rendezvous.host.logs import MAX_WAITING_LINES
from tests.sim.kernel import Process


class SimLog:
    """Takes lines at any speed, and writes one line in `line_s`."""

    def __init__(self, process: Process, line_s: float) -> None:
        self.process = process
        self.line_s = line_s
        self.dropped = 0
        self._written_at: deque[float] = deque()
        """When each waiting line will have been written."""

    def take(self) -> None:
        """The coordinator logs a line."""
        now, waiting = self.process.kernel.now, self._written_at
        while waiting and waiting[0] <= now:
            waiting.popleft()
        if len(waiting) >= MAX_WAITING_LINES:
            self.dropped += 1
        else:
            waiting.append(max(now, waiting[-1] if waiting else now) + self.line_s)
