"""What must come of a scenario, worked out from the pages of rules (docs/updates.md) by plain arithmetic on times.

It shares no code with the package: no task, no future, no table. Every call is an interval.
"""

# ruff: noqa: PLR0917 - arithmetic on many times, in plain functions.

from __future__ import annotations

from dataclasses import dataclass, field

from ft_rendezvous.updates import PartyState
from tests.updates.scenario import (
    ABORT_TIMEOUT_S,
    CLEANUP_TIMEOUT_S,
    STEP_TIMEOUT_S,
    Act,
    CallKey,
    Ends,
    Scenario,
    VersionResult,
)

NEVER = float("inf")
CleanupMiss = tuple[float, str, str, str, str]
"""When it ended, what was called, step, party, and the type of the error."""


@dataclass
class Known:
    """A party between updates."""

    state: PartyState = PartyState.STALE
    version: int | None = None
    failures: int = 0


@dataclass
class StepEnd:
    """How a step went: when it was over, and how each call ended."""

    over_at: float
    kinds: dict[str, str] = field(default_factory=dict)
    """`done`, `raised`, `dead`, `stopped` or `given up`, by party."""
    ended_at: dict[str, float] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)
    late: list[str] = field(default_factory=list)
    first: str | None = None
    """The party that raised first, unless the deadline came before."""
    is_failed: bool = False
    is_cancelled: bool = False
    aborted: list[str] = field(default_factory=list)
    abort_failed: list[str] = field(default_factory=list)


def natural_end(act: Act, since: float) -> float:
    return NEVER if act.ends is Ends.NEVER else since + act.after_s


NATURAL = {Ends.WELL: "done", Ends.RAISES: "raised", Ends.DIES: "dead"}
CAUSES = {Ends.RAISES: "Broken", Ends.DIES: "PartyDead"}


class NaiveModel:
    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.known = {name: Known() for name in scenario.parties}

    def run(self) -> list[VersionResult]:
        results = []
        for version in range(1, self.scenario.versions + 1):
            for name in self.scenario.puts.get(version, ()):
                self.known[name] = Known()
            results.append(NaiveUpdate(self.scenario, self.known, version).run())
        return results


