"""An update from its first try to its end: which parties take part, the second try, and what is reported of it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

from ft_rendezvous.errors import CleanupError, UpdateError
from ft_rendezvous.text import count, listing, one_line
from ft_rendezvous.updates.attempt import Trial, Update
from ft_rendezvous.updates.calls import outlast
from ft_rendezvous.updates.cleanup import PartyCleanup
from ft_rendezvous.updates.membership import FleetMembership, PartyRecord
from ft_rendezvous.updates.rules import AttemptFacts, Ending, FleetRules, decide_ending
from ft_rendezvous.worker import UpdateReport, UpdateStep

log = logging.getLogger("ft_rendezvous")

Flow = Callable[[Update], Awaitable[object]]


class UpdateRun:
    """One update of a fleet. `run` never raises an error of a party or of the flow: it keeps it in `error`."""

    def __init__(self, membership: FleetMembership, rules: FleetRules, flow: Flow, version: int) -> None:
        self.error: UpdateError | None = None
        self.interrupt: BaseException | None = None
        """The caller was cancelled, or the flow raised what is no `Exception`."""
        self.ending = Ending.RETRY
        self._membership = membership
        self._rules = rules
        self._flow = flow
        self._version = version
        self._records = membership.taking_part()
        self._first_count = len(self._records)
        self._lacks_essential = len(_essential(self._records)) < len(_essential(membership.records))
        self._attempts = 0
        self._durations: list[UpdateStep] = []
        self._began_at = 0.0
        self._lost_s = 0.0
        """Until the last try began."""
        self._has_failed = True
        """The last try did not do every step."""
        self._updated: tuple[str, ...] = ()
        self._failed: dict[str, None] = {}
        """Names, in the order in which they failed."""
        self._trials: list[Trial] = []
        self._cleanups: list[PartyCleanup] = []
        """Of all tries. The second try does not wait for those of the parties that were excluded."""

    async def run(self) -> UpdateReport:
        loop = asyncio.get_running_loop()
        self._began_at = loop.time()
        if self._is_short():
            self.ending = Ending.UNRECOVERABLE
            self.error = UpdateError(self._version, self._describe_shortage())
        while self.ending is Ending.RETRY and self.interrupt is None:
            self._attempts += 1
            await self._try(loop)
        self._interrupt_by(await outlast(_wait_for(self._cleanups)))
        for cleanup in self._cleanups:
            self._interrupt_by(cleanup.interrupt)
            if cleanup.is_dead:
                self._membership.die(cleanup.record)
        self._complete_error()
        return self._report(loop.time() - self._began_at)

    # --- one try ------------------------------------------------------------------------------------

    async def _try(self, loop: asyncio.AbstractEventLoop) -> None:
        self._lost_s = loop.time() - self._began_at
        update = Update(self._version, self._attempts, self._records, self._rules)
        trial = update._trial
        self._trials.append(trial)
        try:
            await self._flow(update)
        except GeneratorExit:  # The loop is gone: nothing can be awaited any more.
            raise
        except Exception as error:  # Errors of the flow are the caller's, after the clean-up.
            trial.fail(error)
        except BaseException as error:  # The caller was cancelled. It is raised after the clean-up.
            self.interrupt = error
        self._interrupt_by(await outlast(trial.settle()))
        if trial.is_cut_short and self.interrupt is None:
            trial.fail(RuntimeError("a step was cancelled, and the flow did not raise"))
        has_failed = trial.failure is not None or self.interrupt is not None
        cleanups = trial.start_cleanup(has_failed=has_failed)
        cleanup_began_at = loop.time()
        self._cleanups += cleanups
        others = [cleanup for cleanup in cleanups if cleanup.record.name not in trial.blamed]
        self._interrupt_by(await outlast(_wait_for(others)))
        cleanup = UpdateStep(name="clean-up", duration_s=loop.time() - cleanup_began_at)
        self._durations = [*trial.durations, cleanup]
        self._interrupt_by(trial.interrupt)
        self._settle(trial, others, has_failed)
        self._has_failed = has_failed

    def _settle(self, trial: Trial, cleanups: Sequence[PartyCleanup], has_failed: bool) -> None:
        """Note what the try did to each party, and decide what comes next."""
        unfit = {*trial.blamed, *(cleanup.record.name for cleanup in cleanups if cleanup.has_failed)}
        clean = [record for record in self._records if record.name not in unfit]
        if has_failed:  # A party that was replaced or marked meanwhile is not called again.
            clean = [record for record in clean if self._membership.is_current(record)]
        for record in self._records:
            if record.name in unfit:
                self._failed[record.name] = None
                self._membership.fail(record, is_dead=record.name in trial.dead)
        if not has_failed:
            self._updated = self._membership.complete(clean, self._version)
        facts = AttemptFacts(
            attempt=self._attempts,
            has_completed=not has_failed,
            is_flow_error=trial.failure is not None and trial.failure.step is None,
            clean=len(clean) - len(_essential(clean)),
            updated=sum(record.name in self._updated and not record.party.essential for record in clean),
            lacks_essential=len(_essential(clean)) < len(_essential(self._records)),
        )
        self.ending = decide_ending(facts, self._rules.min_parties)
        if not has_failed and self.ending is Ending.RESTORED:
            trial.failure = UpdateError(self._version, f"{_replaced(clean, self._updated)} replaced: update again")
        self._note_failure(trial)
        self._records = tuple(clean)

    def _note_failure(self, trial: Trial) -> None:
        if trial.failure is None:
            return
        if self.error is None:
            self.error = trial.failure
        else:
            self.error.add_note(f"the second try failed, too: {trial.failure}")
        follows = f"it is tried again without {listing(self._failed) or 'a change'}"
        log.warning(
            "%s; %s", one_line(str(trial.failure)), follows if self.ending is Ending.RETRY else f"it is {self.ending}"
        )

    # --- the whole update ---------------------------------------------------------------------------

    def _is_short(self) -> bool:
        others = len(self._records) - len(_essential(self._records))
        return self._lacks_essential or others < self._rules.min_parties

    def _describe_shortage(self) -> str:
        states = listing(f"{record.name} is {record.state}" for record in self._membership.records)
        needed = count(self._rules.min_parties, "party").replace("partys", "parties")
        return f"it needs {needed}, and all essential ones, but {states}: put parties that are back"

    def _interrupt_by(self, cancellation: BaseException | None) -> None:
        if self.interrupt is None:
            self.interrupt = cancellation

    def _complete_error(self) -> None:
        """Say in the error what is known at the end. An update that completed has none, unless a clean-up failed."""
        cleanup_errors = [error for trial in self._trials for error in trial.cleanup_errors]
        if self.ending is Ending.COMPLETED and self.error is not None:
            log.info("the second try of the update to version %d completed", self._version)
            self.error = None
            for error in cleanup_errors:
                log.warning("in the first try of the update to version %d, %s", self._version, one_line(str(error)))
        if self.error is None and self._trials:
            self.error = self._cleanup_failure(self._trials[-1].cleanup_errors)
        if self.error is not None:
            self.error.cleanup_errors = tuple(cleanup_errors)
            self.error.failed = tuple(self._failed)
            self.error.updated = self._updated
            self.error.is_recoverable = self.ending is not Ending.UNRECOVERABLE
        notes = [str(error) for error in cleanup_errors]
        for raised in [each for each in (self.error, self.interrupt) if each is not None]:
            for note in notes:
                raised.add_note(note)
        if self.interrupt is not None and self.error is not None:
            self.interrupt.add_note(str(self.error))

    def _cleanup_failure(self, errors: Sequence[CleanupError]) -> UpdateError | None:
        """The error of an update whose steps were all done, and whose clean-up failed."""
        if not errors or self.interrupt is not None:
            return None
        first = errors[0]
        failure = UpdateError(self._version, f"the clean-up failed: {first}", step=first.step, party=first.party)
        failure.__cause__ = first.__cause__
        return failure

    def _report(self, duration_s: float) -> UpdateReport:
        reason = ""
        if self.interrupt is not None:
            reason = f"interrupted: {type(self.interrupt).__name__}"
        elif self._trials or self.error is not None:
            first = next((trial.failure for trial in self._trials if trial.failure is not None), self.error)
            reason = "" if first is None else str(first)
        return UpdateReport(
            version=self._version,
            outcome="completed" if self.ending is Ending.COMPLETED else "failed",
            attempts=self._attempts,
            parties=self._first_count,
            updated=len(self._updated),
            failed=tuple(self._failed),
            steps=tuple(self._durations),
            duration_s=duration_s,
            lost_s=duration_s if self._has_failed else self._lost_s,
            reason=one_line(reason),
        )


def _replaced(records: Iterable[PartyRecord], updated: Collection[str]) -> str:
    names = [record.name for record in records if record.name not in updated]
    return f"{listing(names)} {'was' if len(names) == 1 else 'were'}"


def _essential(records: Iterable[PartyRecord]) -> list[PartyRecord]:
    return [record for record in records if record.party.essential]


async def _wait_for(cleanups: Sequence[PartyCleanup]) -> None:
    for cleanup in cleanups:
        if not cleanup.over.done():
            await asyncio.wait((cleanup.over,))
