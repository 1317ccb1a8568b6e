"""Replica groups in virtual time: parked nodes, drains, requests and records that come twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.capacity import Policy
from ft_rendezvous.core.model import Answer, Request, RequestKind
from ft_rendezvous.protocol import moves
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.journal import CycleSealed, CycleSettled, Entry
from ft_rendezvous.protocol.ops import Get, perform_move
from tests.scenarios.simulated_cluster import EPOCH, Cluster
from tests.sim.store import SimStore

OPERATOR = "0123456789abcdef"


def start(nodes: int, *, domains: Sequence[str] = (), **settings: Any) -> tuple[Cluster, list[Entry]]:
    """A cluster whose first nodes have joined one by one, and its journal."""
    entries: list[Entry] = []
    given = {"run_id": "r", "min_nodes": nodes, "max_nodes": nodes, "crash_loop": 0, "join_s": 60.0, **settings}
    cluster = Cluster(RunSettings(**given), SimStore(), on_entry=entries.append)
    for number in range(nodes):
        join(cluster, number, domain_id=domains[number] if domains else None)
    return cluster, entries


def join(cluster: Cluster, number: int, name: str = "", **info: Any) -> None:
    cluster.join(name or f"n{number}", infra_rank=number, **info)
    cluster.settle()


def groups(cluster: Cluster) -> dict[int, list[str]]:
    """The nodes that train, by group and rank."""
    found: dict[int, dict[int, str]] = {}
    for node in cluster.nodes.values():
        if node.place is not None and not node.is_gone and not node.has_finished:
            found.setdefault(node.place.group, {})[node.place.rank] = node.name
    return {group: [ranks[rank] for rank in sorted(ranks)] for group, ranks in sorted(found.items())}


def drain(cluster: Cluster, name: str) -> None:
    node = cluster.nodes[name]
    perform_move(node.store, node.participant.ask_drain("SIGUSR1"))
    cluster.settle()


def ask_restart(cluster: Cluster, target: str = "") -> Answer:
    """An operator's request, and the answer."""
    request = Request(
        cycle_id=cluster.coordinator.cycle_id, incarnation=OPERATOR, kind=RequestKind.RESTART, target=target
    )
    perform_move(cluster.store, moves.write_record(Keys(EPOCH), cluster.coordinator.view.opened, request))
    cluster.settle()
    return msgspec.json.decode(cluster.store.perform(Get(Keys(EPOCH).answer(OPERATOR))), type=Answer)


def test_parked_nodes_form_a_group_if_fewer_than_min_nodes_train() -> None:
    cluster, _ = start(6, group_size=2, min_groups=3, max_node_losses=1, last_call_s=2.0)
    cluster.nodes["n1"].kill()
    cluster.nodes["n3"].kill()
    cluster.advance(8)
    join(cluster, 1, "n1b", addr="n1")
    join(cluster, 3, "n3b", addr="n3")
    cluster.advance(80)
    assert cluster.verdict is None
    assert {name for names in groups(cluster).values() for name in names} == {"n0", "n1b", "n2", "n3b", "n4", "n5"}


def test_a_restart_of_all_spares_groups_that_have_finished() -> None:
    cluster, _ = start(2, group_size=1, min_groups=2)
    cluster.nodes["n0"].finish()
    cluster.settle()
    assert ask_restart(cluster).is_granted
    cluster.advance(5)
    assert (cluster.verdict, groups(cluster)) == (None, {1: ["n1"]})
    assert cluster.nodes["n1"].place is not None
    assert cluster.nodes["n1"].place.cycle_id == 2


def test_a_group_that_has_finished_cannot_be_restarted() -> None:
    cluster, _ = start(2, group_size=1)
    cluster.nodes["n0"].finish()
    cluster.settle()
    answer = ask_restart(cluster, "0")
    assert (answer.is_granted, answer.text) == (False, "group 0 cannot restart: it has finished")


def test_a_group_whose_drain_is_not_covered_cannot_be_restarted() -> None:
    cluster, _ = start(2, group_size=1, min_groups=2, drain_grace_s=5.0)
    drain(cluster, "n0")
    cluster.advance(10)
    answer = ask_restart(cluster, "0")
    assert not answer.is_granted
    assert "no other node can take its place" in answer.text
    cluster.advance(80)
    assert (cluster.verdict, groups(cluster)) == (None, {0: ["n0"], 1: ["n1"]})


