"""Blame: which node failed first in a world that ended, and what that costs the node and the run.

The end of a world is *settled* just before the next world is sealed. Until then a node may still lose its lease or say
goodbye. In that case the workers of other nodes failed because of it, and no node is blamed. This module only keeps the
books; the coordinator acts on a settlement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from ft_rendezvous.core.model import AnyWhy, GroupFailsAgain, NodesDrain, RestartRequested, WorldGrows

TIE_WINDOW_S = 0.01
"""Failures closer together than this have no order: nodes learn of the seal milliseconds apart."""


@dataclass(frozen=True, slots=True)
class BlameRules:
    """The settings that blame depends on. A limit of 0 means no limit."""

    max_cycles: int
    max_node_failures: int
    quarantine_s: float
    crash_loop: int
    crash_loop_s: float
    max_group_failures: int = 0


@dataclass(frozen=True, slots=True)
class FailureNote:
    """A node's workers failed."""

    cycle_id: int
    key: str
    """Identifies the node across incarnations."""
    incarnation: str
    node: str
    rank: int
    """Rank of the worker that ended first on that node. If that is not known, the node's own rank."""
    exit_code: int | None
    after_s: float | None
    """Seconds since the seal, on the node's own clock. None if the worker was not watched."""
    reason: str
    log_path: str = ""
    """The file that holds that worker's standard error, if there is one."""
    last_words: str = ""
    """The last line of that file."""
    group: int = 0
    is_blamed: bool = True
    """Whether the node is at fault if its failure is the first. The workers of a world may hang without an odd one."""

    def __str__(self) -> str:
        return f"{self.node} (rank {self.rank}) in cycle {self.cycle_id}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Settlement:
    """The consequences of a world's end."""

    quarantined: FailureNote | None = None
    """A node that was the first to fail too often."""
    is_charged: bool = False
    """The cycle counts against the run's budget."""
    is_spent: bool = False
    """The run's budget is used up."""
    loop: int = 0
    """Number of cycles in a row that failed at their start with the same error, if it is too large; else 0."""
    false_starts: int = 0
    """How often in a row the group failed before it had trained for `crash_loop_s`, if that is too often; else 0."""


def is_excused(why: AnyWhy, lost_count: int, has_stalled: bool) -> bool:
    """Whether no node is blamed for a world's failures: it lost nodes, its end was requested, or its store stalled.

    When the store stalls for a lease, every node stops its workers by its own clock. The workers of a node whose lease
    ends a moment later fail because of that.
    """
    return lost_count > 0 or has_stalled or isinstance(why, RestartRequested | NodesDrain | WorldGrows)


def first_failure(notes: Sequence[FailureNote]) -> FailureNote | None:
    """The failure that came before all others. None if there is no failure, or the order is not known.

    Times are since the seal of a cycle, so those of groups that were sealed in different cycles have no order.
    """
    if len({note.cycle_id for note in notes}) > 1:
        return None
    timed = sorted((note for note in notes if note.after_s is not None), key=lambda note: note.after_s or 0.0)
    if not timed or len(timed) < len(notes):
        return notes[0] if len(notes) == 1 else None
    if len(timed) > 1 and (timed[1].after_s or 0.0) - (timed[0].after_s or 0.0) < TIE_WINDOW_S:
        return None
    return timed[0]


def _earliest_two(notes: Sequence[FailureNote]) -> list[FailureNote]:
    """The notes that `first_failure` needs: the two earliest, or two of which one has no time."""
    untimed = [note for note in notes if note.after_s is None]
    return [*untimed[:2], *sorted((n for n in notes if n.after_s is not None), key=lambda n: n.after_s or 0.0)][:2]


@dataclass(slots=True)
class _Account:
    """What the worlds of one group are charged with."""

    notes: list[FailureNote] = field(default_factory=list)
    """Failures in the world that is ending, or that has just ended."""
    noted: set[str] = field(default_factory=set)
    """Incarnations in `notes`."""
    earliest: list[FailureNote] = field(default_factory=list)
    """Those of `notes` that decide which failure is first; at most two."""
    streak: int = 0
    """Number of cycles in a row that failed at their start with the same error."""
    streak_error: str = ""
    false_starts: int = 0
    """Number of cycles in a row that failed before they had trained for `crash_loop_s`, with any error."""

    def note(self, failure: FailureNote) -> FailureNote:
        """Remember a failure. Returns the first one, or, if the order is not known, the first that was read."""
        self.noted.add(failure.incarnation)
        self.notes.append(failure)
        self.earliest = _earliest_two([*self.earliest, failure])
        return first_failure(self.earliest) or self.notes[0]

    def take_notes(self) -> list[FailureNote]:
        notes, self.notes = self.notes, []
        self.noted.clear()
        self.earliest.clear()
        return notes


