"""The protocol, broken on purpose: one mistake each, of the kind a careful reader could make.

Proves that the checkers see. Every variant names the checkers that may catch it; one that nobody catches within a
few hundred seeds means that a checker is blind or that the simulation never goes there.
"""

# ruff: noqa: ARG001, ARG005 - what replaces a function takes what the function took.

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

import msgspec

from ft_rendezvous.core import sealing
from ft_rendezvous.core.blame import FailureNote, Ledger, is_excused
from ft_rendezvous.core.capacity import PlacementRules, Policy
from ft_rendezvous.core.leases import LeaseTable, Pulse
from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.model import (
    AnyRecord,
    AnyWhy,
    Arrival,
    Head,
    Opened,
    Placement,
    Request,
    Seat,
    Verdict,
    VerdictKind,
    View,
    node_name,
)
from ft_rendezvous.core.next_cycle import Grow, Growth, MoveDecision, decide_move
from ft_rendezvous.core.next_cycle import World as SealedWorld
from ft_rendezvous.core.node_step import Progress, TakeSeat, decide_step
from ft_rendezvous.core.placement import place
from ft_rendezvous.core.recent import RecentNames
from ft_rendezvous.core.roster import Effect, Fence, FenceCause, Member, Roster
from ft_rendezvous.core.sealing import Seal, SealDecision, SealRules, SealView, decide_seal
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.host.staying import HostStay
from ft_rendezvous.protocol import codec, coordinator, moves, participant
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.coordinator import Coordinator
from ft_rendezvous.protocol.membership import Membership
from ft_rendezvous.protocol.node_loop import NodeLoop
from ft_rendezvous.protocol.ops import CHANGED, Check, CompareSet, Delete, Get, Move, MultiSet
from ft_rendezvous.protocol.ops import Routine as NodeRoutine
from ft_rendezvous.protocol.participant import Participant
from ft_rendezvous.protocol.stored_cycles import StoredCycles
from ft_rendezvous.store.worker_store import Bootstrap
from tests.sim import checkers
from tests.sim.checkers import Checker
from tests.sim.host import SimHost
from tests.sim.kernel import Call, Routine, Sleep
from tests.sim.shapes import Rules
from tests.sim.world import Result, World

Patches = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, slots=True)
class Variant:
    """A way to be wrong, and who must notice: nobody else looks."""

    name: str
    caught_by: frozenset[str]
    broken: Patches
    host_class: type[SimHost] = SimHost
    focus: tuple[str, ...] = ()
    """The faults that bring it out; without them it takes more seeds."""
    rules: Rules = field(default_factory=dict)
    """The placement rules under which it is wrong."""

    def run(self, seed: int) -> Result:
        with self.broken():
            world = World(seed, host_class=self.host_class, focus=self.focus, checks=self.checks, rules=self.rules)
            return world.run()

    @property
    def checks(self) -> tuple[type[Checker], ...]:
        return tuple(checker for checker in checkers.ALL if checker.__name__ in self.caught_by)


VARIANTS: dict[str, Variant] = {}


def _variant(
    *caught_by: str, host_class: type[SimHost] = SimHost, focus: tuple[str, ...] = (), **rules: Any
) -> Callable[[Patches], Patches]:
    def register(patches: Patches) -> Patches:
        name = patches.__name__
        VARIANTS[name] = Variant(name, frozenset(caught_by), patches, host_class, focus, rules)
        return patches

    return register


variant = _variant
"""For variants that have a module of their own."""


# --- what is published ------------------------------------------------------------------------------


@_variant("converges")
def seats_in_order_of_arrival() -> AbstractContextManager[Any]:
    """Seats are dealt to the channels in turn; a node listens to another channel than the one with its seat."""

    def by_channel(seats: dict[str, Seat], channels: int) -> list[dict[str, Seat]]:
        dealt: list[dict[str, Seat]] = [{} for _ in range(channels)]
        for index, (incarnation, seat) in enumerate(seats.items()):
            dealt[index % channels][incarnation] = seat
        return dealt

    return patch.object(codec, "by_channel", by_channel)


@_variant("nothing_said_is_lost")
def opened_in_one_go() -> AbstractContextManager[Any]:
    """Counts and logs are set together with the event: whoever hears of it early is counted, and set back."""

    def publish_opened(keys: Keys, opened: Opened, head: Head) -> Move[None]:
        logs = [keys.log(opened.cycle_id, shard) for shard in range(opened.shards)]
        names = [keys.arrived(opened.cycle_id), keys.withdrawn(opened.cycle_id), *logs]
        values = [b"0", b"0", *[b""] * len(logs)]
        event_names, event_values = moves._publication(keys, [opened] * opened.channels, head)
        yield MultiSet([*names, *event_names], [*values, *event_values])

    return patch.object(moves, "publish_opened", publish_opened)


