"""The nodes of a run, as the coordinator has read them: a fold over records, deaths, openings and seals.

It does no I/O and decides nothing. It says what is; `sealing` and `next_cycle` decide what to do.
All values are updated step by step, so that a record costs the same with ten nodes and with ten thousand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.core.capacity import PlacementRules, capacity
from ft_rendezvous.core.effects import (
    CheckpointWritten,
    Effect,
    Fence,
    FenceCause,
    Loss,
    NodeExit,
    NodeFinish,
    NodeUnfit,
    UpdatesTold,
)
from ft_rendezvous.core.hangs import Hang, Suspect
from ft_rendezvous.core.lifecycle import NodeStep, Role, next_role
from ft_rendezvous.core.model import (
    AnyRecord,
    AnyWhy,
    Arrival,
    Checkpoint,
    Failure,
    Finish,
    Goodbye,
    Late,
    NodeInfo,
    NodeLeft,
    NodesLost,
    Outcome,
    Placement,
    Request,
    RequestKind,
    RestartRequested,
    Stacks,
    UpdateNews,
    Withdrawal,
    WorkersFailed,
    WorkersHang,
    node_key,
    node_name,
)
from ft_rendezvous.core.placement import choose_candidates
from ft_rendezvous.core.recent import RecentNames, RecentNumbers
from ft_rendezvous.core.sealed_world import SealedWorld

MAX_HANG_CHARS = 400
"""Of the text about a hang: every node reads it."""


@dataclass(slots=True)
class Member:
    """A live node."""

    arrival: Arrival
    role: Role
    came: tuple[int, int]
    """Cycle and number of its first arrival. This is the order in which nodes came, not the order of reading."""
    arrived_in: int = 0
    """The newest cycle that it arrived in, even if it was too late to count."""

    @property
    def name(self) -> str:
        return node_name(self.arrival.node)


@dataclass(slots=True)
class Roster:
    """The live nodes of a run, and what they reported since the last seal of their group."""

    max_nodes: int = 1 << 30
    """MAX of the run. More nodes than that, live and unhealthy together, mean that some were replaced."""
    members: dict[str, Member] = field(default_factory=dict)
    has_groups: bool = False
    """Whether the run trains as several groups: then an arrival stands until the next common cycle."""
    arrived: dict[str, Arrival] = field(default_factory=dict)
    """Nodes that have arrived in an open cycle."""
    ready: dict[str, Arrival] = field(default_factory=dict)
    """Nodes that stand by for a place in any group. Empty in a run without groups."""
    awaited: dict[str, Arrival] = field(default_factory=dict)
    worlds: dict[int, SealedWorld] = field(default_factory=dict)
    """The last sealed world of each group. A run without groups has one."""
    open_groups: dict[int, int] = field(default_factory=dict)
    """Groups whose next cycle is open, and that cycle. A common cycle is not in it."""
    finished_live_count: int = 0
    draining: set[str] = field(default_factory=set)
    """Live nodes that were asked to give up their places. They are never placed again."""
    unhealthy: dict[str, str] = field(default_factory=dict)
    """Nodes whose health check failed, with the reason, oldest first; without those that other nodes have replaced."""
    losses: list[Loss] = field(default_factory=list)
    """Losses that are not in the book of losses yet."""
    parked: set[str] = field(default_factory=set)
    """Live nodes that were lost too often. They are placed only if the others cannot form a world."""
    parked_keys: frozenset[str] = frozenset()
    """The same nodes, and those of them that are away, by their blame keys."""
    by_infra_rank: dict[int, str] = field(default_factory=dict)
    # Nodes that are over are forgotten after many others. That is safe: an incarnation that is over has no beat, and
    # does not begin to beat again. If it arrives once more, it is refused for that. Nothing else that a refused node
    # writes has an effect. A node that was in the run may write a request, which must not be taken for an operator's:
    # so refused starts, however many, do not make the coordinator forget it.
    fenced: RecentNames = field(default_factory=RecentNames)
    """Incarnations that were in the run and are over."""
    refused: RecentNames = field(default_factory=RecentNames)
    """Incarnations that were not admitted."""
    updates_told: RecentNumbers = field(default_factory=RecentNumbers)
    """The number of the last record of updates that each node has written."""
    _home: dict[str, SealedWorld] = field(default_factory=dict)
    """The world in which each node was last placed, until the next one of that group is sealed."""
    _rest: SealedWorld = field(default_factory=SealedWorld)
    """Counts for nodes that are in no world, since the last common seal."""

    # --- the worlds together ------------------------------------------------------------------------

    @property
    def world(self) -> tuple[Arrival, ...]:
        """The last sealed worlds, one after the other by rank. Some of their nodes may be gone."""
        if len(self.worlds) == 1:
            return next(iter(self.worlds.values())).seats
        return tuple(seat for group in sorted(self.worlds) for seat in self.worlds[group].seats)

    @property
    def unfinished(self) -> AbstractSet[str]:
        """Active nodes of the sealed worlds that have not finished."""
        if len(self.worlds) == 1:
            return next(iter(self.worlds.values())).unfinished
        return {name for world in self.worlds.values() for name in world.unfinished}

    @property
    def troubles(self) -> Sequence[AnyWhy]:
        """What happened to the sealed worlds, in the order of reading. Each is a reason to open the next cycle."""
        return [trouble for world in self.worlds.values() for trouble in world.troubles]

    @property
    def lost(self) -> Sequence[NodesLost]:
        """Nodes of the last worlds that died since their seal, each for itself."""
        return [lost for world in self.worlds.values() for lost in world.lost]

    @property
    def finished_count(self) -> int:
        return sum(world.finished_count for world in self._counts())

    @property
    def spent_count(self) -> int:
        return sum(world.spent_count for world in self._counts())

    @property
    def left_count(self) -> int:
        return sum(world.left_count for world in self._counts())

    @property
    def lost_count(self) -> int:
        return sum(world.lost_count for world in self._counts())

    @property
    def drained_count(self) -> int:
        return sum(world.drained_count for world in self._counts())

    def _counts(self) -> Iterator[SealedWorld]:
        yield self._rest
        yield from self.worlds.values()

    def world_of(self, incarnation: str) -> SealedWorld | None:
        """The world in which a node was last placed; None if it never was, or the next one is sealed."""
        return self._home.get(incarnation)

    def is_known(self, incarnation: str) -> bool:
        return incarnation in self.members or self._is_over(incarnation)

    def _is_over(self, incarnation: str) -> bool:
        return incarnation in self.fenced or incarnation in self.refused

    # --- records of nodes -----------------------------------------------------------------------------

    def take(self, record: AnyRecord, cycle_id: int, is_open: bool) -> list[Effect]:
        """Fold one record in. This is the only place that tells records apart. Returns what follows from it.

        `cycle_id` is the last common cycle, `is_open` whether it is open. A record of an older cycle still introduces a
        new node, and still counts as a finish or a goodbye. It never counts as an arrival. A record of an unknown
        author is an operator's request, or nothing.
        """
        if isinstance(record, Withdrawal):
            return self._withdraw(record)
        if isinstance(record, UpdateNews):
            return self._take_updates(record)
        if self._is_over(record.incarnation):
            return []
        if isinstance(record, Arrival):
            return [*self._take_arrival(record, cycle_id, is_open)]
        member = self.members.get(record.incarnation)
        if member is None:
            return [record] if isinstance(record, Request) else []
        world = self._home.get(record.incarnation, self._rest)
        is_current = member.role is Role.ACTIVE and record.cycle_id == world.cycle_id
        match record:
            case Failure():
                return self._fail(record, member, is_current)
            case Finish():
                return self._finish(record.incarnation, member)
            case Goodbye():
                return self._goodbye(record, member)
            case Checkpoint():
                # A node may finish before its last checkpoint is told.
                return [CheckpointWritten(world.group)] if record.cycle_id == world.cycle_id else []
            case Request(kind=RequestKind.DRAIN):
                return [record]
            case Late() | Stacks() if is_current:
                return [record]
            case Request(kind=RequestKind.RESTART) if is_current:
                self.ask_restart(f"{member.name} (rank {world.ranks[record.incarnation]})", record.reason, world)
        return []

    def _take_updates(self, news: UpdateNews) -> list[Effect]:
        """A report changes nothing here. It counts even if the node is over: it says what has happened."""
        if not self.is_known(news.incarnation) or not self.updates_told.advance(news.incarnation, news.number):
            return []
        member = self.members.get(news.incarnation)
        return [UpdatesTold(news.incarnation if member is None else member.name, news)]

    def _fail(self, failure: Failure, member: Member, is_current: bool) -> list[Effect]:
        note = self._failure_of(failure, member)
        if is_current:
            world = self._home[failure.incarnation]
            world.troubles.append(WorkersFailed(member.name, world.ranks[failure.incarnation], failure.reason))
        return [] if note is None else [note]

    def _take_arrival(self, arrival: Arrival, cycle_id: int, is_open: bool) -> list[Fence]:
        fences: list[Fence] = []
        member = self.members.get(arrival.incarnation)
        if member is None:
            fences = self._contest_infra_rank(arrival)
            if any(fence.incarnation == arrival.incarnation for fence in fences):
                return fences
            member = self.members[arrival.incarnation] = Member(
                arrival, Role.HOT_SPARE, (arrival.cycle_id, arrival.seq)
            )
            if self._is_parked(arrival):
                self.parked.add(arrival.incarnation)
            if arrival.node.infra_rank is not None:
                self.by_infra_rank[arrival.node.infra_rank] = arrival.incarnation
        if self.unhealthy:
            # A second start of this node may have been unfit. The node itself is not, since it arrives.
            self.unhealthy.pop(node_key(arrival.node), None)
            self._forget_replaced()
        member.arrived_in = max(member.arrived_in, arrival.cycle_id)
        if arrival.incarnation not in self.draining:
            self._seat_arrival(arrival, member, cycle_id, is_open)
        return fences

    def _seat_arrival(self, arrival: Arrival, member: Member, cycle_id: int, is_open: bool) -> None:
        """Count an arrival in the open cycle that it belongs to. With groups, any other arrival stands by."""
        incarnation = arrival.incarnation
        if is_open:
            counts = arrival.cycle_id == cycle_id and member.role in (Role.HOT_SPARE, Role.AWAITED)
        else:
            world = self._home.get(incarnation)
            is_back = world is not None and self.open_groups.get(world.group) == arrival.cycle_id
            counts = is_back and member.role is Role.AWAITED
        if counts:
            member.arrival = arrival
            member.role = next_role(member.role, NodeStep.ARRIVE)
            self.arrived[incarnation] = arrival
            self.awaited.pop(incarnation, None)
        elif self.has_groups and not is_open and arrival.cycle_id >= cycle_id and member.role is Role.HOT_SPARE:
            # A record that is written twice counts once: a node that had a place arrives anew before it stands by.
            last = member.arrival
            if arrival is last or (arrival.cycle_id, arrival.seq) > (last.cycle_id, last.seq):
                self._stand_by(arrival, member)

    def _stand_by(self, arrival: Arrival, member: Member) -> None:
        member.arrival = arrival
        member.role = next_role(member.role, NodeStep.STAND_BY)
        self.ready[arrival.incarnation] = arrival

    def _contest_infra_rank(self, arrival: Arrival) -> list[Fence]:
        """Two nodes claim one infra rank. A restarted agent replaces its older start; a node elsewhere is refused."""
        if arrival.node.infra_rank is None:
            return []
        holder = self.members.get(self.by_infra_rank.get(arrival.node.infra_rank, ""))
        if holder is None:
            return []
        old, newcomer, came = holder.arrival.node, arrival.node, (arrival.cycle_id, arrival.seq)
        if newcomer.boot_id == old.boot_id:
            # An older process that was paused may arrive late. Of one process, the later arrival counts.
            is_older = (newcomer.born_us, came) < (old.born_us, holder.came)
        else:
            # The machine was booted again, or another machine has the address: their clocks cannot be compared.
            is_older = came < holder.came
        if newcomer.addr == old.addr and not is_older:
            reason = f"{node_name(newcomer)} is a newer start of {holder.name}"
            incarnation = holder.arrival.incarnation
            self.drop(incarnation)
            return [Fence(incarnation, holder.name, FenceCause.REPLACED, reason)]
        self.refuse(arrival.incarnation)
        reason = (
            f"{holder.name} was started later, in the place of this node"
            if newcomer.addr == old.addr
            else f"infra rank {newcomer.infra_rank} is claimed by {node_name(newcomer)} and held by {holder.name}: "
            "give every node its own (--rdzv-conf infra_rank=N or FT_INFRA_RANK)"
        )
        return [Fence(arrival.incarnation, node_name(newcomer), FenceCause.REFUSED, reason)]

    def _finish(self, incarnation: str, member: Member) -> list[Effect]:
        if member.role not in (Role.ACTIVE, Role.AWAITED, Role.HOT_SPARE):
            return []
        world = self._home.get(incarnation, self._rest)
        member.role = next_role(member.role, NodeStep.FINISH)
        world.unfinished.discard(incarnation)
        self.awaited.pop(incarnation, None)
        world.finished_count += 1
        self.finished_live_count += 1
        return [NodeFinish(incarnation, member.name)]

    def _goodbye(self, goodbye: Goodbye, member: Member) -> list[Effect]:
        effects: list[Effect] = []
        world = self._home.get(goodbye.incarnation, self._rest)
        if goodbye.outcome is Outcome.FAILED:
            # An agent that gives up may not have reported the failure before it left.
            failure = Failure(cycle_id=goodbye.cycle_id, incarnation=goodbye.incarnation, reason=goodbye.reason)
            note = self._failure_of(failure, member)
            effects += [] if note is None else [note]
        if goodbye.outcome is Outcome.SUCCEEDED and member.role in (Role.ACTIVE, Role.AWAITED):
            self._finish(goodbye.incarnation, member)
        if member.role is Role.ACTIVE:
            rank = world.ranks[goodbye.incarnation]
            world.troubles.append(NodeLeft(member.name, rank, goodbye.outcome, goodbye.reason))
        if goodbye.incarnation in self.draining and goodbye.incarnation in world.ranks:
            world.drained_count += 1
        elif goodbye.outcome is Outcome.FAILED:
            world.spent_count += 1
        elif goodbye.outcome in (Outcome.LEFT, Outcome.DRAINED):
            world.left_count += 1
        if goodbye.outcome is not Outcome.FAILED:
            world.lost_count += member.role in (Role.ACTIVE, Role.AWAITED)
        self._remove(goodbye.incarnation)
        return [*effects, NodeExit(goodbye.incarnation, member.name, member.role, goodbye.outcome, goodbye.reason)]

    def _withdraw(self, withdrawal: Withdrawal) -> list[Effect]:
        """A node is unhealthy: it is not in the run any more, if it ever was."""
        name = node_name(withdrawal.node)
        self.unhealthy[node_key(withdrawal.node)] = f"{name}: {withdrawal.reason}"
        if withdrawal.incarnation in self.members:
            self.drop(withdrawal.incarnation, is_loss=False)
        self._forget_replaced()
        return [NodeUnfit(withdrawal.incarnation, name, withdrawal.reason)]

    def _forget_replaced(self) -> None:
        """Where more nodes have come than the run can use, the first that were unhealthy have been replaced."""
        if self.unhealthy and len(self.members) + len(self.unhealthy) > self.max_nodes:
            del self.unhealthy[next(iter(self.unhealthy))]

    def refuse(self, incarnation: str) -> None:
        """A new node is not admitted. Nothing it says counts."""
        self.refused.add(incarnation)

    def _failure_of(self, failure: Failure, member: Member) -> FailureNote | None:
        """A failure in the node's last world, for the ledger. None if the node is not in that world."""
        world = self._home.get(failure.incarnation)
        if world is None or member.role not in (Role.ACTIVE, Role.AWAITED) or failure.cycle_id != world.cycle_id:
            return None
        rank = world.ranks[failure.incarnation]
        return FailureNote(
            group=world.group,
            cycle_id=failure.cycle_id,
            key=self._blame_key(member),
            incarnation=failure.incarnation,
            node=member.name,
            rank=rank if failure.rank is None else failure.rank,
            exit_code=failure.exit_code,
            after_s=failure.after_s,
            reason=failure.reason,
            log_path=failure.log_path,
            last_words=failure.last_words,
        )

    def _blame_key(self, member: Member) -> str:
        """Identifies a node across incarnations: its infra rank, or its address.

        If several nodes of the last worlds share the address, only the incarnation is left. Nodes at that address that
        are in no world change nothing: a second start of the node may be there before the first one is known to be
        dead, and the other way round.
        """
        node = member.arrival.node
        by_rank, by_address = blame_keys(member.arrival)
        if node.infra_rank is not None:
            return by_rank
        count = sum(world.count_at(node.addr) for world in self.worlds.values())
        return by_address if count <= 1 else member.arrival.incarnation

    def ask_restart(self, by: str, reason: str, world: SealedWorld) -> None:
        """A node or an operator asks for a restart of a world."""
        world.troubles.append(RestartRequested(by, reason))

    # --- decisions of the coordinator ---------------------------------------------------------------

    def end_hung_world(self, hang: Hang, suspect: Suspect, world: SealedWorld) -> FailureNote | None:
        """A world hangs: its cycle ends. Returns what it is charged with."""
        incarnation = hang.blamed or suspect.incarnation
        member = self.members[incarnation]
        reason = hang.reason[:MAX_HANG_CHARS]
        step = "" if hang.step is None else f"step {hang.step}: "
        world.troubles.append(WorkersHang(member.name, hang.rank, reason, hang.blamed is not None))
        failure = Failure(
            cycle_id=world.cycle_id,
            incarnation=incarnation,
            reason=reason,
            rank=hang.rank,
            after_s=suspect.after_s,
            last_words=f"{step}{hang.stack}"[:MAX_HANG_CHARS],
        )
        note = self._failure_of(failure, member)
        return None if note is None else replace(note, is_blamed=hang.blamed is not None)

    def drop(self, incarnation: str, is_loss: bool = True) -> None:
        """A node is dead or replaced, or it must go. Its incarnation never counts again.

        `is_loss`: whether the node died, or was started again. Such losses are counted.
        """
        member = self.members.get(incarnation)
        if member is not None and member.role in (Role.ACTIVE, Role.AWAITED):
            world = self._home[incarnation]
            lost = NodesLost((member.name,), (world.ranks[incarnation],))
            world.lost.append(lost)
            world.lost_count += 1
            if member.role is Role.ACTIVE:
                world.troubles.append(lost)
        if is_loss and member is not None and self._counts_as_loss(incarnation, member):
            key = self._blame_key(member)
            if key != incarnation:  # Otherwise the node could not be known again.
                self.losses.append(Loss(key, incarnation, member.name))
        self._remove(incarnation)

    def _counts_as_loss(self, incarnation: str, member: Member) -> bool:
        """Whether a node that dies now has disturbed a world, or may have: a cycle may have opened for its sake.

        While the first world gathers, there is no world to disturb.
        """
        return bool(self.worlds) and member.role is not Role.FINISHED and incarnation not in self.draining

    def drain(self, incarnation: str) -> bool:
        """A live node has to give up its place. False if it has finished, or drains already."""
        if not self.can_drain(incarnation):
            return False
        member = self.members[incarnation]
        self.draining.add(incarnation)
        self.awaited.pop(incarnation, None)
        if self.arrived.pop(incarnation, None) is not None or self.ready.pop(incarnation, None) is not None:
            member.role = next_role(member.role, NodeStep.WITHDRAW)
        return True

    def _remove(self, incarnation: str) -> None:
        self.fenced.add(incarnation)
        member = self.members.pop(incarnation, None)
        self.arrived.pop(incarnation, None)
        self.ready.pop(incarnation, None)
        self.awaited.pop(incarnation, None)
        self._home.pop(incarnation, None)
        self.draining.discard(incarnation)
        self.parked.discard(incarnation)
        if member is not None:
            self.finished_live_count -= member.role is Role.FINISHED
            infra_rank = member.arrival.node.infra_rank
            if infra_rank is not None and self.by_infra_rank.get(infra_rank) == incarnation:
                del self.by_infra_rank[infra_rank]

    def park(self, keys: AbstractSet[str]) -> None:
        """These nodes are parked from now on, and no others."""
        if keys != self.parked_keys:
            self.parked_keys = frozenset(keys)
            self.parked = {name for name, member in self.members.items() if self._is_parked(member.arrival)}

    def _is_parked(self, arrival: Arrival) -> bool:
        return bool(self.parked_keys) and not self.parked_keys.isdisjoint(blame_keys(arrival))

    def reopen(self) -> None:
        """The next common cycle is open. Nodes of the last worlds are awaited, and every other node may arrive."""
        assert self.has_groups or not self.arrived, "arrivals of a sealed cycle were not placed"
        for world in self.worlds.values():
            world.troubles.clear()
        self.arrived.clear()
        self.ready.clear()
        self.open_groups.clear()
        self._step_all(NodeStep.REOPEN)
        self.awaited = {
            name: member.arrival
            for name, member in self.members.items()
            if member.role is Role.AWAITED and name not in self.draining
        }

    def seal(self, placement: Placement, cycle_id: int) -> None:
        """A common cycle is sealed. Placed nodes are active, and every other node waits for the next cycle."""
        self._rest, self._home = SealedWorld(cycle_id=cycle_id), {}
        self.worlds = {}
        for group, names in placement.by_group():
            self._begin_world(group, names, cycle_id, self.arrived)
        placed = self._home.keys()
        standing = [arrival for name, arrival in self.arrived.items() if name not in placed]
        self.arrived.clear()
        self.awaited.clear()
        self._step_all(NodeStep.PASS_OVER, but=placed)
        if self.has_groups:
            self.ready = {arrival.incarnation: arrival for arrival in standing}

    def _begin_world(self, group: int, names: Sequence[str], cycle_id: int, arrivals: Mapping[str, Arrival]) -> None:
        world = self.worlds[group] = SealedWorld.of([arrivals[name] for name in names], group, cycle_id)
        for incarnation in names:
            member = self.members[incarnation]
            member.role = next_role(member.role, NodeStep.PLACE)
            self._home[incarnation] = world

    # --- one group ------------------------------------------------------------------------------------

    def reopen_group(self, group: int, cycle_id: int) -> dict[str, Role]:
        """The next cycle of a group is open. Returns the nodes whose roles have changed."""
        self.open_groups[group] = cycle_id
        world = self.worlds.get(group)
        if world is None:
            return {}
        world.troubles.clear()
        changed: dict[str, Role] = {}
        for name in self._members_of(world):
            member = self.members[name]
            if member.role is Role.ACTIVE:
                member.role = changed[name] = next_role(member.role, NodeStep.REOPEN)
                if name not in self.draining:
                    self.awaited[name] = member.arrival
        return changed

    def seal_group(self, group: int, ranks: Sequence[str], cycle_id: int) -> dict[str, Role]:
        """The cycle of a group is sealed. Returns the nodes without a rank whose roles have changed.

        Nodes of the last world that are back and were not placed stand by. The others may still come.
        """
        arrivals = {name: (self.arrived if name in self.arrived else self.ready).pop(name) for name in ranks}
        del self.open_groups[group]
        world = self.worlds.pop(group, None)
        changed = {} if world is None else self._release(world, but=arrivals.keys())
        self._begin_world(group, ranks, cycle_id, arrivals)
        return changed

    def dissolve_group(self, group: int) -> dict[str, Role]:
        """A group that waits is given up. Its nodes stand by. Returns the nodes whose roles have changed."""
        del self.open_groups[group]
        world = self.worlds.pop(group)
        # Nodes that are gone for good count until the next common seal: it may have to do without them.
        self._rest.finished_count += world.finished_count
        self._rest.spent_count += world.spent_count
        self._rest.left_count += world.left_count
        self._rest.drained_count += world.drained_count
        return self._release(world)

    def _release(self, world: SealedWorld, but: AbstractSet[str] = frozenset()) -> dict[str, Role]:
        """The last world of a group is over. Its nodes that wait belong to no group, but for those named."""
        changed: dict[str, Role] = {}
        for name in self._members_of(world):
            del self._home[name]
            member = self.members[name]
            if name in but or member.role is Role.FINISHED:
                continue
            self.awaited.pop(name, None)
            arrival = self.arrived.pop(name, None)
            if arrival is not None:
                self.ready[name] = arrival
            before, member.role = member.role, next_role(member.role, NodeStep.PASS_OVER)
            if member.role is not before:
                changed[name] = member.role
        return changed

    def _members_of(self, world: SealedWorld) -> list[str]:
        return [name for name in world.ranks if self._home.get(name) is world]

    def group_of(self, incarnation: str) -> int | None:
        """The group in which a live node trains, or is to train again; None if it is in no group."""
        world = self._home.get(incarnation)
        return None if world is None else world.group

    def _step_all(self, step: NodeStep, but: AbstractSet[str] = frozenset()) -> None:
        for incarnation, member in self.members.items():
            if incarnation not in but:
                member.role = next_role(member.role, step)

    # --- questions ------------------------------------------------------------------------------------

    def joinable_count(self) -> int:
        """Number of live nodes that have arrived or still can: all but those that finished or drain."""
        gone = sum(self.members[name].role is not Role.FINISHED for name in self.draining)
        return len(self.members) - self.finished_live_count - gone

    def can_drain(self, incarnation: str) -> bool:
        member = self.members.get(incarnation)
        return member is not None and member.role is not Role.FINISHED and incarnation not in self.draining

    def candidates(self, rules: PlacementRules) -> Mapping[str, Arrival]:
        """The arrived nodes that may be placed."""
        return choose_candidates(self.arrived, self.parked, rules)

    def arrived_fit(self, rules: PlacementRules) -> int:
        """How many of the arrived nodes can be placed together."""
        return _fit(self.candidates(rules), rules)

    def joinable_fit(self, rules: PlacementRules) -> int:
        """How many of the live nodes that have arrived, or still can, can be placed together, parked or not."""
        return self.joinable_count() if rules.block == 1 else _fit(self._joinable(), rules)

    def ready_fit(self, rules: PlacementRules, since: int) -> int:
        """How many of the nodes that arrived in cycle `since` or later can be placed together.

        Late arrivals count too. A node that has not arrived since then may never arrive. A parked node counts only if
        it is in the world: no larger world is formed for its sake.
        """
        ready = self._joinable(since)
        for incarnation in self.parked - self._home.keys():
            ready.pop(incarnation, None)
        return _fit(choose_candidates(ready, self.parked, rules), rules)

    def awaits_others(self, rules: PlacementRules, since: int) -> bool:
        """Whether the arrived need parked nodes for a world, and the nodes that arrived since `since` do not."""
        if not self.parked or self.parked.isdisjoint(self.candidates(rules)):
            return False
        return self.parked.isdisjoint(choose_candidates(self._joinable(since), self.parked, rules))

    def parked_count(self) -> int:
        """Number of nodes of the last world that are parked and not in the run under that incarnation."""
        if not self.parked_keys:
            return 0
        return sum(seat.incarnation not in self.members and self._is_parked(seat) for seat in self.world)

    def undrained_fit(self, rules: PlacementRules) -> int:
        """How many of the live nodes that do not drain, finished or not, can be placed together."""
        members = self.members.items()
        return capacity([member.arrival.node for name, member in members if name not in self.draining], rules)

    def find_blamed(self, note: FailureNote) -> list[str]:
        """The live incarnations of the node that a failure is charged to. It may have been started again since."""
        return [
            name
            for name, member in self.members.items()
            if member.role is not Role.FINISHED and (name == note.incarnation or note.key in blame_keys(member.arrival))
        ]

    def can_lose(self, note: FailureNote, rules: PlacementRules, since: int) -> bool:
        """Whether enough nodes remain without the node of this failure, under any incarnation."""
        return _fit(self._joinable(since, but=self.find_blamed(note)), rules) >= rules.min_nodes

    def _joinable(self, since: int = 0, but: Sequence[str] = ()) -> dict[str, Arrival]:
        return {
            name: member.arrival
            for name, member in self.members.items()
            if member.role is not Role.FINISHED
            and name not in self.draining
            and name not in but
            and member.arrived_in >= since
        }

    def draining_actives(self, but: Sequence[str] = (), group: int | None = None) -> list[str]:
        """Names of the nodes that train and drain: in one group, or in all."""
        names = sorted(self.draining.difference(but))
        members = (self.members[name] for name in names if group is None or self.group_of(name) == group)
        return [member.name for member in members if member.role is Role.ACTIVE]

    def is_world_draining(self) -> bool:
        """Whether a node of the last world drains, even if it has finished since."""
        return not self.draining.isdisjoint(self._home)

    def draining_count(self) -> int:
        """Number of nodes of the last world that have given up their places, or will."""
        return self.drained_count + sum(
            name in self._home and self.members[name].role is not Role.FINISHED for name in self.draining
        )

    def find(self, target: str) -> list[str]:
        """The live nodes that an operator means by an infra rank, an address or `address:pid`."""
        return [
            incarnation for incarnation, member in self.members.items() if target in operator_names(member.arrival.node)
        ]

    def describe(self, incarnation: str) -> str:
        """A live node's name, with its rank if it has one."""
        member = self.members[incarnation]
        if member.role not in (Role.ACTIVE, Role.AWAITED):
            return member.name
        world = self._home[incarnation]
        group = f"group {world.group} " if self.has_groups else ""
        return f"{member.name} ({group}rank {world.ranks[incarnation]})"


def _fit(arrivals: Mapping[str, Arrival], rules: PlacementRules) -> int:
    """How many of these nodes can be placed together."""
    return len(arrivals) if rules.block == 1 else capacity([arrival.node for arrival in arrivals.values()], rules)


def operator_names(node: NodeInfo) -> tuple[str, ...]:
    """The names that an operator may use for a node."""
    rank = () if node.infra_rank is None else (str(node.infra_rank),)
    return (*rank, *((node.addr, f"{node.addr}:{node.pid}") if node.addr else ()))


def blame_keys(arrival: Arrival) -> tuple[str, str]:
    """The names under which a node may be in quarantine."""
    return f"infra rank {arrival.node.infra_rank}", f"address {arrival.node.addr}"
