"""Drives a participant on a real store: two threads, two connections, one lock.

- the *voice* speaks: it beats, and performs the operations of the flow that the agent waits for;
- the *ear* blocks on the next event, for as long as it takes.

The agent's own thread only ever waits on a condition, so signals are served at once, and judges silence by
the local clock, so no store call can hold it. All of the participant's code runs under the link's lock; all
store calls are made outside of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ft_rendezvous.core.model import Outcome, Verdict
from ft_rendezvous.errors import FtError, StoreUnavailable
from ft_rendezvous.participant import Changed, Flow, Participant
from ft_rendezvous.ports import Move, Store
from ft_rendezvous.store_socket import StoreSocket

log = logging.getLogger("ft_rendezvous")

T = TypeVar("T")
GLANCE_S = 1.0
"""How often a waiting agent looks at the clock; it is woken at once when something happens."""

FAREWELL_S = 2.0
"""How long a goodbye may take: a store that does not answer needs none."""


@dataclass(slots=True)
class _Ear:
    """A thread that listens for one incarnation."""

    socket: StoreSocket | None
    thread: threading.Thread | None = None

    def close(self) -> None:
        if self.socket is not None:
            self.socket.close()


@dataclass(slots=True)
class _Errand:
    """A flow on its way, and how it ended."""

    flow: Flow[Any]
    is_done: bool = False
    result: Any = None
    error: Exception | None = field(default=None)

    def end(self, result: Any, error: Exception | None) -> None:
        if not self.is_done:
            self.is_done, self.result, self.error = True, result, error


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
        self._store = store
        self._connect_ear = connect_ear
        self._ear = _Ear(connect_ear())
        self._beat_s = beat_s
        self._endpoint = endpoint
        self._changed = threading.Condition()
        self._errand: _Errand | None = None
        self._posts: deque[_Errand] = deque()
        self._broken: Exception | None = None
        self._calling_since: float | None = None
        self._is_stopped = False
        self._told = ""
        self._is_stirred = True
        """Whether something changed since the flow last said that it waits for a change."""
        self.participant = participant
        participant.on_enlisted = self._start_ear
        self._voice = threading.Thread(target=self._speak, name="ft-voice", daemon=True)
        self._voice.start()

    # --- for the agent's thread ---------------------------------------------------------------------

    @property
    def is_broken(self) -> bool:
        return self._broken is not None

    @property
    def verdict(self) -> Verdict | None:
        with self._changed:
            return self.participant.verdict

    def must_stop(self, cycle_id: int) -> bool:
        """Whether workers of this cycle must stop. No store call, no waiting."""
        with self._changed:
            return self._broken is not None or self.participant.must_stop(cycle_id)

    def run(self, flow: Flow[T], patience_s: float | None = None) -> T:
        """Let the voice carry a flow to its end, and wait for it. A later flow takes an earlier one's place.

        Raises StoreUnavailable when the connection breaks, or when one store call has had no answer for
        longer than `patience_s` (the lease, if not given).
        """
        errand = _Errand(flow)
        with self._changed:
            if self._errand is not None:
                self._errand.end(None, StoreUnavailable(self._endpoint, "this node is leaving"))
            self._errand = errand
            self._stir()
            try:
                self._await(errand, self.participant.lease_s if patience_s is None else patience_s)
            finally:
                errand.end(None, None)
                if self._errand is errand:
                    self._errand = None
        if errand.error is not None:
            raise errand.error
        result: T = errand.result
        return result

    def post(self, move: Move[None]) -> None:
        """Let the voice carry a move before anything else, without waiting for it. What goes wrong is logged."""
        with self._changed:
            self._posts.append(_Errand(move))
            self._stir()

    def _await(self, errand: _Errand, patience_s: float) -> None:
        judged_from = time.monotonic()
        while not errand.is_done:
            if self._broken is not None:
                raise self._broken
            if self._is_stopped:
                raise StoreUnavailable(self._endpoint, "this node has said goodbye")
            before = time.monotonic()
            self._changed.wait(min(GLANCE_S, patience_s))
            now = time.monotonic()
            if now - before > 2 * GLANCE_S:
                judged_from = now  # We were paused ourselves: the silence is ours.
            calling_since = self._calling_since
            if calling_since is not None and now - max(calling_since, judged_from) > patience_s:
                raise StoreUnavailable(self._endpoint, f"no answer for {patience_s:g} s; its host is stuck or cut off")

    def leave(self, outcome: Outcome, reason: str) -> None:
        """Say goodbye and end the threads. Never raises: a store that is gone needs no goodbye."""
        try:
            if not (self.is_broken or self._is_stopped or self._is_held()):
                self.run(self.participant.goodbye(outcome, reason), FAREWELL_S)
        except FtError:
            pass
        finally:
            self.stop()

    def stop(self) -> None:
        """End the threads without a word. The voice may be held by a silent store; it dies with the process."""
        with self._changed:
            self._is_stopped = True
            self._stir()
            self._ear.close()
            ear_thread = self._ear.thread
        if ear_thread is not None:
            ear_thread.join(FAREWELL_S)
        if not self._is_held():
            self._voice.join(FAREWELL_S)

    def _is_held(self) -> bool:
        """Whether the store has kept the voice waiting for longer than a goodbye is worth."""
        calling_since = self._calling_since
        return calling_since is not None and time.monotonic() - calling_since > FAREWELL_S

    # --- the voice ----------------------------------------------------------------------------------

    def _speak(self) -> None:
        next_beat_at = time.monotonic()
        try:
            while True:
                with self._changed:
                    while not (self._is_over() or self._runnable() or time.monotonic() >= next_beat_at):
                        self._changed.wait(max(0.0, next_beat_at - time.monotonic()))
                    if self._is_over():
                        return
                    errand = self._runnable()
                if errand is not None:
                    self._carry(errand)
                else:
                    next_beat_at = time.monotonic() + self._beat_s
                    self._beat()
        except Exception as error:  # A thread's end: the agent must hear of it, whatever it is.
            self._break(error)

    def _is_over(self) -> bool:
        return self._is_stopped or self._broken is not None

    def _runnable(self) -> _Errand | None:
        if self._posts:
            return self._posts[0]
        return self._errand if self._is_stirred and self._errand is not None and not self._errand.is_done else None

    def _carry(self, errand: _Errand) -> None:
        """Carry the flow until it ends, waits for a change, or is not waited for any more.

        No beat falls between its operations: a beat of its own would be counted out of turn. The reply to an
        operation is always taken in, even if nobody waits any more: it may be a beat's.
        """
        reply: Any = None
        while True:
            with self._changed:
                try:
                    op = errand.flow.send(reply)
                except StopIteration as stop:
                    errand.end(stop.value, None)
                except Exception as error:  # Whatever it is, it belongs to whoever waits.
                    errand.end(None, error)
                else:
                    if isinstance(op, Changed):
                        self._is_stirred = False
                        self._tell_wait(self.participant.describe_wait())
                        return
                if errand.is_done:
                    self._end_post(errand)
                    self._changed.notify_all()
                    return
            reply = self._call(op)

    def _end_post(self, errand: _Errand) -> None:
        if self._posts and self._posts[0] is errand:
            self._posts.popleft()
            if errand.error is not None:
                log.warning("could not tell the coordinator: %s", errand.error)

    def _tell_wait(self, wait: str) -> None:
        if wait != self._told:
            self._told = wait
            log.info("%s", wait)

    def _beat(self) -> None:
        with self._changed:
            beat = self.participant.beat()
            op = next(beat, None)
            if op is None:
                # Who is fenced has no beat, and reads the head once per beat instead.
                self._stir()
                return
        reply = self._call(op)
        with self._changed:
            _end(beat, reply)
            self._stir()

    def _call(self, op: Any) -> Any:
        self._calling_since = time.monotonic()
        try:
            return self._store.perform(op)
        finally:
            self._calling_since = None

    # --- the ear ------------------------------------------------------------------------------------

    def _start_ear(self) -> None:
        """Called by the participant, under the lock, when a new incarnation begins to watch."""
        if self._ear.thread is not None:
            self._ear.close()
            self._ear = _Ear(None)
        watch = self.participant.watch(self.participant.incarnation)
        thread = threading.Thread(target=self._listen, args=(self._ear, watch), name="ft-ear", daemon=True)
        self._ear.thread = thread
        thread.start()

    def _listen(self, ear: _Ear, watch: Move[None]) -> None:
        try:
            socket = ear.socket or self._connect_ear()
            with self._changed:
                ear.socket = socket
            reply: Any = None
            while True:
                with self._changed:
                    if self._is_stopped or ear is not self._ear:
                        ear.close()
                        return
                    op = watch.send(reply)
                    self._stir()
                reply = socket.perform(op)
        except StopIteration:
            with self._changed:
                self._stir()
        except Exception as error:  # A thread's end; an ear that was closed on purpose has nothing to tell.
            if ear is self._ear:
                self._break(error)

    # --- shared -------------------------------------------------------------------------------------

    def _stir(self) -> None:
        self._is_stirred = True
        self._changed.notify_all()

    def _break(self, error: Exception) -> None:
        with self._changed:
            if not self._is_over():
                self._broken = error
            self._stir()


def _end(move: Move[None], reply: Any) -> None:
    """Give a move of one operation its reply."""
    try:
        move.send(reply)
    except StopIteration:
        return
    raise AssertionError("a beat is one operation")