@pytest.mark.parametrize("is_rank_zero", [True, False])
def test_an_arrival_that_is_written_twice_places_a_node_once(is_rank_zero: bool) -> None:
    """The second time comes when the node has been placed, and still stops its workers."""
    cluster, entries = start(4, group_size=2, last_call_s=0.5, max_nodes=8)
    join(cluster, 4)
    cluster.advance(1)
    twice = next(iter(cluster.coordinator.roster.ready.values()))
    cluster.nodes["n0" if is_rank_zero else "n1"].kill()
    cluster.advance(7)
    busy, other = cluster.nodes["n4"], cluster.nodes["n1" if is_rank_zero else "n0"]
    busy.is_busy = True
    join(cluster, 5)
    other.fail()
    cluster.settle()
    cluster.advance(2)
    perform_move(cluster.store, moves.write_record(Keys(EPOCH), cluster.coordinator.view.opened, twice))
    cluster.settle()
    cluster.nodes["n2"].kill()
    cluster.advance(8)
    seals = [entry for entry in entries if isinstance(entry, CycleSealed)]
    assert sum(twice.incarnation in entry.placement.ranks for entry in seals) == 1
    assert sum(entry.master == f"n4:{twice.bootstrap_port}" for entry in seals) == int(is_rank_zero)


def test_a_spare_that_no_open_group_can_use_covers_a_drain() -> None:
    cluster, _ = start(6, max_nodes=8, group_size=2, min_groups=2, drain_grace_s=5.0, join_s=500.0)
    for name in ("n0", "n1"):
        cluster.nodes[name].kill()
    cluster.advance(8)
    join(cluster, 6)
    drain(cluster, "n2")
    cluster.advance(20)
    assert cluster.nodes["n2"].is_gone
    assert groups(cluster) == {1: ["n6", "n3"], 2: ["n4", "n5"]}


def test_nodes_of_a_group_that_lacks_others_cover_a_drain() -> None:
    cluster, _ = start(4, group_size=2, drain_grace_s=5.0)
    drain(cluster, "n0")
    cluster.advance(10)
    drain(cluster, "n2")
    cluster.advance(20)
    assert cluster.nodes["n2"].is_gone
    assert [sorted(names) for names in groups(cluster).values()] == [["n1", "n3"]]


def test_two_drains_do_not_count_on_one_spare() -> None:
    cluster, _ = start(4, max_nodes=6, group_size=2, min_groups=2, drain_grace_s=5.0)
    join(cluster, 4)
    drain(cluster, "n0")
    drain(cluster, "n2")
    cluster.advance(80)
    assert (cluster.verdict, len(groups(cluster))) == (None, 2)
    assert [cluster.nodes[name].is_gone for name in ("n0", "n2")] == [True, False]


def test_a_new_group_is_not_told_as_one_that_has_ended() -> None:
    cluster, _ = start(2, max_nodes=3, group_size=1, policy=Policy.ELASTIC, last_call_s=0.1)
    told: list[int] = []
    cluster.advance(1)
    for node in cluster.nodes.values():
        node.participant.on_group_ended = lambda group, _reason: told.append(group)
    join(cluster, 2)
    cluster.advance(1)
    assert (groups(cluster), told) == ({0: ["n0"], 1: ["n1"], 2: ["n2"]}, [])
    cluster.nodes["n2"].kill()
    cluster.advance(8)
    assert told == [2, 2]


def test_a_late_failure_of_a_settled_cycle_is_not_charged_in_the_next() -> None:
    cluster, entries = start(
        4, max_nodes=6, group_size=2, max_node_failures=1, quarantine_s=1000.0, last_call_s=5.0, lease_s=9.0
    )
    join(cluster, 4)
    cluster.nodes["n1"].is_busy = True
    cluster.nodes["n0"].fail()
    cluster.settle()
    cluster.advance(20)
    settled = [entry for entry in entries if isinstance(entry, CycleSettled)]
    assert [(entry.cycle_id, entry.failures) for entry in settled] == [(1, 1)]
    assert settled[0].first is not None
    assert settled[0].first.node.startswith("infra rank 0")