@dataclass(slots=True)
class Ledger:
    """What the run, its groups and its nodes are charged with."""

    rules: BlameRules
    charged: int = 0
    """Cycles that ended because workers failed."""
    failures: dict[str, int] = field(default_factory=dict)
    """How often each node was the first to fail."""
    until: dict[str, float] = field(default_factory=dict)
    """Quarantined nodes, and the time at which each may come back."""
    last: FailureNote | None = None
    """The first failure of the newest world that failed or was charged. If the order is not known, the first that was
    read."""
    _common: _Account = field(default_factory=_Account)
    """For worlds of all groups together."""
    _groups: dict[int, _Account] = field(default_factory=dict)

    @property
    def notes(self) -> list[FailureNote]:
        """Failures in the worlds that are ending, or that have just ended."""
        return [note for account in self._groups.values() for note in account.notes]

    @property
    def streak(self) -> int:
        """Number of common cycles in a row that failed at their start with the same error."""
        return self._common.streak

    def note(self, failure: FailureNote) -> bool:
        """Remember a failure. False if the same incarnation has already reported one.

        Ten thousand failures may come in one read, so a note costs the same however many there are.
        """
        account = self._groups.setdefault(failure.group, _Account())
        if failure.incarnation in account.noted:
            return False
        self.last = account.note(failure)
        return True

    def count_notes(self, group: int | None = None) -> int:
        """How many failures were noted since the last settlement: in one group, or in all."""
        return len(self.notes) if group is None else len(self._groups.get(group, _Account()).notes)

    def settle(self, now: float, is_excused: bool, can_lose: Callable[[FailureNote], bool]) -> Settlement:
        """Charge the worlds of all groups that ended, as one, with what is known now.

        `is_excused`: a node of them was lost or left, or their end was requested, so no node is blamed.
        `can_lose`: whether the run can continue without the node of a failure. If it cannot, no node is quarantined: a
        run that fails now and then is better than a run that waits.
        """
        return self._charge(self._common, self.take_notes(), now, is_excused, can_lose)

    def settle_group(
        self, group: int, now: float, is_excused: bool, can_lose: Callable[[FailureNote], bool], trained_s: float
    ) -> Settlement:
        """The same for the world of one group, which has trained for so long."""
        account = self._groups.setdefault(group, _Account())
        settlement = self._charge(account, account.take_notes(), now, is_excused, can_lose)
        if account.streak == 0:
            self._common.streak = 0  # Not everything fails at its start.
        if trained_s >= self.rules.crash_loop_s:
            account.false_starts = 0
        elif settlement.is_charged:
            account.false_starts += 1
        is_too_often = 0 < self.rules.max_group_failures <= account.false_starts
        return replace(settlement, false_starts=account.false_starts) if is_too_often else settlement

    def restart_all(self, why: AnyWhy) -> None:
        """All groups restart together: each may try again. What made it necessary still counts towards a crash loop."""
        culprit = why.group if isinstance(why, GroupFailsAgain) else None
        for group, account in self._groups.items():
            account.false_starts = 0
            account.streak = account.streak if group == culprit else 0

    def _charge(
        self,
        account: _Account,
        notes: Sequence[FailureNote],
        now: float,
        is_excused: bool,
        can_lose: Callable[[FailureNote], bool],
    ) -> Settlement:
        if not notes or is_excused:
            account.streak = 0
            return Settlement()
        self.charged += 1
        self.last = first_failure(notes) or notes[0]
        self._extend_streak(account, notes)
        rules = self.rules
        return Settlement(
            is_charged=True,
            quarantined=None if self._is_the_scripts(notes) else self._blame(first_failure(notes), now, can_lose),
            is_spent=0 < rules.max_cycles <= self.charged,
            loop=account.streak if 0 < rules.crash_loop <= account.streak else 0,
        )

    def take_group_notes(self, group: int) -> list[FailureNote]:
        """The same for one group."""
        account = self._groups.get(group)
        return [] if account is None else account.take_notes()

    def forget_group(self, group: int) -> None:
        """A group is given up because it lost nodes. What its workers reported because of that is not charged."""
        self._groups.pop(group, None)

    def take_notes(self) -> list[FailureNote]:
        """The failures that were noted since they were last taken or settled."""
        return [note for account in self._groups.values() for note in account.take_notes()]

    def _blame(
        self, first: FailureNote | None, now: float, can_lose: Callable[[FailureNote], bool]
    ) -> FailureNote | None:
        limit = self.rules.max_node_failures
        if first is None or not first.is_blamed or limit == 0:
            return None
        self.failures[first.key] = self.failures.get(first.key, 0) + 1
        if self.failures[first.key] < limit or not can_lose(first):
            return None
        del self.failures[first.key]
        self.until[first.key] = now + self.rules.quarantine_s
        return first

    def _is_the_scripts(self, notes: Sequence[FailureNote]) -> bool:
        """Whether several nodes failed at the start with the same error: then the script is at fault, not a node."""
        starts = [note for note in notes if note.after_s is not None and note.after_s <= self.rules.crash_loop_s]
        return len(starts) == len(notes) > 1 and len({note.reason for note in starts}) == 1

    def _extend_streak(self, account: _Account, notes: Sequence[FailureNote]) -> None:
        """Count the worlds in a row whose first failures, at the start of the world, give one and the same error."""
        earliest = min((note.after_s for note in notes if note.after_s is not None), default=None)
        errors = {note.reason for note in notes if note.after_s == earliest}
        is_start = earliest is not None and earliest <= self.rules.crash_loop_s and len(errors) == 1
        error = errors.pop() if is_start else ""
        account.streak = (account.streak + 1 if error == account.streak_error else 1) if is_start else 0
        account.streak_error = error

    def explain_end(self, settlement: Settlement) -> str:
        """Why the run cannot continue. Empty if it can."""
        rules = self.rules
        if settlement.is_spent:
            return f"max_cycles={rules.max_cycles}: this many cycles ended because workers failed"
        if settlement.loop:
            limit_s = f"{rules.crash_loop_s:g} s"
            return f"crash loop: {settlement.loop} cycles in a row failed within {limit_s} with the same error"
        return ""

    def explain_quarantine(self, bad: FailureNote) -> str:
        return (
            f"quarantined for {self.rules.quarantine_s:g} s: its workers were the first to fail in "
            f"{self.rules.max_node_failures} cycles, last with: {bad.reason}"
        )

    def quarantined_for(self, key: str, now: float) -> float:
        """Seconds until a node may come back. 0 if it may come back now."""
        if not self.until:
            return 0.0
        left_s = self.until.get(key, now) - now
        if left_s <= 0:
            self.until.pop(key, None)
        return max(0.0, left_s)
