"""A run's time by use, and its slow, flapping and failed nodes: a fold over its events.

Pure. Its size grows with the number of cycles and nodes, not with the number of events.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.events import Event, StateTold
from ft_rendezvous.state.model.records import NodeRole, RecentUpdate
from ft_rendezvous.state.model.run_state import NS, RunState, cause_of
from ft_rendezvous.state.model.time_account import cause_of_pause, count_groups, find_pauses
from ft_rendezvous.state.model.update_fold import make_recent

SLOW_KEPT = 3
"""Of one cycle."""
WORST_KEPT = 10
"""Of the run."""
CYCLE_FAILURES_KEPT = 3
"""Of one cycle: later failures are mostly effects of the first ones."""
UPDATES_KEPT = 20
"""Updates that failed or were retried: so many of the first, and so many of the last."""


_PHASE_CHANGES = (
    journal.NodeFenced,
    journal.RunBegan,
    journal.CycleOpened,
    journal.CycleSealed,
    journal.GroupDissolved,
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
    """A stretch of time in one phase; lost time has a cause. In a run with groups, each group has its own."""

    phase: RunPhase
    start_ns: int
    end_ns: int
    cycle_id: int
    cause: str = ""
    group: int | None = None
    """None: no group was there, or nothing is known of them."""
    sharing: int = 1
    """How many groups shared the run's time."""
    is_continued: bool = False
    """It goes on from a span that differs only in the number of groups."""

    @property
    def own_seconds(self) -> float:
        return (self.end_ns - self.start_ns) / NS

    @property
    def seconds(self) -> float:
        """Its part of the run's time."""
        return self.own_seconds / self.sharing


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
    group: int | None = None
    sharing: int = 1
    is_continued: bool = False


