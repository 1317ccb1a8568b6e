"""What of a run is in the store: logs that the coordinator still reads, and keys that it has yet to delete.

Owns the readers of the logs and the list of keys to delete. Written as moves, so it performs nothing itself. Decides
nothing about the run.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import islice

from ft_rendezvous.core.model import Opened, View
from ft_rendezvous.protocol import moves
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.ops import Clock, Move

ANSWER_RETENTION_S = 60.0
"""How long an answer waits to be read."""

FENCE_RETENTION_LEASES = 10
"""How long a fence waits to be read, in leases. A node that finds neither its beat nor its fence begins a new
incarnation. The coordinator refuses that one too, if there is still a reason to."""


@dataclass(slots=True)
class StoredCycles:
    """The cycles of a run whose keys are in the store, oldest first."""

    keys: Keys
    clock: Clock
    fence_retention_s: float
    """How long a fence waits to be read."""
    long_log_bytes: int = moves.LONG_LOG_BYTES
    """A log of this size is emptied when it has been read."""
    readers: list[moves.LogReader] = field(init=False, default_factory=list)
    """Readers of the current cycle's log, and of those before it that are not deleted."""
    disagrees_since: float | None = field(init=False, default=None)
    """Since when counts and records of the current cycle have disagreed."""
    opened_by: dict[int, int] = field(init=False, default_factory=dict)
    """The event that opened each cycle whose keys are still in the store, oldest first."""
    deleted_logs: deque[int] = field(init=False, default_factory=lambda: deque(maxlen=moves.RELAPSE + 1))
    """The last cycles whose logs were deleted."""
    deleted_events: int = field(init=False, default=0)
    fences: deque[tuple[float, str]] = field(init=False, default_factory=deque)
    """When which incarnation was fenced. The node deletes the fence, unless it is gone."""
    answers: deque[tuple[float, str]] = field(init=False, default_factory=deque)
    """When which request was answered. The operator deletes the answer, unless it left before."""

    @property
    def arrivals_counted(self) -> int:
        """How many arrivals the current cycle has counted."""
        return self.readers[-1].arrivals_counted

    def begin_cycle(self, opened: Opened) -> None:
        """Read another log from now on. The one before it is still read: a node may be late.

        The cycle of a group has no log of its own.
        """
        if opened.log_id != opened.cycle_id:
            self.readers[-1].newest_id = opened.cycle_id
            return
        self.readers.append(moves.LogReader(opened.cycle_id, opened.shards, self.long_log_bytes))
        self.opened_by[opened.cycle_id] = opened.no
        self.disagrees_since = None

    def read(self) -> Move[moves.Reading]:
        """Read all logs once. Returns what is new."""
        reading = yield from moves.read_logs(self.keys, self.readers)
        if self.readers[-1].is_consistent:
            self.disagrees_since = None
        elif self.disagrees_since is None:
            self.disagrees_since = self.clock()
        return reading

    def fence(self, incarnation: str, reason: str) -> Move[None]:
        """End an incarnation. Its fence stays for some leases."""
        yield from moves.fence(self.keys, incarnation, reason)
        self.fences.append((self.clock(), incarnation))

    def note_answer(self, request: str) -> None:
        """A request was answered: delete the answer later."""
        self.answers.append((self.clock(), request))

    @property
    def last_log_id(self) -> int:
        """The common cycle before the current one; 0 if there was none."""
        return self.readers[-2].cycle_id if len(self.readers) > 1 else 0

    def may_delete(self, view: View, published_before: int) -> bool:
        """Whether `sweep` may find events or cycles to delete; only then must it know what nodes have read."""
        return published_before - 1 > self.deleted_events or self._has_old_log(view)

    def delete_read(self, view: View, published_before: int, acted: int) -> Move[None]:
        """Delete events that every live node has acted upon, and cycles that no node can look back to.

        `acted` is the newest event that every live node has acted upon, `published_before` the last event that was
        published before the logs were last read. A newcomer writes its arrival before it reads the head. So a newcomer
        that is not in that read starts from that event or a later one: those are kept. A log is read once more after
        its second successor opened, because a newcomer may have written there until then.
        """
        done = min(acted, published_before - 1)
        yield from moves.delete_events(self.keys, self.deleted_events + 1, done, view.opened.channels)
        self.deleted_events = max(self.deleted_events, done)
        readers = self.readers
        while self._has_old_log(view) and next(islice(self.opened_by.values(), 1, None)) <= acted:
            old = readers.pop(0)
            del self.opened_by[old.cycle_id]
            # Older ones are deleted again: a late append by a fenced node brings a deleted log back.
            self.deleted_logs.append(old.cycle_id)
            yield from moves.delete_logs(self.keys, self.deleted_logs, old.shards)

    def delete_old(self) -> Move[None]:
        """Delete what was read of long logs, fences that no node came for, and answers that no operator came for.

        The coordinator is the only reader of the logs, and has taken in what it read.
        """
        for reader in self.readers:
            yield from moves.empty_logs(self.keys, reader)
        now = self.clock()
        while self.fences and self.fences[0][0] + self.fence_retention_s < now:
            yield from moves.end_fence(self.keys, self.fences.popleft()[1])
        while self.answers and self.answers[0][0] + ANSWER_RETENTION_S < now:
            yield from moves.delete_answer(self.keys, self.answers.popleft()[1])

    def _has_old_log(self, view: View) -> bool:
        """Whether the second successor of the oldest cycle is sealed."""
        return view.sealed is not None and len(self.readers) > 2
