"""The one authority of a run: reads what nodes wrote, asks the pure decisions, publishes what follows.

Owns the phase of the run and the deadlines of common cycles. `membership` owns who is in the run, `stored_cycles` what
is in the store, `publisher` the view, and `group_cycles` the cycles of single replica groups. Written as moves, so it
performs nothing itself: `host` drives it on a TCPStore, the simulation on its own store. One call of `tick` is one look
at the run and every decision that follows from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import msgspec

from ft_rendezvous.config.addresses import format_endpoint
from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.blame import FailureNote, is_excused
from ft_rendezvous.core.capacity import PlacementRules, Policy
from ft_rendezvous.core.explain import GroupSummary, Summary, summarize, summarize_groups
from ft_rendezvous.core.group_placement import place_groups
from ft_rendezvous.core.groups import CloseRun, RestartAll
from ft_rendezvous.core.lifecycle import NodeStep, Phase, RunStep, next_phase, roles_after
from ft_rendezvous.core.model import (
    AnyWhy,
    FirstCycle,
    Placement,
    Request,
    RequestKind,
    RestartRequested,
    UpdateNews,
    Verdict,
    VerdictKind,
    View,
    WorkersFailed,
    WorkersHang,
)
from ft_rendezvous.core.next_cycle import (
    Call,
    Close,
    DrainState,
    Growth,
    OpenNext,
    Stay,
    World,
    decide_move,
    gather_losses,
)
from ft_rendezvous.core.placement import bench, place
from ft_rendezvous.core.requests import Standing, decide_request
from ft_rendezvous.core.roster import Roster
from ft_rendezvous.core.sealing import GiveUp, Seal, SealRules, SealView, Wait, WaitReason, decide_seal
from ft_rendezvous.core.snapshot import take_snapshot
from ft_rendezvous.protocol import journal, moves
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.group_cycles import REMINDER_INTERVAL_S, GroupCycles
from ft_rendezvous.protocol.inquiries import Inquiries
from ft_rendezvous.protocol.membership import Asked, Membership
from ft_rendezvous.protocol.ops import Clock, Move
from ft_rendezvous.protocol.publisher import Publisher
from ft_rendezvous.protocol.stored_cycles import FENCE_RETENTION_LEASES, StoredCycles

RETRY_DELAY_S = 0.002
"""The pause before the first re-read when counts and records disagree. It doubles up to a beat."""

GOODBYE_POLL_S = 0.05
"""How often to look for goodbyes once the run is closed."""


@dataclass(slots=True)
class Coordinator:
    """Owns every decision of a run: open, seal, place, declare dead, close."""

    settings: RunSettings
    epoch: str
    clock: Clock
    journal: journal.Journal
    on_close: Callable[[Verdict, int, FailureNote | None], None] = lambda _verdict, _cycle_id, _first: None
    """Called with the verdict, the cycle and the first failure before the close is published."""
    count_operations: Callable[[], int] = lambda: 0
    """How many store operations were performed for this coordinator."""
    keys: Keys = field(init=False)
    publisher: Publisher = field(init=False)
    stored: StoredCycles = field(init=False)
    membership: Membership = field(init=False)
    groups: GroupCycles = field(init=False)
    """The cycles of single groups. Not used in a run without groups."""
    inquiries: Inquiries = field(init=False)
    """What nodes were asked because a rank is late."""
    _first_rules: SealRules = field(init=False)
    _later_rules: SealRules = field(init=False)
    """With groups, the rules after the first seal."""
    phase: Phase = field(init=False, default=Phase.OPEN)
    """Of the last common cycle."""
    drain_due_at: float | None = field(init=False, default=None)
    """When the next cycle opens for the sake of nodes that must go."""
    is_at_checkpoint: bool = field(init=False, default=False)
    """A checkpoint was written since the last call."""
    can_grow_since: float | None = field(init=False, default=None)
    is_growth_called: bool = field(init=False, default=False)
    """The workers know that their next checkpoint is waited for, for a larger world's sake."""
    opened_at: float | None = field(init=False, default=None)
    stood_still_s: float = field(init=False, default=0.0)
    """How long the coordinator or the store stood still since the cycle opened: no node could arrive meanwhile."""
    settled_in: int = field(init=False, default=0)
    """The newest cycle that was about to be sealed: the end of the world before it has been charged."""
    enough_since: float | None = field(init=False, default=None)
    retry_s: float = field(init=False, default=RETRY_DELAY_S)
    wait_reason: WaitReason | None = field(init=False, default=None)
    wait_journaled_at: float = field(init=False, default=0.0)
    roster_answer: str = field(init=False, default="")
    """The list of nodes, while several operators ask for it at once."""
    losses_journaled: int = field(init=False, default=0)
    """How many lost nodes the corrected cause of the open cycle names."""

    def __post_init__(self) -> None:
        self.keys = Keys(self.epoch)
        self.stored = StoredCycles(self.keys, self.clock, FENCE_RETENTION_LEASES * self.settings.lease_s)
        self.membership = Membership(
            self.settings, self.keys, self.stored, self.clock, self.journal, self.count_operations
        )
        # Every look asks for the rules: they are made once.
        self._first_rules = self.settings.seal_rules
        self._later_rules = replace(self._first_rules, placement=self.settings.later_placement_rules)
        self.publisher = Publisher(self.settings, self.epoch, self.keys)
        self.inquiries = Inquiries(self.publisher, self.membership, self.clock, self.journal)
        self.groups = GroupCycles(self.settings, self.publisher, self.stored, self.membership, self.clock, self.journal)

    @property
    def view(self) -> View:
        return self.publisher.view

    @property
    def cycle_id(self) -> int:
        """The last common cycle."""
        return self.view.cycle_id

    @property
    def has_groups(self) -> bool:
        return self.settings.group_size > 0

    @property
    def rules(self) -> PlacementRules:
        """The rules of the last common cycle. After the first seal, groups that lack nodes are filled later."""
        return self._seal_rules.placement

    @property
    def _seal_rules(self) -> SealRules:
        return self._later_rules if self.has_groups and self.roster.worlds else self._first_rules

    @property
    def roster(self) -> Roster:
        return self.membership.roster

    @property
    def verdict(self) -> Verdict | None:
        return self.view.closed.verdict if self.view.closed else None

    @property
    def is_done(self) -> bool:
        """The run is closed and every node has said goodbye or lost its lease."""
        return self.phase is Phase.CLOSED and not self.roster.members and self.clock() >= self.membership.stays_until

    # --- life ---------------------------------------------------------------------------------------

    def start(self) -> Move[None]:
        """Open the first cycle: a node that finds the head finds an open cycle."""
        yield from self._open(FirstCycle())

    def tick(self) -> Move[float]:
        """Look once, decide, act. Returns when to look again if the bell stays silent."""
        published_before = self.view.no
        reading = yield from self.stored.read()
        asked = yield from self.membership.take(reading)
        if self.opened_at is None and self.roster.members:
            self.opened_at = self.clock()
        is_said = any(type(record) is not UpdateNews for record in reading.records)
        if is_said and self.stored.arrivals_counted >= self.settings.min_nodes:
            self.retry_s = RETRY_DELAY_S  # The only record missing may be that of a node that does not ring.
        yield from self._grant(asked)
        yield from self.membership.judge_suspects()
        stood_still_s = yield from self.membership.judge_leases(self.view.no)
        self.stood_still_s += stood_still_s
        self._correct_cause()
        wake_at = self.membership.next_look_at
        if self.phase is not Phase.CLOSED:
            self.membership.book_losses()
            wake_at = min(wake_at, self.membership.losses.next_end())
        if self.phase is Phase.OPEN:
            wake_at = min(wake_at, (yield from self._try_seal()))
        if self.phase is Phase.SEALED:
            wake_at = min(wake_at, (yield from self.inquiries.tick(asked)))
            moving = self._move_groups(stood_still_s) if self.has_groups else self._try_move()
            wake_at = min(wake_at, (yield from moving))
        yield from self._sweep(published_before)
        wake_at = min(wake_at, self.membership.suspects.next_judgement())
        return min(wake_at, self.clock() + GOODBYE_POLL_S) if self.phase is Phase.CLOSED else wake_at

    def _correct_cause(self) -> None:
        """Journal the true cause of an open cycle: workers fail of a node's death before its lease is over."""
        why, lost = self.view.opened.why, self.roster.lost
        if (
            self.phase is Phase.OPEN
            and isinstance(why, WorkersFailed | WorkersHang)
            and len(lost) > self.losses_journaled
        ):
            self.losses_journaled = len(lost)
            self.journal(journal.CauseCorrected(cycle_id=self.cycle_id, why=gather_losses(lost)))

    def _sweep(self, published_before: int) -> Move[None]:
        """Delete what no node can need any more."""
        if self.stored.may_delete(self.view, published_before):
            acted = self.membership.leases.acknowledged_by_all(self.stored.deleted_events)
            yield from self.stored.delete_read(self.view, published_before, acted)
            self.publisher.forget_seals(self.stored.deleted_events)
        yield from self.stored.delete_old()

    def close(self, verdict: Verdict) -> Move[None]:
        """End the run for good. Nodes leave when they hear of it; the store stays until they have."""
        if self.phase is not Phase.CLOSED:
            first = self._last_failure() if verdict.kind is VerdictKind.FAILED else None
            if first is not None:
                verdict = msgspec.structs.replace(verdict, reason=f"{verdict.reason}; first failure: {first}")
            self.on_close(verdict, self.publisher.newest_id, first)
            self.phase = next_phase(self.phase, RunStep.CLOSE)
            self.groups.end()
            yield from self.publisher.close(verdict)
            self.journal(journal.RunEnded(verdict=verdict))

    def _last_failure(self) -> FailureNote | None:
        """The first failure of the world that trains, or of the one that has just ended, unless a loss explains it."""
        last = self.membership.ledger.last
        if last is None or last.cycle_id < self.stored.last_log_id or self._is_excused(last):
            return None
        return last

    def _is_excused(self, note: FailureNote) -> bool:
        """Whether no node is blamed for a failure in the world of a cycle."""
        world = self.roster.worlds.get(note.group)
        lost_count = self.roster.lost_count if world is None else world.lost_count
        why = self.groups.why_of(note.group) or self.view.opened.why
        return is_excused(why, lost_count, self.membership.stalled_in >= note.cycle_id)

    def _is_last_excused(self) -> bool:
        """Whether no node is blamed for failures of the worlds that the last common cycle has ended."""
        has_stalled = self.membership.stalled_in >= self.stored.last_log_id
        return is_excused(self.view.opened.why, self.roster.lost_count, has_stalled)

    # --- what is asked for -----------------------------------------------------------------------

    def _grant(self, asked: Asked) -> Move[None]:
        """Do what is asked for. An author that is not a member is an operator; a member asks for itself."""
        self.is_at_checkpoint = self.is_at_checkpoint or bool(asked.checkpoints)
        self.groups.note_checkpoints(asked.checkpoints)
        self.roster_answer = ""
        draining: list[str] = []
        for request in asked.requests:
            if not self.roster.is_known(request.incarnation):
                draining.extend((yield from self._grant_operator(request)))
            elif self.roster.drain(request.incarnation):
                draining.append(request.incarnation)
        if draining and self.phase is not Phase.CLOSED:
            reasons = [request.reason for request in asked.requests if request.kind is RequestKind.DRAIN]
            for group, names in self._by_group(draining).items():
                yield from self._call(names, reasons[0], group)

    def _by_group(self, incarnations: Sequence[str]) -> dict[int | None, list[str]]:
        """The nodes of each group. Nodes in no group, and all nodes of a run without groups, are under None."""
        found: dict[int | None, list[str]] = {}
        for name in incarnations:
            found.setdefault(self.roster.group_of(name) if self.has_groups else None, []).append(name)
        return found

    def _grant_operator(self, request: Request) -> Move[list[str]]:
        """Answer an operator, and do what was granted. Returns the nodes that have to drain."""
        targets = self.roster.find(request.target) if request.kind is RequestKind.DRAIN else []
        targets = [target for target in targets if self.roster.can_drain(target)]
        found = tuple(self.roster.describe(target) for target in targets)
        roster = self._tell_roster() if request.kind is RequestKind.ROSTER else ""
        groups = self.groups.obstacles() if self.has_groups else None
        standing = Standing(self.phase, self.cycle_id, self.verdict, self._drain(), found, roster, groups)
        answer = decide_request(request, standing)
        yield from moves.publish_answer(self.keys, answer)
        self.stored.note_answer(request.incarnation)
        if not answer.is_granted:
            return []
        match request.kind:
            case RequestKind.CLOSE:
                why = request.reason or "no reason given"
                yield from self.close(Verdict(VerdictKind.CANCELLED, f"closed by an operator: {why}"))
            case RequestKind.RESTART if self.has_groups and not request.target:
                yield from self._restart_all(request.reason)
            case RequestKind.RESTART:
                self.roster.ask_restart("an operator", request.reason, self.roster.worlds[int(request.target or 0)])
        return [target for target in targets if self.roster.drain(target)]

    def _restart_all(self, reason: str) -> Move[None]:
        """Restart all groups in a common cycle. If some have finished, each of the others restarts for itself."""
        worlds = self.roster.worlds.values()
        if not any(world.has_finished for world in worlds):
            yield from self._open(RestartRequested("an operator", reason))
            return
        for world in worlds:
            if not world.has_finished:
                self.roster.ask_restart("an operator", reason, world)

    def _tell_roster(self) -> str:
        """The nodes of the run, as text; worked out once for all operators that ask at the same time."""
        if not self.roster_answer:
            snapshot = take_snapshot(self.roster, self.settings.run_id, self.cycle_id, self.settings.as_dict())
            self.roster_answer = msgspec.json.encode(snapshot).decode()
        return self.roster_answer

    def _call(self, draining: Sequence[str], reason: str, group: int | None = None) -> Move[None]:
        """Say that the next cycle opens when it suits the workers, and ask nodes to give up their places in it."""
        cycle_id, due_at = self.groups.cycle_of(group), self.clock() + self.settings.drain_grace_s
        is_first = bool(draining) and not self.roster.draining_actives(but=draining, group=group)
        self.is_at_checkpoint = False
        if is_first:
            # The first that must give up a place; a spare that went before has nothing to do with it.
            self.drain_due_at = due_at
        if group is not None:
            self.groups.note_call(group, due_at, is_first)
        names = tuple(self.roster.describe(incarnation) for incarnation in draining)
        yield from self.publisher.call(cycle_id, draining, reason, group)
        roles = tuple(self.roster.members[incarnation].role for incarnation in draining)
        self.journal(
            journal.CycleCalled(
                cycle_id=cycle_id, incarnations=tuple(draining), roles=roles, nodes=names, reason=reason
            )
        )

    # --- deciding and acting ------------------------------------------------------------------------

    def _try_seal(self) -> Move[float]:
        now = self.clock()
        decision = decide_seal(self._seal_view(now), now, self._seal_rules)
        match decision:
            case Seal():
                if not (yield from self._settle(now)):
                    return now
                yield from self._seal(bench(self._place(decision.world_size), self.roster.arrived))
            case GiveUp():
                yield from self.close(decision.verdict)
            case Wait():
                self._tell_wait(decision.reason, now)
                return self._wake_for(decision, now)
        # A node that writes a record about the sealed cycle rings: there is nothing to look for until then.
        return self.membership.next_look_at

    def _place(self, world_size: int) -> Placement:
        candidates = self.roster.candidates(self.rules)
        if not self.has_groups:
            return place(candidates, self.roster.world, world_size, self.rules)
        worlds = {group: world.seats for group, world in self.roster.worlds.items()}
        return place_groups(candidates, worlds, world_size, self.rules)

    def _settle(self, now: float) -> Move[bool]:
        """Charge the world that ended to whom it may concern. False if the next one cannot be sealed now."""
        ledger, failures = self.membership.ledger, len(self.membership.ledger.notes)
        if self.settled_in == self.cycle_id:
            # A node was quarantined for that world, so it was not sealed at once. A world is charged only once.
            ledger.take_notes()
            return True
        self.settled_in = self.cycle_id
        world_id = self.stored.last_log_id
        settlement = ledger.settle(
            now, self._is_last_excused(), lambda note: self.roster.can_lose(note, self.rules, world_id)
        )
        ledger.restart_all(self.view.opened.why)
        if failures:
            first = ledger.last if settlement.is_charged else None
            self.journal(journal.CycleSettled(cycle_id=world_id, failures=failures, first=first))
        reason = ledger.explain_end(settlement)
        if reason:
            yield from self.close(Verdict(VerdictKind.FAILED, reason))
            return False
        bad = settlement.quarantined
        return bad is None or not (yield from self.membership.quarantine(bad))

    def _tell_wait(self, reason: WaitReason, now: float) -> None:
        """Journal a reason to wait when it changes in kind, at most once a second when in numbers, and now and then."""
        is_other_kind = type(reason) is not type(self.wait_reason)
        is_due = now >= self.wait_journaled_at + (1.0 if reason != self.wait_reason else REMINDER_INTERVAL_S)
        if is_other_kind or is_due:
            self.wait_reason, self.wait_journaled_at = reason, now
            self.journal(journal.CycleWaits(cycle_id=self.cycle_id, reason=str(reason)))

    def _wake_for(self, wait: Wait, now: float) -> float:
        if self.stored.disagrees_since is None:
            self.retry_s = RETRY_DELAY_S
            return wait.until
        retry_at = now + self.retry_s
        self.retry_s = min(self.retry_s * 2, self.settings.beat_s)
        return min(wait.until, retry_at)

    def _seal_view(self, now: float) -> SealView:
        suspects = self.membership.suspects
        fit, is_fixed = self.roster.arrived_fit(self.rules), self.rules.policy is Policy.FIXED
        if not self.rules.world_size(fit):
            self.enough_since = None
        elif self.enough_since is None:
            self.enough_since = now
        return SealView(
            opened_at=now if self.opened_at is None else min(now, self.opened_at + self.stood_still_s),
            arrived=self.roster.arrived,
            awaited=self.roster.awaited,
            world=self.roster.world,
            groups=tuple(sorted(self.roster.worlds)) if self.has_groups else (),
            alive=self.roster.members.keys(),
            fit=fit,
            joinable_fit=self.roster.joinable_fit(self.rules),
            ready_fit=0 if is_fixed else self.roster.ready_fit(self.rules, self.stored.last_log_id),
            finished_count=self.roster.finished_count,
            has_all_finished=self._has_all_finished(),
            spent_count=self.roster.spent_count,
            left_count=self.roster.left_count,
            drained_count=self.roster.draining_count(),
            unhealthy=tuple(self.roster.unhealthy.values()),
            enough_since=self.enough_since,
            disagrees_since=self.stored.disagrees_since,
            parked_count=self.roster.parked_count(),
            suspected=tuple(self.roster.describe(name) for name in suspects.find(self.roster.arrived)),
            suspected_until=suspects.next_judgement(),
            awaits_others=self.roster.awaits_others(self.rules, self.stored.last_log_id),
        )

    def _has_all_finished(self) -> bool:
        """Whether every world has finished. With groups: or some have, and no other can be formed any more."""
        finished = [world.has_finished for world in self.roster.worlds.values()]
        if not self.has_groups or not any(finished):
            return bool(finished) and all(finished)
        return all(finished) or self.roster.joinable_fit(self.rules) < self.rules.min_nodes

    def _move_groups(self, stood_still_s: float) -> Move[float]:
        """Let every group go its own way. What concerns all of them is done here."""
        wake_at, summons = yield from self.groups.tick(stood_still_s)
        match summons:
            case RestartAll():
                yield from self._open(summons.why)
            case CloseRun():
                yield from self.close(summons.verdict)
        return wake_at

    def _try_move(self) -> Move[float]:
        world = World(
            unfinished_count=len(self.roster.unfinished),
            troubles=self.roster.troubles,
            drain=self._drain(),
            growth=self._growth(),
            is_at_checkpoint=self.is_at_checkpoint,
        )
        decision = decide_move(world, self.clock(), self.settings.grow)
        match decision:
            case Stay():
                drain, growth = world.drain, world.growth
                due = [drain.due_at] if drain is not None and drain.nodes and drain.is_covered else []
                due += [growth.due_at] if growth is not None and growth.due_at > self.clock() else []
                return min([self.membership.next_look_at, *due])
            case Call():
                self.is_growth_called = True
                yield from self._call((), decision.reason)
            case OpenNext():
                yield from self._open(decision.why)
            case Close():
                yield from self.close(decision.verdict)
        return self.membership.next_look_at

    def _drain(self) -> DrainState | None:
        if self.drain_due_at is None or not self.roster.is_world_draining():
            return None
        return DrainState(
            nodes=tuple(self.roster.draining_actives()),
            due_at=self.drain_due_at,
            is_covered=self.roster.joinable_fit(self.rules) >= self.rules.min_nodes,
            is_total=self.roster.undrained_fit(self.rules) < self.rules.min_nodes,
        )

    def _growth(self) -> Growth | None:
        """What the world could be. A world that has begun to finish does not grow: the finished never train again."""
        if self.rules.policy is Policy.FIXED:
            return None
        was, to = len(self.roster.world), self.rules.world_size(self.roster.ready_fit(self.rules, self.cycle_id))
        if to <= was or self.roster.finished_count:
            self.is_growth_called, self.can_grow_since = False, None
            return None
        if self.can_grow_since is None:
            self.can_grow_since = self.clock()
        return Growth(was, to, self.can_grow_since + self.settings.settle_s, self.is_growth_called)

    def _open(self, why: AnyWhy) -> Move[None]:
        if self.stored.readers:
            self.phase = next_phase(self.phase, RunStep.OPEN)
            self.opened_at = self.clock()
        self.losses_journaled, self.stood_still_s = 0, 0.0
        self.enough_since = self.wait_reason = self.drain_due_at = self.can_grow_since = None
        self.is_at_checkpoint = self.is_growth_called = False
        self.groups.end()
        self.membership.begin_cycle(self.publisher.newest_id + 1)
        opened = yield from self.publisher.open_cycle(why, ring_at=self.rules.min_nodes)
        self.stored.begin_cycle(opened)
        self.journal(journal.CycleOpened(cycle_id=opened.cycle_id, why=why, roles=roles_after(NodeStep.REOPEN)))

    def _seal(self, placement: Placement) -> Move[None]:
        roster = self.roster
        arrived, previous, rules = dict(roster.arrived), roster.world, self.rules
        worlds = {group: world.seats for group, world in roster.worlds.items()}
        wanted = self.settings.min_nodes // self.settings.group_size if self.has_groups else 1
        self.phase = next_phase(self.phase, RunStep.SEAL)
        self.membership.seal(placement)
        sealed = yield from self.publisher.seal_cycle(
            self.cycle_id,
            placement,
            arrived,
            counted=self.stored.arrivals_counted,
            group_count=max(wanted, max(placement.groups) + 1),
        )
        master = sealed.masters[placement.groups[0]]
        self.journal(
            journal.CycleSealed(
                cycle_id=self.cycle_id,
                placement=placement,
                roles=roles_after(NodeStep.PASS_OVER),
                waited_s=self.clock() - (self.opened_at or 0.0),
                master=format_endpoint(master.addr, master.port),
            )
        )
        summary: Summary | GroupSummary = summarize(placement, arrived, previous, rules)
        if self.has_groups:
            self.groups.begin(sealed)
            summary = summarize_groups(placement, arrived, worlds, rules, len(roster.ready))
        self.journal(
            journal.CyclePlaced(
                cycle_id=self.cycle_id,
                kept=summary.kept,
                moved=summary.moved,
                new=summary.new,
                benched=summary.benched,
                effect=summary.effect,
            )
        )
