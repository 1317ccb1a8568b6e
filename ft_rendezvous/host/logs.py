"""Where our log lines go: through a bounded queue to standard error, so that no reader of the log can stop a run.

A pipe whose reader has stopped blocks the thread that writes to it. Here that thread does nothing else, and holds no
lock that the end of the process needs. Lines that do not fit into the queue are dropped and counted.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue

FORMAT = "[ft %(asctime)s %(levelname)s] %(message)s"
MAX_WAITING_LINES = 10_000
FLUSH_TIMEOUT_S = 1.0
"""How long a process that ends waits for its last lines to be written."""
FLUSH_POLL_S = 0.01


class QueuedHandler(logging.Handler):
    """Writes lines in a thread of its own. Logging never waits."""

    def __init__(self, write: Callable[[str], None]) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))
        self._write_out = write
        # Signal handlers log too: a thread that is inside of this queue may enter it again.
        self._queue: SimpleQueue[str] = SimpleQueue()
        self._taken = self._written = self._dropped = 0
        threading.Thread(target=self._write, name="ft-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._queue.qsize() >= MAX_WAITING_LINES:
            self._dropped += 1
            return
        try:
            line = self.format(record)
        except Exception as error:  # A line that cannot be made must not stop the thread that logs it.
            line = f"[ft] a line has no text ({record.pathname}:{record.lineno}): {type(error).__name__}"
        self._taken += 1  # `handle()` holds this handler's lock.
        self._queue.put(line + "\n")

    def drain(self, timeout_s: float = FLUSH_TIMEOUT_S) -> bool:
        """Wait until all lines are written. False if that takes too long."""
        deadline = time.monotonic() + timeout_s
        while self._written < self._taken:
            if time.monotonic() >= deadline:
                return False
            time.sleep(FLUSH_POLL_S)
        return True

    def _write(self) -> None:
        while True:
            line = self._queue.get()
            dropped, self._dropped = self._dropped, 0
            if dropped:
                line = f"[ft] {dropped} lines were dropped here: the program that reads this log is too slow\n{line}"
            with contextlib.suppress(OSError):  # A log that is closed must not end this thread.
                self._write_out(line)
            self._written += 1


def set_up_logging(level: str) -> None:
    """Log to standard error, as torch's elastic package does. Does nothing where logging is configured.

    A process may have been started without standard error. Its file number may belong to a socket then.
    """
    log = logging.getLogger("ft_rendezvous")
    if log.handlers or logging.getLogger().handlers or sys.stderr is None:
        return
    handler = QueuedHandler(_write_to_stderr)
    atexit.register(handler.drain)
    log.addHandler(handler)
    log.setLevel(level)
    log.propagate = False


def _write_to_stderr(text: str) -> None:
    """Write past Python's own buffer: its lock would keep a process that ends while the pipe is full."""
    data = text.encode(sys.stderr.encoding or "utf-8", errors="backslashreplace")
    while data:
        try:
            data = data[os.write(2, data) :]
        except BlockingIOError:  # Another program that shares this pipe has made it so.
            select.select([], [2], [])
