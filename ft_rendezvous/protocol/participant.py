"""One node's side of the protocol: arrive, learn the seat, beat, watch, report, say goodbye.

Written as moves and routines; performs nothing itself. A node's loop owns it and runs its code one step at a time, so
there are no races inside it. Between any two operations everything may have changed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ft_rendezvous.core.leases import Pulse, WorkersProgress
from ft_rendezvous.core.model import (
    Arrival,
    Called,
    Checkpoint,
    Failure,
    Finish,
    Goodbye,
    GroupForms,
    Head,
    Inquired,
    Late,
    NodeInfo,
    NoGroupTrains,
    Opened,
    Outcome,
    Request,
    RequestKind,
    Stacks,
    Verdict,
    View,
    Withdrawal,
    WorkerRanks,
    WorkersHang,
    fold_for,
)
from ft_rendezvous.core.node_step import (
    Arrive,
    Drained,
    GiveUpPlace,
    Leave,
    Park,
    Progress,
    ReportFailure,
    TakeSeat,
    WorkerExit,
    decide_step,
    find_seals,
    is_superseded,
    watch_from,
)
from ft_rendezvous.core.progress import LateRank
from ft_rendezvous.core.stacks import RankStack, trim
from ft_rendezvous.core.update_notes import UpdateNote
from ft_rendezvous.errors import Refused
from ft_rendezvous.protocol import codec, moves
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.ops import CHANGED, Check, Clock, Move, Routine
from ft_rendezvous.protocol.update_queue import LAST_RECORDS, UpdateQueue
from ft_rendezvous.text import NAMED, one_line

MAX_PAUSE_CHARS = 60
"""Of the reason for a pause in a record."""


@dataclass(frozen=True, slots=True)
class Place:
    """A rank in a sealed cycle, and where its workers meet."""

    cycle_id: int
    incarnation: str
    rank: int
    world_size: int
    master_addr: str
    master_port: int
    workers: WorkerRanks | None
    group: int = 0
    group_count: int = 1


@dataclass(slots=True)
class Participant:
    """The state of one node. Its incarnation changes when the coordinator fences it.

    Only its owner, a node's loop, reads or writes its fields.
    """

    epoch: str
    node: NodeInfo
    lease_s: float
    clock: Clock
    new_incarnation: Callable[[], str]
    hold_bootstrap: Callable[[int, str], int]
    """Port of a listening socket that this node holds for the given cycle and incarnation."""
    on_enlisted: Callable[[], None] = lambda: None
    """Called when a new incarnation knows the view: time to watch for its next event."""
    on_drain: Callable[[], None] = lambda: None
    """Called when this node is asked to give up its place."""
    on_group_ended: Callable[[int, str], None] = lambda _group, _reason: None
    """Called while this node has a place, when a group ends, its own or another one: with that group and the reason."""
    on_inquiry: Callable[[int, int], None] = lambda _cycle_id, _no: None
    """Called while this node has a place, when the coordinator asks where its workers are: with cycle and event."""
    read_progress: Callable[[], WorkersProgress | None] = lambda: None
    """How far the workers of this node are, if that is watched. Every beat says it."""
    greeted: View | None = None
    """The run as it stood when this node found it: spares the first incarnation a read."""

    keys: Keys = field(init=False)
    incarnation: str = field(init=False, default="")
    view: View | None = field(init=False, default=None)
    announced_in: Opened | None = field(init=False, default=None)
    """The opening of the cycle in which this incarnation last arrived, or was about to."""
    placed_in: Opened | None = field(init=False, default=None)
    """The opening of the cycle in which this node last took a place: what its workers did belongs to that log."""
    pulse: Pulse = field(init=False)
    progress: Progress = field(init=False, default_factory=Progress)
    seq: int = field(init=False, default=0)
    wants_drain: bool = field(init=False, default=False)
    """This process asked to go: it does not come back under a new incarnation, heard or not."""
    is_draining: bool = field(init=False, default=False)
    """This process is to give up its place, and the run knows."""
    worker_exit: WorkerExit | None = field(init=False, default=None)
    """The first failure of the workers in the last place taken, if the agent saw it."""
    told_checkpoint: int = field(init=False, default=0)
    """The last call that was answered with a checkpoint."""
    updates: UpdateQueue = field(init=False, default_factory=UpdateQueue)
    """What workers have reported of updates, and the run has not heard of."""
    doubted_in: int = field(init=False, default=0)
    """The last cycle whose workers had to stop because the lease was in doubt."""
    has_left: bool = field(init=False, default=False)
    has_lapsed: bool = field(init=False, default=False)
    """An event was deleted before this incarnation read it: it hears no more events."""

    def __post_init__(self) -> None:
        self.keys = Keys(self.epoch)
        # Nothing may be assumed before the first incarnation has begun.
        self.pulse = Pulse(self.lease_s, alive_until=float("-inf"))

    # --- what others ask without any operation ------------------------------------------------------

    @property
    def verdict(self) -> Verdict | None:
        return self.view.closed.verdict if self.view is not None and self.view.closed is not None else None

    @property
    def is_going(self) -> bool:
        """Whether this process is to give up its place, though the run may not have heard of it."""
        return self.is_draining or self.wants_drain

    @property
    def is_listening(self) -> bool:
        """Whether this incarnation waits for events."""
        is_over = self.has_left or self.has_lapsed or self.pulse.is_fenced
        return self.view is not None and self.view.closed is None and not is_over

    @property
    def lifeline_name(self) -> str:
        """The incarnation for which the host should hold a lifeline; empty if it should not."""
        has_joined = self.view is not None and not self.has_left and not self.pulse.is_fenced
        return self.incarnation if has_joined else ""

    @property
    def has_outdated_workers(self) -> bool:
        """Whether an event has ended the cycle of the last place taken, and the run goes on without its workers."""
        view, trained_in = self.view, self.progress.trained_in
        return view is not None and view.closed is None and 0 < trained_in < view.cycle_id

    @property
    def training_in(self) -> int:
        """The cycle in which workers of this node train, as far as it knows; 0 if none do."""
        mine, view = self.progress, self.view
        is_over = view is None or view.closed is not None or self.has_left or self.worker_exit is not None
        has_said = max(mine.reported_in, mine.finished_in) >= mine.trained_in
        return 0 if is_over or has_said or self.has_ended(mine.trained_in) else mine.trained_in

    def is_trusted(self) -> bool:
        """Whether this incarnation may assume that its place still counts."""
        return not self.has_lapsed and self.pulse.is_trusted(self.clock())

    def describe_wait(self) -> str:
        """What a resting node waits for."""
        if self.view is None:
            return "joining the run"
        cycle_id, mine = self.view.cycle_id, self.progress
        if self.is_draining:
            return f"draining in cycle={cycle_id}: waiting for another node to take over"
        if mine.finished_in:
            return f"finished in cycle={mine.finished_in}: waiting for the other nodes"
        if self.view.sealed is None:
            return f"arrived in cycle={cycle_id}: waiting for the seal"
        if mine.trained_in == cycle_id:
            return f"stopped in cycle={cycle_id}: waiting for the next cycle"
        return f"spare in cycle={cycle_id}: waiting for the next cycle, or the end of the run"

    def must_stop(self, cycle_id: int) -> bool:
        """Whether workers of this cycle must stop: it is over, or this node cannot know that it is not.

        The agent stops its workers when it hears this once, so the answer stays the same for that cycle, even if a late
        reply renews the lease.
        """
        if not self.is_trusted():
            self.doubted_in = max(self.doubted_in, cycle_id)
        return self.view is None or self.doubted_in >= cycle_id or is_superseded(self.view, cycle_id)

    def why_stop(self) -> str:
        """Why workers must stop, if they must."""
        if self.view is not None and self.view.closed is not None:
            return f"the run is over: {self.view.closed.verdict}"
        if self.pulse.is_fenced:
            return "the coordinator has fenced this node, and gives its place away"
        if self.has_lapsed:
            return "this node missed an event of the run: its place may be given away"
        if self.view is None or not self.is_trusted() or self.doubted_in >= self.view.cycle_id:
            cause = "the store was silent, or this node stood still"
            return f"this node could not renew its lease for {self.lease_s:g} s: {cause}; its place may be given away"
        return str(self.view.opened.why)

    # --- taking part --------------------------------------------------------------------------------

    def next_place(self) -> Routine[Place | Verdict | Drained]:
        """Take part until this node has a rank in a cycle that still stands, may go, or the run is closed."""
        while True:
            if not self.is_trusted():
                if self.is_going:
                    return Drained()
                yield from self._renew()
            assert self.view is not None
            decision = decide_step(self.view, self.progress, self.incarnation, self.is_draining)
            match decision:
                case Leave():
                    return decision.verdict
                case GiveUpPlace():
                    return Drained()
                case Arrive():
                    yield from self._arrive(self.view.opened)
                case ReportFailure() if self.doubted_in >= decision.cycle_id and self.worker_exit is None:
                    yield from self._report_doubt(decision.cycle_id)
                case ReportFailure():
                    yield from self.report_failure(decision.cycle_id)
                case TakeSeat():
                    self.progress.trained_in = self.progress.arrived_in = decision.sealed.cycle_id
                    self.placed_in = self.view.opened
                    self.worker_exit = None
                    return self._place_of(decision)
                case Park():
                    yield CHANGED

    def await_verdict(self) -> Routine[Verdict]:
        """Wait for the run's end without taking part any more.

        Only nodes with a lease hear events. A node that lost its lease while it waits here reads the head instead, once
        per beat: its work is done and counts, and it must hear the verdict.
        """
        while self.verdict is None:
            if self.has_lapsed or self.pulse.is_fenced:
                head = yield from moves.read_head()
                if head.view.closed is not None:
                    self.view = head.view
                    continue
            yield CHANGED
        return self.verdict

    def await_end(self, cycle_id: int) -> Routine[Verdict]:
        """Wait for the run's end after the workers of this cycle ended well, also if the exit barrier has failed."""
        yield from self.finish(cycle_id)
        return (yield from self.await_verdict())

    def _renew(self) -> Move[None]:
        """Find out whether this incarnation is over, and begin a new one if so."""
        if self.incarnation and not self.pulse.is_fenced:
            yield from self.beat()
        if self.pulse.is_fenced:
            reason = yield from moves.read_fence(self.keys, self.incarnation)
            if reason is not None and reason.startswith(moves.REFUSED):
                raise Refused(reason.removeprefix(moves.REFUSED))
        elif self.has_lapsed:
            yield from self.goodbye(Outcome.LEFT, "it missed an event and begins again")
        elif self.incarnation:
            return
        yield from self._enlist()

    def _enlist(self) -> Move[None]:
        """Begin a new incarnation: beat, arrive, and only then read from which event to watch.

        The order protects the watch: the coordinator keeps every event published after it last read a log without this
        node in it. Two cycles may pass while this node is slow; then the coordinator no longer reads the log with its
        arrival, and it arrives again.
        """
        self.incarnation, self.view, self.announced_in = self.new_incarnation(), None, None
        self.pulse = Pulse(self.lease_s, alive_until=self.clock() + self.lease_s)
        self.progress, self.has_lapsed, self.has_left = Progress(), False, False
        yield from self.beat()
        before, self.greeted = self.greeted, None
        while True:
            if before is None:
                before = (yield from moves.read_head()).view
            if before.closed is None:
                yield from self._arrive(before.opened)
            head = yield from moves.read_head()
            if head.view.cycle_id - before.cycle_id <= 1:
                self.view = watch_from(head.view, (yield from self._find_seal(head)))
                self.on_enlisted()
                return
            before = None

    def _find_seal(self, head: Head) -> Move[int | None]:
        """The first seal that may have a seat for this node.

        The coordinator keeps the events of seals for the nodes that it knows. An event that is gone was deleted before
        the coordinator had read this node's arrival. So it has no seat for this node, and a read of it would block for
        ever. The last event is never deleted.
        """
        channel = codec.spread(self.incarnation, head.view.opened.channels)
        for no in find_seals(head.view, self.progress.arrived_in, self.seq, head.seals):
            if no == head.view.no or (yield Check([self.keys.event(no, channel)])):
                return no
        return None

    def _arrive(self, opened: Opened) -> Move[None]:
        port = self.hold_bootstrap(opened.cycle_id, self.incarnation)
        self.announced_in = opened
        self.seq = yield from moves.count_arrival(self.keys, opened)
        self.progress.arrived_in = opened.cycle_id
        arrival = Arrival(
            cycle_id=opened.cycle_id,
            incarnation=self.incarnation,
            seq=self.seq,
            node=self.node,
            bootstrap_port=port,
        )
        yield from moves.write_arrival(self.keys, opened, arrival)

    def _place_of(self, taken: TakeSeat) -> Place:
        sealed, seat = taken.sealed, taken.seat
        assert seat.rank is not None
        master = sealed.masters[seat.group]
        return Place(
            cycle_id=sealed.cycle_id,
            incarnation=self.incarnation,
            rank=seat.rank,
            world_size=sealed.world_size,
            master_addr=master.addr,
            master_port=master.port,
            workers=seat.workers,
            group=seat.group,
            group_count=sealed.group_count,
        )

    # --- what this node says while it trains --------------------------------------------------------

    def _report_doubt(self, cycle_id: int) -> Move[None]:
        """Ask for the next cycle because this node stopped healthy workers. No node is to blame for that."""
        yield from self.ask(RequestKind.RESTART, "it was out of touch with the store and stopped its workers")
        self.progress.reported_in = cycle_id

    def report_exit(self, cycle_id: int, end: WorkerExit) -> Move[None]:
        """Say how the first worker of this node failed."""
        if self.progress.trained_in != cycle_id:
            return  # A late report. What it says is not about the workers of the place that this node has now.
        if self.worker_exit is None:
            self.worker_exit = end
        yield from self.report_failure(cycle_id)

    def report_failure(self, cycle_id: int) -> Move[None]:
        """Say that the workers of a cycle failed, once; the sooner it is said, the sooner the others stop."""
        if self.view is None or self.has_left or self.progress.reported_in >= cycle_id:
            return
        if self.progress.trained_in != cycle_id:
            return
        end = self.worker_exit or WorkerExit("workers failed")
        failure = Failure(
            cycle_id=cycle_id,
            incarnation=self.incarnation,
            reason=one_line(end.reason),
            rank=end.rank,
            exit_code=end.exit_code,
            after_s=end.after_s,
            log_path=end.log_path,
            last_words=end.last_words,
        )
        assert self.placed_in is not None
        yield from moves.write_record(self.keys, self.placed_in, failure)
        self.progress.reported_in = cycle_id

    def ask(self, kind: RequestKind, reason: str) -> Move[None]:
        """Ask the coordinator for a restart, or to be drained."""
        if self.view is None or self.has_left or self.view.closed is not None:
            return
        request = Request(
            cycle_id=self.view.cycle_id,
            incarnation=self.incarnation,
            kind=kind,
            reason=one_line(reason),
        )
        yield from moves.write_record(self.keys, self.view.opened, request)

    def ask_restart(self, cycle_id: int, reason: str) -> Move[None]:
        """Ask for the next cycle because a worker of this one wants it. A cycle that is over needs no such request."""
        if self.view is not None and self.view.cycle_id == cycle_id:
            yield from self.ask(RequestKind.RESTART, reason)

    def ask_drain(self, reason: str) -> Move[None]:
        """Give up this node's place: at once if it has none, else when the coordinator says so."""
        self.wants_drain = True
        if self.view is not None and self.progress.trained_in > 0:
            yield from self.ask(RequestKind.DRAIN, reason)
        elif not self.is_draining:
            self.is_draining = True
            self.on_drain()

    def tell_checkpoint(self, cycle_id: int) -> Move[None]:
        """Say that a checkpoint was written, if the coordinator waits for one."""
        called = self.view.called if self.view is not None else None
        if called is None or called.cycle_id != cycle_id or self.told_checkpoint >= called.no or self.has_left:
            return
        assert self.view is not None
        self.told_checkpoint = called.no
        checkpoint = Checkpoint(cycle_id=cycle_id, incarnation=self.incarnation)
        yield from moves.write_record(self.keys, self.view.opened, checkpoint)

    def note_update(self, cycle_id: int, note: UpdateNote) -> None:
        """A worker of a cycle reports an update. It is passed on later, and wakes no thread."""
        self.updates.add(cycle_id, note)

    def tell_updates(self, now: float, beat_s: float) -> Move[None]:
        """Pass on what workers have reported of updates, if it is time to. No bell: it can wait."""
        if not self.has_left and self.is_trusted() and self.updates.is_due(now, beat_s, self.lease_s):
            yield from self._write_updates(now)

    def _tell_last_updates(self) -> Move[None]:
        """The same, before this node says that its part has ended."""
        is_heard = not (self.has_lapsed or self.pulse.is_fenced)
        for _ in range(LAST_RECORDS if is_heard else 0):
            yield from self._write_updates(self.clock())

    def _write_updates(self, now: float) -> Move[None]:
        if self.view is None:
            return
        news = self.updates.take(now, self.view.cycle_id, self.incarnation)
        if news is not None:
            yield from moves.write_record(self.keys, self.view.opened, news, must_ring=False)

    def tell_late(self, cycle_id: int, late: LateRank, after_s: float) -> Move[None]:
        """Say that a rank of this node is late."""
        if self._is_training_in(cycle_id):
            record = Late(
                cycle_id=cycle_id,
                incarnation=self.incarnation,
                rank=late.rank,
                step=late.step,
                late_s=round(late.late_s, 3),
                after_s=round(after_s, 3),
                is_starting=late.is_starting,
            )
            yield from self._say_of_place(record)

    def tell_stacks(
        self,
        cycle_id: int,
        inquiry: int,
        stacks: Sequence[RankStack],
        paused: Sequence[tuple[int, str]],
        moving: Sequence[int],
    ) -> Move[None]:
        """Say where the workers of this node are: the answer to an inquiry."""
        if self._is_training_in(cycle_id):
            told, depth = trim(stacks)
            record = Stacks(
                cycle_id=cycle_id,
                incarnation=self.incarnation,
                inquiry=inquiry,
                stacks=told,
                depth=depth,
                paused=tuple((rank, one_line(why)[:MAX_PAUSE_CHARS]) for rank, why in paused[:NAMED]),
                moving=tuple(moving[:NAMED]),
            )
            yield from self._say_of_place(record)

    def has_ended(self, cycle_id: int) -> bool:
        """Whether an event has ended this cycle, as far as this node has heard."""
        return self.view is None or is_superseded(self.view, cycle_id)

    def has_hung(self, cycle_id: int) -> bool:
        """Whether this cycle has ended because its workers hang."""
        if self.view is None or self.view.cycle_id <= cycle_id:
            return False
        why = self.view.opened.why
        return isinstance(why, WorkersHang) or (isinstance(why, NoGroupTrains) and why.is_hang)

    def _is_training_in(self, cycle_id: int) -> bool:
        return not self.has_left and self.progress.trained_in == cycle_id and not self.has_ended(cycle_id)

    def _say_of_place(self, record: Late | Stacks) -> Move[None]:
        assert self.placed_in is not None
        yield from moves.write_record(self.keys, self.placed_in, record)

    def withdraw(self, reason: str) -> Move[None]:
        """Say that this node is not fit to train, even if it never joined. This is its last word."""
        if self.view is not None:
            opened = self.view.opened
        elif self.greeted is not None:
            opened = self.greeted.opened
        else:
            opened = (yield from moves.read_head()).view.opened
        self.incarnation = self.incarnation or self.new_incarnation()
        self.has_left = True
        withdrawal = Withdrawal(
            cycle_id=opened.cycle_id,
            incarnation=self.incarnation,
            node=self.node,
            reason=one_line(reason),
        )
        yield from moves.write_record(self.keys, opened, withdrawal)

    # --- what happens beside that -------------------------------------------------------------------

    def beat(self) -> Move[None]:
        """Renew the lease once. The beat carries the number of the newest event that this node has read.

        An incarnation that is over does not beat: that would bring its deleted counter back.
        """
        pulse = self.pulse
        if not self.incarnation or self.has_left or pulse.is_fenced:
            return
        counter = pulse.next_counter(self.view.no if self.view is not None else 0, self.read_progress())
        sent_at = self.clock()
        found = yield from moves.beat(self.keys, self.incarnation, pulse.counter, counter)
        pulse.take_reply(counter, found, sent_at)

    def watch(self, incarnation: str) -> Routine[None]:
        """Read events as they are published, for as long as this incarnation lasts.

        The coordinator deletes an event when every live node has read it, and a read of a deleted event would block for
        ever. So this node reads only while its lease holds: until then the coordinator keeps the events for it.
        """
        while incarnation == self.incarnation and self.is_listening:
            assert self.view is not None
            if not self.pulse.is_trusted(self.clock()):
                yield CHANGED  # The next beat renews the lease, or finds that it is over.
                continue
            channel = codec.spread(incarnation, self.view.opened.channels)
            event = yield from moves.read_event(self.keys, self.view.no + 1, channel)
            if incarnation != self.incarnation or not self.is_listening:
                return
            if event is None:
                self.has_lapsed = True
                return
            group = self.view.group_of(incarnation)
            has_place = group is not None and self.progress.trained_in == self.view.cycle_id
            self.view = fold_for(self.view, event, incarnation)
            if isinstance(event, Opened) and group is not None and has_place and not isinstance(event.why, GroupForms):
                self.on_group_ended(group if event.group is None else event.group, str(event.why))
            if (
                isinstance(event, Inquired)
                and has_place
                and (event.cycle_id, event.group) == (self.view.cycle_id, group)
            ):
                self.on_inquiry(event.cycle_id, event.no)
            if isinstance(event, Called) and incarnation in event.draining and not self.is_draining:
                self.is_draining = True
                self.on_drain()

    # --- the end of this node's part ----------------------------------------------------------------

    def finish(self, cycle_id: int) -> Move[None]:
        """Enter the exit barrier: it is complete when the coordinator has heard this from every active node."""
        assert self.placed_in is not None
        if self.progress.finished_in >= cycle_id:
            return
        yield from self._tell_last_updates()
        finish = Finish(cycle_id=cycle_id, incarnation=self.incarnation)
        yield from moves.write_record(self.keys, self.placed_in, finish)
        self.progress.finished_in = cycle_id

    def goodbye(self, outcome: Outcome, reason: str) -> Move[None]:
        """Leave the run. This is the incarnation's last word.

        The coordinator of a closed run waits only for goodbyes and looks often: no node needs to wake it.
        """
        opened = self.announced_in if self.view is None else self.view.opened
        if opened is None or self.has_left:
            return
        self.has_left = True
        yield from self._tell_last_updates()
        goodbye = Goodbye(
            cycle_id=opened.cycle_id,
            incarnation=self.incarnation,
            outcome=outcome,
            reason=one_line(reason),
        )
        yield from moves.write_record(self.keys, opened, goodbye, must_ring=self.verdict is None)
