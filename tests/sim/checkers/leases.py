"""Leases: dead nodes are not placed, live nodes are not dropped, and fenced nodes stop."""

# ruff: noqa: ARG002 - a checker is told every sighting whole, and looks at what it needs.

from __future__ import annotations

from typing import TYPE_CHECKING

from ft_rendezvous.core.leases import acknowledged
from ft_rendezvous.core.model import (
    AnyEvent,
    AnyRecord,
    Arrival,
    Goodbye,
    Opened,
    Sealed,
    Seat,
)
from ft_rendezvous.protocol.participant import Place
from tests.sim.checkers.base import Checker
from tests.sim.kernel import Process

if TYPE_CHECKING:
    from tests.sim.agent import SimNode
    from tests.sim.world import World


class no_dead_incarnation_placed(Checker):
    """An incarnation that is fenced, has gone, or has been silent for longer than a lease is not placed."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._over: dict[str, str] = {}
        self._going: dict[str, str] = {}
        self._arrived: set[str] = set()
        self._beat_at: dict[str, float] = {}

    def beat(self, incarnation: str, counter: int) -> None:
        self._beat_at[incarnation] = self._world.server.uptime()

    def fenced(self, incarnation: str, reason: str) -> None:
        self._over[incarnation] = f"fenced ({reason})"

    def record(self, record: AnyRecord, process: Process) -> None:
        if isinstance(record, Goodbye):
            self._going[record.incarnation] = "gone"
        elif isinstance(record, Arrival) and record.incarnation not in self._arrived:
            # A lease begins when its node has arrived, however long ago it wrote its first beat.
            self._arrived.add(record.incarnation)
            self._beat_at[record.incarnation] = self._world.server.uptime()

    def logs_read(self) -> None:
        # A goodbye counts once the coordinator can have read it.
        self._over.update(self._going)
        self._going.clear()

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        uptime, settings = self._world.server.uptime(), self._settings
        # A coordinator that was paused has to begin all leases anew.
        ran_s = self._now - self._world.host.process.resumed_at
        for name, seat in seats.items():
            if seat.rank is None:
                continue
            if name in self._over:
                self.fail(f"{self._name(name)} is placed in cycle {event.cycle_id} and is {self._over[name]}")
            silent_s = min(uptime - self._beat_at.get(name, 0.0), ran_s)
            if silent_s > settings.lease_s + 2 * settings.beat_s:
                self.fail(f"{self._name(name)} is placed in cycle {event.cycle_id}, silent for {silent_s:.3f} s")


class fenced_nodes_stop(Checker):
    """A node reports that its workers must stop at the latest when its own lease is over, and a fenced one gets
    no new lease. A paused node is judged when it next runs, which is when it next asks."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._sentenced: set[str] = set()
        self._fenced_at: dict[str, float] = {}
        self._lease_from: dict[str, float] = {}
        self._longest_s = self._settings.lease_s * (1 + 2e-4) + 1e-3

    def fenced(self, incarnation: str, reason: str) -> None:
        self._sentenced.add(incarnation)

    def beat_ended(self, incarnation: str) -> None:
        # The reason is written first; the node can learn of it from when its beat is gone.
        if incarnation in self._sentenced:
            self._fenced_at.setdefault(incarnation, self._now)

    def beat_answered(self, incarnation: str, is_renewed: bool, called_at: float) -> None:
        if is_renewed:
            self._lease_from[incarnation] = called_at

    def asks_whether_to_stop(self, node: SimNode, place: Place, must_stop: bool) -> None:
        if must_stop:
            return
        name = place.incarnation
        lease_from = self._lease_from.get(name, 0.0)
        if self._now > lease_from + self._longest_s:
            self.fail(f"{node.name} trains on, {self._now - lease_from:.3f} s after its last good beat")
        fenced_at = self._fenced_at.get(name)
        if fenced_at is not None and self._now > fenced_at + self._longest_s:
            self.fail(f"{node.name} trains on, {self._now - fenced_at:.3f} s after it was fenced")

    def second_passes(self) -> None:
        """A node that waits for its next place does not trust a lease that was ended either."""
        for node in self._world.nodes:
            if node.is_dead or node.is_paused or node.link is None:
                continue
            participant = node.link.participant
            fenced_at = self._fenced_at.get(participant.incarnation)
            if fenced_at is not None and self._now > fenced_at + self._longest_s and participant.is_trusted():
                self.fail(f"{node.name} trusts a lease that was ended {self._now - fenced_at:.3f} s ago")


