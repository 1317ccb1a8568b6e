"""The guarantees of PROTOCOL.md, each a class of exactly its name.

Every checker sees the run from outside: what the server performed, what agents did, true time. None of them asks
the coordinator what it thinks. Each keeps only what it needs to judge the next sighting, so that all of them run
after every step.
"""

# ruff: noqa: ARG002 - a checker is told every sighting whole, and looks at what it needs.

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NoReturn

from ft_rendezvous.core.capacity import Policy, Ranks
from ft_rendezvous.core.leases import acknowledged
from ft_rendezvous.core.model import (
    AnyEvent,
    AnyRecord,
    Arrival,
    Called,
    Checkpoint,
    Closed,
    Finish,
    Goodbye,
    NodesDrain,
    Opened,
    Outcome,
    Request,
    RequestKind,
    Sealed,
    Seat,
    Verdict,
    VerdictKind,
    WorldGrows,
)
from ft_rendezvous.core.next_cycle import Grow
from ft_rendezvous.errors import ProtocolBug, StoreUnavailable
from ft_rendezvous.protocol.participant import Place
from tests.sim.faults import Ending
from tests.sim.kernel import Connection, Process
from tests.sim.naive_capacity import block_of, count_placeable, largest_world

if TYPE_CHECKING:
    from tests.sim.agent import SimNode
    from tests.sim.naive_roster import Census
    from tests.sim.world import World


class Violation(BaseException):
    """A guarantee does not hold. Passes through every `except Exception` of the code that is being watched."""

    def __init__(self, checker: str, fact: str) -> None:
        super().__init__(checker, fact)
        self.checker = checker
        self.fact = fact

    def __str__(self) -> str:
        return f"{self.checker}: {self.fact}"


class Checker:
    """All sightings there are; a checker overrides those it judges by."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._settings = world.settings

    def fail(self, fact: str) -> NoReturn:
        raise Violation(type(self).__name__, fact)

    @property
    def _now(self) -> float:
        return self._world.kernel.now

    @property
    def _census(self) -> Census:
        return self._world.eyes.census

    def _name(self, incarnation: str) -> str:
        return self._world.name_of(incarnation)

    # What the server performed.
    def published(self, event: AnyEvent) -> None: ...
    def opened(self, event: Opened) -> None: ...
    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None: ...
    def called(self, event: Called, draining: set[str]) -> None: ...
    def closed(self, event: Closed) -> None: ...
    def record(self, record: AnyRecord, process: Process) -> None: ...
    def appended(self, key: str, size_bytes: int) -> None: ...
    def deleted(self, key: str) -> None: ...
    def log_emptied(self, key: str) -> None: ...
    def beat(self, incarnation: str, counter: int) -> None: ...
    def beats_read(self, incarnations: list[str]) -> None: ...
    def logs_read(self) -> None: ...
    def fenced(self, incarnation: str, reason: str) -> None: ...
    def beat_ended(self, incarnation: str) -> None: ...
    def event_deleted(self, no: int) -> None: ...
    def waits_for_event(self, ear: Connection, no: int) -> None: ...

    # What agents saw and did.
    def beat_answered(self, incarnation: str, is_renewed: bool, called_at: float) -> None: ...
    def hears(self, incarnation: str, event: AnyEvent) -> None: ...
    def begins_anew(self, node: SimNode) -> None: ...
    def takes_place(self, node: SimNode, place: Place) -> None: ...
    def asks_whether_to_stop(self, node: SimNode, place: Place, must_stop: bool) -> None: ...
    def workers_end(self, node: SimNode, place: Place, ending: Ending) -> None: ...
    def hears_verdict(self, node: SimNode, verdict: Verdict) -> None: ...
    def exits(self, node: SimNode, error: Exception | None) -> None: ...
    def thread_dies(self, process: Process, thread: str, error: Exception) -> None: ...

    # The passing of time.
    def second_passes(self) -> None: ...
    def run_ends(self) -> None: ...


def event_number(key: str) -> int:
    """The number in the name of an event, whatever its channel."""
    return int(key.split("/")[4])


# --- one authority ----------------------------------------------------------------------------------


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
        written = (event.world_size, event.master_addr, event.master_port, seat and seat.rank, seat and seat.workers)
        taken = (place.world_size, place.master_addr, place.master_port, place.rank, place.workers)
        if written != taken:
            self.fail(f"{node.name} took {taken} in cycle {place.cycle_id}, written was {written}")


class ranks_are_exact(Checker):
    """The ranks of a sealed cycle are exactly 0..n-1, each with one incarnation that arrived in that cycle."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._arrivals: dict[tuple[int, str], Arrival] = {}
        self._holders: dict[tuple[int, int], str] = {}

    def record(self, record: AnyRecord, process: Process) -> None:
        if isinstance(record, Arrival):
            self._arrivals[record.cycle_id, record.incarnation] = record

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        placed = {name: seat.rank for name, seat in seats.items() if seat.rank is not None}
        if sorted(placed.values()) != list(range(event.world_size)):
            self.fail(f"cycle {event.cycle_id} of {event.world_size} has ranks {sorted(placed.values())}")
        for name in seats:
            arrival = self._arrivals.get((event.cycle_id, name))
            if arrival is None:
                self.fail(f"{self._name(name)} is seated in cycle {event.cycle_id} and never arrived in it")
            if arrival.seq > event.counted:
                self.fail(f"{self._name(name)} is seated in cycle {event.cycle_id}, which does not count it")
        workers = [seat.workers for seat in seats.values() if seat.workers is not None]
        if workers and sorted(w.base_global_rank for w in workers)[0] != 0:
            self.fail(f"no worker of cycle {event.cycle_id} has global rank 0")

    def takes_place(self, node: SimNode, place: Place) -> None:
        holder = self._holders.setdefault((place.cycle_id, place.rank), place.incarnation)
        if holder != place.incarnation:
            self.fail(f"rank {place.rank} of cycle {place.cycle_id} is taken by {node.name} and {self._name(holder)}")


