"""Who is in the run, counted from outside, for the checkers to judge by.

A naive second account beside the coordinator's: what nodes said counts from when the coordinator can have read it, what
the coordinator did from when the server performed it. Judges nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ft_rendezvous.core.model import (
    AnyRecord,
    Arrival,
    Called,
    Finish,
    Goodbye,
    NodeInfo,
    Opened,
    Outcome,
    Sealed,
    Seat,
    Withdrawal,
)
from tests.sim.checkers import Checker
from tests.sim.kernel import Process

if TYPE_CHECKING:
    from tests.sim.world import World


class Census(Checker):
    """Sees everything before the checkers do."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.members: dict[str, NodeInfo] = {}
        self.arrived_in: dict[str, int] = {}
        """The newest cycle that each has come to."""
        self.finished: set[str] = set()
        self.draining: set[str] = set()
        self.worlds: dict[int, dict[str, int]] = {}
        """The last sealed world of each group: everybody's rank."""
        self.last_worlds: dict[int, dict[str, int]] = {}
        """The one of each group before the last seal."""
        self.sealed_groups: set[int] = set()
        """Groups that were not opened again since they were sealed."""
        self.has_sealed = False
        self.has_begun_to_finish = False
        """Whether anybody has finished since the last seal."""
        self._over: set[str] = set()
        self._said: list[AnyRecord] = []

    def record(self, record: AnyRecord, process: Process) -> None:  # noqa: ARG002
        self._said.append(record)

    def logs_read(self) -> None:
        said, self._said = self._said, []
        for record in said:
            if isinstance(record, Arrival) and record.incarnation not in self._over:
                self.members[record.incarnation] = record.node
                self.arrived_in[record.incarnation] = record.cycle_id
        # Whoever came and went between two reads has gone; whose farewell was there before its arrival is not known.
        for record in said:
            if isinstance(record, Finish) or (isinstance(record, Goodbye) and record.outcome is Outcome.SUCCEEDED):
                self.finished.add(record.incarnation)
                self.has_begun_to_finish = True
            if isinstance(record, Goodbye | Withdrawal) and record.incarnation in self.members:
                self._end(record.incarnation)

    def fenced(self, incarnation: str, reason: str) -> None:  # noqa: ARG002
        self._end(incarnation)

    def _end(self, incarnation: str) -> None:
        self._over.add(incarnation)
        self.members.pop(incarnation, None)

    def called(self, event: Called, draining: set[str]) -> None:  # noqa: ARG002
        self.draining |= draining

    def opened(self, event: Opened) -> None:
        if event.group is None:
            self.sealed_groups.clear()
        else:
            self.sealed_groups.discard(event.group)

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        self.last_worlds = {group: dict(ranks) for group, ranks in self.worlds.items()}
        self.has_begun_to_finish, self.has_sealed = False, True
        if event.group is None:
            self.worlds = {}
        else:
            self.worlds[event.group] = {}
            for name in seats:
                self._leave_group(name)
        for name, seat in seats.items():
            if seat.rank is not None:
                self.worlds.setdefault(seat.group, {})[name] = seat.rank
                self.sealed_groups.add(seat.group)

    def _leave_group(self, incarnation: str) -> None:
        """A node that gets a place in another group has left the one it was in, which waited in vain."""
        for ranks in self.worlds.values():
            ranks.pop(incarnation, None)

    @property
    def world(self) -> dict[str, int]:
        """Everybody's rank in the last sealed worlds."""
        return {name: rank for ranks in self.worlds.values() for name, rank in ranks.items()}

    @property
    def last_world(self) -> dict[str, int]:
        """The same before the last seal."""
        return {name: rank for ranks in self.last_worlds.values() for name, rank in ranks.items()}

    def group_of(self, incarnation: str) -> int | None:
        """The group in whose last world a node was placed."""
        return next((group for group, ranks in self.worlds.items() if incarnation in ranks), None)

    def able(self) -> dict[str, NodeInfo]:
        """Live nodes that may be placed."""
        gone = self.finished | self.draining
        return {name: info for name, info in self.members.items() if name not in gone}

    def waiting(self, cycle_id: int) -> dict[str, NodeInfo]:
        """Those of them that train in this cycle, or have come to it and wait for a place."""
        return {
            name: info for name, info in self.able().items() if name in self.world or self.arrived_in[name] == cycle_id
        }
