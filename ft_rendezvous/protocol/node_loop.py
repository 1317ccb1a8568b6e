"""A node's line to the store, as routines: what its voice, its ear and its agent do, and in which order.

- the *voice* speaks: it beats, and performs the operations of the flow that the agent waits for;
- the *ear* blocks on the next event, for as long as it takes;
- the *agent* only ever waits, and judges silence by the local clock, so no store call can hold it.

Performs nothing and waits for nothing itself. A routine yields an operation to be performed, or a `Rest`; whoever
drives the routines runs their code one step at a time: `link` with threads and a lock, the simulation with its
scheduler.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ft_rendezvous.core.model import Outcome, Verdict
from ft_rendezvous.errors import FtError, StoreUnavailable
from ft_rendezvous.protocol.ops import Move, Op
from ft_rendezvous.protocol.participant import Changed, Flow, Participant

log = logging.getLogger("ft_rendezvous")

GLANCE_S = 1.0
"""How often a waiting agent looks at the clock; it is woken at once when something happens."""

FAREWELL_S = 2.0
"""How long a goodbye may take: a store that does not answer needs none."""


@dataclass(frozen=True, slots=True, eq=False)
class Rest:
    """Yielded by a routine instead of an operation: go on when stirred, and after `seconds` at the latest."""

    seconds: float
    until: Callable[[], bool]
    """A wake-up before this holds is in vain, though harmless."""


T = TypeVar("T")
Routine = Generator[Op | Rest, Any, T]


@dataclass(slots=True, eq=False)
class Errand:
    """A flow on its way, and how it ended."""

    flow: Flow[Any]
    asked: Op | None = None
    """What the ear has found it to ask for, and the voice has not yet performed."""
    is_done: bool = False
    result: Any = None
    error: Exception | None = field(default=None)

    def end(self, result: Any, error: Exception | None) -> None:
        if not self.is_done:
            self.is_done, self.result, self.error = True, result, error


class Line:
    """One participant's routines, and what they know of each other."""

    def __init__(
        self,
        participant: Participant,
        beat_s: float,
        endpoint: str,
        *,
        on_stir: Callable[[], None],
        on_end: Callable[[], None],
        tells_waits: bool,
    ) -> None:
        self.participant = participant
        self.broken: Exception | None = None
        self.is_stopped = False
        self.is_stirred = True
        """Whether something changed since the flow last said that it waits for a change."""
        self.errand: Errand | None = None
        self._posts: deque[Errand] = deque()
        self._calling_since: float | None = None
        self._clock = participant.clock
        self._beat_s = beat_s
        self._endpoint = endpoint
        self._on_stir = on_stir
        """Called when the voice may have something to do."""
        self._on_end = on_end
        """Called when the agent need not wait any more."""
        self._tells_waits = tells_waits
        self._told = ""

    @property
    def verdict(self) -> Verdict | None:
        return self.participant.verdict

    def must_stop(self, cycle_id: int) -> bool:
        """Whether workers of this cycle must stop."""
        return self.broken is not None or self.participant.must_stop(cycle_id)

    def why_stop(self) -> str:
        """Why workers must stop, if they must."""
        view = self.participant.view
        if self.broken is not None:
            return f"the connection to the store is lost: {self.broken}"
        if view is None or not self.participant.is_trusted():
            return "this node lost its lease, or may have: its place is given away"
        if view.closed is not None:
            return f"the run is over: {view.closed.verdict}"
        return str(view.opened.why)

    @property
    def is_over(self) -> bool:
        return self.is_stopped or self.broken is not None

    @property
    def is_held(self) -> bool:
        """Whether the store has kept the voice waiting for longer than a goodbye is worth."""
        since = self._calling_since
        return since is not None and self._clock() - since > FAREWELL_S

    def stir(self) -> None:
        self.is_stirred = True
        self._on_stir()

    def stop(self) -> None:
        self.is_stopped = True
        self.stir()
        self._on_end()

    def break_off(self, error: Exception) -> None:
        """A thread has come to its end: the agent must hear of it, whatever it is."""
        if not self.is_over:
            self.broken = error
        self.stir()
        self._on_end()

    # --- the agent ----------------------------------------------------------------------------------

    def run(self, flow: Flow[T], patience_s: float | None = None) -> Routine[T]:
        """Let the voice carry a flow to its end, and wait for it. A later flow takes an earlier one's place.

        Raises StoreUnavailable when the connection breaks, or when one store call has had no answer for
        longer than `patience_s` (the lease, if not given).
        """
        errand = Errand(flow)
        if self.errand is not None:
            self.errand.end(None, StoreUnavailable(self._endpoint, "this node is leaving"))
            self._on_end()
        self.errand = errand
        self.stir()
        try:
            yield from self._await(errand, self.participant.lease_s if patience_s is None else patience_s)
        finally:
            errand.end(None, None)
            if self.errand is errand:
                self.errand = None
        if errand.error is not None:
            raise errand.error
        result: T = errand.result
        return result

    def _await(self, errand: Errand, patience_s: float) -> Routine[None]:
        judged_from = self._clock()
        while not errand.is_done:
            if self.broken is not None:
                raise self.broken
            if self.is_stopped:
                raise StoreUnavailable(self._endpoint, "this node has said goodbye")
            before = self._clock()
            yield Rest(min(GLANCE_S, patience_s), lambda: errand.is_done or self.is_over)
            now = self._clock()
            if now - before > 2 * GLANCE_S:
                judged_from = now  # We were paused ourselves: the silence is ours.
            since = self._calling_since
            if since is not None and now - max(since, judged_from) > patience_s:
                raise StoreUnavailable(self._endpoint, f"no answer for {patience_s:g} s; its host is stuck or cut off")

    def leave(self, outcome: Outcome, reason: str) -> Routine[None]:
        """Say goodbye and stop. Never raises: a store that is gone needs no goodbye."""
        try:
            if not (self.is_over or self.is_held):
                yield from self.run(self.participant.goodbye(outcome, reason), FAREWELL_S)
        except FtError:
            pass
        except Exception:
            log.exception("the goodbye could not be said")
        finally:
            self.stop()

    def post(self, move: Move[None]) -> None:
        """Let the voice carry a move before anything else, without waiting for it. What goes wrong is logged."""
        self._posts.append(Errand(move))
        self.stir()

    # --- the voice ----------------------------------------------------------------------------------

    def speak(self) -> Routine[None]:
        next_beat_at = self._clock()
        try:
            while not self.is_over:
                errand = self._runnable()
                if errand is not None:
                    yield from self._carry(errand)
                elif self._clock() >= next_beat_at:
                    next_beat_at = self._clock() + self._beat_s
                    yield from self._beat()
                else:
                    yield Rest(max(0.0, next_beat_at - self._clock()), self._has_work)
        except Exception as error:  # The end of a thread: the agent must hear of it, whatever it is.
            self.break_off(error)

    def _has_work(self) -> bool:
        return self.is_over or self._runnable() is not None

    def _runnable(self) -> Errand | None:
        if self._posts:
            return self._posts[0]
        return self.errand if self.is_stirred and self.errand is not None and not self.errand.is_done else None

    def _carry(self, errand: Errand) -> Routine[None]:
        """Carry a flow until it ends, waits for a change, or is not waited for any more.

        No beat falls between its operations: a beat of its own would be counted out of turn. The reply to an
        operation is always taken in, even if nobody waits any more: it may be a beat's.
        """
        op, errand.asked = errand.asked, None
        if op is None:
            op = self._advance(errand, None)
        while op is not None:
            reply = yield from self._call(op)
            op = self._advance(errand, reply)

    def _advance(self, errand: Errand, reply: Any) -> Op | None:
        """Take a flow one step further. Returns the operation it asks for; None if it ended or waits for a change."""
        try:
            op = errand.flow.send(reply)
        except StopIteration as stop:
            errand.end(stop.value, None)
        except Exception as error:  # Whatever it is, it belongs to whoever waits.
            errand.end(None, error)
        else:
            if isinstance(op, Changed):
                self.is_stirred = False
                self._tell_wait()
                return None
            if not errand.is_done:
                return op
        self._end_post(errand)
        self._on_end()
        return None

    def _end_post(self, errand: Errand) -> None:
        if self._posts and self._posts[0] is errand:
            self._posts.popleft()
            if errand.error is not None:
                log.warning("could not tell the coordinator: %s", errand.error)

    def _tell_wait(self) -> None:
        if self._tells_waits:
            wait = self.participant.describe_wait()
            if wait != self._told:
                self._told = wait
                log.info("%s", wait)

    def _beat(self) -> Routine[None]:
        """Renew the lease. Who is fenced has no beat, and is stirred to read the head instead."""
        beat = self.participant.beat()
        op = next(beat, None)
        if op is not None:
            reply = yield from self._call(op)
            try:
                beat.send(reply)
            except StopIteration:
                pass
            else:
                raise AssertionError("a beat is one operation")
        self.stir()

    def _call(self, op: Op) -> Routine[Any]:
        self._calling_since = self._clock()
        try:
            return (yield op)
        finally:
            self._calling_since = None

    # --- the ear ------------------------------------------------------------------------------------

    def listen(self, watch: Move[None], is_current: Callable[[], bool]) -> Routine[None]:
        """Hear events until the incarnation is over, or another ear has taken this one's place."""
        reply: Any = None
        try:
            while not self.is_stopped and is_current():
                try:
                    op = watch.send(reply)
                except StopIteration:
                    self.stir()
                    return
                if reply is not None:
                    self._heed()
                reply = yield op
        except Exception as error:  # The end of a thread; an ear that was closed on purpose has nothing to tell.
            if is_current():
                self.break_off(error)

    def _heed(self) -> None:
        """Something was heard: let the flow that waits for it go on, here and now if the voice is at rest.

        A seat ends the flow without any operation, so that most often nobody but the agent needs to be woken.
        """
        errand = self.errand
        is_free = not self.is_over and self._calling_since is None and not self._posts
        if is_free and errand is not None and not errand.is_done and errand.asked is None:
            errand.asked = self._advance(errand, None)
            if errand.asked is None:
                return
        self.stir()
