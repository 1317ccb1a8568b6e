"""Where our log lines go: through a bounded queue to standard error, so that no reader of the log can stop a run.

A pipe whose reader has stopped blocks the thread that writes to it. Here that thread does nothing else, and holds no
lock that the end of the process needs. Lines that do not fit into the queue are dropped and counted. Where a program
has configured logging itself, our records reach its handlers by the same way.
"""

from __future__ import annotations

import atexit
import contextlib
import copy
import logging
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

LOGGER = "ft_rendezvous"
FORMAT = "[ft %(asctime)s %(levelname)s] %(message)s"
MAX_WAITING_LINES = 10_000
FLUSH_TIMEOUT_S = 1.0
"""How long a process that ends waits for its last lines to be written."""
FLUSH_POLL_S = 0.01


class QueuedHandler(logging.Handler):
    """Writes lines in a thread of its own. Logging never waits."""

    def __init__(self, write: Callable[[Any], None]) -> None:
        super().__init__()
        self.setFormatter(logging.Formatter(FORMAT))
        self._write_out = write
        # Signal handlers log too: a thread that is inside of this queue may enter it again.
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._taken = self._written = self._dropped = 0
        threading.Thread(target=self._write, name="ft-log", daemon=True).start()

    def emit(self, record: logging.LogRecord) -> None:
        if self._queue.qsize() >= MAX_WAITING_LINES:
            self._dropped += 1
            return
        item = self._prepare(record)
        self._taken += 1  # `handle()` holds this handler's lock.
        self._queue.put(item)

    def _prepare(self, record: logging.LogRecord) -> Any:
        """What to write, with its arguments as they are now."""
        return self._text_of(record) + "\n"

    def _note(self, dropped: int) -> Any:
        return f"[ft] {_describe_dropped(dropped)}\n"

    def _text_of(self, record: logging.LogRecord) -> str:
        try:
            return self.format(record)
        except Exception as error:  # A line that cannot be made must not stop the thread that logs it.
            return f"[ft] a line has no text ({record.pathname}:{record.lineno}): {type(error).__name__}"

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
            item = self._queue.get()
            dropped, self._dropped = self._dropped, 0
            for each in (self._note(dropped), item) if dropped else (item,):
                with contextlib.suppress(OSError):  # A log that is closed must not end this thread.
                    self._write_out(each)
            self._written += 1


class ForwardingHandler(QueuedHandler):
    """Passes records on to the handlers of the root logger, in a thread of its own."""

    def __init__(self) -> None:
        super().__init__(lambda record: logging.getLogger().callHandlers(record))
        self.setFormatter(logging.Formatter("%(message)s"))

    def _prepare(self, record: logging.LogRecord) -> logging.LogRecord:
        prepared = copy.copy(record)
        prepared.msg, prepared.args, prepared.exc_info, prepared.exc_text = self._text_of(record), None, None, None
        prepared.stack_info = None  # The text has it.
        return prepared

    def _note(self, dropped: int) -> logging.LogRecord:
        return logging.LogRecord(LOGGER, logging.WARNING, __file__, 0, _describe_dropped(dropped), None, None)


def _describe_dropped(count: int) -> str:
    return f"{count} lines were dropped here: the program that reads this log is too slow"


def set_up_logging(level: str) -> None:
    """Log to standard error, as torch's elastic package does, or to the handlers that this program has configured.

    Does nothing where our own logger has handlers. A process may have been started without standard error: its file
    number may belong to a socket then.
    """
    log = logging.getLogger(LOGGER)
    is_configured = bool(logging.getLogger().handlers)
    if log.handlers or (sys.stderr is None and not is_configured):
        return
    handler = ForwardingHandler() if is_configured else QueuedHandler(_write_to_stderr)
    atexit.register(_end, handler)
    log.addHandler(handler)
    if not is_configured:
        log.setLevel(level)
    log.propagate = False


def flush_logs() -> None:
    """Write what waits, for at most a second: what this process prints next must not stand in the middle of it."""
    for handler in logging.getLogger(LOGGER).handlers:
        if isinstance(handler, QueuedHandler):
            handler.drain()


def _end(handler: QueuedHandler) -> None:
    """The process ends. A log that is stuck must not keep it: the lock of its handler may never be free again."""
    if not handler.drain():
        atexit.unregister(logging.shutdown)


def _write_to_stderr(text: str) -> None:
    """Write past Python's own buffer: its lock would keep a process that ends while the pipe is full."""
    data = text.encode(sys.stderr.encoding or "utf-8", errors="backslashreplace")
    while data:
        try:
            data = data[os.write(2, data) :]
        except BlockingIOError:  # Another program that shares this pipe has made it so.
            select.select([], [2], [])
