"""What is published, kept and rung for."""

# ruff: noqa: ARG001, ARG005 - what replaces a function takes what the function took.

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from ft_rendezvous.core.leases import LeaseTable, Pulse
from ft_rendezvous.core.model import (
    AnyWhy,
    Head,
    Opened,
    Seat,
)
from ft_rendezvous.core.node_step import Progress
from ft_rendezvous.core.recent import RecentNames
from ft_rendezvous.protocol import codec, moves
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.coordinator import Coordinator
from ft_rendezvous.protocol.ops import Check, CompareSet, Delete, Get, Move, MultiSet
from ft_rendezvous.protocol.participant import Participant
from ft_rendezvous.protocol.stored_cycles import StoredCycles
from tests.sim.host import SimHost
from tests.sim.kernel import Call, Routine, Sleep
from tests.sim.log import SimLog
from tests.sim.variants.base import variant

# --- what is published -----------------------------------------------------------------------------


@variant("converges")
def seats_in_order_of_arrival() -> AbstractContextManager[Any]:
    """Seats are dealt to the channels in turn; a node listens to another channel than the one with its seat."""

    def by_channel(seats: dict[str, Seat], channels: int) -> list[dict[str, Seat]]:
        dealt: list[dict[str, Seat]] = [{} for _ in range(channels)]
        for index, (incarnation, seat) in enumerate(seats.items()):
            dealt[index % channels][incarnation] = seat
        return dealt

    return patch.object(codec, "by_channel", by_channel)


@variant("nothing_said_is_lost")
def opened_in_one_go() -> AbstractContextManager[Any]:
    """Counts and logs are set together with the event: whoever hears of it early is counted, and set back."""

    def publish_opened(keys: Keys, opened: Opened, head: Head) -> Move[None]:
        logs = [keys.log(opened.cycle_id, shard) for shard in range(opened.shards)]
        names = [keys.arrived(opened.cycle_id), keys.withdrawn(opened.cycle_id), *logs]
        values = [b"0", b"0", *[b""] * len(logs)]
        event_names, event_values = moves._publication(keys, [opened] * opened.channels, head)
        yield MultiSet([*names, *event_names], [*values, *event_values])

    return patch.object(moves, "publish_opened", publish_opened)


@variant("cycle_ids_are_monotonic")
def first_free_cycle_id() -> AbstractContextManager[Any]:
    """Look for an id that is not in use, then take it: one that was deleted looks unused."""
    original = Coordinator._open

    def _open(self: Coordinator, why: AnyWhy) -> Move[None]:
        if self.stored.readers:
            free = 1
            while (yield Check([self.keys.arrived(free)])):
                free += 1
            self.publisher.newest_id = free - 1
        yield from original(self, why)

    return patch.object(Coordinator, "_open", _open)


@variant("nobody_waits_for_a_deleted_event", focus=("pause_between_events", "slow_down"))
def events_deleted_unread() -> AbstractContextManager[Any]:
    """Delete every event but the last, whoever has read it."""
    return patch.object(LeaseTable, "acknowledged_by_all", lambda self, floor: 1 << 30)


@variant("nobody_waits_for_a_deleted_event", focus=("stall_a_newcomer",))
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


# --- one long cycle --------------------------------------------------------------------------------


@variant("one_long_cycle_is_bounded")
def logs_are_never_emptied() -> AbstractContextManager[Any]:
    """What was read stays until the cycle is over, which may be never."""

    def empty_logs(keys: Keys, reader: moves.LogReader) -> Move[None]:
        yield from ()

    return patch.object(moves, "empty_logs", empty_logs)


@variant("nothing_said_is_lost")
def logs_emptied_as_they_are_now() -> AbstractContextManager[Any]:
    """A log is emptied of what is in it, and not of what was read: a record that has just come is lost."""

    def empty_logs(keys: Keys, reader: moves.LogReader) -> Move[None]:
        for shard in reader.long_logs:
            key = keys.log(reader.cycle_id, shard)
            yield CompareSet(key, (yield Get(key)), b"")
            reader.offsets[shard] = 0

    return patch.object(moves, "empty_logs", empty_logs)


@variant("one_long_cycle_is_bounded", focus=("crash", "start_impostor"))
def fences_wait_for_ever() -> AbstractContextManager[Any]:
    """A fence whose node has died is not deleted."""

    def end_fence(keys: Keys, incarnation: str) -> Move[None]:
        yield from moves.end_beat(keys, incarnation)

    return patch.object(moves, "end_fence", end_fence)


@variant("one_long_cycle_is_bounded", focus=("start_impostor",))
def refused_starts_are_remembered() -> AbstractContextManager[Any]:
    """Nothing is forgotten."""

    def add(self: RecentNames, name: str) -> bool:
        is_new = name not in self._names
        self._names.add(name)
        return is_new

    return patch.object(RecentNames, "add", add)


# --- the bell --------------------------------------------------------------------------------------


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
            self.ring()
            yield Sleep(0.01)


@variant("converges", host_class=_LateBell)
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


# --- the log ----------------------------------------------------------------------------------------


@variant("converges")
def coordinator_writes_its_log() -> AbstractContextManager[Any]:
    """The coordinator waits until the reader of its log has taken the line."""

    def take(self: SimLog) -> None:
        process = self.process
        if self.line_s and not process.is_paused:
            process.pause()
            process.kernel.at(process.kernel.now + self.line_s, process.resume)

    return patch.object(SimLog, "take", take)
