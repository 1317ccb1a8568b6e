"""The cycles of single replica groups, while no common cycle is open: asks the pure decisions, publishes what follows.

Owns what the coordinator knows of each group beside its nodes: its cycle, its deadlines, and why it waits. What
concerns all groups, a common cycle or the end of the run, is returned to the coordinator. Written as moves, so it
performs nothing itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import islice

from ft_rendezvous.config.addresses import format_endpoint
from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.blame import FailureNote, is_excused
from ft_rendezvous.core.explain import summarize_groups
from ft_rendezvous.core.group_placement import fill_group
from ft_rendezvous.core.groups import (
    CloseRun,
    DissolveGroup,
    FormGroup,
    GroupPlan,
    GroupRules,
    GroupStep,
    GroupsView,
    GroupView,
    GroupWait,
    OpenGroup,
    RestartAll,
    SealGroup,
    decide_groups,
    find_left,
)
from ft_rendezvous.core.model import (
    AnyWhy,
    Arrival,
    GroupFailsAgain,
    Placement,
    Sealed,
    Verdict,
    VerdictKind,
    WorkersFailed,
    WorkersHang,
    node_name,
)
from ft_rendezvous.core.next_cycle import DrainState, gather_losses
from ft_rendezvous.core.roster import Roster
from ft_rendezvous.core.sealed_world import SealedWorld
from ft_rendezvous.errors import ProtocolBug
from ft_rendezvous.protocol import journal
from ft_rendezvous.protocol.membership import Membership
from ft_rendezvous.protocol.ops import Clock, Move
from ft_rendezvous.protocol.publisher import Publisher
from ft_rendezvous.protocol.stored_cycles import StoredCycles
from ft_rendezvous.text import NAMED

REMINDER_INTERVAL_S = 60.0
"""How often an unchanged reason to wait is journaled again."""

Summons = RestartAll | CloseRun
"""What concerns all groups."""


@dataclass(slots=True)
class _Group:
    """One group beside its nodes."""

    cycle_id: int
    """Its newest cycle."""
    sealed_at: float
    ended_at: float | None = None
    """When its last world ended. None while it is sealed."""
    opened_at: float = 0.0
    why: AnyWhy | None = None
    """Why its open cycle was opened."""
    is_settled: bool = False
    """The end of its last world has been charged."""
    drain_due_at: float | None = None
    is_at_checkpoint: bool = False
    losses_journaled: int = 0
    wait_reason: GroupWait | None = None
    wait_journaled_at: float = 0.0

    @property
    def is_open(self) -> bool:
        return self.ended_at is not None


@dataclass(slots=True)
class GroupCycles:
    """The groups of a run. There are none before the first common seal, and while a common cycle is open."""

    settings: RunSettings
    publisher: Publisher
    stored: StoredCycles
    membership: Membership
    clock: Clock
    journal: journal.Journal
    rules: GroupRules = field(init=False)
    groups: dict[int, _Group] = field(init=False, default_factory=dict)
    can_form_since: float | None = field(init=False, default=None)
    short_since: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self.rules = GroupRules(
            placement=self.settings.placement_rules,
            wanted=self.settings.wanted_groups,
            min_groups=self.settings.min_groups,
            last_call_s=self.settings.last_call_s,
            settle_s=self.settings.settle_s,
            join_s=self.settings.join_s,
            lease_s=self.settings.lease_s,
        )

    @property
    def _roster(self) -> Roster:
        return self.membership.roster

    # --- what the coordinator says ------------------------------------------------------------------

    def begin(self, sealed: Sealed) -> None:
        """A common cycle is sealed: every group trains."""
        now = self.clock()
        self.groups = {group: _Group(sealed.cycle_id, now) for group in sealed.masters}
        self.can_form_since = self.short_since = None

    def end(self) -> None:
        """A common cycle opens, or the run is closed."""
        self.groups.clear()

    def note_checkpoints(self, groups: set[int]) -> None:
        for group in groups & self.groups.keys():
            self.groups[group].is_at_checkpoint = True

    def note_call(self, group: int, due_at: float, is_first: bool) -> None:
        """Workers of a group were asked for a checkpoint. The first node that must go sets the time."""
        if group in self.groups:
            self.groups[group].is_at_checkpoint = False
            if is_first:
                self.groups[group].drain_due_at = due_at

    def cycle_of(self, group: int | None) -> int:
        """The newest cycle of a group, or the last common one."""
        known = None if group is None else self.groups.get(group)
        return self.publisher.view.cycle_id if known is None else known.cycle_id

    def why_of(self, group: int) -> AnyWhy | None:
        """Why the newest cycle of a group was opened; None if that is a common cycle."""
        known = self.groups.get(group)
        return None if known is None else known.why

    def obstacles(self) -> dict[int, str]:
        """The groups, and why each of them cannot be restarted; empty if it can."""
        views = {view.group: view for view in self._view(self.clock()).groups}
        return {number: _obstacle(views[number]) for number in self.groups}

    # --- deciding and acting ------------------------------------------------------------------------

    def tick(self, stood_still_s: float) -> Move[tuple[float, Summons | None]]:
        """Take every step that is due. Returns when to look again, and what concerns all groups."""
        self._excuse_stall(stood_still_s)
        self._correct_causes()
        for _ in range(8 * self.rules.wanted + 16):
            now = self.clock()
            plan = decide_groups(self._view(now), now, self.rules)
            steps = self._without_doubt(plan.steps)
            if not steps:
                self._tell_waits(plan, now)
                return min(plan.until, self.membership.next_look_at), None
            summons = yield from self._take_steps(steps)
            if summons is not None:
                return now, summons
        raise ProtocolBug("the decisions about groups do not come to an end")

    def _without_doubt(self, steps: Sequence[GroupStep]) -> Sequence[GroupStep]:
        """The steps, without those that place nodes if a node to be placed may be dead. It is soon known."""
        placed = [name for step in steps if isinstance(step, SealGroup | FormGroup) for name in step.ranks]
        if not self.membership.suspects.find(placed):
            return steps
        return [step for step in steps if not isinstance(step, SealGroup | FormGroup | DissolveGroup)]

    def _take_steps(self, steps: Sequence[GroupStep]) -> Move[Summons | None]:
        for step in steps:
            match step:
                case OpenGroup():
                    yield from self._open(step.group, step.why)
                case SealGroup() | DissolveGroup():
                    # What a world reported is charged before the world is forgotten: only now is it known who was lost.
                    is_due, summons = yield from self._settle(step.group)
                    if summons is not None or not is_due:
                        return summons
                    if isinstance(step, DissolveGroup):
                        self._dissolve(step)
                        continue
                    yield from self._catch_up(step.group, step.ranks)
                    yield from self._seal(step.group, step.ranks)
                case FormGroup():
                    yield from self._open(step.group, step.why)
                    yield from self._seal(step.group, step.ranks)
                case RestartAll() | CloseRun():
                    return step
        return None

    def _open(self, number: int, why: AnyWhy) -> Move[None]:
        now = self.clock()
        opened = yield from self.publisher.open_cycle(why, ring_at=1, group=number)
        self.stored.begin_cycle(opened)
        group = self.groups.setdefault(number, _Group(opened.cycle_id, now))
        group.cycle_id, group.ended_at, group.opened_at, group.why = opened.cycle_id, now, now, why
        group.is_settled, group.losses_journaled, group.wait_reason = False, 0, None
        group.drain_due_at, group.is_at_checkpoint = None, False
        changed = self._roster.reopen_group(number, opened.cycle_id)
        self.journal(journal.CycleOpened(cycle_id=opened.cycle_id, why=why, roles={}, group=number, changed=changed))

    def _catch_up(self, number: int, ranks: Sequence[str]) -> Move[None]:
        """Open the group's cycle anew if a node to place has arrived in a later one: no node goes back to an earlier
        cycle."""
        group, arrivals = self.groups[number], self._arrivals(ranks)
        if max(arrival.cycle_id for arrival in arrivals.values()) > group.cycle_id:
            assert group.why is not None
            opened_at = group.opened_at
            yield from self._open(number, group.why)
            group.is_settled, group.opened_at = True, opened_at

    def _arrivals(self, names: Sequence[str]) -> dict[str, Arrival]:
        roster = self._roster
        return {name: roster.arrived.get(name) or roster.ready[name] for name in names}

    def _seal(self, number: int, ranks: Sequence[str]) -> Move[None]:
        roster, group = self._roster, self.groups[number]
        arrivals = self._arrivals(ranks)
        last = {number: roster.worlds[number].seats} if number in roster.worlds else {}
        placement = Placement(tuple(ranks), (), (number,))
        changed = roster.seal_group(number, ranks, group.cycle_id)
        sealed = yield from self.publisher.seal_cycle(
            group.cycle_id,
            placement,
            arrivals,
            counted=self.stored.arrivals_counted,
            group_count=max(max(self.groups) + 1, self.settings.min_nodes // self.settings.group_size),
            group=number,
        )
        now = self.clock()
        waited_s = now - group.opened_at
        group.sealed_at, group.ended_at, group.wait_reason = now, None, None
        master = sealed.masters[number]
        self.journal(
            journal.CycleSealed(
                cycle_id=group.cycle_id,
                placement=placement,
                roles={},
                waited_s=waited_s,
                master=format_endpoint(master.addr, master.port),
                group=number,
                changed=changed,
            )
        )
        summary = summarize_groups(placement, arrivals, last, self.rules.placement, len(roster.ready))
        self.journal(
            journal.CyclePlaced(
                cycle_id=group.cycle_id,
                kept=summary.kept,
                moved=summary.moved,
                new=summary.new,
                benched=len(changed),
                effect=summary.effect,
            )
        )

    def _dissolve(self, step: DissolveGroup) -> None:
        group = self.groups.pop(step.group)
        self.membership.ledger.forget_group(step.group)
        changed = self._roster.dissolve_group(step.group)
        self.journal(
            journal.GroupDissolved(cycle_id=group.cycle_id, group=step.group, reason=step.reason, changed=changed)
        )

    def _settle(self, number: int) -> Move[tuple[bool, Summons | None]]:
        """Charge the last world of a group to whom it may concern. Whether the group can be sealed now, or else why
        that is not enough."""
        group, world = self.groups[number], self._roster.worlds.get(number)
        if group.is_settled or world is None:
            # A node was quarantined for that world, so it was not sealed at once. A world is charged only once.
            self.membership.ledger.take_group_notes(number)
            return True, None
        group.is_settled = True
        ledger, failures = self.membership.ledger, self.membership.ledger.count_notes(number)
        assert group.why is not None
        assert group.ended_at is not None
        has_stalled = self.membership.stalled_at >= group.sealed_at
        settlement = ledger.settle_group(
            number,
            self.clock(),
            is_excused(group.why, world.lost_count, has_stalled),
            lambda note: self._can_lose(number, note),
            trained_s=group.ended_at - group.sealed_at,
        )
        if failures:
            first = ledger.last if settlement.is_charged else None
            self.journal(journal.CycleSettled(cycle_id=world.cycle_id, failures=failures, first=first))
        reason = ledger.explain_end(settlement)
        if reason:
            return False, CloseRun(Verdict(VerdictKind.FAILED, f"group {number}: {reason}"))
        if settlement.quarantined is not None and (yield from self.membership.quarantine(settlement.quarantined)):
            return False, None
        has_finished = any(each.has_finished for each in self._roster.worlds.values())
        if settlement.false_starts and not has_finished:
            return False, RestartAll(GroupFailsAgain(number, settlement.false_starts))
        return True, None

    def _can_lose(self, number: int, note: FailureNote) -> bool:
        """Whether a group can be filled without the node of a failure, under any incarnation."""
        gone = set(self._roster.find_blamed(note))
        spares = {name: arrival for name, arrival in self._roster.ready.items() if name not in gone}
        survivors = self._survivors(self._roster.worlds[number], gone)
        return fill_group(number, survivors, spares, self._worlds(), self.rules.placement) is not None

    # --- what is there ------------------------------------------------------------------------------

    def _worlds(self) -> dict[int, tuple[Arrival, ...]]:
        return {number: world.seats for number, world in self._roster.worlds.items()}

    def _view(self, now: float) -> GroupsView:
        roster = self._roster
        views = [self._view_one(number, group) for number, group in sorted(self.groups.items())]
        is_possible = len(self.groups) < self.rules.wanted and len(roster.ready) >= self.rules.placement.group_size
        self.can_form_since = (self.can_form_since or now) if is_possible else None
        is_short = sum(not each.is_open or each.has_finished for each in views) < self.rules.min_groups
        self.short_since = (self.short_since or now) if is_short else None
        least = self.settings.later_placement_rules.min_nodes
        view = GroupsView(
            groups=views,
            worlds=self._worlds(),
            spares=roster.ready,
            parked=roster.parked,
            can_form_since=self.can_form_since,
            short_since=self.short_since,
            disagrees_since=self.stored.disagrees_since,
            is_drain_total=roster.is_world_draining() and roster.undrained_fit(self.rules.placement) < least,
        )
        return self._with_drains(view, now) if roster.is_world_draining() else view

    def _with_drains(self, view: GroupsView, now: float) -> GroupsView:
        """The same with the drains of each group, which may count on nodes that no open group needs."""
        left = find_left(view, now, self.rules)
        views = [replace(each, drain=self._drain(each, left)) for each in view.groups]
        return replace(view, groups=views)

    def _view_one(self, number: int, group: _Group) -> GroupView:
        roster = self._roster
        world = roster.worlds.get(number, SealedWorld())
        if not group.is_open:
            return GroupView(
                group=number,
                is_open=False,
                has_finished=world.has_finished,
                troubles=world.troubles,
                is_at_checkpoint=group.is_at_checkpoint,
            )
        missing = (
            f"{node_name(seat.node)} (rank {rank})"
            for rank, seat in enumerate(world.seats)
            if seat.incarnation not in roster.members
        )
        return GroupView(
            group=number,
            is_open=True,
            opened_at=group.opened_at,
            why=group.why,
            has_finished=world.has_finished,
            survivors={name: roster.arrived[name] for name in world.ranks if name in roster.arrived},
            awaited={name: roster.awaited[name] for name in world.ranks if name in roster.awaited},
            missing=tuple(islice(missing, NAMED)),
        )

    def _drain(self, view: GroupView, left: Mapping[str, Arrival]) -> DrainState | None:
        roster, group, world = self._roster, self.groups[view.group], self._roster.worlds.get(view.group)
        if view.is_open or world is None or group.drain_due_at is None or roster.draining.isdisjoint(world.ranks):
            return None
        others = sum(not other.is_open for other in self.groups.values()) - 1
        survivors = self._survivors(world, roster.draining)
        ranks = fill_group(view.group, survivors, left, self._worlds(), self.rules.placement)
        return DrainState(
            nodes=tuple(roster.draining_actives(group=view.group)),
            due_at=group.drain_due_at,
            is_covered=ranks is not None or others >= self.rules.min_groups,
            is_total=False,
        )

    def _survivors(self, world: SealedWorld, gone: AbstractSet[str]) -> Mapping[str, Arrival]:
        """Nodes of a world that can train again."""
        roster = self._roster
        names = [name for name in world.unfinished if name in roster.members and name not in gone]
        return {name: roster.members[name].arrival for name in names if name not in roster.draining}

    # --- telling ------------------------------------------------------------------------------------

    def _excuse_stall(self, stood_still_s: float) -> None:
        """No node could arrive while the coordinator or the store stood still."""
        if stood_still_s:
            for group in self.groups.values():
                group.opened_at = min(self.clock(), group.opened_at + stood_still_s)
            if self.short_since is not None:
                self.short_since = min(self.clock(), self.short_since + stood_still_s)

    def _correct_causes(self) -> None:
        """Journal the true cause of an open cycle: workers fail of a node's death before its lease is over."""
        for number, group in self.groups.items():
            world = self._roster.worlds.get(number)
            if world is None or not group.is_open or not isinstance(group.why, WorkersFailed | WorkersHang):
                continue
            if len(world.lost) > group.losses_journaled:
                group.losses_journaled = len(world.lost)
                self.journal(journal.CauseCorrected(cycle_id=group.cycle_id, why=gather_losses(world.lost)))

    def _tell_waits(self, plan: GroupPlan, now: float) -> None:
        """Journal a reason to wait when it changes in kind, at most once a second when in numbers, and now and then."""
        for number, reason in plan.waits.items():
            group = self.groups[number]
            is_other_kind = type(reason) is not type(group.wait_reason)
            pause_s = 1.0 if reason != group.wait_reason else REMINDER_INTERVAL_S
            if is_other_kind or now >= group.wait_journaled_at + pause_s:
                group.wait_reason, group.wait_journaled_at = reason, now
                self.journal(journal.CycleWaits(cycle_id=group.cycle_id, reason=str(reason), group=number))


def _obstacle(view: GroupView) -> str:
    if view.has_finished:
        return "it has finished"
    if view.is_open:
        return "it is not sealed, so no workers run that could restart"
    if view.drain is not None and not view.drain.is_covered:
        return "a node of it drains, and no other node can take its place"
    return ""
