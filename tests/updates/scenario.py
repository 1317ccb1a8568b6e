"""Updates that follow a script: what each call of each party does, and when. The fleet and the model both read it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ft_rendezvous.updates import Fleet, Party, PartyDead, PartyState, Update, UpdateError
from ft_rendezvous.updates.threads import until_over
from ft_rendezvous.worker import UpdateReport
from tests.updates.simulated_loop import simulate

STEP_TIMEOUT_S, CLEANUP_TIMEOUT_S, ABORT_TIMEOUT_S = 10.0, 8.0, 3.0


class Ends(StrEnum):
    """How a call ends by itself."""

    WELL = "well"
    RAISES = "raises"
    DIES = "dies"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Act:
    """What one call does."""

    ends: Ends = Ends.WELL
    after_s: float = 1.0
    is_firm: bool = False
    """It cannot be cancelled, as a call in a thread or an actor."""
    is_releasable: bool = True
    """Abort makes it raise."""


@dataclass(frozen=True, slots=True, order=True)
class CallKey:
    """One call. It happens at most once."""

    version: int
    attempt: int
    step: int
    what: str
    """`action`, `abort`, `undo` or `finish`."""
    party: str


@dataclass(frozen=True, slots=True)
class StepShape:
    has_finish: bool = True
    has_undo: bool = True
    has_abort: bool = False


@dataclass(frozen=True, slots=True)
class Scenario:
    parties: tuple[str, ...]
    steps: tuple[StepShape, ...]
    script: Mapping[CallKey, Act] = field(default_factory=dict)
    versions: int = 1
    essential: tuple[str, ...] = ()
    min_parties: int = 1
    max_party_failures: int = 3
    cancels: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """When the caller is cancelled, since the start of the update, by version."""
    flow_errors: Mapping[tuple[int, int], int] = field(default_factory=dict)
    """Before which step the flow raises, by version and attempt."""
    puts: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """Which parties come back before the update of a version."""

    def act(self, key: CallKey) -> Act:
        return self.script.get(key, Act(after_s=1.0 + 0.01 * self.parties.index(key.party)))


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionResult:
    """All that a user can notice of one update."""

    outcome: str
    """`completed`, `failed`, `unrecoverable` or `cancelled`."""
    attempts: int
    error: tuple[str | None, str | None] | None
    """Step and party of the error that the caller sees."""
    cause: str | None
    """The type of its cause."""
    failed: frozenset[str]
    cleanup_errors: frozenset[tuple[str, str, str]]
    """What was called, step and party."""
    calls: Mapping[str, tuple[tuple[int, int, str], ...]]
    """Attempt, step and what was called on each party, in order; without aborts."""
    aborts: frozenset[tuple[int, int, str]]
    """Attempt, step and party."""
    states: Mapping[str, tuple[PartyState, int | None]]
    serving: tuple[str, ...]
    ended_at_s: float


class Released(Exception):
    """An abort has released the call."""


class Broken(Exception):
    """The script says that this call raises."""


class ScriptedParty:
    """Does what the script says."""

    def __init__(self, name: str, stage: Stage) -> None:
        self.name = name
        self._stage = stage
        self._blocked: asyncio.Future[None] | None = None

    async def act(self, update: Update, step: int, what: str) -> None:
        key = CallKey(update.version, update.attempt, step, what, self.name)
        self._stage.called.append(key)
        act = self._stage.scenario.act(key)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        if what == "action":
            self._blocked = future if act.is_releasable else None
        if act.ends is not Ends.NEVER:
            loop.call_later(act.after_s, _settle, future, act.ends, key)
        await (until_over(future) if act.is_firm else future)
        if what == "abort" and self._blocked is not None and not self._blocked.done():
            self._blocked.set_exception(Released())


def _settle(future: asyncio.Future[None], ends: Ends, key: CallKey) -> None:
    if future.done():
        return
    if ends is Ends.WELL:
        future.set_result(None)
    else:
        future.set_exception(PartyDead(str(key)) if ends is Ends.DIES else Broken(str(key)))


class Stage:
    """Runs a scenario on a real fleet, in simulated time."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.called: list[CallKey] = []

    def run(self) -> list[VersionResult]:
        return simulate(self._run())

    async def _run(self) -> list[VersionResult]:
        scenario = self.scenario
        fleet = Fleet(
            [self._party(name) for name in scenario.parties],
            min_parties=scenario.min_parties,
            step_timeout_s=STEP_TIMEOUT_S,
            cleanup_timeout_s=CLEANUP_TIMEOUT_S,
            abort_timeout_s=ABORT_TIMEOUT_S,
            max_party_failures=scenario.max_party_failures,
            on_unrecoverable="raise",
        )
        results = []
        for version in range(1, scenario.versions + 1):
            for name in scenario.puts.get(version, ()):
                fleet.put(self._party(name))
            results.append(await self._update(fleet, version))
        return results

    def _party(self, name: str) -> Party:
        return Party(name, ScriptedParty(name, self), essential=name in self.scenario.essential)

    async def _update(self, fleet: Fleet, version: int) -> VersionResult:
        loop = asyncio.get_running_loop()
        began_at, calls_before = loop.time(), len(self.called)
        task = loop.create_task(fleet.update(self._flow, version=version))
        timers = [loop.call_later(after_s, task.cancel) for after_s in self.scenario.cancels.get(version, ())]
        await asyncio.wait([task])
        for timer in timers:
            timer.cancel()
        called = self.called[calls_before:]
        error: BaseException | None = asyncio.CancelledError() if task.cancelled() else task.exception()
        report = task.result() if error is None else None
        return _result(fleet, called, error, report, loop.time() - began_at)

    async def _flow(self, update: Update) -> None:
        for number, shape in enumerate(self.scenario.steps):
            if self.scenario.flow_errors.get((update.version, update.attempt)) == number:
                raise LookupError("the flow itself fails")
            await update.step(
                f"step-{number}",
                lambda p, n=number: p.act(update, n, "action"),  # type: ignore[misc]
                finish=(lambda p, n=number: p.act(update, n, "finish")) if shape.has_finish else None,  # type: ignore[misc]
                undo=(lambda p, n=number: p.act(update, n, "undo")) if shape.has_undo else None,  # type: ignore[misc]
                abort=(lambda p, n=number: p.act(update, n, "abort")) if shape.has_abort else None,  # type: ignore[misc]
            )


