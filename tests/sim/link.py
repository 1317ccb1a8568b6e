"""Drives a node's loop in virtual time: what `node.threads` does with threads, this does with the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.model import Head, Outcome
from ft_rendezvous.core.suspects import LifelineSign
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.lifeline_keeper import LifelineKeeper
from ft_rendezvous.protocol.node_loop import NodeLoop
from ft_rendezvous.protocol.ops import (
    AwaitHangUp,
    Check,
    Connect,
    Get,
    Hail,
    Move,
    Rest,
    Routine,
    WriterRoutine,
)
from ft_rendezvous.protocol.participant import Participant
from ft_rendezvous.store.raw_client import GREETING_TIMEOUT_S
from tests.sim.kernel import Call, Condition, Connection, Thread, Wait
from tests.sim.kernel import Routine as Steps
from tests.sim.lifelines import SimLifeline, SimSwitchboard

if TYPE_CHECKING:
    from tests.sim.agent import SimNode

decode_head = lru_cache(maxsize=8)(codec.decode_head)


@dataclass(slots=True, eq=False)
class _Listener:
    """A thread that listens for one incarnation."""

    connection: Connection | None
    is_started: bool = False

    def close(self) -> None:
        if self.connection is not None:
            self.connection.cut(loses_sent=False)


class SimLink:
    """A participant and the threads that keep it alive."""

    def __init__(
        self,
        process: SimNode,
        connect: Callable[[str], Connection],
        participant: Participant,
        settings: RunSettings,
        switchboard: SimSwitchboard,
    ) -> None:
        self._process = process
        self._switchboard = switchboard
        self._lifeline: SimLifeline | None = None
        self._connect = connect
        self._changed = Condition()
        self._lease_s = participant.lease_s
        self.participant = participant
        self.loop = NodeLoop(
            participant,
            beat_s=settings.beat_s,
            join_s=settings.join_s,
            lifeline_grace_s=settings.lifeline_grace_s,
            endpoint="store",
            on_change=self._changed.notify_all,
            on_end=self._changed.notify_all,
            on_listen=self._listen_anew,
            logs_waits=False,
        )
        self._writer = connect("writer")
        self._listener = _Listener(connect("listener"))
        Thread(process, "writer", self._drive(self.loop.write(), lambda: self._writer, self._lease_s))
        if settings.has_lifelines:
            Thread(process, "lifeline", self._keep_lifeline())

    @property
    def is_broken(self) -> bool:
        return self.loop.broken is not None

    def tick(self, cycle_id: int) -> None:
        self.loop.tick(cycle_id)

    def must_stop(self, cycle_id: int) -> bool:
        return self.loop.must_stop(cycle_id)

    def run(self, routine: Routine[Any], timeout_s: float | None = None) -> Steps:
        return self._drive(self.loop.run(routine, timeout_s))

    def post(self, move: Move[None]) -> None:
        self.loop.post(move)

    def leave(self, outcome: Outcome, reason: str) -> Steps:
        yield from self._drive(self.loop.leave(outcome, reason))
        self._end_lifeline(LifelineSign.GOODBYE if self.participant.has_left else LifelineSign.HUNG_UP)
        self._writer.cut(loses_sent=False)
        self._listener.close()

    def _drive(
        self,
        routine: Routine[Any] | WriterRoutine[Any],
        connection: Callable[[], Connection] | None = None,
        timeout_s: float | None = None,
    ) -> Steps:
        """Where the real link takes its lock, this runs between two yields."""
        try:
            request = routine.send(None)
            while True:
                if isinstance(request, Rest):
                    yield Wait(self._changed, request.seconds, request.until)
                    request = routine.send(None)
                    continue
                assert connection is not None
                try:
                    if isinstance(request, Connect):
                        reply = yield from self._reconnect()
                    else:
                        reply = yield Call(connection(), request, timeout_s)
                except StoreUnavailable as error:
                    request = routine.throw(error)
                else:
                    request = routine.send(reply)
        except StopIteration as stop:
            return stop.value

    def _reconnect(self) -> Steps:
        """One attempt: whether a store is there, and what its head says."""
        self._writer.cut(loses_sent=False)
        self._listener.close()
        writer = self._connect("writer")
        reply: bytes = yield Call(writer, Get(codec.HEAD_KEY), GREETING_TIMEOUT_S)
        head: Head = decode_head(reply)
        self._writer = writer
        self._listener = _Listener(self._connect("listener"))
        return head

    # --- the lifeline -------------------------------------------------------------------------------

    def _keep_lifeline(self) -> Steps:
        routine = LifelineKeeper(self.loop).keep()
        try:
            request = routine.send(None)
            while True:
                match request:
                    case Rest():
                        yield Wait(self._changed, request.seconds, request.until)
                        request = routine.send(None)
                    case AwaitHangUp():
                        assert self._lifeline is not None
                        if not self._lifeline.has_ended:
                            yield Wait(self._lifeline.ended)
                        request = routine.send(None)
                    case Hail():
                        try:
                            self._lifeline = yield from self._switchboard.hail(self._process, request.incarnation)
                        except StoreUnavailable as error:
                            request = routine.throw(error)
                            continue
                        if self.loop.is_over or request.incarnation != self.participant.lifeline_name:
                            self._end_lifeline(LifelineSign.HUNG_UP)
                        request = routine.send(None)
        except StopIteration:
            return

    def _end_lifeline(self, sign: LifelineSign) -> None:
        if self._lifeline is not None and not self._lifeline.has_ended:
            self._switchboard.end(self._lifeline, sign)

    def break_lifeline(self, is_silent: bool) -> None:
        """The process has died. If only the agent has, its reaper says so. A machine that is gone says nothing."""
        if not is_silent:
            is_said = self._switchboard.rng.random() < 0.5
            self._end_lifeline(LifelineSign.DEAD if is_said else LifelineSign.HUNG_UP)

    def _listen_anew(self) -> None:
        if self._lifeline is not None and self._lifeline.incarnation != self.participant.incarnation:
            self._end_lifeline(LifelineSign.HUNG_UP)
        self._changed.notify_all()
        if self._listener.is_started:
            self._listener.close()
            self._listener = _Listener(None)
        listener, incarnation = self._listener, self.participant.incarnation
        listener.is_started = True
        Thread(self._process, "listener", self._listen(listener, incarnation, self.loop.watch()))

    def _listen(self, listener: _Listener, incarnation: str, watch: Routine[None]) -> Steps:
        connection = listener.connection
        if connection is None:
            # Only a listener of a new connection has it ready; greeting the server takes the others a round trip.
            connection = self._connect("listener")
            try:
                yield Call(connection, Check([]), GREETING_TIMEOUT_S)
            except StoreUnavailable as error:
                if listener is self._listener:
                    self.loop.lose_listener(error)
                return
        listener.connection = connection
        connection.serves = incarnation
        is_current = lambda: listener is self._listener  # noqa: E731
        yield from self._drive(self.loop.listen(watch, is_current), lambda: connection)
        if listener is not self._listener:
            listener.close()
