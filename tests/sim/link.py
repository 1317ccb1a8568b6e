"""Drives a node's loop in virtual time: what `node.threads` does with threads, this does with the scheduler."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ft_rendezvous.core.model import Outcome
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.protocol.node_loop import Line, Rest
from ft_rendezvous.protocol.node_loop import Routine as LineRoutine
from ft_rendezvous.protocol.ops import Check, Move
from ft_rendezvous.protocol.participant import Flow, Participant
from tests.sim.kernel import Call, Condition, Connection, Process, Routine, Thread, Wait


@dataclass(slots=True, eq=False)
class _Ear:
    """A thread that listens for one incarnation."""

    connection: Connection | None
    is_started: bool = False

    def close(self) -> None:
        if self.connection is not None:
            self.connection.cut(loses_sent=False)


class SimLink:
    """A participant and the threads that keep it alive."""

    def __init__(
        self, process: Process, connect: Callable[[str], Connection], participant: Participant, beat_s: float
    ) -> None:
        self._process = process
        self._connect = connect
        self._changed = Condition()
        self.line = Line(
            participant,
            beat_s,
            "store",
            on_stir=self._changed.notify_all,
            on_end=self._changed.notify_all,
            tells_waits=False,
        )
        self.participant = participant
        participant.on_enlisted = self._start_ear
        voice = connect("voice")
        self._ear = _Ear(connect("ear"))
        Thread(process, "voice", self._drive(self.line.speak(), voice))

    @property
    def is_broken(self) -> bool:
        return self.line.broken is not None

    def must_stop(self, cycle_id: int) -> bool:
        return self.line.must_stop(cycle_id)

    def run(self, flow: Flow[Any], patience_s: float | None = None) -> Routine:
        return self._drive(self.line.run(flow, patience_s))

    def post(self, move: Move[None]) -> None:
        self.line.post(move)

    def leave(self, outcome: Outcome, reason: str) -> Routine:
        yield from self._drive(self.line.leave(outcome, reason))
        self._ear.close()

    def stop(self) -> None:
        self.line.stop()
        self._ear.close()

    def _drive(self, routine: LineRoutine[Any], connection: Connection | None = None) -> Routine:
        """Where the real link takes its lock, this runs between two yields."""
        try:
            request = routine.send(None)
            while True:
                if type(request) is Rest:
                    yield Wait(self._changed, request.seconds, request.until)
                    request = routine.send(None)
                    continue
                assert connection is not None
                try:
                    reply = yield Call(connection, request)
                except StoreUnavailable as error:
                    request = routine.throw(error)
                else:
                    request = routine.send(reply)
        except StopIteration as stop:
            return stop.value

    def _start_ear(self) -> None:
        if self._ear.is_started:
            self._ear.close()
            self._ear = _Ear(None)
        incarnation, ear = self.participant.incarnation, self._ear
        ear.is_started = True
        Thread(self._process, "ear", self._listen(ear, incarnation, self.participant.watch(incarnation)))

    def _listen(self, ear: _Ear, incarnation: str, watch: Move[None]) -> Routine:
        connection = ear.connection
        if connection is None:
            # Only the first ear has its connection ready; greeting the server takes the others a round trip.
            connection = self._connect("ear")
            try:
                yield Call(connection, Check([]))
            except StoreUnavailable as error:
                self.line.break_off(error)
                return
        ear.connection = connection
        connection.serves = incarnation
        yield from self._drive(self.line.listen(watch, lambda: ear is self._ear), connection)
        if ear is not self._ear:
            ear.close()