class NaiveUpdate:
    def __init__(self, scenario: Scenario, known: dict[str, Known], version: int) -> None:
        self.scenario, self.known, self.version = scenario, known, version
        self.cancel_at = min(scenario.cancels.get(version, ()), default=NEVER)
        self.calls: dict[str, list[tuple[int, int, str]]] = {}
        self.aborts: set[tuple[int, int, str]] = set()
        self.cleanup_errors: set[tuple[str, str, str]] = set()
        self.failed: set[str] = set()
        self.error: tuple[str | None, str | None] | None = None
        self.cause: str | None = None
        self.last_over = 0.0
        self.attempts = 0

    def act(self, attempt: int, step: int, what: str, party: str) -> Act:
        return self.scenario.act(CallKey(self.version, attempt, step, what, party))

    def run(self) -> VersionResult:
        alive = (PartyState.HEALTHY, PartyState.SUSPECT, PartyState.STALE)
        parties = [name for name in self.scenario.parties if self.known[name].state in alive]
        essential = [name for name in self.scenario.essential if name in parties]
        outcome = ""
        if len(essential) < len(self.scenario.essential) or len(parties) - len(essential) < self.scenario.min_parties:
            outcome, self.error = "unrecoverable", (None, None)
        now = 0.0
        for attempt in (1, 2):
            if outcome:
                break
            outcome, parties, now = self.attempt(attempt, parties, now)
        ended_at = max(now, self.last_over)
        if self.cancel_at <= ended_at:
            outcome = "cancelled"
        return self.result(outcome, ended_at)

    # --- one attempt --------------------------------------------------------------------------------

    def attempt(self, attempt: int, parties: list[str], now: float) -> tuple[str, list[str], float]:
        """The outcome, or nothing if there is another try; the parties that are left; and the time."""
        begun: list[int] = []
        blamed: list[str] = []
        silent: set[str] = set()
        dead: set[str] = set()
        failure: tuple[str | None, str | None] | None = None
        cause = None
        for number, shape in enumerate(self.scenario.steps):
            if self.scenario.flow_errors.get((self.version, attempt)) == number:
                failure, cause = (None, None), "LookupError"
                break
            begun.append(number)
            for name in parties:
                self.calls.setdefault(name, []).append((attempt, number, "action"))
            end = self.step(attempt, number, parties, now)
            now = end.over_at
            self.aborts |= {(attempt, number, name) for name in end.aborted}
            self.cleanup_errors |= {("abort", f"step-{number}", name) for name in end.abort_failed}
            if end.is_failed or end.is_cancelled:
                blamed = self.blame(end, shape.has_abort, attempt == 2)
                silent = {name for name, kind in end.kinds.items() if kind == "given up"}
                dead = {name for name, kind in end.kinds.items() if kind == "dead"}
            if end.is_cancelled:
                break
            if end.is_failed:
                failure, cause = self.first_error(end, number, blamed)
                break
        has_failed = failure is not None or self.cancel_at <= now
        overs: dict[str, float] = {}
        errors: list[CleanupMiss] = []
        for name in parties:
            overs[name] = self.clean_up(attempt, name, begun, now, has_failed, name in silent, errors, dead)
        self.cleanup_errors |= {error[1:4] for error in errors}
        self.last_over = max(self.last_over, *overs.values())
        spoiled = {error[3] for error in errors if error[3] not in blamed}
        unfit = set(blamed) | spoiled
        now = max([now, *(overs[name] for name in parties if name not in blamed)])
        for name in parties:
            if name in unfit:
                self.fail(name, name in dead)
        clean = [name for name in parties if name not in unfit]
        if not has_failed:
            for name in clean:
                self.known[name] = Known(PartyState.HEALTHY, self.version, 0)
        outcome = self.ending(attempt, parties, clean, failure, has_failed, bool(errors), now)
        self.note_error(failure, cause, errors, has_failed, outcome)
        return outcome, clean, now

    def ending(
        self,
        attempt: int,
        parties: list[str],
        clean: list[str],
        failure: tuple[str | None, str | None] | None,
        has_failed: bool,
        has_cleanup_errors: bool,
        now: float,
    ) -> str:
        essential = self.scenario.essential
        lacks_essential = any(name in parties and name not in clean for name in essential)
        if lacks_essential or len([name for name in clean if name not in essential]) < self.scenario.min_parties:
            return "unrecoverable"
        if not has_failed:
            return "failed" if has_cleanup_errors else "completed"
        if self.cancel_at <= now:
            return "cancelled"
        return "failed" if failure == (None, None) or attempt == 2 else ""

    def note_error(
        self,
        failure: tuple[str | None, str | None] | None,
        cause: str | None,
        errors: list[CleanupMiss],
        has_failed: bool,
        outcome: str,
    ) -> None:
        if not has_failed and outcome != "unrecoverable":
            self.error, self.cause = None, None  # It completed. The first try does not matter any more.
        if self.error is None and failure is not None:
            self.error, self.cause = failure, cause
        elif self.error is None and errors and not has_failed:
            _, _, step, party, self.cause = min(errors)
            self.error = (step, party)

    def fail(self, name: str, is_dead: bool) -> None:
        self.failed.add(name)
        party = self.known[name]
        party.failures += 1
        has_died = is_dead or party.failures >= self.scenario.max_party_failures
        party.state = PartyState.DEAD if has_died else PartyState.SUSPECT

    # --- one step -----------------------------------------------------------------------------------

    def step(self, attempt: int, number: int, parties: list[str], now: float) -> StepEnd:
        has_abort = self.scenario.steps[number].has_abort
        acts = {name: self.act(attempt, number, "action", name) for name in parties}
        natural = {name: natural_end(acts[name], now) for name in parties}
        deadline = now + STEP_TIMEOUT_S
        failures = {name: at for name, at in natural.items() if acts[name].ends is not Ends.WELL}
        fails_at = min(failures.values(), default=NEVER)
        stop_at = min(fails_at, deadline, self.cancel_at)
        end = StepEnd(over_at=max(natural.values()))
        if end.over_at < stop_at:
            end.kinds = dict.fromkeys(parties, "done")
            return end
        end.over_at = stop_at
        end.is_failed = True
        end.is_cancelled = stop_at == self.cancel_at
        if stop_at == fails_at:
            end.first = min(failures, key=lambda name: failures[name])
        running = [name for name in parties if natural[name] > stop_at]
        if stop_at == deadline:
            end.late = running
        for name in parties:
            if name not in running:
                self.end_naturally(end, name, acts[name], natural[name])
        for name in running:
            if has_abort:
                self.end_by_abort(end, attempt, number, name, acts[name], natural[name], stop_at)
            else:
                self.end_by_request(end, name, acts[name], natural[name], stop_at, deadline)
        if self.cancel_at < end.over_at:
            end.is_cancelled = True
        return end

    def end_naturally(self, end: StepEnd, name: str, act: Act, at: float) -> None:
        self.end_as(end, name, NATURAL[act.ends], at, CAUSES.get(act.ends, ""))

    def end_as(self, end: StepEnd, name: str, kind: str, at: float, cause: str = "") -> None:
        end.kinds[name], end.ended_at[name], end.causes[name] = kind, at, cause
        end.over_at = max(end.over_at, at)

    def end_by_abort(
        self, end: StepEnd, attempt: int, number: int, name: str, act: Act, natural: float, stop_at: float
    ) -> None:
        limit = stop_at + ABORT_TIMEOUT_S
        abort = self.act(attempt, number, "abort", name)
        abort_at = natural_end(abort, stop_at)
        end.aborted.append(name)
        works = abort_at < limit and abort.ends is Ends.WELL
        if not works:
            end.abort_failed.append(name)
        end.over_at = max(end.over_at, min(abort_at, limit))
        if works and act.is_releasable and abort_at < natural:
            self.end_as(end, name, "raised", abort_at, "Released")
        elif natural < limit:
            self.end_naturally(end, name, act, natural)
        else:
            self.end_as(end, name, "given up", limit)

    def end_by_request(
        self, end: StepEnd, name: str, act: Act, natural: float, stop_at: float, deadline: float
    ) -> None:
        limit = stop_at + ABORT_TIMEOUT_S
        if not end.is_cancelled:
            limit = max(limit, deadline)
        if not act.is_firm:
            self.end_as(end, name, "stopped", stop_at)
        elif natural >= limit:
            self.end_as(end, name, "given up", limit)
        elif act.ends is Ends.WELL:
            self.end_as(end, name, "stopped", natural)
        else:
            self.end_naturally(end, name, act, natural)

    def blame(self, end: StepEnd, has_abort: bool, is_last: bool) -> list[str]:
        gone = [name for name, kind in end.kinds.items() if kind in ("dead", "given up")]
        if end.is_cancelled:
            return gone
        raised = [name for name, kind in end.kinds.items() if kind == "raised" and name not in end.late]
        if not has_abort:
            return sorted({*gone, *raised, *end.late})
        if gone:
            return gone
        if raised:
            first = min(raised, key=lambda name: end.ended_at[name])
            return [first] if is_last or first not in self.scenario.essential else []
        return list(end.late) if is_last or set(end.late) != set(end.kinds) else []

    def first_error(
        self, end: StepEnd, number: int, blamed: list[str]
    ) -> tuple[tuple[str | None, str | None], str | None]:
        if end.first is not None:
            return (f"step-{number}", end.first), end.causes[end.first]
        party = next((name for name in end.late if name in blamed), end.late[0])
        return (f"step-{number}", party), "TimeoutError"

    # --- clean-up -----------------------------------------------------------------------------------

    def clean_up(
        self,
        attempt: int,
        name: str,
        begun: list[int],
        now: float,
        has_failed: bool,
        is_silent: bool,
        errors: list[CleanupMiss],
        dead: set[str],
    ) -> float:
        """When the clean-up of a party is over."""
        for number in reversed(begun):
            shape = self.scenario.steps[number]
            wanted = ["undo"] * (has_failed and shape.has_undo) + ["finish"] * shape.has_finish
            for what in wanted:
                self.calls.setdefault(name, []).append((attempt, number, what))
                act = self.act(attempt, number, what, name)
                limit = now + (ABORT_TIMEOUT_S if is_silent else CLEANUP_TIMEOUT_S)
                natural = natural_end(act, now)
                now = min(natural, limit)
                if natural >= limit:
                    is_silent = True
                if natural >= limit or act.ends is not Ends.WELL:
                    cause = "TimeoutError" if natural >= limit else CAUSES[act.ends]
                    errors.append((now, what, f"step-{number}", name, cause))
                    if natural < limit and act.ends is Ends.DIES:
                        dead.add(name)
        return now

    def result(self, outcome: str, ended_at: float) -> VersionResult:
        is_error = outcome in ("failed", "unrecoverable")
        return VersionResult(
            outcome=outcome,
            attempts=max((call[0] for calls in self.calls.values() for call in calls), default=0),
            error=self.error if is_error else None,
            cause=self.cause if is_error else None,
            failed=frozenset(self.failed) if outcome != "cancelled" else frozenset(),
            cleanup_errors=frozenset(self.cleanup_errors) if is_error else frozenset(),
            calls={name: tuple(calls) for name, calls in self.calls.items()},
            aborts=frozenset(self.aborts),
            states={name: (party.state, party.version) for name, party in self.known.items()},
            serving=tuple(
                name
                for name, party in self.known.items()
                if party.state is PartyState.HEALTHY and name not in self.scenario.essential
            ),
            ended_at_s=round(ended_at, 6),
        )