def _result(
    fleet: Fleet,
    called: list[CallKey],
    error: BaseException | None,
    report: UpdateReport | None,
    ended_at_s: float,
) -> VersionResult:
    outcome = "cancelled" if isinstance(error, asyncio.CancelledError) else "completed"
    if isinstance(error, UpdateError):
        outcome = "failed" if error.is_recoverable else "unrecoverable"
    elif error is not None and outcome != "cancelled":
        raise error
    is_failure = isinstance(error, UpdateError)
    return VersionResult(
        outcome=outcome,
        attempts=max((key.attempt for key in called), default=0),
        error=(error.step, error.party) if isinstance(error, UpdateError) else None,
        cause=type(error.__cause__).__name__ if is_failure and error is not None and error.__cause__ else None,
        failed=frozenset(error.failed)
        if isinstance(error, UpdateError)
        else frozenset(report.failed if report else ()),
        cleanup_errors=frozenset((each.what, each.step, each.party) for each in error.cleanup_errors)
        if isinstance(error, UpdateError)
        else frozenset(),
        calls={
            name: tuple((k.attempt, k.step, k.what) for k in called if k.party == name and k.what != "abort")
            for name in {key.party for key in called}
        },
        aborts=frozenset((k.attempt, k.step, k.party) for k in called if k.what == "abort"),
        states={record.name: (record.state, record.version) for record in fleet.parties},
        serving=tuple(party.name for party in fleet.serving()),
        ended_at_s=round(ended_at_s, 6),
    )