class cycle_ids_are_monotonic(Checker):
    """Cycle ids grow by one and are never reused; events are numbered without gaps."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._cycle_id = self._no = 0

    def published(self, event: AnyEvent) -> None:
        if event.no != self._no + 1:
            self.fail(f"event {event.no} after event {self._no}")
        self._no = event.no

    def opened(self, event: Opened) -> None:
        if event.cycle_id != self._cycle_id + 1:
            self.fail(f"cycle {event.cycle_id} after cycle {self._cycle_id}")
        self._cycle_id = event.cycle_id

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        if event.cycle_id != self._cycle_id:
            self.fail(f"cycle {event.cycle_id} was sealed while cycle {self._cycle_id} was the current one")


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
    """A run is closed as succeeded only if the workers of every active of its last world ended well."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._world_now: set[str] = set()
        self._finished: set[str] = set()
        self._ended_well: set[str] = set()

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        self._world_now = {name for name, seat in seats.items() if seat.rank is not None}

    def workers_end(self, node: SimNode, place: Place, ending: Ending) -> None:
        if ending is Ending.WELL:
            self._ended_well.add(place.incarnation)

    def record(self, record: AnyRecord, process: Process) -> None:
        if isinstance(record, Finish) or (isinstance(record, Goodbye) and record.outcome is Outcome.SUCCEEDED):
            self._finished.add(record.incarnation)

    def closed(self, event: Closed) -> None:
        if event.verdict.kind is VerdictKind.SUCCEEDED:
            for name in sorted(self._world_now):
                if name not in self._finished or name not in self._ended_well:
                    self.fail(f"the run succeeded, but {self._name(name)} has not finished")


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
        if isinstance(event.why, NodesDrain):
            left = count_placeable(self._census.able().values(), self._settings)
            if left < self._settings.min_nodes:
                self.fail(f"cycle {event.cycle_id} was opened for a drain that leaves {left} nodes")


# --- placement --------------------------------------------------------------------------------------


class blocks_belong_together(Checker):
    """The ranks of a segment are of one domain; those of a unit's block are of one unit, which has no other block."""

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        settings = self._settings
        if block_of(settings) == 1:
            return
        ranked = sorted((seat.rank, name) for name, seat in seats.items() if seat.rank is not None)
        infos = [self._world.node_of(name).info for _, name in ranked]
        if len(infos) % block_of(settings):
            self.fail(f"cycle {event.cycle_id} has {len(infos)} ranks, which are no whole blocks")
        if settings.segment > 1:
            self._divide([info.domain_id for info in infos], settings.segment, "domain", event.cycle_id)
        if settings.unit_size > 1:
            units = self._divide([info.unit_id for info in infos], settings.unit_size, "unit", event.cycle_id)
            if len(set(units)) < len(units):
                self.fail(f"a unit has several blocks of cycle {event.cycle_id}: {' '.join(units)}")

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
    come in blocks, the block may have to move."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._is_sticky = self._settings.ranks is Ranks.STICKY and block_of(self._settings) == 1

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        for name, rank in self._census.last_world.items() if self._is_sticky else ():
            if rank < event.world_size and name in seats and seats[name].rank != rank:
                now = seats[name].rank
                self.fail(f"{self._name(name)} had rank {rank}, and has {now} in cycle {event.cycle_id}")


