"""`ft_rendezvous.link` in virtual time, line by line: the voice, the ear, and what the agent's thread does.

Owns nothing the real link does not own. Where the real one takes its lock, this one runs between two yields;
where the real one calls the store, this one yields a `Call`. A change of the one is a change of the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ft_rendezvous.core.model import Outcome
from ft_rendezvous.errors import FtError, StoreUnavailable
from ft_rendezvous.link import FAREWELL_S, GLANCE_S
from ft_rendezvous.participant import Changed, Flow, Participant
from ft_rendezvous.ports import Check, Move
from tests.sim.kernel import Call, Condition, Connection, Process, Routine, Thread, Wait


@dataclass(slots=True, eq=False)
class _Ear:
    """A thread that listens for one incarnation."""

    connection: Connection | None
    is_started: bool = False

    def close(self) -> None:
        if self.connection is not None:
            self.connection.cut(loses_sent=False)


@dataclass(slots=True, eq=False)
class _Errand:
    """A flow on its way, and how it ended."""

    flow: Flow[Any]
    is_done: bool = False
    result: Any = None
    error: Exception | None = None

    def end(self, result: Any, error: Exception | None) -> None:
        if not self.is_done:
            self.is_done, self.result, self.error = True, result, error


class SimLink:
    """A participant and the threads that keep it alive."""

    def __init__(
        self, process: Process, connect: Callable[[str], Connection], participant: Participant, beat_s: float
    ) -> None:
        self._process = process
        self._connect = connect
        self._clock = process.clock
        self._beat_s = beat_s
        self._store = connect("voice")
        self._ear = _Ear(connect("ear"))
        self._changed = Condition()
        self._errand: _Errand | None = None
        self._posts: deque[_Errand] = deque()
        self._broken: Exception | None = None
        self._calling_since: float | None = None
        self._is_stopped = False
        self._is_stirred = True
        self.participant = participant
        participant.on_enlisted = self._start_ear
        Thread(process, "voice", self._speak())

    # --- for the agent's thread ---------------------------------------------------------------------

    @property
    def is_broken(self) -> bool:
        return self._broken is not None

    def must_stop(self, cycle_id: int) -> bool:
        return self._broken is not None or self.participant.must_stop(cycle_id)

    def run(self, flow: Flow[Any], patience_s: float | None = None) -> Routine:
        """Let the voice carry a flow to its end, and wait for it. A later flow takes an earlier one's place."""
        errand = _Errand(flow)
        if self._errand is not None:
            self._errand.end(None, StoreUnavailable("store", "this node is leaving"))
        self._errand = errand
        self._stir()
        try:
            yield from self._await(errand, self.participant.lease_s if patience_s is None else patience_s)
        finally:
            errand.end(None, None)
            if self._errand is errand:
                self._errand = None
        if errand.error is not None:
            raise errand.error
        return errand.result

    def post(self, move: Move[None]) -> None:
        """Let the voice carry a move before anything else, without waiting for it."""
        self._posts.append(_Errand(move))
        self._stir()

    def _await(self, errand: _Errand, patience_s: float) -> Routine:
        judged_from = self._clock()
        while not errand.is_done:
            if self._broken is not None:
                raise self._broken
            if self._is_stopped:
                raise StoreUnavailable("store", "this node has said goodbye")
            before = self._clock()
            yield Wait(self._changed, min(GLANCE_S, patience_s), lambda: errand.is_done or self._is_over())
            now = self._clock()
            if now - before > 2 * GLANCE_S:
                judged_from = now
            calling_since = self._calling_since
            if calling_since is not None and now - max(calling_since, judged_from) > patience_s:
                raise StoreUnavailable("store", f"no answer for {patience_s:g} s; its host is stuck or cut off")

    def leave(self, outcome: Outcome, reason: str) -> Routine:
        try:
            if not (self.is_broken or self._is_stopped or self._is_held()):
                yield from self.run(self.participant.goodbye(outcome, reason), FAREWELL_S)
        except FtError:
            pass
        self.stop()

    def stop(self) -> None:
        self._is_stopped = True
        self._stir()
        self._ear.close()

    def _is_held(self) -> bool:
        return self._calling_since is not None and self._clock() - self._calling_since > FAREWELL_S

    # --- the voice ----------------------------------------------------------------------------------

    def _speak(self) -> Routine:
        next_beat_at = self._clock()
        try:
            while True:
                while not (self._is_over() or self._runnable() or self._clock() >= next_beat_at):
                    yield Wait(self._changed, max(0.0, next_beat_at - self._clock()), self._has_work)
                if self._is_over():
                    return
                errand = self._runnable()
                if errand is not None:
                    yield from self._carry(errand)
                else:
                    next_beat_at = self._clock() + self._beat_s
                    yield from self._beat()
        except Exception as error:
            self._break(error)

    def _is_over(self) -> bool:
        return self._is_stopped or self._broken is not None

    def _has_work(self) -> bool:
        return self._is_over() or self._runnable() is not None

    def _runnable(self) -> _Errand | None:
        if self._posts:
            return self._posts[0]
        return self._errand if self._is_stirred and self._errand is not None and not self._errand.is_done else None

    def _carry(self, errand: _Errand) -> Routine:
        reply: Any = None
        while True:
            try:
                op = errand.flow.send(reply)
            except StopIteration as stop:
                errand.end(stop.value, None)
            except Exception as error:
                errand.end(None, error)
            else:
                if isinstance(op, Changed):
                    self._is_stirred = False
                    return
            if errand.is_done:
                if self._posts and self._posts[0] is errand:
                    self._posts.popleft()
                self._changed.notify_all()
                return
            reply = yield from self._call(op)

    def _beat(self) -> Routine:
        beat = self.participant.beat()
        op = next(beat, None)
        if op is None:
            self._stir()
            return
        reply = yield from self._call(op)
        try:
            beat.send(reply)
        except StopIteration:
            self._stir()

    def _call(self, op: Any) -> Routine:
        self._calling_since = self._clock()
        try:
            return (yield Call(self._store, op))
        finally:
            self._calling_since = None

    # --- the ear ------------------------------------------------------------------------------------

    def _start_ear(self) -> None:
        if self._ear.is_started:
            self._ear.close()
            self._ear = _Ear(None)
        incarnation = self.participant.incarnation
        self._ear.is_started = True
        Thread(self._process, "ear", self._listen(self._ear, incarnation, self.participant.watch(incarnation)))

    def _listen(self, ear: _Ear, incarnation: str, watch: Move[None]) -> Routine:
        try:
            connection = ear.connection
            if connection is None:
                # Only the first ear has its connection ready; greeting the server takes the others a round trip.
                connection = self._connect("ear")
                yield Call(connection, Check([]))
            ear.connection = connection
            connection.serves = incarnation
            reply: Any = None
            while True:
                if self._is_stopped or ear is not self._ear:
                    ear.close()
                    return
                try:
                    op = watch.send(reply)
                except StopIteration:
                    self._stir()
                    return
                self._stir()
                reply = yield Call(connection, op)
        except Exception as error:
            if ear is self._ear:
                self._break(error)

    # --- shared -------------------------------------------------------------------------------------

    def _stir(self) -> None:
        self._is_stirred = True
        self._changed.notify_all()

    def _break(self, error: Exception) -> None:
        if not self._is_over():
            self._broken = error
        self._stir()
