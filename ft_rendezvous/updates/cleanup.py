"""The clean-up of one party after a try: one call after another, each with a deadline, to the last one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from ft_rendezvous.errors import CleanupError
from ft_rendezvous.updates.calls import GIVE_UP_S, PartyCall
from ft_rendezvous.updates.membership import PartyRecord
from ft_rendezvous.updates.party import PartyAction
from ft_rendezvous.updates.rules import CleanupKind, EndKind, FleetRules, decide_cleanup_timeout_s

log = logging.getLogger("ft_rendezvous")


@dataclass(frozen=True, slots=True)
class CleanupCall:
    """One undo or finish that is to be called."""

    kind: CleanupKind
    step: str
    action: PartyAction


class PartyCleanup:
    """Cleans up one party. The end of each call starts the next one, so no task waits in between."""

    def __init__(
        self,
        record: PartyRecord,
        plan: Sequence[CleanupCall],
        rules: FleetRules,
        errors: list[CleanupError],
        *,
        is_silent: bool,
    ) -> None:
        self.record = record
        self.has_failed = False
        self._errors = errors
        """Of all parties, in the order in which they happened."""
        self.is_dead = False
        self.interrupt: BaseException | None = None
        self._plan = iter(plan)
        self._rules = rules
        self._is_silent = is_silent
        """The party did not answer in time."""
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self._call_next()

    def _call_next(self) -> None:
        item = next(self._plan, None)
        if item is None:
            self.over.set_result(None)
            return
        self._item = item
        self._timeout_s = decide_cleanup_timeout_s(self._rules, is_silent=self._is_silent)
        self._current: PartyCall | None = PartyCall(self.record, item.action, item.kind, item.step)
        self._timer = self._loop.call_later(self._timeout_s, self._give_up, self._current)
        self._current.start(self._take_end)

    def _give_up(self, call: PartyCall) -> None:
        if not call.is_over:
            call.give_up()
            self._timer = self._loop.call_later(GIVE_UP_S, self._leave_behind, call)

    def _leave_behind(self, call: PartyCall) -> None:
        if not call.is_over:
            log.error("%s cannot be cancelled: its task is left behind", call)
            self._take_end(call)

    def _take_end(self, call: PartyCall) -> None:
        if call is not self._current:
            return  # It was left behind, and has ended at last.
        self._timer.cancel()
        self._current = None
        if call.error is not None or call.is_given_up:
            self._take_error(call)
        self._call_next()

    def _take_error(self, call: PartyCall) -> None:
        kind, error = call.end_kind, call.error
        if kind is EndKind.GIVEN_UP:
            self._is_silent = True
            error = TimeoutError(f"it was not done after {self._timeout_s:g} s")
        elif call.is_interrupted:
            self.interrupt = error
        elif kind is EndKind.DEAD:
            self.is_dead = True
        assert error is not None
        self.has_failed = True
        self._errors.append(CleanupError(self._item.kind.value, self._item.step, self.record.name, error))