@_variant("cycle_ids_are_monotonic")
def first_free_cycle_id() -> AbstractContextManager[Any]:
    """Look for an id that is not in use, then take it: one that was deleted looks unused."""
    original = Coordinator._open

    def _open(self: Coordinator, why: AnyWhy) -> Move[None]:
        if self.stored.readers:
            free = 1
            while (yield Check([self.keys.arrived(free)])):
                free += 1
            before = msgspec.structs.replace(self.view.opened, cycle_id=free - 1)
            self.view = msgspec.structs.replace(self.view, opened=before)
        yield from original(self, why)

    return patch.object(Coordinator, "_open", _open)


@_variant("nobody_waits_for_a_deleted_event", focus=("pause_between_events", "slow_down"))
def events_deleted_unread() -> AbstractContextManager[Any]:
    """Delete every event but the last, whoever has read it."""
    return patch.object(LeaseTable, "acknowledged_by_all", lambda self, floor: 1 << 30)


@_variant("nobody_waits_for_a_deleted_event", focus=("stall_a_newcomer",))
def head_read_before_arrival() -> AbstractContextManager[Any]:
    """A newcomer that the coordinator does not know yet relies on events that nobody keeps for it."""

    def _enlist(self: Participant) -> Move[None]:
        self.incarnation, self.view = self.new_incarnation(), None
        self.pulse = Pulse(self.lease_s, alive_until=self.clock() + self.lease_s)
        self.progress, self.has_lapsed, self.has_left = Progress(), False, False
        yield from self.beat()
        head = (yield from moves.read_head()).view
        if head.closed is None:
            yield from self._arrive(head.opened)
        self.view = head
        self.on_enlisted()

    return patch.object(Participant, "_enlist", _enlist)


# --- leases -----------------------------------------------------------------------------------------


@_variant("no_dead_incarnation_placed", "fenced_nodes_stop")
def fence_without_incarnation() -> AbstractContextManager[Any]:
    """A fenced node comes back under its old incarnation, and the coordinator has forgotten the fence."""
    original_init, original_remove = Participant.__post_init__, Roster._remove

    def __post_init__(self: Participant) -> None:
        original_init(self)
        draw = self.new_incarnation
        self.new_incarnation = lambda: self.incarnation or draw()

    def _remove(self: Roster, incarnation: str) -> None:
        original_remove(self, incarnation)
        self.fenced = RecentNames()

    return _all(patch.object(Participant, "__post_init__", __post_init__), patch.object(Roster, "_remove", _remove))


@_variant("no_live_node_is_dropped", focus=("pause_coordinator_at_a_call",))
def leases_survive_no_pause() -> AbstractContextManager[Any]:
    """A coordinator that was paused blames the nodes for what it did not see."""
    original = LeaseTable.observe

    def observe(self: LeaseTable, counters: Any, now: float, planned_gap_s: float, published: int) -> None:
        original(self, counters, now, float("inf"), published)

    return patch.object(LeaseTable, "observe", observe)


@_variant("no_live_node_is_dropped", focus=("pause_between_events", "slow_down"))
def deaf_after_one_lease() -> AbstractContextManager[Any]:
    """A node that is slow to act upon events is given no more time than one that is silent."""

    def judge_deaf(self: LeaseTable, now: float) -> list[str]:
        behind = {name: lease.behind_since for name, lease in self.leases.items() if lease.behind_since is not None}
        return [name for name, since in behind.items() if now - since >= self.lease_s]

    return patch.object(LeaseTable, "judge_deaf", judge_deaf)


@_variant("no_dead_incarnation_placed", "converges")
def dead_still_placed() -> AbstractContextManager[Any]:
    """The lease is judged, the fence is written, and the roster is not told."""

    def _drop(self: Membership, incarnation: str, cause: FenceCause, reason: str) -> Move[None]:
        name = self.roster.members[incarnation].name
        yield from self.fence(Fence(incarnation, name, cause, reason))

    return patch.object(Membership, "_drop", _drop)


