"""The nodes of a run, as the coordinator has read them: a fold over records, deaths, openings and seals.

It does no I/O and decides nothing. It says what is; `sealing` and `next_cycle` decide what to do.
All values are updated step by step, so that a record costs the same with ten nodes and with ten thousand.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

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
)
from ft_rendezvous.core.lifecycle import NodeStep, Role, next_role
from ft_rendezvous.core.model import (
    AnyRecord,
    AnyWhy,
    Arrival,
    Checkpoint,
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
from ft_rendezvous.core.placement import choose_candidates
from ft_rendezvous.core.recent import RecentNames


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
    """The live nodes of a run's group, and what they reported in the current cycle."""

    max_nodes: int = 1 << 30
    """MAX of the run. More nodes than that, live and unhealthy together, mean that some were replaced."""
    members: dict[str, Member] = field(default_factory=dict)
    arrived: dict[str, Arrival] = field(default_factory=dict)
    awaited: dict[str, Arrival] = field(default_factory=dict)
    world: tuple[Arrival, ...] = ()
    """The last sealed world by rank. Some of its nodes may be gone."""
    unfinished: set[str] = field(default_factory=set)
    """Active nodes of the sealed world that have not finished."""
    finished_count: int = 0
    """Nodes that finished since the last seal. They never train again."""
    finished_live_count: int = 0
    spent_count: int = 0
    """Nodes that left since the last seal because their agent used up its restarts."""
    left_count: int = 0
    """Nodes that left since the last seal for a reason of their own."""
    lost_count: int = 0
    """Nodes of the last world that died or left since its seal, for any reason other than failed workers."""
    lost: list[NodesLost] = field(default_factory=list)
    """Those of them that died, each for itself."""
    draining: set[str] = field(default_factory=set)
    """Live nodes that were asked to give up their places. They are never placed again."""
    drained_count: int = 0
    """Nodes of the last world that drained and left. No other node has taken their places yet."""
    unhealthy: dict[str, str] = field(default_factory=dict)
    """Nodes whose health check failed, with the reason, oldest first; without those that other nodes have replaced."""
    troubles: list[AnyWhy] = field(default_factory=list)
    """What happened to the sealed world, in the order of reading. Each is a reason to open the next cycle."""
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
    _ranks: dict[str, int] = field(default_factory=dict)
    _world_at: Counter[str] = field(default_factory=Counter)
    """Number of nodes of the last world at each address."""

    def is_known(self, incarnation: str) -> bool:
        return incarnation in self.members or self._is_over(incarnation)

    def _is_over(self, incarnation: str) -> bool:
        return incarnation in self.fenced or incarnation in self.refused

    # --- records of nodes -----------------------------------------------------------------------------

    def take(self, record: AnyRecord, cycle_id: int, is_open: bool) -> list[Effect]:
        """Fold one record in. This is the only place that tells records apart. Returns what follows from it.

        A record of an older cycle still introduces a new node, and still counts as a finish or a goodbye. It never
        counts as an arrival. A record of an unknown author is an operator's request, or nothing.
        """
        if isinstance(record, Withdrawal):
            return self._withdraw(record)
        if self._is_over(record.incarnation):
            return []
        if isinstance(record, Arrival):
            return [*self._take_arrival(record, is_open and record.cycle_id == cycle_id)]
        member = self.members.get(record.incarnation)
        if member is None:
            return [record] if isinstance(record, Request) else []
        is_current = member.role is Role.ACTIVE and record.cycle_id == cycle_id
        match record:
            case Failure():
                return self._fail(record, member, is_current)
            case Finish():
                return self._finish(record.incarnation, member)
            case Goodbye():
                return self._goodbye(record, member)
            case Checkpoint():
                return [CheckpointWritten()] if record.cycle_id == cycle_id else []
            case Request(kind=RequestKind.DRAIN):
                return [record]
            case Request(kind=RequestKind.RESTART) if is_current:
                self.ask_restart(f"{member.name} (rank {self._ranks[record.incarnation]})", record.reason)
        return []

    def _fail(self, failure: Failure, member: Member, is_current: bool) -> list[Effect]:
        note = self._failure_of(failure, member)
        if is_current:
            rank = self._ranks[failure.incarnation]
            self.troubles.append(WorkersFailed(member.name, rank, failure.reason))
        return [] if note is None else [note]

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
            if self._is_parked(arrival):
                self.parked.add(arrival.incarnation)
            if arrival.node.infra_rank is not None:
                self.by_infra_rank[arrival.node.infra_rank] = arrival.incarnation
        if self.unhealthy:
            # A second start of this node may have been unfit. The node itself is not, since it arrives.
            self.unhealthy.pop(node_key(arrival.node), None)
            self._forget_replaced()
        member.arrived_in = max(member.arrived_in, arrival.cycle_id)
        if counts and member.role in (Role.HOT_SPARE, Role.AWAITED) and arrival.incarnation not in self.draining:
            member.arrival = arrival
            member.role = next_role(member.role, NodeStep.ARRIVE)
            self.arrived[arrival.incarnation] = arrival
            self.awaited.pop(arrival.incarnation, None)
        return fences

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
        member.role = next_role(member.role, NodeStep.FINISH)
        self.unfinished.discard(incarnation)
        self.awaited.pop(incarnation, None)
        self.finished_count += 1
        self.finished_live_count += 1
        return [NodeFinish(incarnation, member.name)]

    def _goodbye(self, goodbye: Goodbye, member: Member) -> list[Effect]:
        effects: list[Effect] = []
        if goodbye.outcome is Outcome.FAILED:
            # An agent that gives up may not have reported the failure before it left.
            failure = Failure(cycle_id=goodbye.cycle_id, incarnation=goodbye.incarnation, reason=goodbye.reason)
            note = self._failure_of(failure, member)
            effects += [] if note is None else [note]
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
        """A failure in the last world, for the ledger. None if the node is not in that world."""
        rank = self._ranks.get(failure.incarnation)
        if rank is None or member.role not in (Role.ACTIVE, Role.AWAITED):
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
        """Identifies a node across incarnations: its infra rank, or its address.

        If several nodes of the last world share the address, only the incarnation is left. Nodes at that address that
        are not in the world change nothing: a second start of the node may be there before the first one is known to
        be dead, and the other way round.
        """
        node = member.arrival.node
        by_rank, by_address = blame_keys(member.arrival)
        if node.infra_rank is not None:
            return by_rank
        return by_address if self._world_at[node.addr] <= 1 else member.arrival.incarnation

    def ask_restart(self, by: str, reason: str) -> None:
        """An operator asks for a restart of the world."""
        self.troubles.append(RestartRequested(by, reason))

    # --- decisions of the coordinator ---------------------------------------------------------------

    def drop(self, incarnation: str, is_loss: bool = True) -> None:
        """A node is dead or replaced, or it must go. Its incarnation never counts again.

        `is_loss`: whether the node died, or was started again. Such losses are counted.
        """
        member = self.members.get(incarnation)
        if member is not None and member.role in (Role.ACTIVE, Role.AWAITED):
            lost = NodesLost((member.name,), (self._ranks[incarnation],))
            self.lost.append(lost)
            self.lost_count += 1
            if member.role is Role.ACTIVE:
                self.troubles.append(lost)
        if is_loss and member is not None and self._counts_as_loss(incarnation, member):
            key = self._blame_key(member)
            if key != incarnation:  # Otherwise the node could not be known again.
                self.losses.append(Loss(key, incarnation, member.name))
        self._remove(incarnation)

    def _counts_as_loss(self, incarnation: str, member: Member) -> bool:
        """Whether a node that dies now has disturbed a world, or may have: a cycle may have opened for its sake.

        While the first world gathers, there is no world to disturb.
        """
        return bool(self.world) and member.role is not Role.FINISHED and incarnation not in self.draining

    def drain(self, incarnation: str) -> bool:
        """A live node has to give up its place. False if it has finished, or drains already."""
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
        """The next cycle is open. Active nodes are awaited, and every other node may arrive."""
        assert not self.arrived, "arrivals of a sealed cycle were not placed"
        self.troubles.clear()
        self._step_all(NodeStep.REOPEN)
        self.awaited = {
            name: member.arrival
            for name, member in self.members.items()
            if member.role is Role.AWAITED and name not in self.draining
        }

    def seal(self, placement: Placement) -> None:
        """The cycle is sealed. Placed nodes are active, and every other node waits for the next cycle."""
        self.world = tuple(self.arrived[incarnation] for incarnation in placement.ranks)
        self._ranks = {incarnation: rank for rank, incarnation in enumerate(placement.ranks)}
        self._world_at = Counter(arrival.node.addr for arrival in self.world)
        self.unfinished = set(placement.ranks)
        self.spent_count = self.left_count = self.lost_count = self.drained_count = self.finished_count = 0
        self.lost.clear()
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
        for incarnation in self.parked - self._ranks.keys():
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

    def draining_actives(self, but: Sequence[str] = ()) -> list[str]:
        """Names of the nodes that train and drain."""
        members = (self.members[incarnation] for incarnation in sorted(self.draining.difference(but)))
        return [member.name for member in members if member.role is Role.ACTIVE]

    def is_world_draining(self) -> bool:
        """Whether a node of the last world drains, even if it has finished since."""
        return not self.draining.isdisjoint(self._ranks)

    def draining_count(self) -> int:
        """Number of nodes of the last world that have given up their places, or will."""
        return self.drained_count + sum(
            name in self._ranks and self.members[name].role is not Role.FINISHED for name in self.draining
        )

    def find(self, target: str) -> list[str]:
        """The live nodes that an operator means by an infra rank, an address or `address:pid`."""
        return [
            incarnation for incarnation, member in self.members.items() if target in operator_names(member.arrival.node)
        ]

    def describe(self, incarnation: str) -> str:
        """A live node's name, with its rank if it has one."""
        member = self.members[incarnation]
        rank = f" (rank {self._ranks[incarnation]})" if member.role in (Role.ACTIVE, Role.AWAITED) else ""
        return member.name + rank


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
