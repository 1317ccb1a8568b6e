"""Which nodes are in the run, and which of them are alive: takes in what nodes wrote, judges leases, fences.

Owns the roster, the leases, the suspects, the ledger and the book of losses. Decides nothing about cycles. Written as
moves, so it performs nothing itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.blame import FailureNote, Ledger
from ft_rendezvous.core.capacity import PlacementRules
from ft_rendezvous.core.effects import (
    CheckpointWritten,
    Effect,
    Fence,
    FenceCause,
    NodeExit,
    NodeFinish,
    NodeUnfit,
    UpdatesTold,
)
from ft_rendezvous.core.leases import LeaseTable, WorkersProgress
from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.losses import LossBook
from ft_rendezvous.core.model import (
    AnyRecord,
    Arrival,
    Goodbye,
    Late,
    NodeInfo,
    Placement,
    Request,
    Stacks,
    UpdateNews,
    Withdrawal,
    node_name,
)
from ft_rendezvous.core.roster import Roster, blame_keys
from ft_rendezvous.core.suspects import LifelineNews, SuspectTable
from ft_rendezvous.core.update_notes import ReportedUpdate
from ft_rendezvous.protocol import journal, moves
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.ops import Clock, Move
from ft_rendezvous.protocol.stored_cycles import StoredCycles

PROGRESS_SHOWN = 64
"""How many nodes the journal names with their progress, once per lease."""


@dataclass(slots=True)
class Asked:
    """What nodes and operators ask the coordinator for, in one read."""

    requests: list[Request] = field(default_factory=list)
    checkpoints: set[int] = field(default_factory=set)
    """Groups in which a worker of the current cycle has written a checkpoint."""
    late: list[Late] = field(default_factory=list)
    stacks: list[Stacks] = field(default_factory=list)


@dataclass(slots=True)
class Membership:
    """The roster, the leases, the suspects, the ledger and the book of losses, as of the last look."""

    settings: RunSettings
    keys: Keys
    stored: StoredCycles
    clock: Clock
    journal: journal.Journal
    count_operations: Callable[[], int] = lambda: 0
    take_lifeline_news: Callable[[], Sequence[LifelineNews]] = tuple
    """What the host has seen of lifelines since the last call."""
    roster: Roster = field(init=False)
    rules: PlacementRules = field(init=False)
    leases: LeaseTable = field(init=False)
    suspects: SuspectTable = field(init=False)
    ledger: Ledger = field(init=False)
    losses: LossBook = field(init=False)
    cycle_id: int = field(init=False, default=0)
    """The last common cycle."""
    is_open: bool = field(init=False, default=True)
    """Whether arrivals in that cycle count."""
    stays_until: float = field(init=False, default=float("-inf"))
    """Until when a node that was given up in the exit barrier may come for the verdict."""
    next_look_at: float = field(init=False, default=float("-inf"))
    look_gap_s: float = field(init=False, default=0.0)
    looked_at: float = field(init=False, default=float("-inf"))
    """When the journal last heard that the coordinator looks."""
    stalled_in: int = field(init=False, default=0)
    """The last common cycle in which the coordinator stood still for so long that nodes may have stopped workers."""
    stalled_at: float = field(init=False, default=float("-inf"))
    """When that was noticed."""
    silent: set[str] = field(init=False, default_factory=set)
    """Nodes whose lease is half over."""
    parked: set[str] = field(init=False, default_factory=set)
    """Live nodes that the journal knows to be parked."""

    def __post_init__(self) -> None:
        self.rules = self.settings.placement_rules
        self.roster = Roster(max_nodes=self.settings.max_nodes, has_groups=self.settings.group_size > 0)
        self.leases = LeaseTable(self.settings.lease_s, self.settings.beat_s)
        self.suspects = SuspectTable(self.settings.lifeline_grace_s)
        self.ledger = Ledger(self.settings.blame_rules)
        self.losses = LossBook(self.settings.loss_rules)
        self.look_gap_s = self.settings.beat_s / 4

    def begin_cycle(self, cycle_id: int) -> None:
        """A common cycle is open: arrivals in it count. Nodes of the last worlds are awaited."""
        if self.cycle_id:
            self.roster.reopen()
        self.cycle_id, self.is_open = cycle_id, True

    def seal(self, placement: Placement) -> None:
        """The common cycle is sealed: nodes have their places, and arrivals do not count any more."""
        self.roster.seal(placement, self.cycle_id)
        self.is_open = False

    # --- what nodes wrote ---------------------------------------------------------------------------

    def take(self, reading: moves.Reading) -> Move[Asked]:
        """Take in everything that is new. Returns what the coordinator is asked for."""
        asked = Asked()
        for bad in reading.bad:
            self.journal(journal.RecordRefused(cycle_id=self.cycle_id, record=bad))
        # A node that leaves makes room first: a newcomer may come in its place, with its infra rank.
        leaving = {record.incarnation for record in reading.records if isinstance(record, Goodbye | Withdrawal)}
        if leaving:
            leaving -= {arrival.incarnation for arrival in self._newcomers(reading.records)}
        for record in reading.records:
            if record.incarnation in leaving:
                yield from self._take(record, asked)
        admitted = yield from self._admit(reading.records)
        for record in reading.records:
            if record.incarnation not in leaving and id(record) not in admitted:
                yield from self._take(record, asked)
        self._tell_arrived(reading.records)
        return asked

    def _take(self, record: AnyRecord, asked: Asked) -> Move[None]:
        was_member = record.incarnation in self.roster.members
        for effect in self.roster.take(record, self.cycle_id, self.is_open):
            yield from self._act(effect, asked)
        if was_member and record.incarnation not in self.roster.members:
            self._forget(record.incarnation)
            yield from moves.end_beat(self.keys, record.incarnation)

    def _act(self, effect: Effect, asked: Asked) -> Move[None]:
        """Do what follows from a record, and journal it."""
        cycle_id = self.cycle_id if not isinstance(effect, NodeFinish) else self.cycle_of(effect.incarnation)
        match effect:
            case Fence():
                yield from self.fence(effect)
            case FailureNote() if self.ledger.note(effect):
                self.journal(journal.WorkersEnded(failure=effect))
            case NodeFinish(incarnation, node):
                self.journal(journal.NodeFinished(cycle_id=cycle_id, incarnation=incarnation, node=node))
            case NodeUnfit(incarnation, node, reason):
                entry = journal.NodeUnhealthy(cycle_id=cycle_id, incarnation=incarnation, node=node, reason=reason)
                self.journal(entry)
            case NodeExit():
                self.journal(
                    journal.NodeWent(
                        cycle_id=cycle_id,
                        incarnation=effect.incarnation,
                        node=effect.node,
                        role=effect.role,
                        outcome=effect.outcome,
                        reason=effect.reason,
                    )
                )
            case UpdatesTold(node, news):
                self.journal(_reported(node, news))
            case CheckpointWritten():
                asked.checkpoints.add(effect.group)
            case Request():
                asked.requests.append(effect)
            case Late():
                asked.late.append(effect)
            case Stacks():
                asked.stacks.append(effect)

    def _tell_arrived(self, records: Sequence[AnyRecord]) -> None:
        for role, arrived in ((Role.ARRIVED, self.roster.arrived), (Role.STANDBY, self.roster.ready)):
            news = [record for record in records if arrived.get(record.incarnation) is record] if arrived else []
            if news:
                names = tuple(record.incarnation for record in news)
                self.journal(journal.NodesArrived(cycle_id=news[-1].cycle_id, incarnations=names, role=role))

    def _admit(self, records: Sequence[AnyRecord]) -> Move[set[int]]:
        """Take in newcomers, in the order they were counted: of two starts of one node the newer one stays.

        Returns the ids of the record objects that this took in.
        """
        newcomers = {arrival.incarnation: arrival for arrival in reversed(self._newcomers(records))}
        refused = yield from self._refuse_unfit(newcomers)
        for arrival in sorted(newcomers.values(), key=lambda arrival: (arrival.cycle_id, arrival.seq)):
            if arrival.incarnation not in refused:
                yield from self._take_newcomer(arrival)
        return {id(arrival) for arrival in newcomers.values()}

    def _newcomers(self, records: Sequence[AnyRecord]) -> list[Arrival]:
        return [
            record for record in records if isinstance(record, Arrival) and not self.roster.is_known(record.incarnation)
        ]

    def _take_newcomer(self, arrival: Arrival) -> Move[None]:
        if unlike := self._unlike_others(arrival.node):
            self.roster.refuse(arrival.incarnation)
            yield from self.fence(Fence(arrival.incarnation, node_name(arrival.node), FenceCause.REFUSED, unlike))
            return
        for effect in self.roster.take(arrival, self.cycle_id, self.is_open):
            yield from self._act(effect, Asked())
        if arrival.incarnation in self.roster.members:
            self.leases.grant(arrival.incarnation, self.clock())
            is_spare = arrival.incarnation not in self.roster.arrived
            self.journal(_joined(self.cycle_id, arrival, is_spare))

    def _refuse_unfit(self, newcomers: Mapping[str, Arrival]) -> Move[set[str]]:
        """Turn away newcomers without a beat, whose lease could not be judged, and those that cannot be placed."""
        beating = yield from moves.find_beating(self.keys, list(newcomers))
        now = self.clock()
        refused: set[str] = set()
        for incarnation, arrival in newcomers.items():
            if incarnation not in beating:
                reason = "it arrived without a beat, so its lease could not be judged"
            elif lacking := self._lacking(arrival.node):
                reason = f"{node_name(arrival.node)} has no {lacking}, and this run needs one: see ftr docs placement"
            elif left_s := max(self.ledger.quarantined_for(key, now) for key in blame_keys(arrival)):
                reason = f"{node_name(arrival.node)} is in quarantine for another {left_s:.0f} s"
            else:
                continue
            refused.add(incarnation)
            self.roster.refuse(incarnation)
            yield from self.fence(Fence(incarnation, node_name(arrival.node), FenceCause.REFUSED, reason))
        return refused

    def _unlike_others(self, node: NodeInfo) -> str:
        """Why a node's workers would be numbered wrongly; empty if they would not."""
        if not self.settings.has_identical_workers or not self.roster.members:
            return ""
        other = next(iter(self.roster.members.values())).arrival.node
        mine, theirs = (node.role, node.local_world_size), (other.role, other.local_world_size)
        if mine == theirs or None in (mine[1], theirs[1]):
            return ""
        return (
            f"identical_workers is set, and {node_name(node)} has {mine[1]} workers of role {mine[0]} where "
            f"{node_name(other)} has {theirs[1]} of role {theirs[0]}: make them alike, or identical_workers=false"
        )

    def _lacking(self, node: NodeInfo) -> str:
        """What a node must say about where it is, and does not."""
        rules = self.rules
        if rules.needs_domain and node.domain_id is None:
            return "domain"
        return "unit" if rules.needs_unit and node.unit_id is None else ""

    def _forget(self, incarnation: str) -> None:
        """Whether it lives does not matter any more."""
        self.leases.revoke(incarnation)
        self.suspects.forget(incarnation)

    # --- who is alive -------------------------------------------------------------------------------

    def judge_suspects(self) -> Move[None]:
        """Take the news of lifelines, and drop the suspected nodes that are dead.

        The logs were read before: an incarnation that the news name has written its arrival or goodbye by then, or
        does so within the grace.
        """
        news = self.take_lifeline_news()
        if news:
            self.suspects.take(news, self.clock())
        while due := self.suspects.due(self.roster.members, self.clock()):
            counters = yield from moves.read_beats(self.keys, due)
            for incarnation in self.suspects.judge(counters, self.clock()):
                yield from self._drop(incarnation, FenceCause.LOST, self._describe_death(incarnation))

    def _describe_death(self, incarnation: str) -> str:
        if self.suspects.suspects[incarnation].is_certain:
            return "its agent has ended without a goodbye"
        grace_s = self.settings.lifeline_grace_s
        return f"its process has ended: its lifeline hung up, and for {grace_s:g} s it neither connected again nor beat"

    def judge_leases(self, published: int) -> Move[float]:
        """Look at the beats when it is time to; `published` is the newest event. Returns how late this came."""
        started = self.clock()
        if started < self.next_look_at:
            return 0.0
        counters = yield from moves.read_beats(self.keys, list(self.leases.leases))
        now = self.clock()
        self.leases.observe(counters, now, self.look_gap_s, published)
        if self.leases.stall_s:
            self.stalled_in, self.stalled_at = self.cycle_id, now
        for incarnation in self.leases.judge_leases(now):
            yield from self._drop(incarnation, FenceCause.LOST, f"no beat for {self.settings.lease_s:g} s")
        for incarnation in self.leases.judge_deaf(now):
            yield from self._drop(incarnation, FenceCause.DEAF, "it beats, but it does not act upon events")
        # Reading beats costs the store in proportion to the nodes: spend about a tenth of the time on it. But look
        # several times per lease: a pause that falls between two looks and is not seen as one kills the living.
        gap_s = min(max(self.settings.beat_s / 4, 10 * (now - started)), self.settings.lease_s / 4)
        expiry = self.leases.first_expiry()
        self.next_look_at = now + gap_s if expiry is None else min(now + gap_s, expiry)
        self.look_gap_s = self.next_look_at - now
        self._tell_leases(now, 0.0 if expiry is None else now - (expiry - self.settings.lease_s))
        return self.leases.paused_s

    def _tell_leases(self, now: float, oldest_s: float) -> None:
        """Journal which nodes fall silent and which are heard again; and once per lease, that the coordinator looks."""
        self.silent &= self.leases.leases.keys()
        if oldest_s >= self.settings.lease_s / 2 or self.silent:
            silent = self.leases.judge_silent(now)
            heard, news = self.silent - silent.keys(), silent.keys() - self.silent
            self.silent = set(silent)
            if heard:
                self.journal(journal.NodesHeard(cycle_id=self.cycle_id, incarnations=tuple(sorted(heard))))
            if news:
                silent_s = {name: silent[name] for name in sorted(news)}
                self.journal(journal.NodesSilent(cycle_id=self.cycle_id, silent_s=silent_s))
        if now >= self.looked_at + self.settings.lease_s:
            self.looked_at = now
            live, performed = len(self.roster.members), self.count_operations()
            looked = journal.Looked(cycle_id=self.cycle_id, live=live, oldest_s=oldest_s, operations=performed)
            if self.settings.hang_rules.is_on:
                active = [name for name, member in self.roster.members.items() if member.role is Role.ACTIVE]
                looked = _add_progress(looked, self.leases.find_progress(active), len(active))
            self.journal(looked)

    def _drop(self, incarnation: str, cause: FenceCause, reason: str) -> Move[None]:
        name, role = self.roster.describe(incarnation), self.roster.members[incarnation].role
        cycle_id = self.cycle_of(incarnation)
        if role is Role.FINISHED:
            # It has done its part, and may only be slow to come for the verdict.
            self.stays_until = self.clock() + self.settings.store_grace_s
        self.roster.drop(incarnation)
        silent_s = self.leases.ages((incarnation,), self.clock()).get(incarnation, 0.0)
        yield from self.fence(Fence(incarnation, name, cause, reason, silent_s, cycle_id))

    def book_losses(self) -> None:
        """Park nodes that were lost too often, and end the parking of those whose time is over."""
        now = self.clock()
        for loss in self.roster.losses:
            if self.losses.note(loss.key, now):
                self._tell_parked(loss.incarnation, loss.node, self.losses.until[loss.key] - now)
        self.roster.losses.clear()
        self.roster.park(self.losses.parked(now))
        if self.parked != self.roster.parked:
            self._tell_parkings(now)

    def _tell_parkings(self, now: float) -> None:
        """Journal which live nodes are parked now, and which are not any more."""
        members, before = self.roster.members, self.parked
        self.parked = set(self.roster.parked)
        for incarnation in sorted(self.parked - before):
            arrival = members[incarnation].arrival
            ends = [self.losses.until[key] for key in blame_keys(arrival) if key in self.losses.until]
            self._tell_parked(incarnation, node_name(arrival.node), max(ends) - now)
        for incarnation in sorted(before - self.parked):
            if incarnation in members:
                name = members[incarnation].name
                self.journal(journal.NodeUnparked(cycle_id=self.cycle_id, incarnation=incarnation, node=name))

    def _tell_parked(self, incarnation: str, name: str, for_s: float) -> None:
        rules = self.losses.rules
        self.journal(
            journal.NodeParked(
                cycle_id=self.cycle_id,
                incarnation=incarnation,
                node=name,
                losses=rules.max_node_losses,
                within_s=rules.window_s,
                for_s=for_s,
            )
        )

    def cycle_of(self, incarnation: str) -> int:
        """The cycle of the group in which a node trains, or the last common one."""
        world = self.roster.world_of(incarnation) if self.roster.has_groups else None
        return self.cycle_id if world is None else world.cycle_id

    def quarantine(self, bad: FailureNote) -> Move[bool]:
        """Fence a node that was the first to fail too often, under every incarnation. False if it is away.

        A blamed node that is away is refused when it comes back.
        """
        found, reason = self.roster.find_blamed(bad), self.ledger.explain_quarantine(bad)
        for incarnation in found:
            name = self.roster.members[incarnation].name
            self.roster.drop(incarnation, is_loss=False)
            yield from self.fence(Fence(incarnation, name, FenceCause.QUARANTINED, reason))
        return bool(found)

    def fence(self, fence: Fence) -> Move[None]:
        """End an incarnation: nothing it says counts any more."""
        self._forget(fence.incarnation)
        prefix = moves.REFUSED if fence.cause.is_refusal else ""
        yield from self.stored.fence(fence.incarnation, prefix + fence.reason)
        self.journal(
            journal.NodeFenced(
                cycle_id=self.cycle_id if fence.cycle_id is None else fence.cycle_id,
                incarnation=fence.incarnation,
                node=fence.node,
                cause=fence.cause,
                reason=fence.reason,
                silent_s=fence.silent_s,
            )
        )


