"""A node's loop: what its writer, its listener and its agent do, and in which order.

- the *writer* beats, and performs the operations that the agent waits for. It mends broken connections;
- the *listener* blocks on the next event, for as long as that takes;
- the *agent* only waits, so no store call can hold it.

Each of them is a routine: it performs nothing and waits for nothing itself. The driver runs the code of all three one
step at a time: `node.threads` with threads and a lock, the simulation with its scheduler.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ft_rendezvous.core.model import Outcome, Verdict
from ft_rendezvous.errors import AgentWedged, FtError, StoreUnavailable
from ft_rendezvous.protocol.node_policy import (
    FIRST_RETRY_DELAY_S,
    HURRY_S,
    AgentTicks,
    Outage,
    decide_outcome,
    decide_retry,
    is_wedged,
)
from ft_rendezvous.protocol.ops import UNANSWERED, Add, Connect, InDoubt, Move, Op, Rest, Routine, WriterRoutine
from ft_rendezvous.protocol.participant import Participant

log = logging.getLogger("ft_rendezvous")

AGENT_POLL_S = 1.0
"""How often a waiting agent looks at the clock. It wakes at once when something happens."""

GOODBYE_TIMEOUT_S = 2.0
"""How long a goodbye may take: a store that does not answer needs none."""

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class _Job:
    """A routine that the writer carries, and how it ended."""

    routine: Routine[Any]
    next_op: Op | None = None
    """The operation that the listener found it to ask for, and that the writer has not performed yet."""
    is_done: bool = False
    result: Any = None
    error: Exception | None = field(default=None)

    def end(self, result: Any, error: Exception | None) -> None:
        if not self.is_done:
            self.is_done, self.result, self.error = True, result, error


class NodeLoop:
    """The routines of one participant, and what they know of each other. Owns the participant."""

    def __init__(
        self,
        participant: Participant,
        *,
        beat_s: float,
        join_s: float,
        endpoint: str,
        on_change: Callable[[], None],
        on_end: Callable[[], None],
        on_listen: Callable[[], None],
        logs_waits: bool,
        health_check_s: float = 0.0,
        lifeline_grace_s: float = 0.0,
        describe_agent: Callable[[], str] = str,
    ) -> None:
        """Set up the loop. Nothing runs before the driver starts the writer.

        `on_change` is called when the writer may have something to do, `on_end` when the agent need not wait any
        longer, `on_listen` when a listener is to start with `watch()`, in place of an earlier one. A health check may
        keep the agent away for `health_check_s`. `describe_agent` says where the agent's thread is.
        """
        self.participant = participant
        self.broken: Exception | None = None
        """Why the loop has ended for good, unless the node stopped it."""
        self.is_stopped = False
        self._has_changed = True
        """Whether something changed since the current job last rested."""
        self._job: _Job | None = None
        self._posts: deque[_Job] = deque()
        self._calling_since: float | None = None
        self._cut: StoreUnavailable | None = None
        """Why the connections need to be replaced, if they do."""
        self._cut_since = 0.0
        self._unconfirmed: list[Op] = []
        """Writes that no later answer confirms. A connection that breaks may have lost them."""
        self._next_beat_at = participant.clock()
        self._hurries_until = float("-inf")
        """Until when this node beats quickly, because it has lost its lifeline and cannot connect it again."""
        self._is_lifeline_refused = False
        """The lifeline has ended, and its port refuses: the process of the host is gone."""
        self._had_lifeline = False
        self._away_s = 0.0
        """For how long the agent has not called although an event has ended the cycle of its workers."""
        self._ticks = AgentTicks()
        self._health_check_s, self._describe_agent = health_check_s, describe_agent
        self._clock = participant.clock
        self._beat_s, self._join_s, self._endpoint = beat_s, join_s, endpoint
        self._quick_beat_s = min(beat_s, lifeline_grace_s / 2)
        self._on_change, self._on_end, self._on_listen = on_change, on_end, on_listen
        self._logs_waits = logs_waits
        self._logged_wait = ""
        participant.on_enlisted = on_listen

    @property
    def verdict(self) -> Verdict | None:
        return self.participant.verdict

    def tick(self, cycle_id: int) -> None:
        """The agent looks after its workers of this cycle."""
        self._ticks.note(cycle_id)

    def must_stop(self, cycle_id: int) -> bool:
        """Whether workers of this cycle must stop."""
        self._away_s = 0.0
        return self.broken is not None or self.participant.must_stop(cycle_id)

    def why_stop(self) -> str:
        """Why workers must stop, if they must."""
        if self.broken is not None:
            return f"the connection to the store is lost: {self.broken}"
        return self.participant.why_stop()

    @property
    def is_over(self) -> bool:
        return self.is_stopped or self.broken is not None

    def change(self) -> None:
        """Wake the writer: something about the node has changed."""
        self._has_changed = True
        self._on_change()

    def stop(self) -> None:
        self.is_stopped = True
        self.change()
        self._on_end()

    def break_off(self, error: Exception) -> None:
        """End the loop for good. The agent learns why."""
        if not self.is_over:
            self.broken = error
        self.change()
        self._on_end()

    # --- the agent ----------------------------------------------------------------------------------

    def run(self, routine: Routine[T], timeout_s: float | None = None) -> Routine[T]:
        """Let the writer carry a routine to its end, and wait for it. A later routine takes an earlier one's place.

        Raises StoreUnavailable when the store is lost, or after `timeout_s`, if that is given.
        """
        job = _Job(routine)
        if self._job is not None:
            self._job.end(None, StoreUnavailable(self._endpoint, "this node is leaving"))
            self._on_end()
        self._job = job
        self.change()
        try:
            yield from self._await(job, timeout_s)
        finally:
            job.end(None, None)
            if self._job is job:
                self._job = None
        if job.error is not None:
            raise job.error
        result: T = job.result
        return result

    def _await(self, job: _Job, timeout_s: float | None) -> Routine[None]:
        deadline = None if timeout_s is None else self._clock() + timeout_s
        while not job.is_done:
            if self.broken is not None:
                raise self.broken
            if self.is_stopped:
                raise StoreUnavailable(self._endpoint, "this node has said goodbye")
            poll_s = AGENT_POLL_S if deadline is None else min(AGENT_POLL_S, deadline - self._clock())
            if poll_s <= 0:
                raise StoreUnavailable(self._endpoint, f"no answer for {timeout_s:g} s; its host is stuck or cut off")
            yield Rest(poll_s, lambda: job.is_done or self.is_over)

    def leave(self, outcome: Outcome, reason: str) -> Routine[None]:
        """Say goodbye and stop. Never raises: a store that is gone needs no goodbye."""
        node = self.participant
        try:
            if not (self.is_over or self._is_unanswered()):
                outcome = decide_outcome(outcome, node.verdict, node.progress, node.is_going)
                yield from self.run(node.goodbye(outcome, reason), GOODBYE_TIMEOUT_S)
        except FtError:
            pass
        except Exception:
            log.exception("this node could not say goodbye")
        finally:
            self.stop()

    def _is_unanswered(self) -> bool:
        """Whether the store has been silent for longer than a goodbye is worth."""
        since = self._cut_since if self._cut is not None else self._calling_since
        return since is not None and self._clock() - since > GOODBYE_TIMEOUT_S

    def post(self, move: Move[None]) -> None:
        """Let the writer carry a move before anything else, without waiting for it. An error is logged."""
        self._posts.append(_Job(move))
        self.change()

    # --- the writer ---------------------------------------------------------------------------------

    def write(self) -> WriterRoutine[None]:
        """Beat and carry jobs until the node leaves or the store is lost for good."""
        self._next_beat_at = self._clock()
        try:
            while not self.is_over:
                job = self._runnable()
                if self._cut is not None:
                    yield from self._mend(self._cut)
                    self._next_beat_at = self._clock()
                elif job is not None:
                    yield from self._carry(job)
                elif (now := self._clock()) >= self._next_beat_at:
                    gap_s = self._beat_gap()
                    self._next_beat_at = now + gap_s
                    yield from self._beat()
                    yield from self._tell_updates(now)
                    yield from self._judge_agent(gap_s)
                else:
                    yield Rest(max(0.0, self._next_beat_at - self._clock()), self._has_work)
        except Exception as error:  # The end of a thread: the agent must learn of any error.
            self.break_off(error)

    def _has_work(self) -> bool:
        is_due = self._clock() >= self._next_beat_at
        return self.is_over or self._cut is not None or is_due or self._runnable() is not None

    def _runnable(self) -> _Job | None:
        if self._posts:
            return self._posts[0]
        return self._job if self._has_changed and self._job is not None and not self._job.is_done else None

    def _carry(self, job: _Job) -> WriterRoutine[None]:
        """Carry a job until it ends, rests, or the agent does not wait for it any more.

        No beat falls between its operations: the job may beat itself, and a second beat would be counted out of turn.
        The reply to an operation is always taken in, even if the agent has gone: it may be a beat's.
        """
        op, job.next_op = job.next_op, None
        if op is None:
            op = self._advance(job, None)
        while op is not None:
            try:
                reply = yield from self._call(op)
            except InDoubt as error:
                op = self._advance(job, None, error)
            else:
                op = self._advance(job, reply)

    def _advance(self, job: _Job, reply: Any, error: InDoubt | None = None) -> Op | None:
        """Take a job one step further. Returns the operation it asks for; None if it ended or rests."""
        try:
            step = job.routine.send(reply) if error is None else job.routine.throw(error)
        except StopIteration as stop:
            job.end(stop.value, None)
        except Exception as raised:  # It belongs to the agent, which waits for the job.
            job.end(None, raised)
        else:
            if isinstance(step, Rest):
                self._has_changed = False
                self._log_wait()
                return None
            if not job.is_done:
                return step
        self._end_post(job)
        self._on_end()
        return None

    def _end_post(self, job: _Job) -> None:
        if self._posts and self._posts[0] is job:
            self._posts.popleft()
            if job.error is not None:
                log.warning("this node could not tell the coordinator: %s", job.error)

    def _log_wait(self) -> None:
        if self._logs_waits:
            wait = self.participant.describe_wait()
            if wait != self._logged_wait:
                self._logged_wait = wait
                log.info("%s", wait)

    def _beat(self) -> WriterRoutine[None]:
        """Renew the lease. A fenced node does not beat. It reads the head to find out why."""
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
        self.change()

    def _beat_gap(self) -> float:
        """How long to wait for the next beat."""
        return self._quick_beat_s if self._clock() < self._hurries_until else self._beat_s

    def _tell_updates(self, now: float) -> WriterRoutine[None]:
        """Pass on what workers have reported. `now` is when the beat was due, so that beats and records keep step."""
        for op in self.participant.tell_updates(now, self._beat_s):
            yield from self._call(op)

    def _judge_agent(self, gap_s: float) -> WriterRoutine[None]:
        """Leave if the agent was asked to stop its workers and does not come back, or does not look after them.

        Beats are counted, each with the time until the next, not seconds: if this process stood still, so did the
        agent.
        """
        is_away = self._job is None and self.participant.has_outdated_workers
        self._away_s = self._away_s + gap_s if is_away else 0.0
        self._ticks.pass_time(0 if self._job is not None else self.participant.training_in, gap_s)
        lease_s, trained_in = self.participant.lease_s, self.participant.progress.trained_in
        if is_wedged(self._away_s, lease_s, self._health_check_s):
            error = AgentWedged(trained_in, self._away_s)
        elif self._ticks.are_over(lease_s):
            error = AgentWedged(trained_in, self._ticks.silent_s, is_over=False)
        else:
            return
        log.error("%s; its thread is here:\n%s", error, self._describe_agent())
        yield from self._carry(_Job(self.participant.goodbye(Outcome.LEFT, str(error))))
        self.break_off(error)

    def _call(self, op: Op) -> WriterRoutine[Any]:
        """Have an operation performed; over a new connection if the old one breaks.

        Every operation but one may be performed twice. An `Add` may not: its caller must find out what became of it.
        The store does not answer a write. It takes the operations of one connection in order, so any answer confirms
        the writes before it.
        """
        while True:
            self._calling_since = self._clock()
            try:
                reply = yield op
                if isinstance(op, UNANSWERED):
                    self._unconfirmed.append(op)
                else:
                    self._unconfirmed.clear()
                return reply
            except StoreUnavailable as error:
                self._calling_since = None
                yield from self._mend(error)
                if isinstance(op, Add):
                    raise InDoubt(self._endpoint, "the connection broke during a count") from error
            finally:
                self._calling_since = None

    def _mend(self, error: StoreUnavailable) -> WriterRoutine[None]:
        """Replace broken connections, and repeat the writes that may have been lost with the old ones.

        Raises StoreUnavailable when the policy says that the store is lost.
        """
        self._cut, self._cut_since = error, self._clock()
        outage = Outage(since=self._cut_since)
        delay_s, last = FIRST_RETRY_DELAY_S, error
        while True:
            if self.is_over:
                raise error
            has_answered = False
            try:
                head = yield Connect()
                if head.epoch != self.participant.epoch:
                    break
                has_answered = True
                for op in self._unconfirmed:  # noqa: UP028 (a driver may send any reply)
                    yield op
                break
            except StoreUnavailable as failed:
                last = failed
            if has_answered:
                outage = Outage(since=self._clock())  # The store is there: this break begins a new outage.
            is_first = outage.tries == 0
            outage = outage.after(last.is_refused, self._clock())
            retry = decide_retry(
                outage,
                self._clock(),
                self.participant.lease_s,
                self._join_s,
                is_host_gone=self._is_lifeline_refused,
            )
            if not retry.may_try:
                raise StoreUnavailable(self._endpoint, f"{last.fact}, {retry.reason}") from last
            if is_first:
                log.warning("out of touch with the store at %s: %s; %s", self._endpoint, last.fact, retry.reason)
            yield Rest(delay_s, lambda: self.is_over)
            delay_s = min(delay_s * 2, self._beat_s)
        if head.epoch != self.participant.epoch:
            raise StoreUnavailable(self._endpoint, "the store is a new one; this run ended with the old")
        self._cut = None
        if outage.tries:
            log.info("in touch with the store again after %.1f s", self._clock() - outage.since)
        if self.participant.is_listening:
            self._on_listen()

    # --- the lifeline -------------------------------------------------------------------------------

    @property
    def is_out_of_touch(self) -> bool:
        """Whether the node has no connection to the store now."""
        return self._cut is not None

    def gain_lifeline(self) -> None:
        """A lifeline is connected."""
        self._hurries_until, self._is_lifeline_refused, self._had_lifeline = float("-inf"), False, True

    def lose_lifeline(self) -> None:
        """The lifeline has ended: beat at once, and quickly until another one is connected, but not for long.

        The host reads the beat twice. It may notice the end later than this node, so one beat is not enough.
        """
        self._hurries_until = self._clock() + HURRY_S
        self._next_beat_at = self._clock()
        self.change()

    def miss_lifeline(self, is_refused: bool) -> None:
        """An attempt to connect a lifeline has failed. A firewall may refuse it, too, so the node goes on to hurry."""
        self._is_lifeline_refused = is_refused and self._had_lifeline

    # --- the listener -------------------------------------------------------------------------------

    def watch(self) -> Routine[None]:
        """What the next listener listens for: the events of the current incarnation."""
        return self.participant.watch(self.participant.incarnation)

    def listen(self, watch: Routine[None], is_current: Callable[[], bool]) -> Routine[None]:
        """Hear events until the incarnation is over, or another listener has taken this one's place."""
        reply: Any = None
        try:
            while not self.is_stopped and is_current():
                try:
                    step = watch.send(reply)
                except StopIteration:
                    self.change()
                    return
                if reply is not None:
                    self._heed()
                reply = yield step
        except StoreUnavailable as error:
            if is_current():
                self.lose_listener(error)
        except Exception as error:  # The end of a thread: the agent must learn of any error.
            if is_current():
                self.break_off(error)

    def lose_listener(self, error: StoreUnavailable) -> None:
        """The current listener has no connection: the writer must replace both."""
        if self._cut is None:
            self._cut, self._cut_since = error, self._clock()
        self.change()

    def _heed(self) -> None:
        """An event was heard: let the job that waits for it go on, here and now if the writer is at rest.

        A seat ends the job without any operation, so that most often only the agent needs to wake up.
        """
        job = self._job
        is_free = not self.is_over and self._cut is None and self._calling_since is None and not self._posts
        if is_free and job is not None and not job.is_done and job.next_op is None:
            job.next_op = self._advance(job, None)
            if job.next_op is None:
                return
        self.change()
