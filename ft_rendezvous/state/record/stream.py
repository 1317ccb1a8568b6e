"""A queue of events to a reader that may be slow or gone: folded at once, kept up to a limit, replaced if lost.

The writer never waits and never needs more memory than the limit. Lines that do not fit are dropped. The reader gets
the whole state instead as soon as it takes again.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable

from ft_rendezvous.state.model.events import Event, encode_line, encode_state_line, take_event
from ft_rendezvous.state.model.run_state import RunState

MAX_WAITING_BYTES = 16 << 20


def write_all(fd: int, data: bytes, write: Callable[[int, memoryview], int] = os.write) -> None:
    """Write all bytes; blocks as long as the other side does."""
    left = memoryview(data)
    while left:
        written = write(fd, left)
        if not written:
            raise OSError(errno.EIO, "nothing was written")
        left = left[written:]


class Stream:
    """One fold, and the lines that wait for the reader. Thread-safe."""

    def __init__(self, state: RunState | None = None, most_bytes: int = MAX_WAITING_BYTES) -> None:
        self._state = state or RunState()
        self._most_bytes = most_bytes
        self._lines: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._is_behind = False
        self._is_closed = False
        self._changed = threading.Condition()
        self.dropped = 0
        """Lines that did not fit, or did not arrive."""

    def put(self, event: Event, line: bytes | None = None) -> bool:
        """Fold an event, and keep its line for the reader. Raises ProtocolBug for an event that cannot follow.

        False if the line was dropped: the reader is too slow.
        """
        line = encode_line(event) if line is None else line
        with self._changed:
            self._state = take_event(self._state, event)
            if not self._is_behind and self._waiting_bytes + len(line) > self._most_bytes:
                self._drop(0)
            if self._is_behind:
                self.dropped += 1
            else:
                self._lines.append(line)
                self._waiting_bytes += len(line)
            self._changed.notify_all()
            return not self._is_behind

    def take(self) -> bytes | None:
        """All lines that wait; blocks until there are some. None when the stream is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._is_behind or self._is_closed)
            if self._is_behind:
                self._is_behind = False
                return encode_state_line(self._state)
            taken = b"".join(self._lines)
            self._lines.clear()
            self._waiting_bytes = 0
            return taken or None

    def lose(self, taken: bytes) -> None:
        """Lines that were taken did not arrive: the reader gets the whole state next."""
        with self._changed:
            self._drop(taken.count(b"\n"))

    def state_line_if_idle(self) -> bytes | None:
        """The whole state as a line, if no line waits: a reader that has taken all lines may begin anew with it."""
        with self._changed:
            return None if self._lines or self._is_behind else encode_state_line(self._state)

    def state_line(self) -> bytes:
        with self._changed:
            return encode_state_line(self._state)

    def close(self) -> None:
        """No more events will be put."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _drop(self, others: int) -> None:
        self.dropped += others + len(self._lines)
        self._lines.clear()
        self._waiting_bytes = 0
        self._is_behind = True
