"""Drives a participant on a real store: two threads, two connections, one lock.

- the *voice* speaks: it beats, and performs the operations of the flow that the agent waits for;
- the *ear* blocks on the next event, for as long as it takes.

The agent's own thread only ever waits on a condition, so signals are served at once, and judges silence by
the local clock, so no store call can hold it. All of the participant's code runs under the link's lock; all
store calls are made outside of it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from ft_rendezvous.core.model import Outcome, Verdict
from ft_rendezvous.errors import FtError, StoreUnavailable
from ft_rendezvous.participant import Changed, Flow, Participant
from ft_rendezvous.ports import Move
from ft_rendezvous.tcp_store import TcpStore

T = TypeVar("T")
GLANCE_S = 0.5
"""How often a waiting agent looks at the clock; it is woken at once when something happens."""


class Link:
    """A participant and the threads that keep it alive."""

    def __init__(self, store: TcpStore, participant: Participant, beat_s: float, endpoint: str) -> None:
        self._store = store
        self._beat_s = beat_s
        self._endpoint = endpoint
        self._changed = threading.Condition()
        self._flow: Flow[Any] | None = None
        self._outcome: tuple[Any, BaseException | None] | None = None
        self._broken: StoreUnavailable | None = None
        self._calling_since: float | None = None
        self._is_stopped = False
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

    def must_stop(self, cycle_id: int) -> bool:
        """Whether workers of this cycle must stop. No store call, no waiting."""
        with self._changed:
            return self._broken is not None or self.participant.must_stop(cycle_id)

    def run(self, flow: Flow[T], patience_s: float | None = None) -> T:
        """Let the voice carry a flow to its end, and wait for it.

        Raises StoreUnavailable when the connection breaks, or when one store call has had no answer for
        longer than `patience_s` (the lease, if not given).
        """
        patience_s = self.participant.lease_s if patience_s is None else patience_s
        with self._changed:
            assert self._flow is None, "one flow at a time"
            self._flow, self._outcome = flow, None
            self._stir()
            try:
                self._await_outcome(patience_s)
                assert self._outcome is not None
                result, error = self._outcome
            finally:
                self._flow = None
        if error is not None:
            raise error
        value: T = result
        return value

    def _await_outcome(self, patience_s: float) -> None:
        judged_from = time.monotonic()
        while self._outcome is None:
            if self._broken is not None:
                raise self._broken
            before = time.monotonic()
            self._changed.wait(GLANCE_S)
            now = time.monotonic()
            if now - before > 2 * GLANCE_S:
                judged_from = now  # We were paused ourselves: the silence is ours.
            calling_since = self._calling_since
            if calling_since is not None and now - max(calling_since, judged_from) > patience_s:
                raise StoreUnavailable(self._endpoint, f"no answer for {patience_s:g} s; its host is stuck or cut off")

    def wait_until(self, is_true: Callable[[Participant], bool], timeout_s: float | None = None) -> bool:
        """Wait until something holds of the participant, or the store is lost. False on timeout."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while not is_true(self.participant):
                if self._broken is not None:
                    raise self._broken
                if deadline is not None and time.monotonic() >= deadline:
                    return False
                self._changed.wait(GLANCE_S)
        return True

    @property
    def verdict(self) -> Verdict | None:
        with self._changed:
            return self.participant.verdict

    def leave(self, outcome: Outcome, reason: str) -> None:
        """Say goodbye and stop. Never raises: a store that is gone needs no goodbye."""
        try:
            if self.participant.incarnation and not self.is_broken and not self._is_stopped:
                self.run(self.participant.goodbye(outcome, reason))
        except FtError:
            pass
        finally:
            with self._changed:
                self._is_stopped = True
                self._changed.notify_all()

    # --- the voice ----------------------------------------------------------------------------------

    def _speak(self) -> None:
        next_beat_at = time.monotonic()
        try:
            while True:
                with self._changed:
                    while not (self._is_stopped or self._is_runnable() or time.monotonic() >= next_beat_at):
                        self._changed.wait(next_beat_at - time.monotonic())
                    if self._is_stopped:
                        return
                    flow = self._flow if self._is_runnable() else None
                if flow is not None:
                    self._carry(flow)
                else:
                    next_beat_at = time.monotonic() + self._beat_s
                    self._beat()
        except StoreUnavailable as error:
            self._break(error)

    def _is_runnable(self) -> bool:
        return self._flow is not None and self._outcome is None and self._is_stirred

    def _carry(self, flow: Flow[Any]) -> None:
        """Carry the flow until it ends, waits for a change, or is not waited for any more.

        No beat falls between its operations: a beat of its own would be counted out of turn.
        """
        reply: Any = None
        while True:
            with self._changed:
                if flow is not self._flow:
                    return
                try:
                    op = flow.send(reply)
                except StopIteration as stop:
                    self._outcome = (stop.value, None)
                except FtError as error:
                    self._outcome = (None, error)
                else:
                    if isinstance(op, Changed):
                        self._is_stirred = False
                        return
                if self._outcome is not None:
                    self._changed.notify_all()
                    return
            reply = self._call(op)

    def _beat(self) -> None:
        with self._changed:
            if not self.participant.incarnation:
                return
            beat = self.participant.beat()
            op = beat.send(None)
        reply = self._call(op)
        with self._changed:
            _finish(beat, reply)
            self._stir()

    def _call(self, op: Any) -> Any:
        self._calling_since = time.monotonic()
        try:
            return self._store.perform(op)
        finally:
            self._calling_since = None

    # --- the ear ------------------------------------------------------------------------------------

    def _start_ear(self) -> None:
        watch = self.participant.watch()
        threading.Thread(target=self._listen, args=(watch,), name="ft-ear", daemon=True).start()

    def _listen(self, watch: Move[None]) -> None:
        try:
            store = self._store.clone()
            reply: Any = None
            while True:
                with self._changed:
                    self._stir()
                    if self._is_stopped:
                        return
                    try:
                        op = watch.send(reply)
                    except StopIteration:
                        return
                    finally:
                        self._stir()
                reply = store.perform(op)
        except StoreUnavailable as error:
            self._break(error)

    # --- shared -------------------------------------------------------------------------------------

    def _stir(self) -> None:
        self._is_stirred = True
        self._changed.notify_all()

    def _break(self, error: StoreUnavailable) -> None:
        with self._changed:
            if not self._is_stopped and self._broken is None:
                self._broken = error
            self._stir()


def _finish(move: Move[None], reply: Any) -> None:
    """Give a move of one operation its reply."""
    try:
        move.send(reply)
    except StopIteration:
        return
    raise AssertionError("a beat is one operation")