@_variant("no_dead_incarnation_placed", focus=("crash", "pause", "start_another"))
def leases_only_in_training() -> AbstractContextManager[Any]:
    """A node that waits for the seal gets twenty leases more. Without end, a closed run would wait for it too."""
    original = Membership._drop
    renewed: Counter[str] = Counter()

    def _drop(self: Membership, incarnation: str, cause: FenceCause, reason: str) -> Move[None]:
        if self.roster.members[incarnation].role is not Role.ARRIVED or renewed[incarnation] == 20:
            yield from original(self, incarnation, cause, reason)
        else:
            renewed[incarnation] += 1
            self.leases.leases[incarnation].seen_at = self.clock()

    return patch.object(Membership, "_drop", _drop)


@_variant("fenced_nodes_stop")
def beat_reply_unchecked() -> AbstractContextManager[Any]:
    """A node takes any reply to its beat for a renewed lease."""

    def take_reply(self: Pulse, sent: int, found: int, sent_at: float) -> None:
        self.counter = found
        self.alive_until = sent_at + self.lease_s

    return patch.object(Pulse, "take_reply", take_reply)


@_variant("fenced_nodes_stop", focus=("pause_at_a_call", "slow_down"))
def lease_from_the_reply() -> AbstractContextManager[Any]:
    """A node counts its lease from when it heard of it, which is later than when the coordinator saw the beat."""

    def beat(self: Participant) -> Move[None]:
        pulse = self.pulse
        if not self.incarnation or self.has_left or pulse.is_fenced:
            return
        counter = pulse.next_counter(self.view.no if self.view is not None else 0)
        found = yield from moves.beat(self.keys, self.incarnation, pulse.counter, counter)
        pulse.take_reply(counter, found, self.clock())

    return patch.object(Participant, "beat", beat)


@_variant("no_live_node_is_dropped", focus=("restart", "start_twice", "pause_coordinator"))
def last_read_start_wins() -> AbstractContextManager[Any]:
    """Of two starts of one node, the one whose record is read last stays: that may be the dead one."""
    original = Roster._contest_infra_rank

    def _contest_infra_rank(self: Roster, arrival: Arrival) -> list[Fence]:
        holder = self.members.get(self.by_infra_rank.get(arrival.node.infra_rank or 0, ""))
        if holder is None or holder.arrival.node.addr != arrival.node.addr:
            return original(self, arrival)
        reason = f"{node_name(arrival.node)} is a newer start of {holder.name}"
        self.drop(holder.arrival.incarnation)
        return [Fence(holder.arrival.incarnation, holder.name, FenceCause.REPLACED, reason)]

    in_any_order = patch("ft_rendezvous.protocol.membership.sorted", lambda items, key: list(items), create=True)
    return _all(in_any_order, patch.object(Roster, "_contest_infra_rank", _contest_infra_rank))


@_variant("no_live_node_is_dropped", focus=("pause_coordinator", "pause_coordinator_at_a_call"))
def one_look_per_lease() -> AbstractContextManager[Any]:
    """A coordinator that plans to look seldom cannot tell its own pause from a node's silence."""
    original = Membership.judge_leases

    def judge_leases(self: Membership, published: int) -> Move[float]:
        before = self.leases.looked_at
        stall_s = yield from original(self, published)
        if self.leases.looked_at is not None and self.leases.looked_at != before:
            self.look_gap_s = self.settings.lease_s
            self.next_look_at = self.leases.looked_at + self.look_gap_s
        return stall_s

    return patch.object(Membership, "judge_leases", judge_leases)


# --- who counts -------------------------------------------------------------------------------------


@_variant("ranks_are_exact")
def finished_are_survivors() -> AbstractContextManager[Any]:
    """Nodes that have finished are counted among those that came back."""
    original = Roster.reopen

    def reopen(self: Roster) -> None:
        original(self)
        for name, member in self.members.items():
            if member.role is Role.FINISHED:
                member.role = Role.ARRIVED
                self.arrived[name] = member.arrival

    return patch.object(Roster, "reopen", reopen)


@_variant("success_is_earned")
def success_on_first_finish() -> AbstractContextManager[Any]:
    """The first node to finish speaks for all."""
    original = Roster._finish

    def _finish(self: Roster, incarnation: str, member: Member) -> list[Effect]:
        effects = original(self, incarnation, member)
        self.unfinished.clear()
        return effects

    return patch.object(Roster, "_finish", _finish)