@dataclass(slots=True)
class RunReport:
    """The whole report, as of the last event that was taken."""

    spans: list[Span] = field(default_factory=list)
    notes: dict[int, CycleNotes] = field(default_factory=dict)
    worst: list[Slow] = field(default_factory=list)
    """A heap; `slowest` has them in order."""
    first_updates: list[RecentUpdate] = field(default_factory=list)
    """Updates that failed or were retried: the first ones, and the last ones after them."""
    last_updates: deque[RecentUpdate] = field(default_factory=lambda: deque(maxlen=UPDATES_KEPT))
    histories: dict[str, NodeHistory] = field(default_factory=dict)
    _keys: dict[str, str] = field(default_factory=dict)
    """The history that an incarnation belongs to."""
    _now: dict[int | None, _CurrentPhase] = field(default_factory=dict)
    """What each group does; under None, what the run does before there are any."""
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
            case journal.UpdatesReported():
                self._note_updates(entry, time_ns)
            case journal.NodeParked():
                if (known := self._known(entry.incarnation)) is not None:
                    known.was_parked = True
        if isinstance(entry, _PHASE_CHANGES):
            self._move(state, time_ns)
        self._time_ns = time_ns

    def finish(self, end_ns: int) -> None:
        """No event follows: the phases of now end here."""
        self._close_all(end_ns)
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
        phases = _phases_of(state, time_ns)
        for group in [*self._now, *(group for group in phases if group not in self._now)]:
            before, after = self._now.get(group), phases.get(group)
            if before is None or after is None:
                self._replace(group, after, time_ns)
            elif before.phase is after.phase is RunPhase.LOST and after.since_ns < time_ns:
                # The same pause. Its cycle may have been opened anew.
                before.cycle_id = after.cycle_id
                self._learn(before, after)
                self._share(before, after, time_ns)
            elif (before.phase, before.cycle_id) != (after.phase, after.cycle_id):
                # A lost node was silent before the coordinator knew of it: the time since then is lost too.
                after.since_ns = max(before.since_ns, after.since_ns)
                self._replace(group, after, after.since_ns)
            else:
                self._share(before, after, time_ns)

    def _share(self, before: _CurrentPhase, after: _CurrentPhase, time_ns: int) -> None:
        """The phase goes on, maybe with another number of groups."""
        if before.sharing != after.sharing:
            after.since_ns, after.is_continued = time_ns, True
            self._replace(before.group, after, time_ns)

    def _replace(self, group: int | None, after: _CurrentPhase | None, time_ns: int) -> None:
        """A phase ends at this time, and another begins if there is one."""
        before = self._now.pop(group, None)
        if before is not None and time_ns > before.since_ns:
            self.spans.append(
                Span(
                    phase=before.phase,
                    start_ns=before.since_ns,
                    end_ns=time_ns,
                    cycle_id=before.cycle_id,
                    cause=before.cause,
                    group=before.group,
                    sharing=before.sharing,
                    is_continued=before.is_continued,
                )
            )
        if after is not None:
            self._now[group] = after

    def _learn(self, before: _CurrentPhase, after: _CurrentPhase) -> None:
        """A lease ran out: workers failed because of that node, and the world was broken before they did."""
        before.cause = after.cause
        own = (index for index in range(len(self.spans) - 1, -1, -1) if self.spans[index].group == before.group)
        index = next(own, None)
        last = None if index is None else self.spans[index]
        if (
            index is not None
            and last is not None
            and last.phase is RunPhase.TRAINING
            and last.start_ns <= after.since_ns < last.end_ns
        ):
            before.since_ns = after.since_ns
            kept = [replace(last, end_ns=after.since_ns)] if after.since_ns > last.start_ns else []
            self.spans[index : index + 1] = kept

    def _correct_cause(self, entry: journal.CauseCorrected) -> None:
        """The time that was lost before a cycle was lost to another cause."""
        cause = cause_of(entry.why)
        for now in self._now.values():
            if now.phase is RunPhase.LOST and now.cycle_id == entry.cycle_id:
                now.cause = cause
        for index, span in enumerate(self.spans):
            if span.phase is RunPhase.LOST and span.cycle_id == entry.cycle_id:
                self.spans[index] = replace(span, cause=cause)

    def _close_all(self, end_ns: int) -> None:
        for group in list(self._now):
            self._replace(group, None, end_ns)

    def _take_state(self, event: Event, state: RunState) -> None:
        """Nothing is known of the time between the last event and this state."""
        since_ns = self._time_ns or state.start_ns
        self._close_all(since_ns)
        if event.timestamp_ns > since_ns:
            self.spans.append(Span(RunPhase.UNKNOWN, since_ns, event.timestamp_ns, 0))
        for member in state.members.values():
            if member.incarnation not in self._keys:
                history = self._history(member.infra_rank, member.addr, member.name)
                self._keys[member.incarnation] = history.key
                history.incarnations += 1
        self._now = _phases_of(state, event.timestamp_ns)
        for phase in self._now.values():
            phase.since_ns = event.timestamp_ns

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
        for incarnation in entry.incarnations:
            member = state.members[incarnation]
            cycle = state.find_cycle(member.arrived_in)
            if cycle is None or member.role is not NodeRole.ARRIVED or cycle.seal_time_ns is not None:
                continue  # It arrived after the seal: no node waited for it.
            notes = self._notes(cycle.cycle_id)
            notes.arrived += 1
            after_s = (time_ns - cycle.start_time_ns) / NS
            _keep_largest(notes.slowest, Slow(after_s, cycle.cycle_id, self._name(incarnation)), SLOW_KEPT)
            if len(self.worst) < WORST_KEPT or after_s > self.worst[0].after_s:
                _keep_largest(self.worst, Slow(after_s, cycle.cycle_id, self._name(incarnation)), WORST_KEPT)

    def _note_updates(self, entry: journal.UpdatesReported, time_ns: int) -> None:
        for update in make_recent(entry, time_ns):
            if not update.is_plain:
                kept = self.first_updates if len(self.first_updates) < UPDATES_KEPT else self.last_updates
                kept.append(update)

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


def _phases_of(state: RunState, time_ns: int) -> dict[int | None, _CurrentPhase]:
    """What the groups do, and since when; nothing before the run begins and after it has ended."""
    if state.began is None or state.status.is_terminal():
        return {}
    sharing = count_groups(state)
    if not sharing:
        return {None: _CurrentPhase(RunPhase.WAITING, 0, "", time_ns)}
    phases: dict[int | None, _CurrentPhase] = {}
    for group in state.groups.values():
        if group.whole_since_ns is not None:
            since_ns = group.whole_since_ns
            phases[group.number] = _CurrentPhase(RunPhase.TRAINING, group.cycle_id, "", since_ns, group.number, sharing)
    for pause in find_pauses(state):
        for group in pause:
            cause, since_ns = cause_of_pause(pause), group.broken_since_ns or 0
            phases[group.number] = _CurrentPhase(RunPhase.LOST, group.cycle_id, cause, since_ns, group.number, sharing)
    return phases
