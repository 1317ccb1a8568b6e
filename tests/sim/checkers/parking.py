"""Parked nodes, counted from outside: who was lost how often, and whether the others went on without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

from ft_rendezvous.core.model import NodeInfo, Opened, Sealed, Seat, WorldGrows
from tests.sim.checkers.base import Checker
from tests.sim.naive_capacity import largest_world

if TYPE_CHECKING:
    from tests.sim.world import World

DEATHS = ("its lifeline hung up", "has ended without a goodbye")
LOSSES = ("no beat for", "does not act upon events", "is a newer start of", *DEATHS)
"""What the reasons of those fences say that are losses."""


class parked_nodes_are_the_last_choice(Checker):
    """A node that was lost `max_node_losses` times is placed only if the others that arrived cannot form a world, and
    no cycle opens for a larger world with it.

    Counts all losses of a run together: simulated runs are shorter than `quarantine_s`.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._losses: Counter[int | str] = Counter()
        self._is_sealed = False
        self.parked_seen = 0
        """How often a parked node had arrived when a cycle was sealed."""

    def fenced(self, incarnation: str, reason: str) -> None:
        census, info = self._census, self._world.node_of(incarnation).info
        is_loss = any(words in reason for words in LOSSES)
        if is_loss and self._is_sealed and incarnation not in census.finished | census.draining:
            is_known = info.infra_rank is not None or self._count_at(info.addr) <= 1
            self._losses[_identity(info)] += is_known

    def _count_at(self, addr: str) -> int:
        """How many nodes of the world are at an address. Where there are several, none is known by it."""
        return sum(self._world.node_of(name).info.addr == addr for name in self._census.world)

    def _is_parked(self, info: NodeInfo) -> bool:
        return 0 < self._settings.max_node_losses <= self._losses[_identity(info)]

    def _steady(self, infos: Iterable[NodeInfo]) -> list[NodeInfo]:
        return [info for info in infos if not self._is_parked(info)]

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        self._is_sealed = True
        infos = {name: self._world.node_of(name).info for name in seats}
        steady = self._steady(infos.values())
        self.parked_seen += len(steady) < len(infos)
        placed = [infos[name] for name, seat in seats.items() if seat.rank is not None]
        largest = largest_world(steady, self._settings) or largest_world(infos.values(), self._settings)
        if largest != len(placed):
            self.fail(f"cycle {event.cycle_id} has {len(placed)} ranks, and the nodes that count allow {largest}")
        if largest_world(steady, self._settings) and len(self._steady(placed)) < len(placed):
            self.fail(f"cycle {event.cycle_id} has a parked node, and the others could do without it")

    def opened(self, event: Opened) -> None:
        if isinstance(event.why, WorldGrows):
            census = self._census
            waiting = census.waiting(event.cycle_id - 1).items()
            counted = [info for name, info in waiting if name in census.world or not self._is_parked(info)]
            if largest_world(counted, self._settings) <= len(census.world):
                self.fail(f"cycle {event.cycle_id} opened for a parked node")


def _identity(info: NodeInfo) -> int | str:
    return info.addr if info.infra_rank is None else info.infra_rank