@_variant("ranks_are_exact", focus=("stall_a_newcomer", "slow_down"))
def records_of_any_cycle() -> AbstractContextManager[Any]:
    """An arrival in the last cycle counts in this one."""
    original = Roster.take

    def take(self: Roster, record: AnyRecord, cycle_id: int, is_open: bool) -> list[Effect]:
        return original(self, record, record.cycle_id, is_open)

    return patch.object(Roster, "take", take)


@_variant("drained_are_not_placed", focus=("drain", "ask_restart"))
def drained_arrivals_count() -> AbstractContextManager[Any]:
    """A node that waits for the seal and is asked to go keeps its arrival."""

    def drain(self: Roster, incarnation: str) -> bool:
        is_new = incarnation in self.members and incarnation not in self.draining
        self.draining.update([incarnation] if is_new else [])
        return is_new

    return patch.object(Roster, "drain", drain)


@_variant("drained_are_not_placed", focus=("drain",))
def drains_whoever_remains() -> AbstractContextManager[Any]:
    """The next cycle opens for a drain though too few nodes would remain."""
    original = Coordinator._drain

    def _drain(self: Coordinator) -> Any:
        drain = original(self)
        return drain and replace(drain, is_covered=True)

    return patch.object(Coordinator, "_drain", _drain)


@_variant("no_live_node_is_dropped", focus=("restart",))
def one_clock_for_all_boots() -> AbstractContextManager[Any]:
    """A machine that was booted again has a young clock, and its new process is taken for an older start."""
    original = Roster._contest_infra_rank

    def _contest_infra_rank(self: Roster, arrival: Arrival) -> list[Fence]:
        node = msgspec.structs.replace(arrival.node, boot_id="")
        for member in self.members.values():
            same = msgspec.structs.replace(member.arrival.node, boot_id="")
            member.arrival = msgspec.structs.replace(member.arrival, node=same)
        return original(self, msgspec.structs.replace(arrival, node=node))

    return patch.object(Roster, "_contest_infra_rank", _contest_infra_rank)


# --- one long cycle ---------------------------------------------------------------------------------


@_variant("one_long_cycle_is_bounded")
def logs_are_never_emptied() -> AbstractContextManager[Any]:
    """What was read stays until the cycle is over, which may be never."""

    def empty_logs(keys: Keys, reader: moves.LogReader) -> Move[None]:
        yield from ()

    return patch.object(moves, "empty_logs", empty_logs)


@_variant("nothing_said_is_lost")
def logs_emptied_as_they_are_now() -> AbstractContextManager[Any]:
    """A log is emptied of what is in it, and not of what was read: a record that has just come is lost."""

    def empty_logs(keys: Keys, reader: moves.LogReader) -> Move[None]:
        for shard in reader.long_logs:
            key = keys.log(reader.cycle_id, shard)
            yield CompareSet(key, (yield Get(key)), b"")
            reader.offsets[shard] = 0

    return patch.object(moves, "empty_logs", empty_logs)


@_variant("one_long_cycle_is_bounded", focus=("crash", "start_impostor"))
def fences_wait_for_ever() -> AbstractContextManager[Any]:
    """A fence whose node has died is not deleted."""

    def end_fence(keys: Keys, incarnation: str) -> Move[None]:
        yield from moves.end_beat(keys, incarnation)

    return patch.object(moves, "end_fence", end_fence)


@_variant("one_long_cycle_is_bounded", focus=("start_impostor",))
def refused_starts_are_remembered() -> AbstractContextManager[Any]:
    """Nothing is forgotten."""

    def add(self: RecentNames, name: str) -> bool:
        is_new = name not in self._names
        self._names.add(name)
        return is_new

    return patch.object(RecentNames, "add", add)


# --- who is placed where ----------------------------------------------------------------------------


def _placing(place_as: Callable[..., Placement]) -> AbstractContextManager[Any]:
    return patch.object(coordinator, "place", place_as)


@_variant("blocks_belong_together", segment=2)
def holes_filled_from_any_domain() -> AbstractContextManager[Any]:
    """A node that is lost is replaced by the next one, wherever that is."""

    def place_as(
        arrivals: Mapping[str, Arrival], previous: Sequence[Arrival], size: int, rules: PlacementRules
    ) -> Placement:
        return place(arrivals, previous, size, replace(rules, segment=1) if previous else rules)

    return _placing(place_as)


@_variant("blocks_belong_together", unit_size=2)
def units_torn_apart() -> AbstractContextManager[Any]:
    """A unit that has lost a node gets one of another."""

    def place_as(
        arrivals: Mapping[str, Arrival], previous: Sequence[Arrival], size: int, rules: PlacementRules
    ) -> Placement:
        return place(arrivals, previous, size, replace(rules, unit_size=1) if previous else rules)

    return _placing(place_as)


