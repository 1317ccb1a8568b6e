"""Workers that hang or pause, and the watch over their progress: what cells, py-spy and threads are in production.

Everything is drawn by a generator of its own, so that a run without hangs is the same whatever hangs there are. What a
node makes of the progress of its workers is decided by `core.progress`.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from ft_rendezvous.core.progress import LOOK_INTERVAL_S, LateTable, WorkerReading
from ft_rendezvous.core.stacks import Frame, RankStack, Stack
from ft_rendezvous.protocol.participant import Place
from tests.sim.kernel import Routine, Sleep

if TYPE_CHECKING:
    from tests.sim.agent import SimNode
    from tests.sim.world import World

HANG_TIMEOUT_S = 6
STEPS_BETWEEN_LOOKS = 0.7
"""How likely a worker makes a step between two looks."""
_MAIN = Frame("main", "train.py", 41, False)
WAITING: Stack = (Frame("all_reduce", "distributed_c10d.py", 7, True), _MAIN)
LOADING: Stack = (Frame("__next__", "dataloader.py", 3, True), _MAIN)


@dataclass(slots=True)
class SimHang:
    """What keeps the workers of one world from going on."""

    began_at: float
    odd: frozenset[int]
    """Node ranks whose first worker is elsewhere than all others."""
    paused: int | None = None
    """The node rank whose first worker has announced a pause. All others wait for it."""
    ends_at: float = float("inf")


class SimHangs:
    """Which worlds hang, and what their nodes see of it."""

    def __init__(self, world: World) -> None:
        self._world, self._kernel = world, world.kernel
        self.rng = Random(f"hangs of {world.seed}")
        self.is_on = world.settings.hang_rules.is_on
        self.hangs: dict[tuple[int, int], SimHang] = {}
        """By cycle and group."""

    def schedule(self, until: float) -> None:
        for _ in range(self.rng.choice((1, 2, 3)) if self.is_on else 0):
            self._kernel.at(self.rng.uniform(0.0, until), self.strike)

    def strike(self) -> None:
        """A world in which all nodes train stands still from now on."""
        places: dict[tuple[int, int], list[Place]] = {}
        for node in self._world.nodes:
            if node.group is not None and node.is_training and not node.is_dead:
                place = node.group.place
                places.setdefault((place.cycle_id, place.group), []).append(place)
        whole = [key for key, found in sorted(places.items()) if len(found) == found[0].world_size]
        whole = [key for key in whole if key not in self.hangs]
        if not whole or self._world.is_healed:
            return
        key = self.rng.choice(whole)
        size = places[key][0].world_size
        hang = SimHang(self._kernel.now, frozenset(self.rng.sample(range(size), self.rng.choice((0, 1, 1, 1, size)))))
        if self.rng.random() < 0.3:
            hang.paused, hang.odd = self.rng.randrange(size), frozenset()
            hang.ends_at = self._kernel.now + 3 * HANG_TIMEOUT_S
        self.hangs[key] = hang
        what = f"odd {sorted(hang.odd)}" if hang.paused is None else f"paused {hang.paused}"
        self._world.tell("", f"cycle {key[0]} of group {key[1]} stands still: {what}")

    def heal(self) -> None:
        for hang in self.hangs.values():
            if hang.paused is not None:
                hang.ends_at = min(hang.ends_at, self._kernel.now)

    def find(self, place: Place) -> SimHang | None:
        """What keeps the workers of a place from going on now."""
        hang = self.hangs.get((place.cycle_id, place.group))
        return hang if hang is not None and hang.began_at <= self._kernel.now < hang.ends_at else None

    def ranks(self, node: SimNode, place: Place) -> range:
        count = node.info.local_world_size or 2
        return range(place.rank * count, (place.rank + 1) * count)


class SimProgress:
    """The watch of one node over the progress of its workers."""

    def __init__(self, node: SimNode, hangs: SimHangs) -> None:
        self._node, self._hangs = node, hangs
        self._table = LateTable(node.world.settings.hang_rules)
        self._cycle_id, self._began_at, self._count = 0, 0.0, 0

    def run(self) -> Routine:
        looked_at = self._node.clock()
        while True:
            yield Sleep(LOOK_INTERVAL_S)
            now = self._node.clock()
            self._look(now, now - looked_at)
            looked_at = now

    def _look(self, now: float, elapsed_s: float) -> None:
        node, group, link = self._node, self._node.group, self._node.link
        if group is None or link is None or not group.is_running:
            return
        place = group.place
        if place.cycle_id != self._cycle_id:
            self._cycle_id, self._began_at, self._count = place.cycle_id, now, 1
            self._table.begin()
        hang = self._hangs.find(place)
        if hang is None and self._hangs.rng.random() < STEPS_BETWEEN_LOOKS:
            self._count += 1
        first = self._hangs.ranks(node, place)[0]
        readings = {
            rank: WorkerReading((self._count,), self._count, self._pause(hang, place) if rank == first else "")
            for rank in self._hangs.ranks(node, place)
        }
        found = self._table.look(readings, elapsed_s)
        slowest = self._table.find_slowest(readings)
        link.participant.read_progress = lambda: slowest if group.is_running else None
        for late in found[:1]:
            link.post(link.participant.tell_late(place.cycle_id, late, now - self._began_at))

    @staticmethod
    def _pause(hang: SimHang | None, place: Place) -> str:
        return "checkpoint" if hang is not None and hang.paused == place.rank else ""

    def inquired(self, cycle_id: int, no: int) -> None:
        """Called by the listener. The stacks take a while, now and then longer than the coordinator waits.

        A node with a paused worker answers at once, without stacks.
        """
        rng, group = self._hangs.rng, self._node.group
        if group is not None and self._pause(self._hangs.find(group.place), group.place):
            self._node.kernel.at(self._node.kernel.now, self._node.deliver, self._answer, cycle_id, no)
            return
        is_slow = rng.random() < 0.1 and not self._node.world.is_healed
        delay_s = rng.uniform(1.0, 4.0) if is_slow else rng.uniform(0.0, 0.5)
        self._node.kernel.at(self._node.kernel.now + delay_s, self._node.deliver, self._answer, cycle_id, no)

    def _answer(self, cycle_id: int, no: int) -> None:
        node, group, link = self._node, self._node.group, self._node.link
        if group is None or link is None or group.place.cycle_id != cycle_id or not group.is_running:
            return
        place = group.place
        hang, ranks = self._hangs.find(place), self._hangs.ranks(node, place)
        is_odd = hang is not None and place.rank in hang.odd
        stacks = [
            RankStack((rank,), (self._count,), LOADING if is_odd and rank == ranks[0] else WAITING) for rank in ranks
        ]
        pause = self._pause(hang, place)
        paused = [(ranks[0], pause)] if pause else []
        move = link.participant.tell_stacks(cycle_id, no, stacks, paused, self._table.find_moving())
        link.post(move)
