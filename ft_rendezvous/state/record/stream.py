"""Events on their way to somebody who may be slow, or gone: folded at once, kept up to a limit, told again if lost.

The one who tells never waits and never needs more than so much memory. What does not fit is dropped, and made good by
the whole state as soon as the other side takes something again.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import deque
from collections.abc import Callable

from ft_rendezvous.state.model.events import Event, encode_line, take_event, tell_state
from ft_rendezvous.state.model.run_state import RunState

MOST_BYTES = 16 << 20


def write_all(fd: int, data: bytes, write: Callable[[int, memoryview], int] = os.write) -> None:
    """Write until nothing is left; blocks where the other side does."""
    left = memoryview(data)
    while left:
        written = write(fd, left)
        if not written:
            raise OSError(errno.EIO, "nothing was written")
        left = left[written:]


class Stream:
    """One fold, and the lines that wait to be taken; for several threads."""

    def __init__(self, state: RunState | None = None, most_bytes: int = MOST_BYTES) -> None:
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
        """Fold an event, and keep its line for whoever takes. Raises ProtocolBug for what cannot follow.

        False if the line was dropped: the other side is too slow.
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
        """Whole lines, all that wait; blocks until there are some. None when the stream is closed and empty."""
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._is_behind or self._is_closed)
            if self._is_behind:
                self._is_behind = False
                return tell_state(self._state)
            taken = b"".join(self._lines)
            self._lines.clear()
            self._waiting_bytes = 0
            return taken or None

    def lose(self, taken: bytes) -> None:
        """What was taken did not arrive: the next to be taken is the whole state."""
        with self._changed:
            self._drop(taken.count(b"\n"))

    def tell_if_idle(self) -> bytes | None:
        """The state, where nothing waits to be taken; so whoever has taken everything may begin anew with it."""
        with self._changed:
            return None if self._lines or self._is_behind else tell_state(self._state)

    def tell(self) -> bytes:
        with self._changed:
            return tell_state(self._state)

    def close(self) -> None:
        """No more will be put."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _drop(self, others: int) -> None:
        self.dropped += others + len(self._lines)
        self._lines.clear()
        self._waiting_bytes = 0
        self._is_behind = True