@_variant("survivors_keep_their_ranks")
def ranks_follow_the_topology() -> AbstractContextManager[Any]:
    """Every cycle is placed as if it were the first."""
    return _placing(lambda arrivals, previous, size, rules: place(arrivals, (), size, rules))


@_variant("survivors_keep_their_ranks", policy=Policy.ELASTIC, focus=("crash", "terminate"))
def survivors_close_ranks() -> AbstractContextManager[Any]:
    """Where nobody comes for a rank, those behind it move up."""

    def place_as(
        arrivals: Mapping[str, Arrival], previous: Sequence[Arrival], size: int, rules: PlacementRules
    ) -> Placement:
        survivors = [arrival for arrival in previous if arrival.incarnation in arrivals]
        return place(arrivals, survivors, size, rules)

    return _placing(place_as)


# --- how many ---------------------------------------------------------------------------------------


@_variant("worlds_are_of_allowed_size", policy=Policy.ELASTIC)
def shrinks_below_min() -> AbstractContextManager[Any]:
    """An elastic world is as large as there are nodes, and MIN is forgotten."""

    def world_size(self: PlacementRules, capacity: int) -> int:
        return min(self.max_nodes, capacity) // self.block * self.block

    return patch.object(PlacementRules, "world_size", world_size)


@_variant("worlds_are_of_allowed_size", policy=Policy.ELASTIC)
def never_larger_than_the_last() -> AbstractContextManager[Any]:
    """The next world is opened to be larger, and sealed as large as the one before."""

    def decide(view: SealView, now: float, rules: SealRules) -> SealDecision:
        decision = decide_seal(view, now, rules)
        if isinstance(decision, Seal) and view.world:
            return Seal(min(decision.world_size, len(view.world)))
        return decision

    return patch.object(coordinator, "decide_seal", decide)


@_variant("worlds_are_of_allowed_size", policy=Policy.ELASTIC, focus=("crash", "terminate"))
def shrinks_without_a_last_call() -> AbstractContextManager[Any]:
    """Whoever is not there when there are enough is not waited for."""
    return patch.object(sealing, "_hoped_for", lambda view, rules: 0)


@_variant("converges", policy=Policy.ELASTIC)
def growth_counts_the_finished() -> AbstractContextManager[Any]:
    """Nodes that wait for the end of the run are taken for spares: cycles open for them, and they do not come."""

    def _growth(self: Coordinator) -> Growth | None:
        was, to = len(self.roster.world), self.rules.world_size(self.roster.undrained_fit(self.rules))
        return Growth(was, to, 0.0, self.is_growth_called) if to > was and not self.roster.finished_count else None

    return patch.object(Coordinator, "_growth", _growth)


@_variant("worlds_grow_for_a_reason", policy=Policy.ELASTIC)
def growth_counts_the_absent() -> AbstractContextManager[Any]:
    """A node that is alive and still stops its workers, or has died unnoticed, is taken for one that has come."""

    def _growth(self: Coordinator) -> Growth | None:
        was, to = len(self.roster.world), self.rules.world_size(self.roster.joinable_fit(self.rules))
        return Growth(was, to, 0.0, self.is_growth_called) if to > was and not self.roster.finished_count else None

    return patch.object(Coordinator, "_growth", _growth)


@_variant("worlds_grow_for_a_reason", policy=Policy.ELASTIC, focus=("drain", "start_another"))
def growth_counts_the_draining() -> AbstractContextManager[Any]:
    """A node that was asked to go is taken for one that could come."""
    original = Coordinator._growth

    def _growth(self: Coordinator) -> Growth | None:
        with patch.object(self.roster, "draining", set()):
            return original(self)

    return patch.object(Coordinator, "_growth", _growth)


@_variant("worlds_grow_for_a_reason", policy=Policy.ELASTIC, focus=("start_another",))
def grows_though_nodes_finished() -> AbstractContextManager[Any]:
    """A world that is about to end is opened again for the sake of a newcomer."""
    original = Coordinator._growth

    def _growth(self: Coordinator) -> Growth | None:
        with patch.object(self.roster, "finished_count", 0):
            return original(self)

    return patch.object(Coordinator, "_growth", _growth)


