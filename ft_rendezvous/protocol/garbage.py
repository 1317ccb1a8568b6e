"""What nobody can need any more is deleted: read events, cycles nobody looks back to, fences of the past.

Written as moves, so it performs nothing itself. Decides nothing about the run.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from ft_rendezvous.core.model import Opened, View
from ft_rendezvous.protocol import operations
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.membership import Registry
from ft_rendezvous.protocol.ops import Move

ANSWER_S = 60.0
"""How long an answer waits to be read."""


@dataclass(slots=True)
class Sweeper:
    keys: Keys
    registry: Registry
    opened_by: dict[int, int] = field(init=False, default_factory=dict)
    """The event that opened each cycle whose keys are still in the store."""
    deleted_events: int = field(init=False, default=0)
    answered: deque[tuple[float, str]] = field(init=False, default_factory=deque)
    """When which request was answered. Who asked deletes the answer, unless it went before."""

    def begin_cycle(self, opened: Opened) -> None:
        self.opened_by[opened.cycle_id] = opened.no

    def sweep(self, view: View, published_before: int, now: float) -> Move[None]:
        """Delete events that every live node has acted upon, and cycles that nobody can look back to.

        `published_before` is the last event that was published before the logs were last read. A newcomer writes its
        arrival before it reads the head, so whoever is not in that read will start from that event, or a later one:
        those are kept. A log is read once more after its second successor opened, because a newcomer may have written
        there until then.
        """
        if published_before - 1 > self.deleted_events or self._is_old(self.registry.readers[0].cycle_id, view):
            # Only then: it takes a look at every lease.
            acted = self.registry.leases.acknowledged_by_all(self.deleted_events)
            yield from self._forget(view, acted, min(acted, published_before - 1))
        while self.registry.fenced_in and self.registry.fenced_in[0][0] < self.registry.readers[0].cycle_id:
            yield from operations.end_fence(self.keys, self.registry.fenced_in.pop(0)[1])
        while self.answered and self.answered[0][0] + ANSWER_S < now:
            yield from operations.delete_answer(self.keys, self.answered.popleft()[1])

    def _forget(self, view: View, acted: int, done: int) -> Move[None]:
        yield from operations.delete_events(self.keys, self.deleted_events + 1, done, view.opened.channels)
        self.deleted_events = max(self.deleted_events, done)
        readers = self.registry.readers
        while self._is_old(readers[0].cycle_id, view) and self.opened_by[readers[0].cycle_id + 1] <= acted:
            old = readers.pop(0)
            del self.opened_by[old.cycle_id]
            yield from operations.delete_cycle(self.keys, old.cycle_id, old.shards)

    def _is_old(self, cycle_id: int, view: View) -> bool:
        return view.sealed is not None and cycle_id < view.cycle_id - 1
