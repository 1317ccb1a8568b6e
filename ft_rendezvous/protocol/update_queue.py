"""What a node has yet to pass on of the updates that its workers report: how much of it, in which record, and when.

Pure: time is an argument. Updates may come many times a second for weeks, so plain ones (completed at the first
attempt) are merged: the newest is told, the others are only counted. An update that failed or was retried is told for
itself, as long as not too many of them wait.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from msgspec.structs import replace

from ft_rendezvous.core.model import UpdateNews
from ft_rendezvous.core.update_notes import UpdateNote, UpdateSums
from ft_rendezvous.protocol.codec import is_record_small

MOST_WAITING = 32
"""Updates of one cycle that failed or were retried, and wait to be told. Later ones are only counted."""

MOST_CYCLES = 4
"""Cycles of which something waits. A late worker of an older cycle is not heard any more."""

LAST_RECORDS = 8
"""Records that a node may write at once when it finishes or leaves."""

SHORT_REASON_CHARS = 50


@dataclass(slots=True)
class _Waiting:
    """What workers of one cycle have reported."""

    notes: deque[UpdateNote] = field(default_factory=deque)
    """Failed or retried, oldest first."""
    newest: UpdateNote | None = None
    """The newest plain one."""
    merged: UpdateSums = field(default_factory=UpdateSums)

    def add(self, note: UpdateNote) -> None:
        if not note.is_plain:
            if len(self.notes) < MOST_WAITING:
                self.notes.append(note)
            else:
                self.merged = self.merged.plus(note)
            return
        if self.newest is not None:
            self.merged = self.merged.plus(self.newest)
        self.newest = note

    @property
    def is_plain(self) -> bool:
        return not (self.notes or self.merged.failed or self.merged.retried)

    def tellable(self) -> list[UpdateNote]:
        return [*self.notes, *([] if self.newest is None else [self.newest])]

    def drop(self, told: int) -> bool:
        """The first so many were told, and so were the sums. Returns whether something is left."""
        self.merged = UpdateSums()
        for _ in range(told):
            if self.notes:
                self.notes.popleft()
            else:
                self.newest = None
        return bool(self.notes) or self.newest is not None


@dataclass(slots=True)
class UpdateQueue:
    """The reports of one node that wait for its next record."""

    _waiting: dict[int, _Waiting] = field(default_factory=dict)
    """By the cycle of the workers, oldest first."""
    _number: int = 0
    _passed_at: float = float("-inf")

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._waiting)

    def add(self, cycle_id: int, note: UpdateNote) -> None:
        """A worker of this cycle has reported an update."""
        if cycle_id not in self._waiting:
            self._waiting[cycle_id] = _Waiting()
            self._waiting = dict(sorted(self._waiting.items())[-MOST_CYCLES:])
        if cycle_id in self._waiting:
            self._waiting[cycle_id].add(note)

    def is_due(self, now: float, beat_s: float, lease_s: float) -> bool:
        """Whether a record may be written now: one per lease if all is plain, one per beat interval otherwise."""
        if not self._waiting:
            return False
        is_plain = all(waiting.is_plain for waiting in self._waiting.values())
        return now >= self._passed_at + (max(beat_s, lease_s) if is_plain else beat_s)

    def take(self, now: float, cycle_id: int, incarnation: str) -> UpdateNews | None:
        """The next record, which is written now into the log of a cycle; None if nothing waits.

        It is about the oldest cycle of which something waits, and tells as much as fits into a record.
        """
        if not self._waiting:
            return None
        worker_cycle_id, waiting = next(iter(self._waiting.items()))
        self._number, self._passed_at = self._number + 1, now
        news = UpdateNews(
            cycle_id=cycle_id,
            incarnation=incarnation,
            number=self._number,
            worker_cycle_id=worker_cycle_id,
            merged=waiting.merged,
            notes=(),
        )
        for note in waiting.tellable():
            more = replace(news, notes=(*news.notes, note))
            if not is_record_small(more):
                break
            news = more
        if not news.notes and (rest := waiting.tellable()):
            # It was reported within all limits, and is too long all the same. Its numbers are always short.
            reason = rest[0].reason[:SHORT_REASON_CHARS]
            news = replace(news, notes=(replace(rest[0], failed=(), steps=(), reason=reason),))
        if not waiting.drop(len(news.notes)):
            del self._waiting[worker_cycle_id]
        return news
