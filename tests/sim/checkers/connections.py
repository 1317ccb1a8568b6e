"""A node and its store: what it waits for, when it gives up, what a reset costs, where its workers meet."""

# ruff: noqa: ARG002 - a checker is told every sighting whole, and looks at what it needs.

from __future__ import annotations

from typing import TYPE_CHECKING

from ft_rendezvous.core.model import (
    AnyRecord,
    Goodbye,
    Sealed,
    Seat,
    Verdict,
)
from ft_rendezvous.errors import ProtocolBug, StoreUnavailable
from ft_rendezvous.protocol.participant import Place
from tests.sim.checkers.base import Checker, event_number
from tests.sim.kernel import Connection, Process

if TYPE_CHECKING:
    from tests.sim.agent import SimNode
    from tests.sim.world import World


class nobody_waits_for_a_deleted_event(Checker):
    """No live incarnation asks for an event that is gone and will not come again; one that is over may, until its
    node has learnt of it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._no = 0
        self._over: set[str] = set()
        self._patience_s = self._settings.lease_s + 2 * self._settings.beat_s + 1.0

    def event_deleted(self, no: int) -> None:
        self._no = max(self._no, no)

    def fenced(self, incarnation: str, reason: str) -> None:
        self._over.add(incarnation)

    def record(self, record: AnyRecord, process: Process) -> None:
        if isinstance(record, Goodbye):
            self._over.add(record.incarnation)

    def waits_for_event(self, ear: Connection, no: int) -> None:
        if no <= self._no and ear.serves not in self._over:
            self.fail(f"{ear.name} waits for event {no}, which was deleted, and {self._name(ear.serves)} is alive")

    def second_passes(self) -> None:
        for key, waiters in self._world.server.store.waiters.items():
            if "/event/" in key and event_number(key) <= self._no:
                for waiter in waiters:
                    ear = waiter.owner
                    assert isinstance(ear, Connection)
                    self._judge(ear, key)

    def _judge(self, ear: Connection, key: str) -> None:
        node = self._world.node_of(ear.serves)
        if node.is_paused or node.is_leaving or node.has_ended_well or node.link is None:
            return
        participant = node.link.participant
        is_relied_upon = participant.incarnation == ear.serves and participant.is_trusted()
        since = max(ear.waits_since, node.resumed_at, self._world.host.process.resumed_at)
        if is_relied_upon and self._now > since + self._patience_s:
            self.fail(f"{ear.name} has waited for {key}, which was deleted, for {self._now - since:.3f} s")


class nobody_gives_up_on_a_live_store(Checker):
    """A node leaves for want of an answer only if the store died, and never over a value that it cannot read. No number
    of resets and no pause of the host, short of `join_timeout`, ends a node, or takes it out of the exit barrier."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._heard: set[SimNode] = set()
        self._uptimes: list[tuple[float, float]] = []

    def exits(self, node: SimNode, error: Exception | None) -> None:
        if isinstance(error, ProtocolBug):
            self.fail(f"{node.name} gave up: {error}")
        is_alive = self._world.server_died_at is None and not self._was_silent() and not self._has_stood_still(node)
        if isinstance(error, StoreUnavailable) and is_alive:
            self.fail(f"{node.name} gave up: {error}")
        has_no_verdict = node.has_ended_well and node not in self._heard and not node.is_terminated
        if has_no_verdict and self._world.server_died_at is None and not self._was_silent():
            self.fail(f"{node.name} left the exit barrier without a verdict")

    def hears_verdict(self, node: SimNode, verdict: Verdict) -> None:
        self._heard.add(node)

    def second_passes(self) -> None:
        self._uptimes.append((self._now, self._world.server.uptime()))

    def _has_stood_still(self, node: SimNode) -> bool:
        """Whether the node was paused while it was out of touch. It counts that time, too (seed 21860)."""
        return node.resumed_at > max(0.0, self._now - self._settings.beat_s)

    def _was_silent(self) -> bool:
        """Whether the store has answered for less than a second or two of the last `join_timeout`."""
        since = self._now - self._settings.join_s
        before = max((uptime for time, uptime in self._uptimes if time <= since), default=0.0)
        return self._world.server.uptime() - before < 2.0


class worker_stores_are_new(Checker):
    """The workers of one cycle cannot reach the store of another: no address is named by two seals, and rank 0 serves
    the address that was named."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._named: dict[tuple[str, int], tuple[int, int]] = {}

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        for group, master in event.masters.items():
            address, meeting = (master.addr, master.port), (event.cycle_id, group)
            other = self._named.setdefault(address, meeting)
            if other != meeting:
                self.fail(f"the workers of (cycle, group) {other} and {meeting} meet at {address}")

    def takes_place(self, node: SimNode, place: Place) -> None:
        if place.rank == 0 and place.master_port not in node.ports.open:
            self.fail(f"{node.name} has rank 0 in cycle {place.cycle_id} and does not serve port {place.master_port}")


class resets_cost_nothing(Checker):
    """A node whose connections break, and that is healthy otherwise, connects again and keeps its incarnation."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._fenced: set[str] = set()

    def fenced(self, incarnation: str, reason: str) -> None:
        self._fenced.add(incarnation)
        node = self._world.node_of(incarnation)
        if not reason.startswith("refused") and not node.is_dead:
            self._judge(node, "is fenced")

    def begins_anew(self, node: SimNode) -> None:
        # A node that was fenced may take its time to stop its workers, and may find its fence deleted.
        if node.link is None or node.link.participant.incarnation not in self._fenced:
            self._judge(node, "begins a new incarnation")

    def _judge(self, node: SimNode, what: str) -> None:
        host, server, settings = self._world.host.process, self._world.server, self._settings
        # A node is called deaf after two leases, and learns of it with its next beat.
        since = self._now - 3 * settings.lease_s - 2 * settings.beat_s
        is_disturbed = node.is_paused or node.is_cut_off or host.is_paused or server.is_paused
        was_disturbed = max(node.disturbed_at, node.delays.spikes_until, host.disturbed_at) >= since
        if not (is_disturbed or was_disturbed):
            self.fail(f"{node.name} {what}, and nothing happened to it but a reset")
