"""Hangs: which worlds end for one, and which node is blamed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ft_rendezvous.core.model import AnyRecord, Inquired, Late, Opened, Sealed, Seat, Stacks, WorkersHang, node_name
from tests.sim.checkers.base import Checker
from tests.sim.kernel import Process

if TYPE_CHECKING:
    from tests.sim.world import World

READ_S = 0.3
"""Within this time before an opening, an answer may not have been read."""


class hangs_are_judged_rightly(Checker):
    """A node says that a rank is late only if its world stands still, and no rank of its own is paused. A cycle ends
    for a hang only if its workers hang, and no node of it has announced a pause. The node of the odd rank is blamed,
    and only where more than half of all ranks are at one place."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._sealed: dict[int, tuple[int, dict[str, int]]] = {}
        """The last seal of each group: its cycle, and the node ranks."""
        self._answered: dict[str, float] = {}
        """When the nodes have answered the last inquiry about their group."""
        self._inquiries: dict[int, int] = {}
        """The last inquiry about each group."""

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        for group in event.masters:
            ranks = {name: s.rank for name, s in seats.items() if s.rank is not None and s.group == group}
            self._sealed[group] = event.cycle_id, ranks

    def inquired(self, event: Inquired) -> None:
        self._inquiries[event.group] = event.no
        for name in self._sealed[event.group][1]:
            self._answered.pop(name, None)

    def record(self, record: AnyRecord, process: Process) -> None:
        if isinstance(record, Stacks) and record.inquiry in self._inquiries.values():
            self._answered.setdefault(record.incarnation, self._now)
        if not isinstance(record, Late):
            return
        for group, (cycle_id, ranks) in self._sealed.items():
            if cycle_id == record.cycle_id and record.incarnation in ranks:
                hang = self._world.hangs.hangs.get((cycle_id, group))
                # The record may have been on its way for a while.
                if hang is None:
                    self.fail(f"{process.name} says that a rank is late in cycle {cycle_id}, which goes on")
                if hang.paused == ranks[record.incarnation]:
                    self.fail(f"{process.name} says that a rank is late, and one of its own ranks is paused")

    def opened(self, event: Opened) -> None:
        why = event.why
        if not isinstance(why, WorkersHang):
            return
        group = event.group or 0
        cycle_id, ranks = self._sealed[group]
        hang = self._world.hangs.hangs.get((cycle_id, group))
        if hang is None:
            self.fail(f"cycle {cycle_id} ends for a hang, and its workers go on")
        if hang.paused is not None and self._has_heard(ranks, hang.paused):
            self.fail(f"cycle {cycle_id} ends for a hang, and a pause was announced")
        if hang.paused is not None:
            return  # The node that has announced it did not answer in time.
        per_node = next((self._world.node_of(name).info.local_world_size or 2 for name in ranks), 2)
        others = len(ranks) * per_node - len(hang.odd)
        has_majority = len(hang.odd) == 1 and 2 * others > len(ranks) * per_node
        guilty = next((name for name, rank in ranks.items() if rank in hang.odd), None) if has_majority else None
        named = "" if guilty is None else node_name(self._world.node_of(guilty).info)
        if why.is_blamed and (guilty is None or why.node != named):
            self.fail(f"{why.node} is blamed for the hang of cycle {cycle_id}: {named or 'no node'} is odd")
        has_answers = all(self._now - self._answered.get(name, self._now) > READ_S for name in ranks)
        if not why.is_blamed and guilty is not None and has_answers:
            self.fail(f"no node is blamed for the hang of cycle {cycle_id}, and {named} is odd")

    def _has_heard(self, ranks: dict[str, int], paused: int) -> bool:
        """Whether the paused node had answered for so long that the coordinator must know."""
        name = next(name for name, rank in ranks.items() if rank == paused)
        return self._now - self._answered.get(name, self._now) > READ_S
