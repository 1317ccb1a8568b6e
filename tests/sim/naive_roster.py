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
        self.world: dict[str, int] = {}
        """The last sealed world: everybody's rank."""
        self.last_world: dict[str, int] = {}
        """The one before it."""
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

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:  # noqa: ARG002
        ranks = {name: seat.rank for name, seat in seats.items() if seat.rank is not None}
        self.last_world, self.world, self.has_begun_to_finish = self.world, ranks, False

    def able(self) -> dict[str, NodeInfo]:
        """Live nodes that may be placed."""
        gone = self.finished | self.draining
        return {name: info for name, info in self.members.items() if name not in gone}

    def waiting(self, cycle_id: int) -> dict[str, NodeInfo]:
        """Those of them that train in this cycle, or have come to it and wait for a place."""
        return {
            name: info for name, info in self.able().items() if name in self.world or self.arrived_in[name] == cycle_id
        }