@_variant("worlds_grow_for_a_reason", policy=Policy.ELASTIC, grow=Grow.CHECKPOINT)
def grows_at_once() -> AbstractContextManager[Any]:
    """Nobody waits for the checkpoint."""

    def decide(world: SealedWorld, now: float, grow: Grow) -> MoveDecision:
        return decide_move(world, now, Grow.NOW)

    return patch.object(coordinator, "decide_move", decide)


@_variant(
    "worlds_grow_for_a_reason",
    policy=Policy.ELASTIC,
    grow=Grow.CHECKPOINT,
    focus=("start_a_visitor",),
)
def growth_called_once_a_cycle() -> AbstractContextManager[Any]:
    """The spare that the checkpoint was asked for is gone; the next one finds it written, long ago."""
    return patch.object(Coordinator, "_growth", _remembering_the_call(Coordinator._growth))


def _remembering_the_call(growth_of: Callable[[Coordinator], Growth | None]) -> Callable[[Coordinator], Growth | None]:
    def _growth(self: Coordinator) -> Growth | None:
        is_called = self.is_growth_called
        growth = growth_of(self)
        self.is_growth_called = is_called
        return growth

    return _growth


@_variant("converges", policy=Policy.ELASTIC, grow=Grow.CHECKPOINT, focus=("start_a_visitor",))
def growth_called_once_a_run() -> AbstractContextManager[Any]:
    """Workers that were asked once are not asked again, and wait to be."""
    original = Coordinator._open

    def _open(self: Coordinator, why: AnyWhy) -> Move[None]:
        is_called = self.is_growth_called
        yield from original(self, why)
        self.is_growth_called = is_called

    is_kept = patch.object(Coordinator, "_growth", _remembering_the_call(Coordinator._growth))
    return _all(is_kept, patch.object(Coordinator, "_open", _open))


@_variant("converges", policy=Policy.ELASTIC)
def growth_counts_the_arrived() -> AbstractContextManager[Any]:
    """Whoever comes after the seal has not arrived, so the world never grows."""

    def _growth(self: Coordinator) -> Growth | None:
        was, to = len(self.roster.world), self.rules.world_size(self.roster.arrived_fit(self.rules))
        return Growth(was, to, 0.0, self.is_growth_called) if to > was and not self.roster.finished_count else None

    return patch.object(Coordinator, "_growth", _growth)


# --- nodes ------------------------------------------------------------------------------------------


@_variant("one_placement_per_cycle")
def seat_of_an_earlier_cycle() -> AbstractContextManager[Any]:
    """A node remembers its seat and does not look again."""
    seats: dict[str, Seat] = {}

    def decide(view: View, mine: Progress, incarnation: str, is_draining: bool) -> Any:
        decision = decide_step(view, mine, incarnation, is_draining)
        if isinstance(decision, TakeSeat):
            return TakeSeat(decision.sealed, seats.setdefault(incarnation, decision.seat))
        return decision

    return patch.object(participant, "decide_step", decide)


@_variant("converges", focus=("stall_a_newcomer", "slow_down", "pause_coordinator"))
def head_knows_all() -> AbstractContextManager[Any]:
    """A newcomer that was sealed in while it joined takes the head as it is, which has no seat for it."""
    return patch.object(participant, "watch_from", lambda head, arrived_in, seq: head)


@_variant("one_verdict")
def barrier_is_success() -> AbstractContextManager[Any]:
    """Whoever leaves the exit barrier takes the run for a success."""
    original = Participant.await_verdict

    def await_verdict(self: Participant) -> NodeRoutine[Any]:
        yield from original(self)
        return Verdict(VerdictKind.SUCCEEDED)

    return patch.object(Participant, "await_verdict", await_verdict)


@_variant("nobody_trains_after_moving_on")
def superseded_and_training() -> AbstractContextManager[Any]:
    """A node hears of the next cycle and does not stop."""
    return patch.object(participant, "is_superseded", lambda view, cycle_id: False)


@_variant("converges", focus=("pause", "pause_at_a_call", "pause_between_events"))
def verdict_only_by_ear() -> AbstractContextManager[Any]:
    """A node that has finished and lost its lease waits for an event it can no longer hear."""

    def await_verdict(self: Participant) -> NodeRoutine[Any]:
        while self.verdict is None:
            yield CHANGED
        return self.verdict

    return patch.object(Participant, "await_verdict", await_verdict)


@_variant("resets_cost_nothing", focus=("cut",))
def lost_listener_is_not_replaced() -> AbstractContextManager[Any]:
    """A node whose listener has lost its connection goes on beating, and hears no event any more."""
    return patch.object(NodeLoop, "lose_listener", lambda self, error: None)