# --- leases -----------------------------------------------------------------------------------------


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
    """A node that arrived in a later cycle, or has heard of one, does not train in an earlier one."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._arrived_in: dict[str, int] = {}
        self._heard_of: dict[str, int] = {}

    def record(self, record: AnyRecord, process: Process) -> None:
        if isinstance(record, Arrival):
            self._arrived_in[process.name] = max(record.cycle_id, self._arrived_in.get(process.name, 0))

    def hears(self, incarnation: str, event: AnyEvent) -> None:
        if isinstance(event, Opened):
            self._heard_of[incarnation] = event.cycle_id

    def takes_place(self, node: SimNode, place: Place) -> None:
        self._judge(node, place, self._arrived_in.get(node.name, 0))

    def asks_whether_to_stop(self, node: SimNode, place: Place, must_stop: bool) -> None:
        if not must_stop:
            # What is heard while the agent takes its place counts from when it first asks.
            self._judge(node, place, self._arrived_in.get(node.name, 0))
            self._judge(node, place, self._heard_of.get(place.incarnation, 0))

    def _judge(self, node: SimNode, place: Place, newest: int) -> None:
        if newest > place.cycle_id:
            self.fail(f"{node.name} trains in cycle {place.cycle_id} and has moved on to cycle {newest}")


# --- going on ---------------------------------------------------------------------------------------


class nobody_waits_for_a_deleted_event(Checker):
    """No live incarnation asks for an event that is gone and will not come again; one that is over may, until its
    node has learnt of it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._no = 0
        self._over: set[str] = set()
        self._patience_s = self._settings.lease_s + 2 * self._settings.beat_s + 1.0

    def event_deleted(self, no: int) -> None:
        self._no = max(self._no, no)

    def fenced(self, incarnation: str, reason: str) -> None:
        self._over.add(incarnation)

    def record(self, record: AnyRecord, process: Process) -> None:
        if isinstance(record, Goodbye):
            self._over.add(record.incarnation)

    def waits_for_event(self, ear: Connection, no: int) -> None:
        if no <= self._no and ear.serves not in self._over:
            self.fail(f"{ear.name} waits for event {no}, which was deleted, and {self._name(ear.serves)} is alive")

    def second_passes(self) -> None:
        for key, waiters in self._world.server.store.waiters.items():
            if "/event/" in key and event_number(key) <= self._no:
                for waiter in waiters:
                    ear = waiter.owner
                    assert isinstance(ear, Connection)
                    self._judge(ear, key)

    def _judge(self, ear: Connection, key: str) -> None:
        node = self._world.node_of(ear.serves)
        if node.is_paused or node.is_leaving or node.has_ended_well or node.link is None:
            return
        participant = node.link.participant
        is_relied_upon = participant.incarnation == ear.serves and participant.is_trusted()
        since = max(ear.waits_since, node.resumed_at, self._world.host.process.resumed_at)
        if is_relied_upon and self._now > since + self._patience_s:
            self.fail(f"{ear.name} has waited for {key}, which was deleted, for {self._now - since:.3f} s")


class nobody_gives_up_on_a_live_store(Checker):
    """A node leaves for want of an answer only if the store died, and never over a value that it cannot read. No number
    of resets and no pause of the host, short of `join_timeout`, ends a node."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._uptimes: list[tuple[float, float]] = []

    def exits(self, node: SimNode, error: Exception | None) -> None:
        if isinstance(error, ProtocolBug):
            self.fail(f"{node.name} gave up: {error}")
        if isinstance(error, StoreUnavailable) and self._world.server_died_at is None and not self._was_silent():
            self.fail(f"{node.name} gave up: {error}")

    def second_passes(self) -> None:
        self._uptimes.append((self._now, self._world.server.uptime()))

    def _was_silent(self) -> bool:
        """Whether the store has answered for less than a second or two of the last `join_timeout`."""
        since = self._now - self._settings.join_s
        before = max((uptime for time, uptime in self._uptimes if time <= since), default=0.0)
        return self._world.server.uptime() - before < 2.0


class worker_stores_are_new(Checker):
    """The workers of one cycle cannot reach the store of another: no address is named by two seals, and rank 0 serves
    the address that was named."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._named: dict[tuple[str, int], int] = {}

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        address = (event.master_addr, event.master_port)
        other = self._named.setdefault(address, event.cycle_id)
        if other != event.cycle_id:
            self.fail(f"the workers of cycles {other} and {event.cycle_id} meet at {address}")

    def takes_place(self, node: SimNode, place: Place) -> None:
        if place.rank == 0 and place.master_port not in node.ports.open:
            self.fail(f"{node.name} has rank 0 in cycle {place.cycle_id} and does not serve port {place.master_port}")


