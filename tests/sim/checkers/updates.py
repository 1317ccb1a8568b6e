"""Updates: what workers report reaches the journal, and nothing else does."""

# ruff: noqa: ARG002 - a checker is told every sighting whole, and looks at what it needs.

from __future__ import annotations

from collections import defaultdict, deque
from typing import TYPE_CHECKING

from ft_rendezvous.core.model import AnyRecord, Sealed, Seat, UpdateNews
from ft_rendezvous.core.update_notes import UpdateNote
from ft_rendezvous.protocol.journal import Entry, UpdatesReported
from ft_rendezvous.protocol.update_queue import MOST_WAITING
from tests.sim.agent import SimNode
from tests.sim.checkers.base import Checker
from tests.sim.kernel import Process

if TYPE_CHECKING:
    from tests.sim.world import World

FEW = MOST_WAITING // 2
"""Of so many that wait here, fewer than the most may wait in the node: a record may be on its way."""


class updates_are_journaled_once(Checker):
    """A node passes on every update that failed or was retried for itself, the oldest first, and counts the others
    right. What the coordinator has read of it is in the journal before it reads again: once, and in the cycle of the
    workers."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._troubled: defaultdict[tuple[str, int], deque[int]] = defaultdict(deque)
        """Versions of updates that failed or were retried, and were not passed on yet, by process and cycle."""
        self._crowded: set[tuple[str, int]] = set()
        """Of which so many wait that a node may only count some of them."""
        self._reported: defaultdict[tuple[str, int], int] = defaultdict(int)
        self._said: dict[tuple[str, int], tuple[UpdateNews, str]] = {}
        """Records by author and number, with the log; those that the journal does not have yet."""
        self._due: set[tuple[str, int]] = set()
        """Those of them that the coordinator has read."""
        self._seen: set[tuple[str, int]] = set()
        self._placed: set[str] = set()
        self._key = ""
        self._deleted: set[str] = set()
        """Logs that the coordinator does not read any more. A late append brings one back (seed 6876)."""

    def reports_update(self, node: SimNode, cycle_id: int, note: UpdateNote) -> None:
        self._reported[node.name, cycle_id] += 1
        waiting = self._troubled[node.name, cycle_id]
        if not note.is_plain:
            waiting.append(note.version)
        if len(waiting) >= FEW:
            self._crowded.add((node.name, cycle_id))

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        self._placed |= {name for name, seat in seats.items() if seat.rank is not None}

    def appended(self, key: str, size_bytes: int) -> None:
        self._key = key

    def record(self, record: AnyRecord, process: Process) -> None:
        if not isinstance(record, UpdateNews) or (record.incarnation, record.number) in self._seen:
            return  # It may be written twice.
        source = process.name, record.worker_cycle_id
        self._seen.add((record.incarnation, record.number))
        if self._key not in self._deleted:
            self._said[record.incarnation, record.number] = record, self._key
        waiting = self._troubled[source]
        told = [note.version for note in record.notes if not note.is_plain]
        expected = [waiting.popleft() for _ in range(min(len(told), len(waiting)))]
        is_merged = record.merged.failed > 0 or record.merged.retried > 0
        if source not in self._crowded and (told != expected or is_merged):
            self.fail(f"{process.name} tells the updates {told}, and {[*expected, *waiting]} wait")
        self._reported[source] -= record.sums.updates
        if self._reported[source] < 0:
            self.fail(f"{process.name} tells more updates of cycle {record.worker_cycle_id} than were reported")

    def deleted(self, key: str) -> None:
        self._deleted.add(key)
        for said, (_, log) in list(self._said.items()):
            if log == key and said not in self._due:
                del self._said[said]

    def journals(self, entry: Entry) -> None:
        if not isinstance(entry, UpdatesReported):
            return
        told = [update.version for update in entry.told], entry.updates, entry.failed, entry.retried
        for said, (news, _) in self._said.items():
            sums = news.sums
            versions = [note.version for note in news.notes]
            is_same = told == (versions, sums.updates, sums.failed, sums.retried)
            if is_same and entry.incarnation == news.incarnation and entry.cycle_id == news.worker_cycle_id:
                del self._said[said]
                self._due.discard(said)
                return
        self.fail(
            f"the journal tells of {entry.updates} updates of cycle {entry.cycle_id} again, or of none there were"
        )

    def logs_read(self) -> None:
        late = [said for said in self._due if said[0] in self._placed]
        if late:
            self.fail(
                f"the coordinator has read record {late[0][1]} of {self._name(late[0][0])}, and told nothing of it"
            )
        data = self._world.server.store.data
        self._due = {said for said, (_, log) in self._said.items() if log in data}
