"""A run's time by use, and its slow, flapping and failed nodes: a fold over its events.

Pure. Its size grows with the number of cycles and nodes, not with the number of events.
"""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.events import Event, StateTold
from ft_rendezvous.state.model.run_state import NS, RunState, cause_of, cause_of_pause

SLOW_KEPT = 3
"""Of one cycle."""
WORST_KEPT = 10
"""Of the run."""
CYCLE_FAILURES_KEPT = 3
"""Of one cycle: later failures are mostly effects of the first ones."""


_PHASE_CHANGES = (
    journal.NodeFenced,
    journal.RunBegan,
    journal.CycleOpened,
    journal.CycleSealed,
    journal.RunEnded,
    journal.HostLeft,
)
"""Entries that may begin or end a phase."""


class RunPhase(StrEnum):
    """What a run does with its time."""

    WAITING = "waiting"
    """For its first world."""
    TRAINING = "training"
    LOST = "lost"
    """No node trains, after a world did."""
    UNKNOWN = "unknown"
    """The log does not say."""


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in one phase; lost time has a cause."""

    phase: RunPhase
    start_ns: int
    end_ns: int
    cycle_id: int
    cause: str = ""

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.start_ns) / NS


@dataclass(frozen=True, slots=True, order=True)
class Slow:
    """How long after a cycle's opening a node arrived in it."""

    after_s: float
    cycle_id: int
    node: str


@dataclass(frozen=True, slots=True)
class ReportedFailure:
    time_ns: int
    note: FailureNote


@dataclass(slots=True)
class CycleNotes:
    """What the state does not keep of a cycle."""

    slowest: list[Slow] = field(default_factory=list)
    """Slowest first, once it is sealed."""
    arrived: int = 0
    failures: list[ReportedFailure] = field(default_factory=list)
    failure_count: int = 0
    charged: FailureNote | None = None


@dataclass(slots=True)
class NodeHistory:
    """What happened to one infra rank, or one address if it has none, across its incarnations."""

    key: str
    name: str = ""
    """Of the newest incarnation."""
    incarnations: int = 0
    silences: int = 0
    fences: Counter[str] = field(default_factory=Counter)
    failures: int = 0
    was_parked: bool = False
    """It was lost so often that it trained only if too few others were there."""

    @property
    def is_flapping(self) -> bool:
        """One loss and one return are not flapping."""
        return self.incarnations > 2 or self.silences > 1 or self.fences.total() > 1

    @property
    def turns(self) -> int:
        return self.incarnations - 1 + self.silences + self.fences.total()


@dataclass(slots=True)
class _CurrentPhase:
    phase: RunPhase
    cycle_id: int
    cause: str
    since_ns: int


