"""The one authority of a run: reads what nodes wrote, asks the pure decisions, publishes what follows.

Written as moves, so it performs nothing itself: `host` drives it on a TCPStore, the simulation on its own
store. One call of `tick` is one look at the world and every decision that follows from it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ft_rendezvous import board, journal, wire
from ft_rendezvous.core.lifecycle import Phase, RunStep, next_phase
from ft_rendezvous.core.liveness import LeaseTable
from ft_rendezvous.core.model import (
    AnyEvent,
    AnyRecord,
    AnyWhy,
    Arrival,
    Closed,
    FirstCycle,
    Goodbye,
    Head,
    Opened,
    Placement,
    Sealed,
    Seat,
    Verdict,
    View,
    fold,
    node_name,
)
from ft_rendezvous.core.moving import Close, OpenNext, Stay, decide_move
from ft_rendezvous.core.placement import place, rank_workers
from ft_rendezvous.core.roster import Fence, Roster
from ft_rendezvous.core.sealing import GiveUp, Seal, SealView, Wait, WaitReason, decide_seal
from ft_rendezvous.ports import Clock, Move
from ft_rendezvous.settings import RunSettings, format_endpoint
from ft_rendezvous.wire import Keys

RETRY_S = 0.002
"""First pause before a re-read when counts and records disagree; doubles up to a beat."""

FAREWELL_LOOK_S = 0.05
"""How often to look for goodbyes once the run is closed."""

REFUSED = "refused: "
"""Prefix of a fence's reason that tells the node not to come back."""