class resets_cost_nothing(Checker):
    """A node whose connections break, and that is healthy otherwise, connects again and keeps its incarnation."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._refused: set[str] = set()

    def fenced(self, incarnation: str, reason: str) -> None:
        if reason.startswith("refused"):
            self._refused.add(incarnation)

    def begins_anew(self, node: SimNode) -> None:
        if node.link is not None and node.link.participant.incarnation in self._refused:
            return  # The fence may be deleted before a slow node reads it. It comes back, and is refused again.
        host, server, settings = self._world.host.process, self._world.server, self._settings
        # A node is called deaf after two leases, and learns of it with its next beat.
        since = self._now - 3 * settings.lease_s - 2 * settings.beat_s
        is_disturbed = node.is_cut_off or host.is_paused or server.is_paused
        was_disturbed = max(node.disturbed_at, node.delays.spikes_until, host.disturbed_at) >= since
        if not (is_disturbed or was_disturbed):
            self.fail(f"{node.name} begins a new incarnation, and nothing happened to it but a reset")


class keys_are_bounded(Checker):
    """The store holds what the last cycles and the nodes of a run need, however long it lasts."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._is_closed = False
        self._opened_at: deque[float] = deque()

    def opened(self, event: Opened) -> None:
        self._opened_at.append(self._now)

    def closed(self, event: Closed) -> None:
        self._is_closed = True

    def second_passes(self) -> None:
        if self._is_closed:
            return
        # A node that does not act upon events holds the keys of later cycles, and is fenced after two leases; a
        # paused coordinator deletes nothing.
        settings, host = self._settings, self._world.host.process
        patience_s = 2 * settings.lease_s + 4 * settings.beat_s
        was_paused = host.is_paused or self._now - host.resumed_at < patience_s
        since = (host.paused_at if was_paused else self._now) - patience_s
        while self._opened_at and self._opened_at[0] < since:
            self._opened_at.popleft()
        cycles, per_cycle, per_incarnation = 5 + len(self._opened_at), 22, 3
        limit = cycles * per_cycle + per_incarnation * len(self._world.incarnations)
        count = len(self._world.server.store.data)
        if count > limit:
            self.fail(f"{count} keys in the store, at most {limit} are needed")