@dataclass(slots=True)
class RunReport:
    """The whole report, as of the last event that was taken."""

    spans: list[Span] = field(default_factory=list)
    notes: dict[int, CycleNotes] = field(default_factory=dict)
    worst: list[Slow] = field(default_factory=list)
    """A heap; `slowest` has them in order."""
    histories: dict[str, NodeHistory] = field(default_factory=dict)
    _keys: dict[str, str] = field(default_factory=dict)
    """The history that an incarnation belongs to."""
    _now: _CurrentPhase | None = None
    _time_ns: int = 0

    def take(self, event: Event, state: RunState) -> None:
        """Take in one more event; the state is that after it."""
        entry, time_ns = event.event, event.timestamp_ns
        match entry:
            case StateTold():
                self._take_state(event, entry.state)
            case journal.NodeJoined():
                history = self._history(entry.infra_rank, entry.addr, entry.node)
                self._keys[entry.incarnation] = history.key
                history.incarnations += 1
            case journal.NodesArrived():
                self._arrive(entry, state, time_ns)
            case journal.WorkersEnded():
                self._fail(entry.failure, time_ns)
            case journal.CauseCorrected():
                self._correct_cause(entry)
            case journal.CycleSettled():
                self._notes(entry.cycle_id).charged = entry.first
            case journal.CycleSealed():
                self._notes(entry.cycle_id).slowest.sort(reverse=True)
            case journal.NodesSilent() if not state.status.is_terminal():
                for incarnation in entry.silent_s:
                    if (known := self._known(incarnation)) is not None:
                        known.silences += 1
            case journal.NodeFenced() if not state.status.is_terminal():
                if (known := self._known(entry.incarnation)) is not None:
                    known.fences[str(entry.cause)] += 1
            case journal.NodeParked():
                if (known := self._known(entry.incarnation)) is not None:
                    known.was_parked = True
        if isinstance(entry, _PHASE_CHANGES):
            self._move(state, time_ns)
        self._time_ns = time_ns

    def finish(self, end_ns: int) -> None:
        """No event follows: the phase of now ends here."""
        if self._now is not None:
            self._close(max(end_ns, self._now.since_ns))
        for notes in self.notes.values():
            notes.slowest.sort(reverse=True)

    def slowest(self) -> list[Slow]:
        return sorted(self.worst, reverse=True)

    def flapping(self) -> list[NodeHistory]:
        """The worst first."""
        found = [history for history in self.histories.values() if history.is_flapping]
        return sorted(found, key=lambda history: (-history.turns, history.key))

    def seconds(self) -> dict[tuple[RunPhase, str], float]:
        """Time by phase and cause."""
        total: dict[tuple[RunPhase, str], float] = {}
        for span in self.spans:
            total[span.phase, span.cause] = total.get((span.phase, span.cause), 0.0) + span.seconds
        return total

    # --- time -------------------------------------------------------------------------------------------

    def _move(self, state: RunState, time_ns: int) -> None:
        after = _phase_of(state, time_ns)
        before = self._now
        if before is None or after is None:
            if before is not None:
                self._close(time_ns)
            self._now = after
        elif (before.phase, before.cycle_id) != (after.phase, after.cycle_id):
            # A lost node was silent before the coordinator knew of it: the time since then is lost too.
            after.since_ns = max(before.since_ns, after.since_ns)
            self._close(after.since_ns)
            self._now = after
        elif before.phase is RunPhase.LOST:
            self._learn(before, after)

    def _learn(self, before: _CurrentPhase, after: _CurrentPhase) -> None:
        """A lease ran out: workers failed because of that node, and the world was broken before they did."""
        before.cause = after.cause
        last = self.spans[-1] if self.spans else None
        if last is not None and last.phase is RunPhase.TRAINING and last.start_ns <= after.since_ns < last.end_ns:
            before.since_ns = after.since_ns
            self.spans[-1:] = [replace(last, end_ns=after.since_ns)] if after.since_ns > last.start_ns else []

    def _correct_cause(self, entry: journal.CauseCorrected) -> None:
        """The time that was lost before a cycle was lost to another cause."""
        cause = cause_of(entry.why)
        now = self._now
        if now is not None and now.phase is RunPhase.LOST and now.cycle_id == entry.cycle_id:
            now.cause = cause
        for index, span in enumerate(self.spans):
            if span.phase is RunPhase.LOST and span.cycle_id == entry.cycle_id:
                self.spans[index] = replace(span, cause=cause)

    def _close(self, end_ns: int) -> None:
        now, self._now = self._now, None
        if now is not None and end_ns > now.since_ns:
            self.spans.append(Span(now.phase, now.since_ns, end_ns, now.cycle_id, now.cause))

    def _take_state(self, event: Event, state: RunState) -> None:
        """Nothing is known of the time between the last event and this state."""
        since_ns = self._time_ns or state.start_ns
        if self._now is not None:
            self._close(max(since_ns, self._now.since_ns))
        if event.timestamp_ns > since_ns:
            self.spans.append(Span(RunPhase.UNKNOWN, since_ns, event.timestamp_ns, 0))
        for member in state.members.values():
            if member.incarnation not in self._keys:
                history = self._history(member.infra_rank, member.addr, member.name)
                self._keys[member.incarnation] = history.key
                history.incarnations += 1
        after = _phase_of(state, event.timestamp_ns)
        if after is not None:
            after.since_ns = event.timestamp_ns
        self._now = after

    # --- nodes ------------------------------------------------------------------------------------------

    def _history(self, infra_rank: int | None, addr: str, name: str) -> NodeHistory:
        key = f"infra rank {infra_rank}" if infra_rank is not None else addr
        history = self.histories.setdefault(key, NodeHistory(key))
        history.name = name
        return history

    def _known(self, incarnation: str) -> NodeHistory | None:
        return self.histories.get(self._keys.get(incarnation, ""))

    def _name(self, incarnation: str) -> str:
        known = self._known(incarnation)
        return incarnation if known is None else known.name

    def _notes(self, cycle_id: int) -> CycleNotes:
        return self.notes.setdefault(cycle_id, CycleNotes())

    def _arrive(self, entry: journal.NodesArrived, state: RunState, time_ns: int) -> None:
        cycle = state.cycle
        if cycle is None or cycle.cycle_id != entry.cycle_id or cycle.seal_time_ns is not None:
            return  # It arrived after the seal: no node waited for it.
        notes = self._notes(entry.cycle_id)
        notes.arrived += len(entry.incarnations)
        after_s = (time_ns - cycle.start_time_ns) / NS
        for incarnation in entry.incarnations:
            _keep_largest(notes.slowest, Slow(after_s, entry.cycle_id, self._name(incarnation)), SLOW_KEPT)
            if len(self.worst) < WORST_KEPT or after_s > self.worst[0].after_s:
                _keep_largest(self.worst, Slow(after_s, entry.cycle_id, self._name(incarnation)), WORST_KEPT)

    def _fail(self, note: FailureNote, time_ns: int) -> None:
        notes = self._notes(note.cycle_id)
        notes.failure_count += 1
        if len(notes.failures) < CYCLE_FAILURES_KEPT:
            notes.failures.append(ReportedFailure(time_ns, note))
        if (known := self._known(note.incarnation)) is not None:
            known.failures += 1


def _keep_largest(heap: list[Slow], item: Slow, most: int) -> None:
    if len(heap) < most:
        heapq.heappush(heap, item)
    else:
        heapq.heappushpop(heap, item)


def _phase_of(state: RunState, time_ns: int) -> _CurrentPhase | None:
    """What the run does, and since when; None before it begins and after it has ended."""
    if state.began is None or state.status.is_terminal():
        return None
    cycle = state.cycle
    cycle_id = 0 if cycle is None else cycle.cycle_id
    if state.whole_since_ns is not None:
        return _CurrentPhase(RunPhase.TRAINING, cycle_id, "", state.whole_since_ns)
    if state.broken_since_ns is not None and cycle is not None:
        return _CurrentPhase(RunPhase.LOST, cycle_id, cause_of_pause(state), state.broken_since_ns)
    return _CurrentPhase(RunPhase.WAITING, 0, "", time_ns)
