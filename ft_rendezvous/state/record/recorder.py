"""The recorder: entries of the journal get numbers and times, are folded, and go to the keeper if there is one.

The coordinator only puts an entry into a queue. A thread of the recorder does the rest a moment later, many entries at
a time, so that a seal does not wait for it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from ft_rendezvous.protocol.journal import Entry
from ft_rendezvous.state.model.events import encode_line, make_event
from ft_rendezvous.state.model.run_state import HISTORY, RunState
from ft_rendezvous.state.record.keeper_pipe import KeeperPipe
from ft_rendezvous.state.record.stream import MAX_WAITING_BYTES, Stream

log = logging.getLogger("ft_rendezvous")

GATHER_DELAY_S = 0.02
"""How long to let entries gather: at a seal the coordinator needs the interpreter."""
MAX_RECENT_EVENTS = 2_000
MAX_RECENT_BYTES = 4 << 20
CLOSE_TIMEOUT_S = 5.0


class Recorder:
    """What is known of the run that this process hosts."""

    def __init__(
        self,
        history: int = HISTORY,
        start_pipe: Callable[[Stream], KeeperPipe] | None = None,
        stamp: Callable[[], int] = time.time_ns,
    ) -> None:
        self._stamp = stamp
        # Without a keeper, no lines are kept for it.
        self._stream = Stream(RunState(history=history), MAX_WAITING_BYTES if start_pipe else 0)
        self._pipe = None if start_pipe is None else start_pipe(self._stream)
        self._queue: SimpleQueue[tuple[int, Entry] | None] = SimpleQueue()
        self._recent: deque[tuple[int, bytes]] = deque()
        self._recent_bytes = 0
        self._event_id = 0
        self._time_ns = 0
        self._lock = threading.Lock()
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ft-recorder", daemon=True)
        self._thread.start()

    def __call__(self, entry: Entry) -> None:
        self._queue.put((self._stamp(), entry))

    def look(self, after: int) -> tuple[bytes, list[bytes]]:
        """The state as a line, and the lines of later events, as far as they are kept."""
        with self._lock:
            return self._stream.state_line(), [line for event_id, line in self._recent if event_id > after]

    def close(self) -> None:
        """Record all entries so far, and end the keeper."""
        self._is_closing.set()
        self._queue.put(None)
        self._thread.join(CLOSE_TIMEOUT_S)
        self._stream.close()
        if self._pipe is not None:
            self._pipe.close()

    def _run(self) -> None:
        try:
            while self._record_batch():
                pass
        except Exception:  # A bug of ours in the record of a run must not harm the run.
            log.exception("nothing more is recorded of this run; training goes on")
            while self._queue.get() is not None:
                pass

    def _record_batch(self) -> bool:
        """Wait for entries, let more of them gather, and record them all. False after the last."""
        batch = [self._queue.get()]
        self._is_closing.wait(GATHER_DELAY_S)
        while not self._queue.empty():
            batch.append(self._queue.get())
        for item in batch:
            if item is None:
                return False
            self._record(*item)
        return True

    def _record(self, time_ns: int, entry: Entry) -> None:
        # A clock may be set back; the time of an event is never before the event before it.
        self._time_ns = max(self._time_ns, time_ns)
        event = make_event(self._event_id + 1, self._time_ns, entry)
        line = encode_line(event)
        with self._lock:
            self._stream.put(event, line)
            self._event_id += 1
            self._recent.append((event.event_id, line))
            self._recent_bytes += len(line)
            while len(self._recent) > MAX_RECENT_EVENTS or self._recent_bytes > MAX_RECENT_BYTES:
                self._recent_bytes -= len(self._recent.popleft()[1])
