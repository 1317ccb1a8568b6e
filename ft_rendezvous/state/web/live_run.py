"""What the server knows of a live run: one thread writes to it, all requests read from it.

It owns the state, the newest lines, and the list of followers that wait for more. It does not grow with the number of
readers, nor with how slow they are: a reader is a position. A reader that is too far behind gets the whole state and
goes on from there.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

import msgspec

from ft_rendezvous.protocol.journal import RunBegan
from ft_rendezvous.state.model.events import Event, StateTold, encode_state_line, take_event
from ft_rendezvous.state.model.run_state import HISTORY, RunState
from ft_rendezvous.state.web.answers import AnswerCache

log = logging.getLogger("ft_rendezvous")

RING_LINES = 20_000
RING_BYTES = 16 * 2**20
BATCH_BYTES = 64 * 2**10
"""How much a follower gets at once, so that one that hangs holds no more than this."""
STILL_THERE_INTERVAL_S = 15.0
"""How often a follower gets a sign of life when there is no event."""
STILL_THERE = b": still there\n\n"

T = TypeVar("T")


class LiveRun:
    """Thread-safe. `take` and `end` are called by one thread, everything else by the server's."""

    def __init__(self, history: int = HISTORY, ring_lines: int = RING_LINES, ring_bytes: int = RING_BYTES) -> None:
        self._lock = threading.Lock()
        self._state = RunState(history=history)
        self._version = 0
        self._is_ended = False
        self._problem: str | None = None
        self._missed = 0
        # The frames of the newest events, by id and without gaps up to the state's own.
        self._ring: dict[int, bytes] = {}
        self._ring_lines, self._ring_bytes = ring_lines, ring_bytes
        self._kept_bytes = 0
        self._state_frames = AnswerCache(lambda _: self.read(_frame_state), lambda _: self._version)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiters: set[asyncio.Future[None]] = set()
        self._is_waking = False

    # --- from the coordinator -------------------------------------------------------------------------

    def take(self, event: Event, line: bytes) -> None:
        """Take in one more event and its line.

        Never raises: after an event that cannot follow, it ignores all events until it gets the whole state again.
        """
        with self._lock:
            is_state = isinstance(event.event, StateTold)
            if self._problem is not None and not is_state:
                self._missed += 1
                return
            try:
                self._state = take_event(self._state, event)
            except Exception as error:
                # A bug of ours: the run goes on, and so must the server.
                self._miss(f"event {event.event_id} cannot be folded: {type(error).__name__}: {error}")
                return
            self._problem = None
            self._keep(event, line)
            self._change()

    def end(self) -> None:
        """The coordinator is gone: no more events will come, and all streams end."""
        with self._lock:
            self._is_ended = True
            self._change()

    def _miss(self, problem: str) -> None:
        self._missed += 1
        if self._problem is None:
            self._problem = problem
            log.warning("state server: %s: it shows an old state until it gets the whole state again", problem)
            self._change()

    def _keep(self, event: Event, line: bytes) -> None:
        if isinstance(event.event, StateTold):
            self._ring.clear()
            self._kept_bytes = 0
            return
        framed = frame(event.event_id, type(event.event).__name__, line)
        self._ring[event.event_id] = framed
        self._kept_bytes += len(framed)
        while len(self._ring) > self._ring_lines or self._kept_bytes > self._ring_bytes:
            oldest = event.event_id + 1 - len(self._ring)
            self._kept_bytes -= len(self._ring.pop(oldest))

    def _change(self) -> None:
        self._version += 1
        if self._loop is not None and not self._is_waking:
            try:
                self._loop.call_soon_threadsafe(self._wake)
                self._is_waking = True
            except RuntimeError:  # The server is over.
                self._loop = None

    # --- to readers -----------------------------------------------------------------------------------

    @property
    def version(self) -> int:
        """It changes with every change."""
        return self._version

    @property
    def began(self) -> RunBegan | None:
        """How the run began; None before it did."""
        return self._state.began

    @property
    def is_ended(self) -> bool:
        return self._is_ended

    @property
    def problem(self) -> str | None:
        """Why the server shows an old state; None if it does not."""
        return self._problem

    @property
    def missed(self) -> int:
        """Lines that could not be taken in."""
        return self._missed

    def read(self, view: Callable[[RunState], T]) -> T:
        """What `view` returns for the state, which does not change meanwhile. `view` must keep no part of the state."""
        with self._lock:
            return view(self._state)

    def lines_after(self, event_id: int) -> list[bytes]:
        """The lines after this event; the whole state instead if some of them are not kept any more."""
        with self._lock:
            frames = self._frames_after(event_id, limit_bytes=None)
            return [encode_state_line(self._state)] if frames is None else [line_of(each) for each in frames]

    async def follow(self, after: int, is_live: bool = True) -> AsyncGenerator[bytes]:
        """The events after this one as server-sent events, and then new ones, until the coordinator is gone.

        With `is_live` false it ends with the newest event of now.
        """
        self._loop = asyncio.get_running_loop()
        until = None if is_live else self._state.event_id
        while True:
            with self._lock:
                frames = self._frames_after(after, BATCH_BYTES)
                is_ended = self._is_ended
            if frames is None:
                frame = await self._state_frames.get()
                after = frame.event_id
                yield frame.framed
            elif frames:
                after += len(frames)
                yield b"".join(frames)
            if until is not None and (after >= until or not frames):
                return
            if frames == []:
                if is_ended:
                    return
                if not await self._wait(after):
                    yield STILL_THERE

    def _frames_after(self, after: int, limit_bytes: int | None) -> list[bytes] | None:
        """The frames after this event, up to the limit; None if they are not kept any more."""
        newest = self._state.event_id
        if after != newest and (after > newest or after + 1 not in self._ring):
            return None
        frames: list[bytes] = []
        size = 0
        while after < newest and (limit_bytes is None or size < limit_bytes):
            after += 1
            frames.append(self._ring[after])
            size += len(frames[-1])
        return frames

    async def _wait(self, after: int) -> bool:
        """True when there is a new event, or the end; False after a time without either."""
        assert self._loop is not None
        waiter = self._loop.create_future()
        with self._lock:
            if self._state.event_id != after or self._is_ended:
                return True
            self._waiters.add(waiter)
        try:
            await asyncio.wait_for(waiter, STILL_THERE_INTERVAL_S)
        except TimeoutError:
            return False
        finally:
            with self._lock:
                self._waiters.discard(waiter)
        return True

    def _wake(self) -> None:
        with self._lock:
            self._is_waking = False
            waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


class StateFrame(msgspec.Struct, frozen=True):
    """The whole state as a server-sent event, made once for all followers that need it."""

    event_id: int
    framed: bytes


def _frame_state(state: RunState) -> StateFrame:
    return StateFrame(state.event_id, frame(state.event_id, StateTold.__name__, encode_state_line(state)))


def frame(event_id: int, kind: str, line: bytes) -> bytes:
    """A line as a server-sent event."""
    return b"id: %d\nevent: %s\ndata: %s\n\n" % (event_id, kind.encode(), line.rstrip(b"\n"))


def line_of(framed: bytes) -> bytes:
    """The line in a frame."""
    return framed[framed.index(b"\ndata: ") + 7 : -1]
