"""Who is in the run, as the coordinator has read it: a fold over records, deaths, openings and seals.

Refuses to do any I/O and to decide anything: it answers what is, `sealing` and `moving` say what to do.
Everything is kept incrementally, so that a record costs the same with ten nodes and with ten thousand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.core.capacity import PlacementRules, capacity
from ft_rendezvous.core.lifecycle import NodeStep, Role, next_role
from ft_rendezvous.core.model import (
    AnyRecord,
    AnyWhy,
    Arrival,
    Failure,
    Finish,
    Goodbye,
    NodeInfo,
    NodeLeft,
    NodesLost,
    Outcome,
    Placement,
    Request,
    RequestKind,
    RestartRequested,
    Withdrawal,
    WorkersFailed,
    node_key,
    node_name,
)


@dataclass(slots=True)
class Member:
    """A live node."""

    arrival: Arrival
    role: Role
    came: tuple[int, int]
    """Cycle and number of its first arrival: the order in which nodes came, whatever the order of reading."""
    arrived_in: int = 0
    """The newest cycle it arrived in, though that may have been too late to count."""

    @property
    def name(self) -> str:
        return node_name(self.arrival.node)


class FenceCause(StrEnum):
    LOST = "lost"
    """It was not heard of for a lease."""
    DEAF = "deaf"
    """It beats, but it does not act upon events."""
    REPLACED = "replaced"
    """A newer start of the same node is there."""
    REFUSED = "refused"
    """It was not taken in."""
    QUARANTINED = "quarantined"
    """It failed first too often."""

    @property
    def is_refusal(self) -> bool:
        """The node did something wrong and must not try again."""
        return self not in (FenceCause.LOST, FenceCause.DEAF)


@dataclass(frozen=True, slots=True)
class Fence:
    """An incarnation whose part is over, and the reason to tell it."""

    incarnation: str
    node: str
    cause: FenceCause
    reason: str
    silent_s: float = 0.0
    """How long nothing was heard of it."""


@dataclass(slots=True)
class Roster:
    """The members of a run's group and what they have said about the current cycle."""

    members: dict[str, Member] = field(default_factory=dict)
    arrived: dict[str, Arrival] = field(default_factory=dict)
    awaited: dict[str, Arrival] = field(default_factory=dict)
    world: tuple[Arrival, ...] = ()
    """The last sealed world by rank; it outlives the members it names."""
    unfinished: set[str] = field(default_factory=set)
    """Actives of the sealed world that have not ended well."""
    finished_count: int = 0
    """Nodes that finished since the last seal; they never train again."""
    finished_live_count: int = 0
    spent_count: int = 0
    """Nodes that left since the last seal because their own agent gave up."""
    left_count: int = 0
    """Nodes that left since the last seal for reasons of their own."""
    lost_count: int = 0
    """Nodes of the last world that died or left since its seal, for whatever reason but failed workers."""
    draining: set[str] = field(default_factory=set)
    """Live nodes that are asked to give up their places; they are never placed again."""
    drained_count: int = 0
    """Nodes of the last world that were asked to give up their places and are gone, with nobody in them."""
    unhealthy: dict[str, str] = field(default_factory=dict)
    """Nodes that found themselves unfit, and why."""
    troubles: list[AnyWhy] = field(default_factory=list)
    """What happened to the sealed world, in the order it was read: each a reason to open the next cycle."""
    by_infra_rank: dict[int, str] = field(default_factory=dict)
    fenced: set[str] = field(default_factory=set)
    _ranks: dict[str, int] = field(default_factory=dict)

    def is_known(self, incarnation: str) -> bool:
        return incarnation in self.members or incarnation in self.fenced

    # --- what nodes say -----------------------------------------------------------------------------

    def take(self, record: AnyRecord, cycle_id: int, is_open: bool) -> list[Fence]:
        """Fold one record in. Returns whom to fence because of it.

        A record of an older cycle still introduces a newcomer, and still counts as its author's finish or
        goodbye; it never counts as an arrival.
        """
        if isinstance(record, Withdrawal):
            self._withdraw(record)
        if record.incarnation in self.fenced:
            return []
        if isinstance(record, Arrival):
            return self._take_arrival(record, is_open and record.cycle_id == cycle_id)
        member = self.members.get(record.incarnation)
        if member is None:
            return []
        match record:
            case Failure():
                if member.role is Role.ACTIVE and record.cycle_id == cycle_id:
                    rank = self._ranks[record.incarnation]
                    self.troubles.append(WorkersFailed(member.name, rank, record.reason))
            case Request(kind=RequestKind.RESTART):
                if member.role is Role.ACTIVE and record.cycle_id == cycle_id:
                    by = f"{member.name} (rank {self._ranks[record.incarnation]})"
                    self.troubles.append(RestartRequested(by, record.reason))
            case Finish():
                self._finish(record.incarnation, member)
            case Goodbye():
                self._goodbye(record, member)
        return []

    def _take_arrival(self, arrival: Arrival, counts: bool) -> list[Fence]:
        fences: list[Fence] = []
        member = self.members.get(arrival.incarnation)
        if member is None:
            fences = self._contest_infra_rank(arrival)
            if any(fence.incarnation == arrival.incarnation for fence in fences):
                return fences
            member = self.members[arrival.incarnation] = Member(
                arrival, Role.HOT_SPARE, (arrival.cycle_id, arrival.seq)
            )
            self.unhealthy.pop(node_key(arrival.node), None)
            if arrival.node.infra_rank is not None:
                self.by_infra_rank[arrival.node.infra_rank] = arrival.incarnation
        member.arrived_in = max(member.arrived_in, arrival.cycle_id)
        if counts and member.role in (Role.HOT_SPARE, Role.AWAITED) and arrival.incarnation not in self.draining:
            member.arrival = arrival
            member.role = next_role(member.role, NodeStep.ARRIVE)
            self.arrived[arrival.incarnation] = arrival
            self.awaited.pop(arrival.incarnation, None)
        return fences

    def _contest_infra_rank(self, arrival: Arrival) -> list[Fence]:
        """Two nodes claim one infra rank: a restarted agent replaces its predecessor, a stranger is refused."""
        if arrival.node.infra_rank is None:
            return []
        holder = self.members.get(self.by_infra_rank.get(arrival.node.infra_rank, ""))
        if holder is None:
            return []
        old, newcomer = holder.arrival.node, arrival.node
        # A process that was paused says late what it began early; of one process, the later arrival counts.
        is_older = (newcomer.born_us, (arrival.cycle_id, arrival.seq)) < (old.born_us, holder.came)
        if newcomer.addr == old.addr and not is_older:
            reason = f"{node_name(newcomer)} is a newer start of {holder.name}"
            incarnation = holder.arrival.incarnation
            self.drop(incarnation)
            return [Fence(incarnation, holder.name, FenceCause.REPLACED, reason)]
        self.fenced.add(arrival.incarnation)
        reason = (
            f"{holder.name} was started in its place while it was out of touch"
            if newcomer.addr == old.addr
            else f"infra rank {newcomer.infra_rank} is claimed by {node_name(newcomer)} and held by {holder.name}: "
            "give every node its own (--rdzv-conf infra_rank=N or FT_INFRA_RANK)"
        )
        return [Fence(arrival.incarnation, node_name(newcomer), FenceCause.REFUSED, reason)]

    def _finish(self, incarnation: str, member: Member) -> None:
        if member.role in (Role.ACTIVE, Role.AWAITED, Role.HOT_SPARE):
            member.role = next_role(member.role, NodeStep.FINISH)
            self.unfinished.discard(incarnation)
            self.awaited.pop(incarnation, None)
            self.finished_count += 1
            self.finished_live_count += 1

    def _goodbye(self, goodbye: Goodbye, member: Member) -> None:
        if goodbye.outcome is Outcome.SUCCEEDED and member.role in (Role.ACTIVE, Role.AWAITED):
            self._finish(goodbye.incarnation, member)
        if member.role is Role.ACTIVE:
            rank = self._ranks[goodbye.incarnation]
            self.troubles.append(NodeLeft(member.name, rank, goodbye.outcome, goodbye.reason))
        if goodbye.incarnation in self.draining and goodbye.incarnation in self._ranks:
            self.drained_count += 1
        elif goodbye.outcome is Outcome.FAILED:
            self.spent_count += 1
        elif goodbye.outcome in (Outcome.LEFT, Outcome.DRAINED):
            self.left_count += 1
        if goodbye.outcome is not Outcome.FAILED:
            self.lost_count += member.role in (Role.ACTIVE, Role.AWAITED)
        self._remove(goodbye.incarnation)

    def _withdraw(self, withdrawal: Withdrawal) -> None:
        """A node is unfit: it is not in the run any more, if it ever was."""
        self.unhealthy[node_key(withdrawal.node)] = f"{node_name(withdrawal.node)}: {withdrawal.reason}"
        if withdrawal.incarnation in self.members:
            self.drop(withdrawal.incarnation)

    def failure_of(self, failure: Failure) -> FailureNote | None:
        """A failure in the last world, fit to be charged; None if it comes from outside of it."""
        member, rank = self.members.get(failure.incarnation), self._ranks.get(failure.incarnation)
        if member is None or rank is None or member.role not in (Role.ACTIVE, Role.AWAITED):
            return None
        if failure.cycle_id != member.arrival.cycle_id:
            return None
        return FailureNote(
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
        """Who failed, across incarnations: the infra rank, or the address where nobody else lives."""
        node = member.arrival.node
        if node.infra_rank is not None:
            return blame_keys(member.arrival)[0]
        is_alone = sum(other.arrival.node.addr == node.addr for other in self.members.values()) == 1
        return f"address {node.addr}" if is_alone else member.arrival.incarnation

    def ask_restart(self, by: str, reason: str) -> None:
        """Somebody from outside wants the world to end."""
        self.troubles.append(RestartRequested(by, reason))

    # --- what the coordinator decides ---------------------------------------------------------------

    def drop(self, incarnation: str) -> None:
        """A node is dead or replaced: its incarnation never counts again."""
        member = self.members.get(incarnation)
        if member is not None and member.role is Role.ACTIVE:
            self.troubles.append(NodesLost((member.name,), (self._ranks[incarnation],)))
        if member is not None:
            self.lost_count += member.role in (Role.ACTIVE, Role.AWAITED)
        self._remove(incarnation)

    def drain(self, incarnation: str) -> bool:
        """A live node is to give up its place. False if it is finished, or was asked before."""
        if not self.can_drain(incarnation):
            return False
        member = self.members[incarnation]
        self.draining.add(incarnation)
        self.awaited.pop(incarnation, None)
        if self.arrived.pop(incarnation, None) is not None:
            member.role = next_role(member.role, NodeStep.WITHDRAW)
        return True

    def _remove(self, incarnation: str) -> None:
        self.fenced.add(incarnation)
        member = self.members.pop(incarnation, None)
        self.arrived.pop(incarnation, None)
        self.awaited.pop(incarnation, None)
        self.draining.discard(incarnation)
        if member is not None:
            self.finished_live_count -= member.role is Role.FINISHED
            infra_rank = member.arrival.node.infra_rank
            if infra_rank is not None and self.by_infra_rank.get(infra_rank) == incarnation:
                del self.by_infra_rank[infra_rank]

    def reopen(self) -> None:
        """The next cycle is open: actives are awaited, everybody else waits to arrive."""
        assert not self.arrived, "arrivals of a sealed cycle were not placed"
        self.troubles.clear()
        self._step_all(NodeStep.REOPEN)
        self.awaited = {
            name: member.arrival
            for name, member in self.members.items()
            if member.role is Role.AWAITED and name not in self.draining
        }

    def seal(self, placement: Placement) -> None:
        """The placement holds: the placed are active, everybody else waits for the next cycle."""
        self.world = tuple(self.arrived[incarnation] for incarnation in placement.ranks)
        self._ranks = {incarnation: rank for rank, incarnation in enumerate(placement.ranks)}
        self.unfinished = set(placement.ranks)
        self.spent_count = self.left_count = self.lost_count = self.drained_count = self.finished_count = 0
        for incarnation in placement.ranks:
            member = self.members[incarnation]
            member.role = next_role(member.role, NodeStep.PLACE)
        self.arrived.clear()
        self.awaited.clear()
        self._step_all(NodeStep.PASS_OVER, but=self.unfinished)

    def _step_all(self, step: NodeStep, but: Sequence[str] | set[str] = ()) -> None:
        for incarnation, member in self.members.items():
            if incarnation not in but:
                member.role = next_role(member.role, step)

    # --- what is ------------------------------------------------------------------------------------

    def joinable_count(self) -> int:
        """Live nodes that have arrived or still can: everybody but the finished and the draining."""
        gone = sum(self.members[name].role is not Role.FINISHED for name in self.draining)
        return len(self.members) - self.finished_live_count - gone

    def can_drain(self, incarnation: str) -> bool:
        member = self.members.get(incarnation)
        return member is not None and member.role is not Role.FINISHED and incarnation not in self.draining

    def arrived_fit(self, rules: PlacementRules) -> int:
        """How many of the arrived can be placed together."""
        return len(self.arrived) if rules.block == 1 else capacity([a.node for a in self.arrived.values()], rules)

    def joinable_fit(self, rules: PlacementRules) -> int:
        """How many of the live nodes that have arrived or still can."""
        return self.joinable_count() if rules.block == 1 else capacity(self._joinable(), rules)

    def ready_fit(self, rules: PlacementRules, since: int) -> int:
        """How many of those that have arrived in this cycle or later, in time or not: others may never do."""
        return capacity(self._joinable(since), rules)

    def undrained_fit(self, rules: PlacementRules) -> int:
        """How many of all live nodes, finished or not, but those that were asked to go."""
        members = self.members.items()
        return capacity([member.arrival.node for name, member in members if name not in self.draining], rules)

    def can_lose(self, incarnation: str, rules: PlacementRules, since: int) -> bool:
        """Whether enough nodes remain without one of the arrived, or one that is gone already."""
        return capacity(self._joinable(since, but=incarnation), rules) >= rules.min_nodes

    def _joinable(self, since: int = 0, but: str = "") -> list[NodeInfo]:
        return [
            member.arrival.node
            for name, member in self.members.items()
            if member.role is not Role.FINISHED
            and name not in self.draining
            and name != but
            and member.arrived_in >= since
        ]

    def draining_actives(self, but: Sequence[str] = ()) -> list[str]:
        """Names of the nodes that train and are to give up their places."""
        members = (self.members[incarnation] for incarnation in sorted(self.draining.difference(but)))
        return [member.name for member in members if member.role is Role.ACTIVE]

    def is_world_draining(self) -> bool:
        """Whether any node of the last world was asked to give up its place, even if it has finished since."""
        return not self.draining.isdisjoint(self._ranks)

    def draining_count(self) -> int:
        """Nodes of the last world that have given up their places, or are about to."""
        return self.drained_count + sum(
            name in self._ranks and self.members[name].role is not Role.FINISHED for name in self.draining
        )

    def find(self, target: str) -> list[str]:
        """The live nodes an operator means: an infra rank, an address or `address:pid`."""
        return [
            incarnation for incarnation, member in self.members.items() if target in operator_names(member.arrival.node)
        ]

    def describe(self, incarnation: str) -> str:
        """A live node's name, with its rank if it has one."""
        member = self.members[incarnation]
        rank = f" (rank {self._ranks[incarnation]})" if member.role in (Role.ACTIVE, Role.AWAITED) else ""
        return member.name + rank


def operator_names(node: NodeInfo) -> tuple[str, ...]:
    """What an operator may call a node."""
    rank = () if node.infra_rank is None else (str(node.infra_rank),)
    return (*rank, *((node.addr, f"{node.addr}:{node.pid}") if node.addr else ()))


def blame_keys(arrival: Arrival) -> tuple[str, str]:
    """The names under which a node may be in quarantine."""
    return f"infra rank {arrival.node.infra_rank}", f"address {arrival.node.addr}"
