"""One authority: one placement, one row of cycles, one verdict, and a success that was earned."""

# ruff: noqa: ARG002 - a checker is told every sighting whole, and looks at what it needs.

from __future__ import annotations

from typing import TYPE_CHECKING

from ft_rendezvous.core.model import (
    AnyEvent,
    AnyRecord,
    Arrival,
    Called,
    Closed,
    Finish,
    Goodbye,
    NodesDrain,
    Opened,
    Outcome,
    Sealed,
    Seat,
    Verdict,
    VerdictKind,
)
from ft_rendezvous.protocol.participant import Place
from tests.sim.checkers.base import Checker
from tests.sim.faults import Ending
from tests.sim.kernel import Process
from tests.sim.naive_capacity import count_placeable

if TYPE_CHECKING:
    from tests.sim.agent import SimNode
    from tests.sim.world import World


class one_placement_per_cycle(Checker):
    """A cycle has one placement: seats are written once, and every place taken is the one that was written."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._seals: dict[int, tuple[Sealed, dict[str, Seat]]] = {}

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        if event.cycle_id in self._seals:
            self.fail(f"cycle {event.cycle_id} was sealed again")
        self._seals[event.cycle_id] = (event, dict(seats))

    def takes_place(self, node: SimNode, place: Place) -> None:
        if place.cycle_id not in self._seals:
            self.fail(f"{node.name} took a place in cycle {place.cycle_id}, which is not sealed")
        event, seats = self._seals[place.cycle_id]
        seat = seats.get(place.incarnation)
        master = event.masters[place.group]
        written = (event.world_size, master.addr, master.port, seat)
        taken = (
            place.world_size,
            place.master_addr,
            place.master_port,
            Seat(place.rank, place.workers, place.group),
        )
        if written != taken:
            self.fail(f"{node.name} took {taken} in cycle {place.cycle_id}, written was {written}")


class ranks_are_exact(Checker):
    """The ranks of every group of a sealed cycle are exactly 0..n-1, each with one incarnation that arrived in that
    cycle; in the cycle of a group, with one whose arrival stands since the last common cycle opened."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._arrivals: dict[str, list[Arrival]] = {}
        self._holders: dict[tuple[int, int, int], str] = {}
        self._log_id = 0

    def opened(self, event: Opened) -> None:
        self._log_id = event.log_id

    def record(self, record: AnyRecord, process: Process) -> None:
        if isinstance(record, Arrival):
            self._arrivals.setdefault(record.incarnation, []).append(record)

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        placed: dict[int, list[Seat]] = {group: [] for group in event.masters}
        for seat in seats.values():
            if seat.rank is not None:
                placed[seat.group].append(seat)
        for group, held in placed.items():
            ranks = sorted(seat.rank for seat in held if seat.rank is not None)
            if ranks != list(range(event.world_size)):
                self.fail(f"cycle {event.cycle_id} of {event.world_size} has ranks {ranks} in group {group}")
            workers = [seat.workers for seat in held if seat.workers is not None]
            if workers and min(w.base_global_rank for w in workers) != 0:
                self.fail(f"no worker of cycle {event.cycle_id} has global rank 0 in group {group}")
        for name in seats:
            self._judge(event, name)

    def _judge(self, event: Sealed, name: str) -> None:
        wanted = event.cycle_id if event.group is None else self._log_id
        arrivals = [arrival for arrival in self._arrivals.get(name, []) if wanted <= arrival.cycle_id <= event.cycle_id]
        if not arrivals:
            self.fail(f"{self._name(name)} is seated in cycle {event.cycle_id} and never arrived in it")
        if min(arrival.seq for arrival in arrivals) > event.counted:
            self.fail(f"{self._name(name)} is seated in cycle {event.cycle_id}, which does not count it")

    def takes_place(self, node: SimNode, place: Place) -> None:
        holder = self._holders.setdefault((place.cycle_id, place.group, place.rank), place.incarnation)
        if holder != place.incarnation:
            self.fail(f"rank {place.rank} of cycle {place.cycle_id} is taken by {node.name} and {self._name(holder)}")


class cycle_ids_are_monotonic(Checker):
    """Cycle ids grow by one and are never reused; events are numbered without gaps."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._cycle_id = self._no = 0
        self._newest: dict[int | None, int] = {}
        """The newest cycle of each group, since the last common one, and that."""

    def published(self, event: AnyEvent) -> None:
        if event.no != self._no + 1:
            self.fail(f"event {event.no} after event {self._no}")
        self._no = event.no

    def opened(self, event: Opened) -> None:
        if event.cycle_id != self._cycle_id + 1:
            self.fail(f"cycle {event.cycle_id} after cycle {self._cycle_id}")
        self._cycle_id = event.cycle_id
        if event.group is None:
            self._newest.clear()
        self._newest[event.group] = event.cycle_id

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        current = self._newest.get(event.group)
        if event.cycle_id != current:
            self.fail(f"cycle {event.cycle_id} was sealed while cycle {current} was the current one")


class one_verdict(Checker):
    """A run is closed once, nothing follows, and every node hears the same verdict."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._verdict: Verdict | None = None

    def published(self, event: AnyEvent) -> None:
        if self._verdict is not None:
            self.fail(f"event {event.no} follows the verdict {self._verdict}")

    def closed(self, event: Closed) -> None:
        self._verdict = event.verdict

    def hears_verdict(self, node: SimNode, verdict: Verdict) -> None:
        if verdict != self._verdict:
            self.fail(f"{node.name} heard {verdict}, published was {self._verdict}")


class success_is_earned(Checker):
    """A run is closed as succeeded only if the workers of every active of its last world ended well. With groups: of
    every group that is sealed, and of one at least."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._finished: set[str] = set()
        self._ended_well: set[str] = set()

    def workers_end(self, node: SimNode, place: Place, ending: Ending) -> None:
        if ending is Ending.WELL:
            self._ended_well.add(place.incarnation)

    def record(self, record: AnyRecord, process: Process) -> None:
        if isinstance(record, Finish) or (isinstance(record, Goodbye) and record.outcome is Outcome.SUCCEEDED):
            self._finished.add(record.incarnation)

    def closed(self, event: Closed) -> None:
        if event.verdict.kind is not VerdictKind.SUCCEEDED:
            return
        census = self._census
        done = {group for group in census.worlds if not self._unfinished(group)}
        for group in census.sealed_groups if self._settings.group_size else census.worlds:
            if group not in done:
                self.fail(f"the run succeeded, but {', '.join(self._unfinished(group))} have not finished")
        if not done:
            self.fail("the run succeeded, and no group has finished")

    def _unfinished(self, group: int) -> list[str]:
        names = sorted(self._census.worlds[group])
        return [self._name(name) for name in names if name not in self._finished & self._ended_well]


class drained_are_not_placed(Checker):
    """A node that was asked to go gets no place any more, and keeps the one it has until somebody else can have it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._asked: set[str] = set()

    def called(self, event: Called, draining: set[str]) -> None:
        self._asked |= draining

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        for name, seat in seats.items():
            if name in self._asked and seat.rank is not None:
                self.fail(f"{self._name(name)} was asked to go, and is placed in cycle {event.cycle_id}")

    def opened(self, event: Opened) -> None:
        if isinstance(event.why, NodesDrain) and event.group is None:
            left = count_placeable(self._census.able().values(), self._settings)
            if left < self._settings.min_nodes:
                self.fail(f"cycle {event.cycle_id} was opened for a drain that leaves {left} nodes")