@dataclass(slots=True)
class Coordinator:
    """Owns every decision of a run: open, seal, place, declare dead, close."""

    settings: RunSettings
    epoch: str
    clock: Clock
    journal: journal.Journal
    keys: Keys = field(init=False)
    roster: Roster = field(init=False, default_factory=Roster)
    leases: LeaseTable = field(init=False)
    phase: Phase = field(init=False, default=Phase.OPEN)
    view: View = field(init=False)
    channels: int = field(init=False)
    readers: list[board.LogReader] = field(init=False, default_factory=list)
    """Logs still read, oldest cycle first: the current one, and those before it that are not deleted."""
    opened_by: dict[int, int] = field(init=False, default_factory=dict)
    """The event that opened each cycle whose keys are still in the store."""
    fenced_in: list[tuple[int, str]] = field(init=False, default_factory=list)
    """Whose fence keys are still in the store, and since which cycle."""
    deleted_events: int = field(init=False, default=0)
    opened_at: float | None = field(init=False, default=None)
    enough_since: float | None = field(init=False, default=None)
    disagrees_since: float | None = field(init=False, default=None)
    retry_s: float = field(init=False, default=RETRY_S)
    wait_reason: WaitReason | None = field(init=False, default=None)
    told_at: float = field(init=False, default=0.0)
    next_look_at: float = field(init=False, default=0.0)
    look_gap_s: float = field(init=False, default=0.0)

    def __post_init__(self) -> None:
        self.keys = Keys(self.epoch)
        self.leases = LeaseTable(self.settings.lease_s, self.settings.beat_s)
        self.look_gap_s = self.settings.beat_s / 4
        self.channels = wire.channel_count(self.settings.max_nodes)

    @property
    def cycle_id(self) -> int:
        return self.view.cycle_id

    @property
    def verdict(self) -> Verdict | None:
        return self.view.closed.verdict if self.view.closed else None

    @property
    def is_done(self) -> bool:
        """The run is closed and every node has said goodbye or lost its lease."""
        return self.phase is Phase.CLOSED and not self.roster.members

    # --- life ---------------------------------------------------------------------------------------

    def start(self) -> Move[None]:
        """Open the first cycle; who finds the store's head finds it open."""
        yield from self._open(FirstCycle())

    def tick(self) -> Move[float]:
        """Look once, decide, act. Returns when to look again if the bell stays silent."""
        yield from self._read_records()
        yield from self._judge_leases()
        wake_at = self.next_look_at
        if self.phase is Phase.OPEN:
            wake_at = min(wake_at, (yield from self._try_seal()))
        if self.phase is Phase.SEALED:
            yield from self._try_move()
        yield from self._sweep()
        return min(wake_at, self.clock() + FAREWELL_LOOK_S) if self.phase is Phase.CLOSED else wake_at

    def close(self, verdict: Verdict) -> Move[None]:
        """End the run for good. Nodes leave when they hear of it; the store stays until they have."""
        if self.phase is not Phase.CLOSED:
            self.phase = next_phase(self.phase, RunStep.CLOSE)
            closed = Closed(no=self.view.no + 1, verdict=verdict)
            yield from board.publish_closed(self.keys, closed, self._turn(closed))
            self.journal(journal.RunEnded(verdict))

    def _turn(self, event: AnyEvent) -> Head:
        """Take the next event into the view; returns the head to publish with it."""
        self.view = View(no=event.no, opened=event) if isinstance(event, Opened) else fold(self.view, event)
        settings = self.settings
        return Head(run_id=settings.run_id, epoch=self.epoch, settings=settings.as_dict(), view=self.view)

    # --- reading ------------------------------------------------------------------------------------

    def _read_records(self) -> Move[None]:
        reading = yield from board.read_logs(self.keys, self.readers)
        for bad in reading.bad:
            self.journal(journal.RecordRefused(self.cycle_id, bad))
        # Whoever leaves makes room first: a newcomer may come in its place, with its infra rank.
        leaving = {record.incarnation for record in reading.records if isinstance(record, Goodbye)}
        leaving &= self.roster.members.keys()
        for record in reading.records:
            if record.incarnation in leaving:
                yield from self._take(record)
        yield from self._admit(reading.records)
        for record in reading.records:
            if record.incarnation not in leaving:
                yield from self._take(record)
        now = self.clock()
        if self.readers[-1].is_consistent:
            self.disagrees_since, self.retry_s = None, RETRY_S
        elif self.disagrees_since is None:
            self.disagrees_since = now
        if self.opened_at is None and self.roster.members:
            self.opened_at = now

    def _admit(self, records: Sequence[AnyRecord]) -> Move[None]:
        """Take in newcomers, in the order they were counted: of two starts of one node the newer one stays."""
        arrivals = [
            record for record in records if isinstance(record, Arrival) and not self.roster.is_known(record.incarnation)
        ]
        newcomers = {arrival.incarnation: arrival for arrival in reversed(arrivals)}
        refused = yield from self._refuse_unfit(newcomers)
        for arrival in sorted(newcomers.values(), key=lambda arrival: (arrival.cycle_id, arrival.seq)):
            if arrival.incarnation not in refused:
                yield from self._take_newcomer(arrival)

    def _take_newcomer(self, arrival: Arrival) -> Move[None]:
        for fence in self.roster.take(arrival, self.cycle_id, is_open=self.phase is Phase.OPEN):
            yield from self._fence(fence)
        if arrival.incarnation in self.roster.members:
            self.leases.grant(arrival.incarnation, self.clock())
            is_spare = arrival.incarnation not in self.roster.arrived
            self.journal(journal.NodeJoined(self.cycle_id, node_name(arrival.node), is_spare))

    def _refuse_unfit(self, newcomers: Mapping[str, Arrival]) -> Move[set[str]]:
        """Turn away newcomers without a beat, whose lease could not be judged, and with other settings."""
        beating = yield from board.find_beating(self.keys, list(newcomers))
        digest = self.settings.digest
        refused: set[str] = set()
        for incarnation, arrival in newcomers.items():
            if incarnation not in beating:
                reason = "it arrived without a beat, so its lease could not be judged"
            elif arrival.node.digest != digest:
                reason = "its settings differ from the run's: use the same --nnodes and --rdzv-conf on all nodes"
            else:
                continue
            refused.add(incarnation)
            self.roster.fenced.add(incarnation)
            yield from self._fence(Fence(incarnation, node_name(arrival.node), reason, is_refusal=True))
        return refused

    def _take(self, record: AnyRecord) -> Move[None]:
        """Take in what a member says; whoever is not one, or not any more, is not heard."""
        member = self.roster.members.get(record.incarnation)
        if member is None:
            return
        name = member.name
        self.roster.take(record, self.cycle_id, is_open=self.phase is Phase.OPEN)
        if isinstance(record, Goodbye):
            self.leases.revoke(record.incarnation)
            yield from board.end_beat(self.keys, record.incarnation)
            self.journal(journal.NodeWent(self.cycle_id, name, record.outcome))

    def _judge_leases(self) -> Move[None]:
        started = self.clock()
        if started < self.next_look_at:
            return
        counters = yield from board.read_beats(self.keys, list(self.leases.leases))
        now = self.clock()
        self.leases.observe(counters, now, self.look_gap_s, self.view.no)
        for incarnation in self.leases.judge_leases(now):
            yield from self._drop(incarnation, f"no beat for {self.settings.lease_s:g} s")
        for incarnation in self.leases.judge_deaf(now):
            yield from self._drop(incarnation, "it beats, but it does not act upon events")
        # Reading beats costs the store in proportion to the nodes: spend about a tenth of the time on it. But look
        # several times per lease: a pause that falls between two looks and is not seen as one kills the living.
        gap_s = min(max(self.settings.beat_s / 4, 10 * (now - started)), self.settings.lease_s / 4)
        expiry = self.leases.first_expiry()
        self.next_look_at = now + gap_s if expiry is None else min(now + gap_s, expiry)
        self.look_gap_s = self.next_look_at - now

    def _drop(self, incarnation: str, reason: str) -> Move[None]:
        name = self.roster.members[incarnation].name
        self.roster.drop(incarnation)
        yield from self._fence(Fence(incarnation, name, reason, is_refusal=False))

    def _fence(self, fence: Fence) -> Move[None]:
        self.leases.revoke(fence.incarnation)
        prefix = REFUSED if fence.is_refusal else ""
        yield from board.fence(self.keys, fence.incarnation, prefix + fence.reason)
        self.fenced_in.append((self.cycle_id, fence.incarnation))
        self.journal(journal.NodeFenced(self.cycle_id, fence.node, fence.incarnation, fence.reason))

    # --- deciding and acting ------------------------------------------------------------------------

    def _try_seal(self) -> Move[float]:
        now = self.clock()
        if len(self.roster.arrived) < self.settings.min_nodes:
            self.enough_since = None
        elif self.enough_since is None:
            self.enough_since = now
        decision = decide_seal(self._seal_view(now), now, self.settings.seal_rules)
        match decision:
            case Seal():
                placement = place(self.roster.arrived, self.roster.world, self.settings.min_nodes)
                yield from self._seal(placement)
            case GiveUp():
                yield from self.close(Verdict(decision.kind, decision.reason))
            case Wait():
                self._tell_wait(decision.reason, now)
                return self._wake_for(decision, now)
        return now

    def _tell_wait(self, reason: WaitReason, now: float) -> None:
        """Journal a reason to wait when it changes in kind, and at most once a second when only in numbers."""
        is_other_kind = type(reason) is not type(self.wait_reason)
        if is_other_kind or (reason != self.wait_reason and now >= self.told_at + 1.0):
            self.wait_reason, self.told_at = reason, now
            self.journal(journal.CycleWaits(self.cycle_id, reason))

    def _wake_for(self, wait: Wait, now: float) -> float:
        if self.disagrees_since is None:
            return wait.until
        retry_at = now + self.retry_s
        self.retry_s = min(self.retry_s * 2, self.settings.beat_s)
        return min(wait.until, retry_at)

    def _seal_view(self, now: float) -> SealView:
        return SealView(
            opened_at=now if self.opened_at is None else self.opened_at,
            arrived=self.roster.arrived,
            awaited=self.roster.awaited,
            world=self.roster.world,
            joinable_count=self.roster.joinable_count(),
            finished_count=self.roster.finished_count,
            spent_count=self.roster.spent_count,
            left_count=self.roster.left_count,
            enough_since=self.enough_since,
            disagrees_since=self.disagrees_since,
        )

    def _try_move(self) -> Move[None]:
        decision = decide_move(len(self.roster.unfinished), self.roster.troubles)
        match decision:
            case Stay():
                pass
            case OpenNext():
                yield from self._open(decision.why)
            case Close():
                yield from self.close(decision.verdict)

    def _open(self, why: AnyWhy) -> Move[None]:
        is_first = not self.readers
        opened = Opened(
            no=1 if is_first else self.view.no + 1,
            cycle_id=1 if is_first else self.cycle_id + 1,
            shards=wire.shard_count(self.settings.max_nodes),
            ring_at=self.settings.min_nodes,
            channels=self.channels,
            why=why,
        )
        if not is_first:
            self.phase = next_phase(self.phase, RunStep.OPEN)
            self.roster.reopen()
            self.opened_at = self.clock()
        self.enough_since = self.disagrees_since = self.wait_reason = None
        yield from board.publish_opened(self.keys, opened, self._turn(opened))
        self.readers.append(board.LogReader(self.epoch, opened.cycle_id, opened.shards))
        self.opened_by[opened.cycle_id] = opened.no
        self.journal(journal.CycleOpened(opened.cycle_id, why))

    def _seal(self, placement: Placement) -> Move[None]:
        arrived = dict(self.roster.arrived)
        master = arrived[placement.ranks[0]]
        sealed = Sealed(
            no=self.view.no + 1,
            cycle_id=self.cycle_id,
            world_size=len(placement.ranks),
            counted=self.readers[-1].arrivals_counted,
            master_addr=master.bootstrap_addr,
            master_port=master.bootstrap_port,
        )
        self.phase = next_phase(self.phase, RunStep.SEAL)
        self.roster.seal(placement)
        yield from board.publish_sealed(self.keys, sealed, _seats(placement, arrived), self._turn(sealed))
        waited_s = self.clock() - (self.opened_at or 0.0)
        address = format_endpoint(sealed.master_addr, sealed.master_port)
        self.journal(journal.CycleSealed(self.cycle_id, placement, waited_s, address))

    # --- forgetting ---------------------------------------------------------------------------------

    def _sweep(self) -> Move[None]:
        """Delete events that every live node has acted upon, and cycles that nobody can look back to.

        A newcomer writes its arrival before it reads the head, so whoever is not in the log just read will
        start from an event that is not deleted here. A log is read once more after its second successor
        opened, because a newcomer may have written there until then.
        """
        acted = self.leases.acknowledged_by_all(self.deleted_events)
        done = min(acted, self.view.no - 1)
        yield from board.delete_events(self.keys, self.deleted_events + 1, done, self.channels)
        self.deleted_events = max(self.deleted_events, done)
        while self._is_forgotten(self.readers[0].cycle_id, acted):
            old = self.readers.pop(0)
            del self.opened_by[old.cycle_id]
            yield from board.delete_cycle(self.keys, old.cycle_id, old.shards)
        while self.fenced_in and self.fenced_in[0][0] < self.readers[0].cycle_id:
            yield from board.end_fence(self.keys, self.fenced_in.pop(0)[1])

    def _is_forgotten(self, cycle_id: int, acted: int) -> bool:
        is_old = self.view.sealed is not None and cycle_id < self.cycle_id - 1
        return is_old and self.opened_by[cycle_id + 1] <= acted


def _seats(placement: Placement, arrived: dict[str, Arrival]) -> dict[str, Seat]:
    workers = rank_workers([arrived[incarnation].node for incarnation in placement.ranks])
    seats = {
        incarnation: Seat(rank, workers[rank] if workers else None) for rank, incarnation in enumerate(placement.ranks)
    }
    return seats | {incarnation: Seat(None) for incarnation in placement.standbys}
