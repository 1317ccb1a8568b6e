"""Where nodes are placed, how many of them, and when a world grows."""

# ruff: noqa: ARG002 - a checker is told every sighting whole, and looks at what it needs.

from __future__ import annotations

from typing import TYPE_CHECKING

from ft_rendezvous.core.capacity import Policy, Ranks
from ft_rendezvous.core.model import (
    AnyRecord,
    Checkpoint,
    GroupForms,
    Opened,
    Sealed,
    Seat,
    WorldGrows,
)
from ft_rendezvous.core.next_cycle import Grow
from tests.sim.checkers.base import Checker
from tests.sim.kernel import Process
from tests.sim.naive_capacity import block_of, largest_world, least_nodes

if TYPE_CHECKING:
    from tests.sim.world import World


class blocks_belong_together(Checker):
    """The ranks of a segment are of one domain; those of a unit's block are of one unit, which has no other block."""

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        settings = self._settings
        if settings.segment == settings.unit_size == 1:
            return
        if settings.segment > settings.group_size > 0:
            self._judge_rows(event)
            return
        ranked = sorted((seat.group, seat.rank, name) for name, seat in seats.items() if seat.rank is not None)
        infos = [self._world.node_of(name).info for _, _, name in ranked]
        if len(infos) % block_of(settings):
            self.fail(f"cycle {event.cycle_id} has {len(infos)} ranks, which are no whole blocks")
        if settings.segment > 1:
            self._divide([info.domain_id for info in infos], settings.segment, "domain", event.cycle_id)
        if settings.unit_size > 1:
            units = self._divide([info.unit_id for info in infos], settings.unit_size, "unit", event.cycle_id)
            if len(set(units)) < len(units):
                self.fail(f"a unit has several blocks of cycle {event.cycle_id}: {' '.join(units)}")

    def _judge_rows(self, event: Sealed) -> None:
        """Groups of one segment are of one domain, whenever each of them was sealed."""
        length = self._settings.segment // self._settings.group_size
        homes: dict[int, str | None] = {}
        worlds = self._census.worlds
        for group in sorted(self._census.sealed_groups):
            for name in worlds[group]:
                domain = self._world.node_of(name).info.domain_id
                if domain is None or homes.setdefault(group // length, domain) != domain:
                    self.fail(f"group {group} in cycle {event.cycle_id} is not in the domain of its segment")

    def _divide(self, homes: list[str | None], size: int, what: str, cycle_id: int) -> list[str]:
        """The one home of every block."""
        owners: list[str] = []
        for start in range(0, len(homes), size):
            block = homes[start : start + size]
            if block[0] is None or len(set(block)) > 1:
                self.fail(f"ranks {start} to {start + size - 1} of cycle {cycle_id} are not of one {what}: {block}")
            owners.append(block[0])
        return owners


class worlds_are_of_allowed_size(Checker):
    """A fixed world has MIN nodes, an elastic one from MIN to MAX in whole blocks: as many as those who arrived allow,
    and no fewer than before without a last call, unless nodes finished or were asked to go."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._opened_at = 0.0

    def opened(self, event: Opened) -> None:
        self._opened_at = self._now

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        settings, size = self._settings, event.world_size
        if settings.group_size:
            self._judge_groups(event)
            return
        if settings.policy is Policy.FIXED:
            if size != settings.min_nodes:
                self.fail(f"cycle {event.cycle_id} has {size} ranks, the run has {settings.min_nodes}")
            return
        if not settings.min_nodes <= size <= settings.max_nodes or size % block_of(settings):
            allowed = f"{settings.min_nodes} to {settings.max_nodes}, in blocks of {block_of(settings)}"
            self.fail(f"cycle {event.cycle_id} has {size} ranks, allowed are {allowed}")
        largest = largest_world([self._world.node_of(name).info for name in seats], settings)
        if size != largest:
            self.fail(f"cycle {event.cycle_id} has {size} ranks, and those who arrived allow {largest}")
        waited_s, hoped = self._now - self._opened_at, self._hoped_for()
        if size < hoped and waited_s < settings.last_call_s * (1 - 2e-4) - 1e-3:
            self.fail(
                f"cycle {event.cycle_id} has {size} ranks after {waited_s:.3f} s, without a last call for {hoped}"
            )

    def _judge_groups(self, event: Sealed) -> None:
        settings, count = self._settings, len(self._census.sealed_groups)
        if event.world_size != settings.group_size:
            self.fail(f"a group of cycle {event.cycle_id} has {event.world_size} ranks, not {settings.group_size}")
        least = least_nodes(settings, is_first=not self._census.last_worlds) // settings.group_size
        if count > settings.wanted_groups or (event.group is None and count < least):
            self.fail(f"cycle {event.cycle_id} makes {count} groups, allowed are {least} to {settings.wanted_groups}")

    def _hoped_for(self) -> int:
        """As large a world as the last one, without those who do not train again; the largest at first."""
        settings, census = self._settings, self._census
        gone = census.finished | census.draining
        count = len(census.last_world.keys() - gone) if census.last_world else settings.max_nodes
        block = block_of(settings)
        return count // block * block if count >= settings.min_nodes else 0


class worlds_grow_for_a_reason(Checker):
    """A cycle is opened for a larger world only if the nodes for one wait in this cycle, none of this world has
    finished, and the settings say so: at once, or when a checkpoint was written after more nodes had come.

    A node that is still stopping its workers, or died while it waited in an earlier cycle, may never come: whoever
    counts on it opens cycle after cycle.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._cycle_id = 0
        self._saved: list[str] = []
        self._is_saved = False

    def record(self, record: AnyRecord, process: Process) -> None:
        if isinstance(record, Checkpoint):
            self._saved.append(record.incarnation)

    def logs_read(self) -> None:
        """Of a checkpoint one hears by reading; one from a time when no larger world was possible is an old one."""
        if self._settings.grow is Grow.CHECKPOINT and self._settings.policy is Policy.ELASTIC:
            self._is_saved = bool(self._saved) or (self._is_saved and self._could_grow())
            self._saved.clear()

    def _could_grow(self) -> bool:
        waiting = self._census.waiting(self._cycle_id)
        return largest_world(waiting.values(), self._settings) > len(self._census.world)

    def opened(self, event: Opened) -> None:
        if isinstance(event.why, WorldGrows):
            self._judge(event)
        self._cycle_id, self._is_saved = event.cycle_id, False

    def _judge(self, event: Opened) -> None:
        settings, census = self._settings, self._census
        what = f"cycle {event.cycle_id} was opened for a world of more than {len(census.world)}"
        if settings.policy is Policy.FIXED or settings.grow is Grow.NEXT:
            self.fail(f"{what}: policy={settings.policy} and grow={settings.grow} forbid it")
        if census.finished & census.world.keys():
            self.fail(f"{what}: nodes of this one have finished")
        if not self._could_grow():
            waiting = " ".join(map(self._name, census.waiting(self._cycle_id)))
            self.fail(f"{what}: nobody trains or waits but {waiting}")
        if settings.grow is Grow.CHECKPOINT and not self._is_saved:
            self.fail(f"{what}: no checkpoint was written for it")


class survivors_keep_their_ranks(Checker):
    """A node of the last world that has come back has the rank it had, if the world still has that rank. Where nodes
    come in blocks, the block may have to move. With groups, it has the group, too, if that is still there."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        settings = self._settings
        self._is_sticky = settings.ranks is Ranks.STICKY and settings.segment == settings.unit_size == 1
        self._formed: set[int] = set()
        """Cycles in which a group is new, though an earlier one, which was dissolved, may have had its number."""

    def opened(self, event: Opened) -> None:
        if isinstance(event.why, GroupForms):
            self._formed.add(event.cycle_id)

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        if self._settings.group_size:
            if event.cycle_id not in self._formed:
                self._judge_groups(event, seats)
            return
        for name, rank in self._census.last_world.items() if self._is_sticky else ():
            if rank < event.world_size and name in seats and seats[name].rank != rank:
                now = seats[name].rank
                self.fail(f"{self._name(name)} had rank {rank}, and has {now} in cycle {event.cycle_id}")

    def _judge_groups(self, event: Sealed, seats: dict[str, Seat]) -> None:
        for group in event.masters if self._is_sticky else ():
            for name, rank in self._census.last_worlds.get(group, {}).items():
                seat = seats.get(name)
                if seat is not None and seat.rank is not None and (seat.group, seat.rank) != (group, rank):
                    what = f"had rank {rank} of group {group}, and has {seat.rank} of {seat.group}"
                    self.fail(f"{self._name(name)} {what} in cycle {event.cycle_id}")