class no_live_node_is_dropped(Checker):
    """A node that beats and hears does not lose its lease, a node that has a beat is not refused for having none, and
    the newest start at an address is neither replaced by an older one nor refused for its sake."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._beat_at: dict[str, float] = {}
        self._seen_at: dict[str, tuple[float, float]] = {}
        self._acted_upon: dict[str, int] = {}
        self._seen_to_act_upon: dict[str, int] = {}
        self._known_since: dict[str, float] = {}
        self._read_at = 0.0
        self._published_at = [0.0]
        self._came: dict[str, tuple[int, int]] = {}

    def published(self, event: AnyEvent) -> None:
        self._published_at.append(self._now)

    def record(self, record: AnyRecord, process: Process) -> None:
        if isinstance(record, Arrival):
            self._came.setdefault(record.incarnation, (record.cycle_id, record.seq))

    def beat(self, incarnation: str, counter: int) -> None:
        self._beat_at[incarnation] = self._world.server.uptime()
        self._acted_upon[incarnation] = acknowledged(counter)

    def beat_ended(self, incarnation: str) -> None:
        self._beat_at.pop(incarnation, None)

    def beats_read(self, incarnations: list[str]) -> None:
        self._read_at, uptime = self._now, self._world.server.uptime()
        for name in incarnations:
            self._seen_at[name] = (self._beat_at[name], uptime)
            self._seen_to_act_upon[name] = self._acted_upon[name]
            self._known_since.setdefault(name, self._now)

    def fenced(self, incarnation: str, reason: str) -> None:
        settings = self._settings
        if "no beat for" in reason:
            beat_at, read_at = self._seen_at[incarnation]
            # Who lives beats once per interval that the server serves, and its voice may have had to wait once. Of
            # the dead nothing can be said: several short pauses of the server may hide how long they are silent.
            node = self._world.node_of(incarnation)
            is_alive = not (node.is_dead or node.is_paused or node.is_leaving)
            if is_alive and read_at - beat_at < 2 * settings.beat_s:
                self.fail(f"{self._name(incarnation)} lost its lease {read_at - beat_at:.3f} s after a beat")
        elif "does not act upon events" in reason:
            late_s = self._now - self._behind_since(incarnation)
            if late_s < 2 * settings.lease_s * (1 - 2e-4) - 1e-3:
                self.fail(f"{self._name(incarnation)} was called deaf when it was {late_s:.3f} s late")
        elif "without a beat" in reason and incarnation in self._beat_at:
            self.fail(f"{self._name(incarnation)} was refused for having no beat, and has one")
        elif "is a newer start of" in reason and not any(self._is_newer(name, incarnation) for name in self._came):
            self.fail(f"{self._name(incarnation)} was replaced by an older start")
        elif "was started later" in reason and not any(self._is_newer(name, incarnation) for name in self._came):
            self.fail(f"{self._name(incarnation)} was refused for an older start")

    def _behind_since(self, incarnation: str) -> float:
        """Since when the first event that a node was not seen to act upon has been out, and somebody has been looking.

        A coordinator that was paused for long knows it when it next looks, and begins to count then; one that was
        paused between its last look and the fence does not.
        """
        settings, host = self._settings, self._world.host.process
        published_at = self._published_at[self._seen_to_act_upon[incarnation] + 1]
        since = max(published_at, self._known_since[incarnation])
        was_long = host.resumed_at - host.paused_at > settings.beat_s + settings.lease_s / 4
        return max(since, host.resumed_at) if was_long and host.resumed_at <= self._read_at else since

    def _is_newer(self, one: str, other: str) -> bool:
        """Whether one incarnation is a later start of the other's node, or a later life of its process."""
        info, rival = self._world.node_of(one).info, self._world.node_of(other).info
        if (info.addr, info.infra_rank) != (rival.addr, rival.infra_rank):
            return False
        # Pids count the starts of a simulation. An older process may come back when its successor is gone.
        return info.pid > rival.pid or (info.pid == rival.pid and self._came[one] > self._came[other])


class nobody_trains_after_moving_on(Checker):
    """A node that arrived in a later cycle, or has heard of one, does not train in an earlier one. Cycles of other
    groups do not concern it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._arrived_in: dict[str, int] = {}
        self._heard_of: dict[tuple[str, int | None], int] = {}

    def record(self, record: AnyRecord, process: Process) -> None:
        if isinstance(record, Arrival):
            self._arrived_in[process.name] = max(record.cycle_id, self._arrived_in.get(process.name, 0))

    def hears(self, incarnation: str, event: AnyEvent) -> None:
        if isinstance(event, Opened):
            self._heard_of[incarnation, event.group] = event.cycle_id

    def takes_place(self, node: SimNode, place: Place) -> None:
        self._judge(node, place, self._arrived_in.get(node.name, 0))

    def asks_whether_to_stop(self, node: SimNode, place: Place, must_stop: bool) -> None:
        if not must_stop:
            # What is heard while the agent takes its place counts from when it first asks.
            self._judge(node, place, self._arrived_in.get(node.name, 0))
            for group in (None, place.group):
                self._judge(node, place, self._heard_of.get((place.incarnation, group), 0))

    def _judge(self, node: SimNode, place: Place, newest: int) -> None:
        if newest > place.cycle_id:
            self.fail(f"{node.name} trains in cycle {place.cycle_id} and has moved on to cycle {newest}")