@_variant("resets_cost_nothing", focus=("cut",))
def mended_without_a_listener() -> AbstractContextManager[Any]:
    """A node connects again, and does not listen over the new connection."""
    original = NodeLoop._mend

    def _mend(self: NodeLoop, error: StoreUnavailable) -> Any:
        listen, self._on_listen = self._on_listen, lambda: None
        try:
            return (yield from original(self, error))
        finally:
            self._on_listen = listen

    return patch.object(NodeLoop, "_mend", _mend)


@_variant("worker_stores_are_new", focus=("pause", "pause_at_a_call", "partition"))
def socket_kept_for_the_next_cycle() -> AbstractContextManager[Any]:
    """A socket that this node did not serve is announced again, though an earlier seal may have named it."""
    original = Bootstrap.hold
    return patch.object(Bootstrap, "hold", lambda self, cycle_id: original(self, self._cycle_id or cycle_id))


@_variant("nobody_gives_up_on_a_live_store", focus=("cut",))
def one_reset_is_enough() -> AbstractContextManager[Any]:
    """A node that has lost its connection does not try again."""

    def _mend(self: NodeLoop, error: StoreUnavailable) -> Any:
        raise error
        yield

    return patch.object(NodeLoop, "_mend", _mend)


@_variant("converges", focus=("pause", "pause_at_a_call", "pause_between_events"))
def fenced_and_never_stirred() -> AbstractContextManager[Any]:
    """A fenced node has no beat, and nothing else makes it look at the head."""
    original = NodeLoop._beat

    def _beat(self: NodeLoop) -> Any:
        if not self.participant.pulse.is_fenced:
            yield from original(self)

    return patch.object(NodeLoop, "_beat", _beat)


@_variant("nobody_gives_up_on_a_live_store", focus=("pause", "pause_at_a_call", "partition"))
def barrier_needs_a_lease() -> AbstractContextManager[Any]:
    """A node that has finished and lost its lease leaves the exit barrier, and the run may go on without a word."""
    original = Participant.await_verdict

    def await_verdict(self: Participant) -> NodeRoutine[Any]:
        for request in original(self):
            if not self.is_trusted():
                raise StoreUnavailable("store", "the lease is lost")
            yield request
        return self.verdict

    return patch.object(Participant, "await_verdict", await_verdict)


# --- blame ------------------------------------------------------------------------------------------


def _excusing(excuse: Callable[[AnyWhy, int, bool], bool]) -> AbstractContextManager[Any]:
    return patch.object(coordinator, "is_excused", excuse)


@_variant("charges_are_just", focus=("stall_host", "pause_coordinator"))
def stalls_are_charged() -> AbstractContextManager[Any]:
    """Workers that failed while the host stood still are charged to the run."""
    return _excusing(lambda why, lost_count, has_stalled: is_excused(why, lost_count, False))


@_variant("charges_are_just", focus=("crash", "terminate", "restart"))
def losses_are_charged() -> AbstractContextManager[Any]:
    """Workers that failed because a node was lost are charged to the run."""
    return _excusing(lambda why, lost_count, has_stalled: is_excused(why, 0, has_stalled))


@_variant("charges_are_just", "every_close_is_justified", focus=("ask_restart", "operator_restarts"))
def restarts_are_charged() -> AbstractContextManager[Any]:
    """An end that was asked for is charged like one that was not."""
    return _excusing(lambda why, lost_count, has_stalled: lost_count > 0 or has_stalled)


@_variant("charges_are_just")
def all_who_failed_are_charged() -> AbstractContextManager[Any]:
    """A failure is charged to the node that the last cycle was charged to."""
    original = Ledger._blame
    first: list[FailureNote] = []

    def _blame(self: Ledger, note: FailureNote | None, now: float, can_lose: Callable[[FailureNote], bool]) -> Any:
        if self.charged <= 1:
            first.clear()
        first.extend([note] if note is not None else [])
        return original(self, first[0] if first else None, now, can_lose)

    return patch.object(Ledger, "_blame", _blame)


@_variant("quarantined_are_not_placed", focus=("restart", "start_twice"))
def quarantine_of_an_incarnation() -> AbstractContextManager[Any]:
    """A node in quarantine that is started again is taken for another one."""
    return patch.object(Ledger, "quarantined_for", lambda self, key, now: 0.0)


# --- closes -----------------------------------------------------------------------------------------


