"""A node that dies and comes back again and again: how often it disturbs the others."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.capacity import Policy
from ft_rendezvous.core.model import Outcome, WorldGrows
from ft_rendezvous.core.sealing import AwaitsOthers
from ft_rendezvous.protocol.journal import CycleOpened, CycleSealed, Entry, NodeParked, NodeUnparked
from ft_rendezvous.protocol.ops import perform_move
from tests.scenarios.simulated_cluster import Cluster
from tests.sim.store import SimStore

DEATHS = 40


def run_of(*names: str, has_infra_ranks: bool = True, **changes: Any) -> Cluster:
    """An elastic run of two to four nodes, of which the named ones have come and train."""
    given = {"run_id": "r", "min_nodes": 2, "max_nodes": 4, "policy": Policy.ELASTIC, "last_call_s": 1.0, **changes}
    cluster = Cluster(RunSettings(**given), SimStore())
    for number, name in enumerate(names):
        cluster.join(name, infra_rank=number if has_infra_ranks else None)
        cluster.settle()
    cluster.advance(2.0)
    return cluster


def restart_agent(cluster: Cluster, name: str, away_s: float) -> None:
    """Its agent is killed, and started again after a while."""
    info = cluster.nodes[name].participant.node
    cluster.nodes[name].kill()
    cluster.advance(away_s)
    cluster.join(name, addr=info.addr, infra_rank=info.infra_rank, domain_id=info.domain_id)
    cluster.advance(2.0)


@pytest.mark.parametrize("away_s", [0.5, 7.0], ids=["replaced within its lease", "lost"])
@pytest.mark.parametrize("has_infra_ranks", [True, False])
def test_forty_deaths_of_one_agent_cost_the_others_a_few_restarts(has_infra_ranks: bool, away_s: float) -> None:
    cluster = run_of("a", "b", "f", has_infra_ranks=has_infra_ranks)
    for _ in range(DEATHS):
        restart_agent(cluster, "f", away_s)
    cluster.advance(8.0)
    restarts = cluster.coordinator.cycle_id - 1
    assert restarts <= 2 * cluster.settings.max_node_losses
    assert [node.name for node in cluster.training] == ["a", "b"]


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_the_limit_is_a_setting(limit: int) -> None:
    cluster = run_of("a", "b", "f", max_node_losses=limit)
    for _ in range(limit + 3):
        restart_agent(cluster, "f", 7.0)
    assert limit <= cluster.coordinator.cycle_id - 1 <= 2 * limit


def test_without_a_limit_every_death_costs_two_restarts() -> None:
    cluster = run_of("a", "b", "f", max_node_losses=0)
    for _ in range(6):
        restart_agent(cluster, "f", 7.0)
    assert cluster.coordinator.cycle_id - 1 == 12


def test_a_parked_node_is_an_ordinary_spare_when_its_time_is_over() -> None:
    cluster = run_of("a", "b", "f", max_node_losses=2, quarantine_s=60.0)
    for _ in range(2):
        restart_agent(cluster, "f", 7.0)
    parked_at = cluster.clock()
    cycle_id = cluster.coordinator.cycle_id
    assert [node.name for node in cluster.training] == ["a", "b"]
    cluster.advance(40.0)
    assert cluster.coordinator.cycle_id == cycle_id
    cluster.advance(parked_at + 60.0 - cluster.clock())
    assert [node.name for node in cluster.training] == ["a", "b", "f"]
    assert cluster.coordinator.cycle_id == cycle_id + 1


def test_the_coordinator_wakes_when_a_parked_node_becomes_an_ordinary_spare() -> None:
    cluster = run_of("a", "b", "f", max_node_losses=1, quarantine_s=60.0)
    restart_agent(cluster, "f", 7.0)
    membership = cluster.coordinator.membership
    membership.next_look_at = cluster.clock() + 1000.0
    assert perform_move(cluster.store, cluster.coordinator.tick()) == membership.losses.next_end()


def test_a_closed_run_does_not_wake_for_the_end_of_a_parking() -> None:
    """A time that has passed would wake the coordinator without a pause."""
    cluster = run_of("a", "b", "f", max_node_losses=1, quarantine_s=10.0)
    restart_agent(cluster, "f", 7.0)
    cluster.nodes["f"].is_hung = True
    for name in ("a", "b"):
        cluster.nodes[name].finish()
    cluster.advance(15.0)
    assert cluster.verdict is not None
    assert perform_move(cluster.store, cluster.coordinator.tick()) > cluster.clock()


def test_a_parked_node_is_placed_if_the_others_are_too_few() -> None:
    """And no cycle opens to replace it by a node that comes later."""
    cluster = run_of("a", "b", "f", max_node_losses=1)
    restart_agent(cluster, "f", 7.0)
    assert [node.name for node in cluster.training] == ["a", "b"]
    cluster.nodes["b"].kill()
    cluster.advance(8.0)
    assert [node.name for node in cluster.training] == ["a", "f"]
    cycle_id = cluster.coordinator.cycle_id
    cluster.join("c", infra_rank=7)
    cluster.advance(5.0)
    assert cluster.coordinator.cycle_id == cycle_id
    cluster.nodes["f"].fail()
    cluster.advance(5.0)
    assert [node.name for node in cluster.training] == ["a", "c"], "the next cycle does without it"


def test_a_run_whose_nodes_are_all_parked_goes_on() -> None:
    cluster = run_of("a", "b", "c", max_node_losses=1)
    for name in ("a", "b", "c"):
        cluster.nodes[name].is_frozen = True
    cluster.advance(8.0)
    for name in ("a", "b", "c"):
        cluster.nodes[name].is_frozen = False
    cluster.advance(5.0)
    assert len(cluster.coordinator.roster.parked) == 3
    assert len(cluster.training) == 3


def test_a_fixed_world_prefers_a_spare_that_was_not_lost() -> None:
    cluster = run_of("a", "f", "b", policy=Policy.FIXED, max_node_losses=1)
    assert [node.name for node in cluster.training] == ["a", "f"]
    restart_agent(cluster, "f", 0.5)
    assert [node.name for node in cluster.training] == ["a", "b"], "not the newer start, though it had this rank"


def test_spares_that_are_slow_to_arrive_come_before_a_parked_one() -> None:
    cluster = run_of("a", "f", "b", policy=Policy.FIXED, max_node_losses=1, last_call_s=30.0)
    restart_agent(cluster, "f", 0.5)
    cluster.join("s", infra_rank=9)
    cluster.advance(1.0)
    cluster.nodes["s"].is_hung = True
    cluster.nodes["b"].kill()
    cluster.advance(8.0)
    assert isinstance(cluster.coordinator.wait_reason, AwaitsOthers)
    cluster.nodes["s"].is_hung = False
    cluster.advance(1.0)
    assert [node.name for node in cluster.training] == ["a", "s"]


def test_a_spare_that_hangs_does_not_keep_a_parked_one_from_its_place() -> None:
    cluster = run_of("a", "f", "b", policy=Policy.FIXED, max_node_losses=1, last_call_s=3.0)
    restart_agent(cluster, "f", 0.5)
    cluster.join("s", infra_rank=9)
    cluster.advance(1.0)
    cluster.nodes["s"].is_hung = True
    cluster.nodes["b"].kill()
    cluster.advance(10.0)
    assert [node.name for node in cluster.training] == ["a", "f"]


def test_a_spare_that_dies_whenever_a_cycle_opens_for_it_is_parked() -> None:
    """It is never in a world. Still, all others restart for it."""
    cluster = run_of("a", "b", max_nodes=3, last_call_s=10.0)
    for _ in range(10):
        cluster.join("f", infra_rank=9, addr="f")
        for name in ("a", "b"):
            cluster.nodes[name].is_busy = True
        cluster.settle()
        cluster.nodes["f"].kill()
        cluster.advance(6.0)
        for name in ("a", "b"):
            cluster.nodes[name].is_busy = False
        cluster.advance(12.0)
    assert cluster.coordinator.cycle_id - 1 == cluster.settings.max_node_losses
    assert [node.name for node in cluster.training] == ["a", "b"]


@pytest.mark.parametrize("stall_s", [4.0, 20.0])
def test_a_stall_of_the_host_is_no_loss(stall_s: float) -> None:
    cluster = run_of("a", "b", "c")
    for _ in range(4):
        cluster.clock.now += stall_s
        cluster.advance(5.0)
    assert cluster.coordinator.membership.losses.until == {}
    assert len(cluster.training) == 3


def test_an_agent_that_leaves_and_comes_back_is_not_parked() -> None:
    cluster = run_of("a", "b", "c")
    for _ in range(5):
        cluster.nodes["c"].leave(Outcome.LEFT, "SIGTERM")
        cluster.advance(3.0)
        cluster.join("c", infra_rank=2)
        cluster.advance(3.0)
    assert len(cluster.training) == 3


def test_what_the_journal_says_of_a_parked_node() -> None:
    told: list[str] = []

    def tell(entry: Entry) -> None:
        if isinstance(entry, NodeParked):
            told.append(f"{entry.node} parked for {entry.for_s:g} s, {entry.reason}")
        elif isinstance(entry, NodeUnparked):
            told.append(f"{entry.node} unparked")

    cluster = run_of("a", "b", "f", max_node_losses=2, quarantine_s=60.0)
    cluster.coordinator.membership.journal = tell
    restart_agent(cluster, "f", 7.0)
    assert told == []
    restart_agent(cluster, "f", 6.75)
    cluster.advance(70.0)
    name = "infra rank 2 at f pid"
    assert told == [
        f"{name} 4 parked for 60 s, lost 2 times within 1 min 00 s",
        f"{name} 5 parked for 57.25 s, lost 2 times within 1 min 00 s",
        f"{name} 5 unparked",
    ]


@settings(max_examples=25)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from("abcd"), st.sampled_from([0.5, 7.0]), st.booleans()), min_size=1, max_size=12
    ),
    limit=st.integers(1, 2),
    has_infra_ranks=st.booleans(),
)
def test_a_world_that_can_do_without_a_parked_node_does_without_it(
    steps: list[tuple[str, float, bool]], limit: int, has_infra_ranks: bool
) -> None:
    """Whatever dies or fails: no placement takes a parked node while the others that arrived can form a world."""
    cluster = run_of(*"abcd", has_infra_ranks=has_infra_ranks, max_node_losses=limit, max_node_failures=0, crash_loop=0)
    coordinator = cluster.coordinator

    def judge(entry: Entry) -> None:
        roster = coordinator.roster
        if isinstance(entry, CycleSealed):
            arrived = {*entry.placement.ranks, *entry.placement.standbys}
            if len(arrived - roster.parked) >= cluster.settings.min_nodes:
                assert roster.parked.isdisjoint(entry.placement.ranks)
        elif isinstance(entry, CycleOpened) and isinstance(entry.why, WorldGrows):
            waiting = roster.parked - {seat.incarnation for seat in roster.world}
            assert entry.why.to <= len(roster.members) - len(waiting), "no cycle opens for a parked node"

    coordinator.journal = judge
    for name, away_s, is_death in steps:
        if is_death or cluster.nodes[name].place is None:
            restart_agent(cluster, name, away_s)
        else:
            cluster.nodes[name].fail()
            cluster.advance(2.0)
    cluster.advance(10.0)
    assert len(cluster.training) >= cluster.settings.min_nodes
