"""Whose fault it was: who failed first in a world that ended, and what that costs the node and the run.

A world's end is *settled* when the next one is about to be sealed: until then a lease may turn out to be lost, or a
node may say goodbye, and then the failures of the others were its loss and nobody's fault. Pure bookkeeping; the
coordinator acts upon what a settlement says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ft_rendezvous.core.model import AnyWhy, NodesDrain, RestartRequested, WorldGrows

TIE_WINDOW_S = 0.01
"""Failures closer together than this have no order: nodes hear of the seal milliseconds apart."""


@dataclass(frozen=True, slots=True)
class BlameRules:
    """The settings blame depends on; a limit of 0 is no limit."""

    max_cycles: int
    max_node_failures: int
    quarantine_s: float
    crash_loop: int
    crash_loop_s: float


@dataclass(frozen=True, slots=True)
class FailureNote:
    """A node's workers failed."""

    cycle_id: int
    key: str
    """Who the node is, across incarnations."""
    incarnation: str
    node: str
    rank: int
    """Of the worker that ended first on that node; where that is not known, the node's own rank."""
    exit_code: int | None
    after_s: float | None
    """Seconds since the seal, on the node's own clock; None if nobody watched."""
    reason: str
    log_path: str = ""
    """Where that worker's standard error went, if to a file."""
    last_words: str = ""
    """The last line it wrote there."""

    def __str__(self) -> str:
        return f"{self.node} (rank {self.rank}) in cycle {self.cycle_id}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Settlement:
    """What follows from a world's end."""

    quarantined: FailureNote | None = None
    """A node that has failed first too often."""
    is_charged: bool = False
    """The cycle counts against the run's budget."""
    is_spent: bool = False
    """The run's budget is."""
    loop: int = 0
    """Cycles in a row that ended at their start on one error, if they are too many."""


def is_excused(why: AnyWhy, lost_count: int) -> bool:
    """Whether the failures of a world are held against nobody: it lost nodes, or somebody asked for its end."""
    return lost_count > 0 or isinstance(why, RestartRequested | NodesDrain | WorldGrows)


def first_failure(notes: Sequence[FailureNote]) -> FailureNote | None:
    """The failure that came before all others; None if there is none, or no telling."""
    timed = sorted((note for note in notes if note.after_s is not None), key=lambda note: note.after_s or 0.0)
    if not timed or len(timed) < len(notes):
        return notes[0] if len(notes) == 1 else None
    if len(timed) > 1 and (timed[1].after_s or 0.0) - (timed[0].after_s or 0.0) < TIE_WINDOW_S:
        return None
    return timed[0]


@dataclass(slots=True)
class Ledger:
    """What the run and its nodes have been charged with."""

    rules: BlameRules
    notes: list[FailureNote] = field(default_factory=list)
    """Failures in the world that is ending, or has just ended."""
    charged: int = 0
    """Cycles that ended because workers failed."""
    failures: dict[str, int] = field(default_factory=dict)
    """How often each node was the first to fail."""
    until: dict[str, float] = field(default_factory=dict)
    """Quarantined nodes, and when they may come back."""
    last: FailureNote | None = None
    """The newest failure that came first, or else was heard first: what a user wants to know at the end."""
    streak: int = 0
    """Cycles in a row that ended at their start on one error."""
    streak_error: str = ""

    def note(self, failure: FailureNote) -> bool:
        """Remember a failure. False if the same incarnation has told of it already."""
        if any(known.incarnation == failure.incarnation for known in self.notes):
            return False
        self.notes.append(failure)
        self.last = first_failure(self.notes) or self.notes[0]
        return True

    def settle(self, now: float, is_excused: bool, can_lose: Callable[[str], bool]) -> Settlement:
        """Charge the world that ended, once. What is not known by now is not known.

        `is_excused`: a node of that world was lost or left, or somebody asked for its end: the failures of others
        are held against nobody. `can_lose`: whether the run can do without an incarnation. Where it cannot, nobody
        is quarantined: a run that fails now and then is better than one that waits.
        """
        notes, self.notes = self.notes, []
        if not notes or is_excused:
            self.streak = 0
            return Settlement()
        self.charged += 1
        self._extend_streak(notes)
        rules = self.rules
        return Settlement(
            is_charged=True,
            quarantined=None if self._is_the_scripts(notes) else self._blame(first_failure(notes), now, can_lose),
            is_spent=0 < rules.max_cycles <= self.charged,
            loop=self.streak if 0 < rules.crash_loop <= self.streak else 0,
        )

    def _blame(self, first: FailureNote | None, now: float, can_lose: Callable[[str], bool]) -> FailureNote | None:
        limit = self.rules.max_node_failures
        if first is None or limit == 0:
            return None
        self.failures[first.key] = self.failures.get(first.key, 0) + 1
        if self.failures[first.key] < limit or not can_lose(first.incarnation):
            return None
        del self.failures[first.key]
        self.until[first.key] = now + self.rules.quarantine_s
        return first

    def _is_the_scripts(self, notes: Sequence[FailureNote]) -> bool:
        """Whether several nodes failed at the start on one error: that is no node's fault, whoever was faster."""
        starts = [note for note in notes if note.after_s is not None and note.after_s <= self.rules.crash_loop_s]
        return len(starts) == len(notes) > 1 and len({note.reason for note in starts}) == 1

    def _extend_streak(self, notes: Sequence[FailureNote]) -> None:
        """One error: every node that failed at the start says the same as the one before."""
        earliest = min((note.after_s for note in notes if note.after_s is not None), default=None)
        errors = {note.reason for note in notes if note.after_s == earliest}
        is_start = earliest is not None and earliest <= self.rules.crash_loop_s and len(errors) == 1
        error = errors.pop() if is_start else ""
        self.streak = (self.streak + 1 if error == self.streak_error else 1) if is_start else 0
        self.streak_error = error

    def explain_end(self, settlement: Settlement) -> str:
        """Why the run cannot go on; empty if it can."""
        rules = self.rules
        if settlement.is_spent:
            return f"max_cycles={rules.max_cycles}: so many cycles ended because workers failed"
        if settlement.loop:
            return f"crash loop: {settlement.loop} cycles in a row failed within {rules.crash_loop_s:g} s on one error"
        return ""

    def explain_quarantine(self, bad: FailureNote) -> str:
        return (
            f"quarantined for {self.rules.quarantine_s:g} s: its workers were the first to fail in "
            f"{self.rules.max_node_failures} cycles, last with: {bad.reason}"
        )

    def quarantined_for(self, key: str, now: float) -> float:
        """Seconds until a node may come back; 0 if it may now."""
        if not self.until:
            return 0.0
        left_s = self.until.get(key, now) - now
        if left_s <= 0:
            self.until.pop(key, None)
        return max(0.0, left_s)