@_variant("every_close_is_justified", focus=("stall_host", "crash", "terminate"))
def stalls_use_up_the_join_timeout() -> AbstractContextManager[Any]:
    """A host that comes back from a stall gives up on nodes that could not arrive."""
    original = Membership.judge_leases

    def judge_leases(self: Membership, published: int) -> Move[float]:
        yield from original(self, published)
        return 0.0

    return patch.object(Membership, "judge_leases", judge_leases)


@_variant("every_close_is_justified", focus=("crash", "pause", "restart"))
def join_timeout_of_the_run() -> AbstractContextManager[Any]:
    """The time to find enough nodes is counted from the beginning of the run."""
    original = Coordinator._open

    def _open(self: Coordinator, why: AnyWhy) -> Move[None]:
        opened_at = self.opened_at
        yield from original(self, why)
        self.opened_at = opened_at

    return patch.object(Coordinator, "_open", _open)


@_variant("every_close_is_justified", focus=("terminate", "crash", "start_another"))
def spent_for_ever() -> AbstractContextManager[Any]:
    """An agent that gave up counts after another node has trained in its place."""
    original = Roster.seal

    def seal(self: Roster, placement: Placement) -> None:
        spent = self.spent_count
        original(self, placement)
        self.spent_count = spent

    return patch.object(Roster, "seal", seal)


@_variant("every_close_is_justified", focus=("fail_health_check", "start_unfit"))
def unfit_for_ever() -> AbstractContextManager[Any]:
    """An unfit node counts after another one has come in its place."""
    original = Roster._take_arrival

    def _take_arrival(self: Roster, arrival: Arrival, counts: bool) -> list[Fence]:
        unhealthy = dict(self.unhealthy)
        fences = original(self, arrival, counts)
        self.unhealthy = unhealthy
        return fences

    return patch.object(Roster, "_take_arrival", _take_arrival)


@_variant("every_close_is_justified", focus=("operator_restarts", "operator_lists"))
def any_request_closes() -> AbstractContextManager[Any]:
    """A restart that an operator asks for at the wrong moment closes the run."""
    original = Coordinator._grant_operator

    def _grant_operator(self: Coordinator, request: Request) -> Move[list[str]]:
        draining = yield from original(self, request)
        yield from self.close(Verdict(VerdictKind.CANCELLED, "closed by an operator: maintenance"))
        return draining

    return patch.object(Coordinator, "_grant_operator", _grant_operator)


@_variant("every_close_is_justified", focus=("pause", "partition"))
def the_silent_have_left() -> AbstractContextManager[Any]:
    """A run whose nodes are all silent is closed, though they may come back."""
    original = Roster.drop

    def drop(self: Roster, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.left_count += 1

    return patch.object(Roster, "drop", drop)


@_variant("the_host_stays_while_needed", focus=("terminate", "signal_host"))
def the_host_stays_for_a_while() -> AbstractContextManager[Any]:
    """A node whose own part is over takes the store with it when a signal comes."""
    original = HostStay.decide_staying
    return patch.object(
        HostStay, "decide_staying", lambda self, others, has_signal, now: original(self, 0, has_signal, now)
    )


# --- the bell ---------------------------------------------------------------------------------------


class _LateBell(SimHost):
    """Deletes the bell after the look."""

    is_due = True

    def _rest(self, wake_at: float) -> Routine:
        self.is_due = False
        yield Call(self._voice, Delete(self.coordinator.keys.bell))
        yield from super()._rest(wake_at)

    def _listen_for_bell(self) -> Routine:
        while True:
            yield Call(self._ear, Get(self.coordinator.keys.bell))
            self.is_due = True
            self._ring()
            yield Sleep(0.01)


@_variant("converges", host_class=_LateBell)
@contextmanager
def bell_deleted_after_the_look() -> Iterator[None]:
    """With nothing but the bell to make the coordinator read, a ring between look and deletion is lost."""
    original = StoredCycles.read
    hosts: list[_LateBell] = []
    original_init = _LateBell.__init__

    def __init__(self: _LateBell, *args: Any) -> None:
        hosts[:] = [self]
        original_init(self, *args)

    def read(self: StoredCycles) -> Move[moves.Reading]:
        if hosts[0].is_due or self.disagrees_since is not None:
            return (yield from original(self))
        return moves.Reading([], [])

    with patch.object(StoredCycles, "read", read), patch.object(_LateBell, "__init__", __init__):
        yield


@contextmanager
def _all(*patches: AbstractContextManager[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for one in patches:
            stack.enter_context(one)
        yield
