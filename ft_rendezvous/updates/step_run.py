"""One step of an update, on all its parties at the same time, to the end of every call."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ft_rendezvous.errors import CleanupError
from ft_rendezvous.updates.calls import PartyCall, end_calls, outlast
from ft_rendezvous.updates.membership import PartyRecord
from ft_rendezvous.updates.party import PartyAction
from ft_rendezvous.updates.rules import GONE, CallEnd, EndKind, decide_wait_until, judge_blame


class StepRun:
    """Calls all parties. When one fails, or the deadline passes, it ends the calls of the others."""

    def __init__(
        self,
        name: str,
        records: Sequence[PartyRecord],
        action: PartyAction,
        abort: PartyAction | None,
        *,
        timeout_s: float,
        abort_timeout_s: float,
    ) -> None:
        self.name = name
        self.calls = [PartyCall(record, action, "action", name) for record in records]
        self.aborts: list[PartyCall] = []
        self.abort_errors: list[CleanupError] = []
        self.is_expired = False
        """The deadline passed before any party failed."""
        self._abort = abort
        self._timeout_s = timeout_s
        self._abort_timeout_s = abort_timeout_s
        self._over: list[PartyCall] = []
        """In the order in which they ended."""
        self._late: list[PartyCall] = []
        self.is_cancelled = False

    async def run(self) -> None:
        """Returns when every call is over, or given up. Raises only if the caller is cancelled."""
        loop = asyncio.get_running_loop()
        self._woken: asyncio.Future[None] = loop.create_future()
        deadline = loop.time() + self._timeout_s
        timer = loop.call_at(deadline, self._expire)
        for call in self.calls:
            call.start(self._note_end)
        cancellation = None
        try:
            await self._woken
        except asyncio.CancelledError as error:
            self.is_cancelled = True
            cancellation = error
        timer.cancel()
        if self.is_cancelled and cancellation is None:
            cancellation = asyncio.CancelledError("the flow ended before this step")
        if len(self._over) < len(self.calls):
            cancellation = await outlast(self._stop(loop.time(), deadline)) or cancellation
        if cancellation is not None:
            self.is_cancelled = True
            raise cancellation

    def cancel(self) -> None:
        """End this step, as if its caller was cancelled."""
        self.is_cancelled = True
        if not self._woken.done():
            self._woken.set_result(None)

    def _note_end(self, call: PartyCall) -> None:
        self._over.append(call)
        if (call.error is not None or len(self._over) == len(self.calls)) and not self._woken.done():
            self._woken.set_result(None)

    def _expire(self) -> None:
        late = [call for call in self.calls if not call.is_over]
        if late and not self._woken.done():  # If none is late, the last end is about to be noted.
            self.is_expired = True
            self._late = late
            self._woken.set_result(None)

    async def _stop(self, now: float, deadline: float) -> None:
        """End the calls that are not over."""
        running = [call for call in self.calls if not call.is_over]
        if self._abort is None:
            for call in running:
                call.ask_to_end()
        else:
            self.aborts = [PartyCall(call.record, self._abort, "abort", self.name) for call in running]
            for abort in self.aborts:
                abort.start()
        wait_until = decide_wait_until(
            now, deadline, self._abort_timeout_s, has_abort=self._abort is not None, is_cancelled=self.is_cancelled
        )
        await asyncio.gather(end_calls(running, wait_until - now), end_calls(self.aborts, self._abort_timeout_s))
        late = TimeoutError(f"it was not done after {self._abort_timeout_s:g} s")
        self.abort_errors = [
            CleanupError("abort", self.name, abort.record.name, late if abort.is_given_up else abort.error or late)
            for abort in self.aborts
            if abort.has_failed
        ]

    # --- how it ended -------------------------------------------------------------------------------

    @property
    def has_failed(self) -> bool:
        return self.is_cancelled or self.is_expired or any(call.has_failed for call in self.calls)

    def blamed(self, *, is_last_attempt: bool) -> tuple[str, ...]:
        """The parties that failed. If the caller was cancelled, those that are gone: the others were told to end."""
        order = {id(call): number for number, call in enumerate(self._over)}
        calls = sorted(self.calls, key=lambda call: order.get(id(call), len(order)))
        ends = [
            CallEnd(call.record.name, call.end_kind, call in self._late, call.record.party.essential) for call in calls
        ]
        if self.is_cancelled:
            return tuple(end.party for end in ends if end.kind in GONE)
        return judge_blame(ends, has_abort=self._abort is not None, is_last_attempt=is_last_attempt)

    def begun(self) -> set[str]:
        """The parties that were called."""
        return {call.record.name for call in self.calls if call.has_begun}

    def ended_as(self, kind: EndKind) -> set[str]:
        return {call.record.name for call in self.calls if call.end_kind is kind}

    def first_error(self, blamed: Sequence[str]) -> tuple[str, BaseException]:
        """The party and the error that made this step fail."""
        if self.is_expired:
            late = [call.record.name for call in self._late]
            party = next((name for name in late if name in blamed), late[0])
            return party, TimeoutError(f"it was not done after {self._timeout_s:g} s")
        call = next(call for call in self._over if call.error is not None)
        assert call.error is not None
        return call.record.name, call.error
