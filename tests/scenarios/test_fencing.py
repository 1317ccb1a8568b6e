"""The time between the coordinator's look at the beats and its fence. A real coordinator cannot make it zero."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core import recent
from ft_rendezvous.core.model import Arrival
from ft_rendezvous.errors import Refused
from ft_rendezvous.protocol import moves
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.ops import Get, MultiGet, Op, perform_move
from ft_rendezvous.protocol.participant import Place
from ft_rendezvous.protocol.stored_cycles import FENCE_RETENTION_LEASES
from tests.scenarios.simulated_cluster import Cluster
from tests.sim.store import SimStore

SETTINGS = RunSettings(run_id="r", min_nodes=2, max_nodes=3, max_node_failures=0)


def running_cluster() -> Cluster:
    cluster = Cluster(SETTINGS, SimStore())
    for number, name in enumerate(("a", "b", "s")):
        cluster.join(name, infra_rank=number)
        cluster.settle()
    assert [node.name for node in cluster.training] == ["a", "b"]
    return cluster


def fence_while(cluster: Cluster, meanwhile: Any) -> None:
    """One tick of the coordinator. `meanwhile` is called right after it has read the beats."""
    tick = cluster.coordinator.tick()
    reply: Any = None
    while True:
        try:
            op = tick.send(reply)
        except StopIteration as stop:
            cluster.wake_at = stop.value
            return
        reply = cluster.store.perform(op)
        if isinstance(op, MultiGet) and any("/beat/" in key for key in op.keys):
            meanwhile()


@pytest.fixture
def fenced_late() -> Cluster:
    """Node b was silent for a lease. Its beat arrives between the look that finds it dead and the fence."""
    cluster = running_cluster()
    late = cluster.nodes["b"]
    late.is_frozen = True
    cluster.advance(SETTINGS.beat_s)  # The coordinator has seen everything it did before.
    due_at = cluster.coordinator.membership.leases.leases[late.participant.incarnation].seen_at + SETTINGS.lease_s
    cluster.advance(due_at - cluster.clock() - SETTINGS.beat_s / 4)
    assert late.participant.incarnation not in cluster.coordinator.roster.fenced
    cluster.clock.now = due_at
    for name in ("a", "s"):
        cluster.nodes[name].beat_if_due()
    fence_while(cluster, lambda: perform_move(late.store, late.participant.beat()))
    assert late.participant.incarnation in cluster.coordinator.roster.fenced
    return cluster


def test_a_node_fenced_at_the_last_moment_trusts_its_place_no_longer_than_a_lease(fenced_late: Cluster) -> None:
    """Guarantee `fenced_nodes_stop`: also if the node is cut off at that moment and never learns of its fence."""
    late = fenced_late.nodes["b"]
    fenced_late.advance(SETTINGS.lease_s)
    assert not late.participant.is_trusted()


def test_a_node_fenced_at_the_last_moment_learns_of_it_by_its_next_beat(fenced_late: Cluster) -> None:
    late = fenced_late.nodes["b"]
    fenced_late.settle()
    late.is_frozen = False
    fenced_late.advance(SETTINGS.beat_s)
    assert [node.name for node in fenced_late.training] == ["a", "s"]
    assert late.starts == 2, "it goes on under a new incarnation"
    assert late.outcome is None


def test_the_place_of_a_fenced_node_is_given_away_at_once(fenced_late: Cluster) -> None:
    fenced_late.settle()
    places = {name: fenced_late.nodes[name].place for name in ("a", "s")}
    assert {name: place.rank for name, place in places.items() if isinstance(place, Place)} == {"a": 0, "s": 1}


def test_a_late_beat_of_a_fenced_node_does_not_bring_its_counter_back() -> None:
    cluster = running_cluster()
    store = cluster.store
    assert isinstance(store, SimStore)
    late = cluster.nodes["b"]
    late.is_frozen = True
    cluster.advance(SETTINGS.lease_s + 1)
    dead_beat = cluster.coordinator.keys.beat(late.participant.incarnation)
    assert dead_beat not in store.data
    perform_move(store, late.participant.beat())
    assert late.participant.pulse.is_fenced
    assert dead_beat not in store.data


def test_a_first_beat_that_comes_after_the_fence_is_cleaned_up() -> None:
    """A first beat expects no counter, so it makes one, even after the coordinator has ended the incarnation."""
    cluster = running_cluster()
    store = cluster.store
    assert isinstance(store, SimStore)
    late = cluster.nodes["b"]
    late.is_frozen = True
    cluster.advance(SETTINGS.lease_s + 1)
    incarnation = late.participant.incarnation
    dead_beat = cluster.coordinator.keys.beat(incarnation)
    assert dead_beat not in store.data
    perform_move(store, moves.beat(cluster.coordinator.keys, incarnation, 0, 1))
    assert dead_beat in store.data
    late.kill()
    cycle_id = cluster.coordinator.cycle_id
    cluster.advance(FENCE_RETENTION_LEASES * SETTINGS.lease_s)
    assert dead_beat not in store.data
    assert cluster.coordinator.cycle_id == cycle_id, "no other cycle is needed for that"


@dataclass
class SweptStore:
    """The coordinator deletes a fence just before the operation with this number."""

    store: SimStore
    deletes_at: int
    calls: int = 0

    def perform(self, op: Op) -> Any:
        if self.calls == self.deletes_at:
            perform_move(self.store, moves.end_fence(KEYS, FENCED))
        self.calls += 1
        return self.store.perform(op)  # Raises WouldBlock where a TCPStore would wait for ever.


KEYS, FENCED = Keys("e"), "1" * 16


@pytest.mark.parametrize(("deletes_at", "reason"), [(0, None), (1, "no beat"), (2, "no beat"), (3, "no beat")])
def test_a_node_is_not_caught_by_the_deletion_of_its_fence(deletes_at: int, reason: str | None) -> None:
    """The coordinator deletes an old fence between any two operations of the node that reads it."""
    store = SimStore()
    perform_move(store, moves.fence(KEYS, FENCED, "no beat"))
    assert perform_move(SweptStore(store, deletes_at), moves.read_fence(KEYS, FENCED)) == reason
    assert not store.data


def test_a_node_that_the_coordinator_has_forgotten_cannot_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its incarnation is over, so it has no beat, and an arrival of it that comes late is refused for that."""
    monkeypatch.setattr(recent, "MOST_REMEMBERED", 0)
    cluster = running_cluster()
    lost = cluster.nodes["b"]
    lost.is_frozen = True
    cluster.advance(2 * SETTINGS.lease_s)
    assert not cluster.coordinator.roster.is_known(lost.participant.incarnation)
    keys, opened = cluster.coordinator.keys, cluster.coordinator.view.opened
    seq = perform_move(cluster.store, moves.count_arrival(keys, opened))
    late = Arrival(
        cycle_id=opened.cycle_id,
        incarnation=lost.participant.incarnation,
        seq=seq,
        node=lost.participant.node,
        bootstrap_port=1,
    )
    perform_move(cluster.store, moves.write_arrival(keys, opened, late))
    cluster.settle()
    assert late.incarnation not in cluster.coordinator.roster.members
    assert b"without a beat" in cluster.store.perform(Get(keys.fence(late.incarnation)))
    lost.is_frozen = False
    cluster.advance(2 * SETTINGS.beat_s)
    assert isinstance(lost.outcome, Refused), "it reads the last fence"


def test_a_refused_node_that_finds_no_fence_is_refused_again() -> None:
    """It was stopped for longer than the coordinator keeps fences."""
    cluster = running_cluster()
    impostor = cluster.join("x", infra_rank=1, addr="elsewhere")
    cluster.settle()
    impostor.is_frozen = True
    cluster.advance((FENCE_RETENTION_LEASES + 1) * SETTINGS.lease_s)
    assert not cluster.exists(cluster.coordinator.keys.fence(impostor.participant.incarnation))
    impostor.is_frozen = False
    cluster.advance(2 * SETTINGS.beat_s)
    assert impostor.starts == 2
    assert isinstance(impostor.outcome, Refused)
    assert [node.name for node in cluster.training] == ["a", "b"]


def test_a_refused_node_does_not_come_back() -> None:
    cluster = running_cluster()
    cluster.join("b2", infra_rank=1, addr="b")
    cluster.settle()
    cluster.advance(SETTINGS.beat_s)
    replaced = cluster.nodes["b"]
    assert isinstance(replaced.outcome, Refused)
    assert replaced.starts == 1
    assert [node.name for node in cluster.training] == ["a", "b2"]