class nothing_said_is_lost(Checker):
    """What was appended to a log stays there until the coordinator has read it, or the log is deleted as a whole."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._sizes: dict[str, int] = {}
        self._read: dict[str, int] = {}

    def appended(self, key: str, size_bytes: int) -> None:
        self._sizes[key] = self._sizes.get(key, 0) + size_bytes

    def deleted(self, key: str) -> None:
        self._sizes.pop(key, None)

    def log_emptied(self, key: str) -> None:
        if self._sizes.pop(key, 0) > self._read.get(key, 0):
            self.fail(f"{key} was emptied before all that was said in it was read")

    def logs_read(self) -> None:
        data = self._world.server.store.data
        for key, size_bytes in self._sizes.items():
            if len(data.get(key, b"")) < size_bytes:
                self.fail(f"{key} has lost what was said in it")
        self._read = dict(self._sizes)


class nothing_throws(Checker):
    """No thread of a node or of the host ends by an error it did not expect."""

    def thread_dies(self, process: Process, thread: str, error: Exception) -> None:
        self.fail(f"{process.name}: its {thread} died: {type(error).__name__}: {error}")


MOST_VAIN_GROWTHS = 3
"""A healed run may count on a few nodes that died before it healed."""


class converges(Checker):
    """Once faults stop, the run is closed and everybody has gone within a bound; and if nothing that happened
    before stands in the way, it succeeds. A world that can grow does, and cycles are not opened for it in vain."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._verdict: Verdict | None = None
        self._obstacle = ""
        self._cycle_id = 0
        self._is_sealed = False
        self._grows_from: int | None = None
        """How large the world was that the cycle was opened to enlarge."""
        self._vain_growths = 0
        self._could_grow_since: float | None = None
        # More nodes are noticed at the next look; a checkpoint has to be asked for, and written.
        self._patience_s = {Grow.NOW: 1.5, Grow.CHECKPOINT: 3.0, Grow.NEXT: float("inf")}[self._settings.grow]
        self._is_elastic = self._settings.policy is Policy.ELASTIC

    def record(self, record: AnyRecord, process: Process) -> None:
        if not self._world.is_healed:
            if isinstance(record, Finish):
                self._obstacle = "a node finished before"
            elif isinstance(record, Request) and record.kind is RequestKind.DRAIN:
                self._obstacle = "a node was drained before"
            elif isinstance(record, Goodbye) and record.outcome is not Outcome.LEFT:
                self._obstacle = "a node gave up before"

    def closed(self, event: Closed) -> None:
        self._verdict = event.verdict
        if not self._world.is_healed:
            self._obstacle = "it was closed before"
        elif event.verdict.reason.startswith("join_timeout") and self._now < self._world.heals_at + 5.0:
            self._obstacle = "the nodes that were missing came too late"

    def opened(self, event: Opened) -> None:
        self._cycle_id, self._is_sealed = event.cycle_id, False
        grows = self._world.is_healed and isinstance(event.why, WorldGrows)
        self._grows_from = len(self._census.world) if grows else None

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        self._is_sealed = True
        if self._grows_from is not None and event.world_size <= self._grows_from:
            self._vain_growths += 1
            if self._vain_growths > MOST_VAIN_GROWTHS:
                self.fail(f"cycle {event.cycle_id} is no larger than the last: growth in vain, again and again")

    def logs_read(self) -> None:
        if not (self._is_elastic and self._is_sealed and self._world.is_healed):
            self._could_grow_since = None
            return
        census = self._census
        size, largest = len(census.world), largest_world(census.waiting(self._cycle_id).values(), self._settings)
        if largest <= size or census.has_begun_to_finish or self._verdict is not None or not self._is_trained_in():
            self._could_grow_since = None
        elif self._could_grow_since is None:
            self._could_grow_since = self._now
        elif self._now > self._could_grow_since + self._patience_s:
            since_s = self._now - self._could_grow_since
            self.fail(f"cycle {self._cycle_id} of {size} could be of {largest} for {since_s:.3f} s, and stays")

    def _is_trained_in(self) -> bool:
        """Whether there are workers to write a checkpoint: the dead count until their lease is over."""
        nodes = [self._world.node_of(name) for name in self._census.world]
        return any(node.is_training and not node.is_dead for node in nodes)

    def second_passes(self) -> None:
        if self._world.is_healed and self._now > self._world.converges_by():
            self.fail(f"not over by {self._now:.1f} s, healed at {self._world.heals_at:.1f} s: {self._state()}")

    def _state(self) -> str:
        alive = [node.name for node in self._world.nodes if not node.is_dead]
        return f"verdict {self._verdict}, still there: {', '.join(alive) or 'nobody'}"

    def run_ends(self) -> None:
        if self._world.server_died_at is not None or self._obstacle:
            return
        if self._verdict is None or self._verdict.kind is not VerdictKind.SUCCEEDED:
            self.fail(f"nothing stands in the way of success, but the verdict is {self._verdict}")


from tests.sim.bounded import one_long_cycle_is_bounded  # noqa: E402 - it needs the class above.

ALL: tuple[type[Checker], ...] = (
    one_placement_per_cycle,
    ranks_are_exact,
    nobody_trains_after_moving_on,
    no_dead_incarnation_placed,
    fenced_nodes_stop,
    cycle_ids_are_monotonic,
    one_verdict,
    success_is_earned,
    drained_are_not_placed,
    blocks_belong_together,
    worlds_are_of_allowed_size,
    worlds_grow_for_a_reason,
    survivors_keep_their_ranks,
    no_live_node_is_dropped,
    nobody_waits_for_a_deleted_event,
    nobody_gives_up_on_a_live_store,
    resets_cost_nothing,
    worker_stores_are_new,
    keys_are_bounded,
    one_long_cycle_is_bounded,
    nothing_said_is_lost,
    nothing_throws,
    converges,
)

SAFETY = tuple(checker for checker in ALL if checker is not converges)
"""What must hold whatever goes wrong."""
