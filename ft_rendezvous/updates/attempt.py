"""One try of an update: what a flow calls, and the clean-up after it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ft_rendezvous.errors import CleanupError, ConfigError, UpdateError, describe_error
from ft_rendezvous.updates.cleanup import CleanupCall, PartyCleanup
from ft_rendezvous.updates.membership import PartyRecord
from ft_rendezvous.updates.party import PartyAction, PartyHandle
from ft_rendezvous.updates.rules import (
    MAX_ATTEMPTS,
    BegunStep,
    CleanupKind,
    EndKind,
    FleetRules,
    plan_cleanup,
)
from ft_rendezvous.updates.step_run import StepRun
from ft_rendezvous.worker import UpdateStep


@dataclass(frozen=True, slots=True)
class FlowStep:
    """A step that a flow has begun, with what cleans up after it."""

    run: StepRun
    finish: PartyAction | None
    undo: PartyAction | None


class Update:
    """One try of an update. A flow calls its steps one after another, and may be called again with another try."""

    def __init__(self, version: int, attempt: int, records: Sequence[PartyRecord], rules: FleetRules) -> None:
        self.version = version
        self.attempt = attempt
        self.parties = tuple(record.name for record in records)
        """The names of the parties of this try, in order."""
        self._trial = Trial(self, records, rules)

    def rank_of(self, party: PartyHandle) -> int:
        """The place of a party among the parties of this try, from 0."""
        return self.parties.index(party.party_name)

    async def step(
        self,
        name: str,
        action: PartyAction,
        *,
        finish: PartyAction | None = None,
        undo: PartyAction | None = None,
        abort: PartyAction | None = None,
        timeout_s: float | None = None,
    ) -> dict[str, Any]:
        """Do one step on all parties at the same time. Returns what each party returned, by its name."""
        return await self._trial.step(name, action, finish=finish, undo=undo, abort=abort, timeout_s=timeout_s)


class Trial:
    """What is behind an `Update`: its steps, its first failure, and its clean-up."""

    def __init__(self, update: Update, records: Sequence[PartyRecord], rules: FleetRules) -> None:
        self.records = records
        self.durations: list[UpdateStep] = []
        self.failure: UpdateError | None = None
        self.interrupt: BaseException | None = None
        """A party raised what is no `Exception`: `KeyboardInterrupt`, for example."""
        self.is_cut_short = False
        """A step was cancelled: this try cannot complete, even if the flow goes on."""
        self.blamed: tuple[str, ...] = ()
        self.dead: set[str] = set()
        self.cleanup_errors: list[CleanupError] = []
        """In the order in which they happened."""
        self._update = update
        self._rules = rules
        self._steps: list[FlowStep] = []
        self._current: StepRun | None = None
        self._settled: asyncio.Future[None] | None = None
        self._is_over = False
        self._silent: set[str] = set()
        """Parties that did not answer in time."""

    async def step(
        self,
        name: str,
        action: PartyAction,
        *,
        finish: PartyAction | None,
        undo: PartyAction | None,
        abort: PartyAction | None,
        timeout_s: float | None,
    ) -> dict[str, Any]:
        if self.failure is not None and not self._is_over:
            raise self.failure  # An attempt that failed cannot go on, even if the flow caught the error.
        if self._current is not None or self._is_over:
            state = "the update is over" if self._current is None else f"step {self._current.name!r} is under way"
            refusal = RuntimeError(f"step {name!r} cannot begin, because {state}: await the steps one after another")
            if not self._is_over:
                self.fail(refusal)  # Even if the flow drops the error: a step is missing.
            raise refusal
        if self.is_cut_short:
            raise RuntimeError(f"step {name!r} cannot begin, because a step before it was cancelled")
        rules = self._rules
        timeout_s = rules.step_timeout_s if timeout_s is None else timeout_s
        if not 0 < timeout_s < float("inf"):
            raise ConfigError(f"timeout_s of step {name!r} is {timeout_s}: give a time in seconds that ends")
        run = StepRun(name, self.records, action, abort, timeout_s=timeout_s, abort_timeout_s=rules.abort_timeout_s)
        self._steps.append(FlowStep(run, finish, undo))
        self._current = run
        loop = asyncio.get_running_loop()
        began_at = loop.time()
        cancellation = None
        try:
            await run.run()
        except asyncio.CancelledError as error:
            cancellation = error
        self._current = None
        self.durations.append(UpdateStep(name=name, duration_s=loop.time() - began_at))
        self.cleanup_errors += run.abort_errors
        self._judge(run)
        if self._settled is not None:
            self._settled.set_result(None)
        if cancellation is not None:
            raise cancellation
        if self.failure is not None:
            raise self.failure if self.interrupt is None else self.interrupt
        return {call.record.name: call.value for call in run.calls}

    async def settle(self) -> None:
        """End the step that is under way although the flow has ended, as in a `gather` of which another part raised."""
        self._is_over = True
        if self._current is not None:
            self._settled = asyncio.get_running_loop().create_future()
            self._current.cancel()
            await self._settled

    def _judge(self, run: StepRun) -> None:
        if not run.has_failed:
            return
        self.blamed = run.blamed(is_last_attempt=self._update.attempt >= MAX_ATTEMPTS)
        self.dead = run.ended_as(EndKind.DEAD)
        self._silent |= run.ended_as(EndKind.GIVEN_UP)
        self.interrupt = next((call.error for call in [*run.calls, *run.aborts] if call.is_interrupted), None)
        if run.is_cancelled:
            self.is_cut_short = True
            return
        if self.failure is not None:
            return
        party, error = run.first_error(self.blamed)
        fact = f"step {run.name!r} on party {party!r}: {describe_error(error)}"
        self.failure = UpdateError(self._update.version, fact, step=run.name, party=party)
        self.failure.__cause__ = error
        for call in run.calls:
            if call.record.name in self.blamed and call.record.name != party:
                what = "" if call.error is None else f": {describe_error(call.error)}"
                self.failure.add_note(f"party {call.record.name!r} failed, too: {call.end_kind}{what}")

    def fail(self, error: Exception) -> None:
        """The flow has raised. Only the first failure counts."""
        if self.failure is None:
            self.failure = UpdateError(self._update.version, f"the flow raised {describe_error(error)}")
            self.failure.__cause__ = error

    # --- clean-up -----------------------------------------------------------------------------------

    def start_cleanup(self, *, has_failed: bool) -> list[PartyCleanup]:
        """Clean up every party by itself: one that does not answer does not keep the others waiting."""
        begun = [step.run.begun() for step in self._steps]
        return [
            PartyCleanup(
                record,
                self._plan([record.name in names for names in begun], has_failed),
                self._rules,
                self.cleanup_errors,
                is_silent=record.name in self._silent,
            )
            for record in self.records
        ]

    def _plan(self, has_begun: Sequence[bool], has_failed: bool) -> list[CleanupCall]:
        steps = [
            BegunStep(number, step.undo is not None, step.finish is not None)
            for number, step in enumerate(self._steps)
            if has_begun[number]
        ]
        plan = []
        for item in plan_cleanup(steps, has_failed=has_failed):
            step = self._steps[item.step]
            action = step.undo if item.kind is CleanupKind.UNDO else step.finish
            assert action is not None
            plan.append(CleanupCall(item.kind, step.run.name, action))
        return plan
