"""`ft_rendezvous.host.host` in virtual time: the coordinator's thread and the bell's, beside the server.

A pause of this process stops the coordinator; whether the server stops with it is the fault's choice, since a
server has threads of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.core.model import Verdict, VerdictKind
from ft_rendezvous.errors import FtError, StoreUnavailable
from ft_rendezvous.host.staying import SIGNAL_POLL_S, HostStay, StayStep
from ft_rendezvous.host.verdict_file import VERDICT_FILE_TIMEOUT_S
from ft_rendezvous.protocol.coordinator import Coordinator
from ft_rendezvous.protocol.ops import Delete, Get, Move
from tests.sim.kernel import Call, Condition, Connection, Delays, Process, Routine, Server, Sleep, Thread, Trap, Wait

LOOPBACK_S = 2e-5


class SimHost:
    """Serves one run until it is closed and everybody has gone."""

    def __init__(self, process: Process, server: Server, coordinator: Coordinator, settings: RunSettings) -> None:
        self.process = process
        self.server = server
        self.coordinator = coordinator
        self.is_done = False
        self.on_failure: Callable[[Exception], None] = lambda _: None
        self.on_leave: Callable[[], None] = lambda: None
        """Called when the node that hosts the store stays no longer, though the run is not over."""
        self.verdict_file_s = 0.0
        """How long the disk takes to write the verdict file."""
        self.has_signal = False
        """A signal has come to the node that hosts the store, and its agent does not handle it any more."""
        self.stays = False
        self._settings = settings
        self._rung = Condition()
        self._is_rung = False
        delays = Delays(LOOPBACK_S)
        self._voice = Connection(process, server, delays, "coordinator")
        self._ear = Connection(process, server, delays, "bell")
        coordinator.on_close = self._write_verdict
        Thread(process, "coordinator", self._coordinate())
        Thread(process, "bell", self._listen_for_bell())

    def _perform(self, move: Move[Any]) -> Routine:
        reply: Any = None
        while True:
            try:
                op = move.send(reply)
            except StopIteration as stop:
                return stop.value
            reply = yield Call(self._voice, op)

    def _coordinate(self) -> Routine:
        try:
            yield from self._perform(self.coordinator.start())
            while not self.coordinator.is_done:
                wake_at = yield from self._perform(self.coordinator.tick())
                yield from self._rest(wake_at)
        except StoreUnavailable:
            pass
        except Exception as error:
            # As in the real host: whatever went wrong must not leave the nodes waiting.
            self.on_failure(error)
            yield from self._close_after(error)
        self.is_done = True

    def _write_verdict(self, _verdict: Verdict, _cycle_id: int, _first: FailureNote | None) -> None:
        """The coordinator stands still while the disk is slow, and no longer than the time limit."""
        slow_s = min(self.verdict_file_s, VERDICT_FILE_TIMEOUT_S)
        if slow_s:
            process, kernel = self.process, self.process.kernel

            def block() -> None:
                process.pause()
                kernel.at(kernel.now + slow_s, process.resume)

            process.trap = Trap(0, is_after=False, spring=block, thread="coordinator")

    def stay(self) -> None:
        """The agent of the node that hosts the store has ended."""
        if not self.stays:
            self.stays = True
            Thread(self.process, "staying", self._stay_while_needed())

    def _stay_while_needed(self) -> Routine:
        stay = HostStay(self._settings.join_s, self.process.clock())
        while not self.is_done:
            yield Sleep(SIGNAL_POLL_S)
            has_signal, self.has_signal = self.has_signal, False
            others = len(self.coordinator.roster.members)
            if stay.decide_staying(others, has_signal, self.process.clock()) is StayStep.LEAVE and not self.is_done:
                self.on_leave()
                return

    def _rest(self, wake_at: float) -> Routine:
        """Wait for the bell, and no longer than until `wake_at`."""
        if not self._is_rung:
            yield Wait(self._rung, max(0.0, wake_at - self.process.clock()))
        self._is_rung = False

    def _close_after(self, error: Exception) -> Routine:
        verdict = Verdict(VerdictKind.FAILED, f"the coordinator failed: {type(error).__name__}: {error}")
        try:
            yield from self._perform(self.coordinator.close(verdict))
            yield Sleep(self._settings.store_grace_s)
        except FtError:
            pass

    def _listen_for_bell(self) -> Routine:
        bell = self.coordinator.keys.bell
        try:
            while True:
                yield Call(self._ear, Get(bell))
                yield Call(self._ear, Delete(bell))
                self.ring()
        except StoreUnavailable:
            pass

    def ring(self) -> None:
        self._is_rung = True
        self._rung.notify_all()