def _add_progress(looked: journal.Looked, found: Mapping[str, WorkersProgress], active: int) -> journal.Looked:
    """How far the nodes are that train. Of many nodes, those that wait for longest are named."""
    slowest = sorted(found.items(), key=lambda item: (-item[1].age_s, item[1].step or 0, item[0]))
    named = {
        name: journal.ToldProgress(progress.step, progress.age_s, progress.rank)
        for name, progress in slowest[:PROGRESS_SHOWN]
    }
    rest = [progress for _, progress in slowest[PROGRESS_SHOWN:]]
    others = None
    if rest and len(found) == active:
        steps = [progress.step for progress in rest if progress.step is not None]
        others = journal.ToldProgress(min(steps) if len(steps) == len(rest) else None, rest[0].age_s)
    timeouts = [each.late_after_s for each in found.values() if each.late_after_s is not None]
    late_after_s = max(timeouts, default=None)
    return msgspec.structs.replace(looked, progress=named, others=others, late_after_s=late_after_s)


def _joined(cycle_id: int, arrival: Arrival, is_spare: bool) -> journal.NodeJoined:
    node = arrival.node
    return journal.NodeJoined(
        cycle_id=cycle_id,
        incarnation=arrival.incarnation,
        node=node_name(node),
        is_spare=is_spare,
        addr=node.addr,
        pid=node.pid,
        infra_rank=node.infra_rank,
        domain=node.domain_id,
        unit=node.unit_id,
        worker_role=node.role,
        workers=node.local_world_size,
    )


def _reported(node: str, news: UpdateNews) -> journal.UpdatesReported:
    return journal.UpdatesReported(
        cycle_id=news.worker_cycle_id,
        incarnation=news.incarnation,
        node=node,
        **msgspec.structs.asdict(news.sums),
        told=tuple(ReportedUpdate(**msgspec.structs.asdict(note)) for note in news.notes),
    )
