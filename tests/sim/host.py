"""`ft_rendezvous.host.host` in virtual time: the coordinator's thread and the bell's, beside the server.

A pause of this process stops the coordinator; whether the server stops with it is the fault's choice, since a
server has threads of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.model import Verdict, VerdictKind
from ft_rendezvous.errors import FtError, StoreUnavailable
from ft_rendezvous.protocol.coordinator import Coordinator
from ft_rendezvous.protocol.ops import Delete, Get, Move
from tests.sim.kernel import Call, Condition, Connection, Delays, Process, Routine, Server, Sleep, Thread, Wait

LOOPBACK_S = 2e-5


class SimHost:
    """Serves one run until it is closed and everybody has gone."""

    def __init__(self, process: Process, server: Server, coordinator: Coordinator, settings: RunSettings) -> None:
        self.process = process
        self.server = server
        self.coordinator = coordinator
        self.is_done = False
        self.on_failure: Callable[[Exception], None] = lambda _: None
        self._settings = settings
        self._rung = Condition()
        self._is_rung = False
        delays = Delays(LOOPBACK_S)
        self._voice = Connection(process, server, delays, "coordinator")
        self._ear = Connection(process, server, delays, "bell")
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
                self._ring()
        except StoreUnavailable:
            pass

    def _ring(self) -> None:
        self._is_rung = True
        self._rung.notify_all()
