"""Drives a node's line on a real store: two threads, two connections, one lock.

The agent's own thread only ever waits on a condition, so signals are served at once. All of the line's code runs
under the lock; all store calls are made outside of it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ft_rendezvous.core.model import Outcome, Verdict
from ft_rendezvous.protocol.node_loop import FAREWELL_S, Line, Rest, Routine
from ft_rendezvous.protocol.ops import Move, Store
from ft_rendezvous.protocol.participant import Flow, Participant
from ft_rendezvous.store.raw_client import StoreSocket

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Ear:
    """A thread that listens for one incarnation, once it is told what to listen for."""

    socket: StoreSocket | None
    watch: Move[None] | None = None
    thread: threading.Thread = field(init=False)

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()


class Link:
    """A participant and the threads that keep it alive."""

    def __init__(
        self,
        store: Store,
        connect_ear: Callable[[], StoreSocket],
        participant: Participant,
        beat_s: float,
        endpoint: str,
    ) -> None:
        self._connect_ear = connect_ear
        ear_socket = connect_ear()
        self._lock = threading.RLock()
        # Each waits for its own: a wake-up in vain costs as much as one that is needed.
        self._changed, self._ended, self._called = (threading.Condition(self._lock) for _ in range(3))
        self._line = Line(
            participant,
            beat_s,
            endpoint,
            on_stir=self._changed.notify_all,
            on_end=self._ended.notify_all,
            tells_waits=True,
        )
        self.participant = participant
        participant.on_enlisted = self._call_ear
        self._voice = threading.Thread(
            target=self._drive, args=(self._line.speak(), self._changed, store), name="ft-voice", daemon=True
        )
        self._voice.start()
        # Before it is needed: to start a thread takes longer than to arrive.
        self._ear = self._start_ear(ear_socket)

    # --- for the agent's thread ---------------------------------------------------------------------

    @property
    def is_broken(self) -> bool:
        return self._line.broken is not None

    @property
    def verdict(self) -> Verdict | None:
        with self._lock:
            return self._line.verdict

    def must_stop(self, cycle_id: int) -> bool:
        """Whether workers of this cycle must stop. No store call, no waiting."""
        with self._lock:
            return self._line.must_stop(cycle_id)

    def why_stop(self) -> str:
        with self._lock:
            return self._line.why_stop()

    def run(self, flow: Flow[T], patience_s: float | None = None) -> T:
        """Let the voice carry a flow to its end, and wait for it: see `Line.run`."""
        result: T = self._drive(self._line.run(flow, patience_s), self._ended)
        return result

    def post(self, move: Move[None]) -> None:
        """Let the voice carry a move before anything else, without waiting for it. What goes wrong is logged."""
        with self._lock:
            self._line.post(move)

    def leave(self, outcome: Outcome, reason: str) -> None:
        """Say goodbye and end the threads. Never raises: a store that is gone needs no goodbye."""
        try:
            self._drive(self._line.leave(outcome, reason), self._ended)
        finally:
            self.stop()

    def stop(self) -> None:
        """End the threads without a word. The voice may be held by a silent store; it dies with the process."""
        with self._lock:
            self._line.stop()
            self._ear.close()
            self._called.notify_all()
        self._ear.thread.join(FAREWELL_S)
        if not self._line.is_held:
            self._voice.join(FAREWELL_S)

    # --- threads ------------------------------------------------------------------------------------

    def _drive(
        self, routine: Routine[Any], stirred: threading.Condition, store: Store | StoreSocket | None = None
    ) -> Any:
        """Run a routine to its end: its code under the lock, its store calls outside, its rests on the condition."""
        resume: Callable[[Any], Any] = routine.send
        value: Any = None
        try:
            while True:
                with self._lock:
                    request = resume(value)
                    while isinstance(request, Rest):
                        stirred.wait(request.seconds)
                        request = routine.send(None)
                assert store is not None, "the agent's thread makes no store call"
                try:
                    resume, value = routine.send, store.perform(request)
                except Exception as error:  # What it means is the routine's to say.
                    resume, value = routine.throw, error
        except StopIteration as stop:
            return stop.value
        finally:
            # A signal may raise in any wait; what the routine leaves behind must not depend on who holds its frame.
            with self._lock:
                routine.close()

    def _call_ear(self) -> None:
        """Called by the participant, under the lock, when a new incarnation begins to watch."""
        if self._ear.watch is not None:
            self._ear.close()
            self._ear = self._start_ear(None)
        self._ear.watch = self.participant.watch(self.participant.incarnation)
        self._called.notify_all()

    def _start_ear(self, socket: StoreSocket | None) -> _Ear:
        ear = _Ear(socket)
        ear.thread = threading.Thread(target=self._listen, args=(ear,), name="ft-ear", daemon=True)
        ear.thread.start()
        return ear

    def _listen(self, ear: _Ear) -> None:
        """A thread of its own for every incarnation; only the first finds its connection ready."""
        with self._lock:
            while ear.watch is None and not self._line.is_stopped:
                self._called.wait()
        if ear.watch is None:
            return
        try:
            socket = ear.socket or self._connect_ear()
        except Exception as error:  # A thread's end: the agent must hear of it, whatever it is.
            with self._lock:
                self._line.break_off(error)
            return
        with self._lock:
            ear.socket = socket
        self._drive(self._line.listen(ear.watch, lambda: ear is self._ear), self._changed, socket)
        if ear is not self._ear:
            ear.close()
