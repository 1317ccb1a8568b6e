"""The export log: a run's events as lines of JSON, in files that are rotated by size (`folders` names them).

Every file but the first begins with the state so far, so that it can be read alone. A disk that is full, read-only or
slow costs events, one warning and no memory. When there is room again, the log goes on with the whole state.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path

from ft_rendezvous.state.model.events import Event
from ft_rendezvous.state.record.folders import file_name, list_files
from ft_rendezvous.state.record.stream import Stream, write_all

log = logging.getLogger("ft_rendezvous")

LOG_BYTES = 100_000_000
DISK_RETRY_DELAY_S = 5.0
"""How long to wait after a disk has refused to write."""


class ExportLog:
    """Writes lines to the log, in a thread of its own."""

    def __init__(
        self,
        folder: Path,
        log_bytes: int = LOG_BYTES,
        retry_s: float = DISK_RETRY_DELAY_S,
        write: Callable[[int, memoryview], int] = os.write,
    ) -> None:
        self._folder, self._log_bytes, self._retry_s, self._write = folder, log_bytes, retry_s, write
        self._stream = Stream()
        self._ended = threading.Event()
        self._fd: int | None = None
        self._size_bytes = 0
        self._rotate_bytes = log_bytes
        self._is_refused = False
        self._is_slow = False
        self._thread = threading.Thread(target=self._run, name="ft-export-log", daemon=True)
        self._thread.start()

    def put(self, event: Event, line: bytes) -> None:
        """Never waits for the disk."""
        if not self._stream.put(event, line) and not (self._is_slow or self._is_refused):
            self._is_slow = True
            log.warning("the disk of %s is too slow: events are missing there; training goes on", self._folder)

    def close(self, timeout_s: float) -> bool:
        """Write all lines that wait. False if the disk does not take them in time."""
        self._stream.close()
        self._ended.set()
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        while (lines := self._stream.take()) is not None:
            try:
                self._append(lines)
                self._rotate_if_due()
            except OSError as error:
                self._refused(error)
                self._stream.lose(lines)
                if self._ended.is_set():
                    break  # This was the last try.
                self._ended.wait(self._retry_s)
        self._close_file()

    def _append(self, lines: bytes) -> None:
        if self._fd is None:
            self._open_next()
        assert self._fd is not None
        try:
            write_all(self._fd, lines, self._write)
        except OSError:
            self._cut_torn_line(self._fd)
            raise
        self._size_bytes += len(lines)
        if self._is_refused:
            self._is_refused = False
            log.info(
                "the state is written to %s again; %d events are missing there", self._folder, self._stream.dropped
            )

    def _open_next(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        files = list_files(self._folder)
        path = self._folder / file_name(files[-1][0] + 1 if files else 1)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        self._size_bytes, self._rotate_bytes = 0, self._log_bytes

    def _rotate_if_due(self) -> None:
        if self._size_bytes < self._rotate_bytes:
            return
        state = self._stream.state_line_if_idle()
        if state is not None:
            self._close_file()
            self._open_next()
            # A state that fills a file alone must not be written again after every event.
            self._rotate_bytes = max(self._log_bytes, 2 * len(state))
            self._append(state)

    def _cut_torn_line(self, fd: int) -> None:
        """Take back the lines that were written in part; if that fails too, the next file goes on."""
        try:
            os.ftruncate(fd, self._size_bytes)
        except OSError:
            self._close_file()

    def _close_file(self) -> None:
        fd, self._fd = self._fd, None
        if fd is not None:
            try:
                os.fsync(fd)
            except OSError as error:
                self._refused(error)
            finally:
                os.close(fd)

    def _refused(self, error: OSError) -> None:
        if not self._is_refused:
            self._is_refused = True
            log.warning(
                "the state cannot be written to %s: %s; training goes on, and it is tried again every %g s",
                self._folder,
                error.strerror or error,
                self._retry_s,
            )
