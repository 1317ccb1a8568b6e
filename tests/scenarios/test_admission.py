"""Which nodes are admitted: those that say what the run must know. The order of arrival counts, not that of reading."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.capacity import Spread
from ft_rendezvous.core.model import Outcome
from ft_rendezvous.errors import Refused
from ft_rendezvous.protocol.ops import Add
from tests.scenarios.simulated_cluster import Cluster, Node
from tests.sim.store import SimStore

SETTINGS = RunSettings(run_id="r", min_nodes=2, max_nodes=4)


def arrive(node: Node) -> None:
    """Let a node write its arrival before the coordinator looks."""
    while node.step():
        pass


@pytest.mark.parametrize("skipped_pids", range(8))
@pytest.mark.parametrize("where", ["same", "another"])
def test_two_claims_to_one_infra_rank_that_are_read_together_are_settled_by_their_order(
    skipped_pids: int, where: str
) -> None:
    """Logs are read shard by shard. The shard of a node is random; here it depends on the pid."""
    cluster = Cluster(SETTINGS, SimStore())
    cluster.pids = skipped_pids
    first = cluster.join("first", infra_rank=7, addr="gpu7")
    arrive(first)
    second = cluster.join("second", infra_rank=7, addr="gpu7" if where == "same" else "gpu8")
    arrive(second)
    cluster.join("other", infra_rank=0)
    cluster.advance(2 * SETTINGS.beat_s)
    stays, goes = (second, first) if where == "same" else (first, second)
    assert [node.name for node in cluster.training] == ["other", stays.name]
    assert isinstance(goes.outcome, Refused)


def test_a_goodbye_frees_an_infra_rank_for_a_later_node_even_if_both_are_read_together() -> None:
    cluster = Cluster(SETTINGS, SimStore())
    for number, name in enumerate(("a", "b", "c")):
        cluster.join(name, infra_rank=number)
        cluster.settle()
    cluster.nodes["b"].leave(Outcome.LEFT, "maintenance")
    successor = cluster.join("successor", infra_rank=1, addr="elsewhere")
    arrive(successor)
    cluster.advance(2 * SETTINGS.beat_s)
    assert successor.outcome is None
    assert successor.starts == 1


NEEDY = [
    pytest.param({"segment": 2}, "domain", id="segment"),
    pytest.param({"spread": Spread.DOMAINS}, "domain", id="spread"),
    pytest.param({"unit_size": 2}, "unit", id="unit"),
    pytest.param({"unit_size": 2, "segment": 2}, "domain", id="domain of a unit"),
    pytest.param({"unit_size": 2, "segment": 2}, "unit", id="unit of a domain"),
]
"""Rules, and the name that they need of a node."""


def join_vaguely(cluster: Cluster, lacking: str) -> Node:
    """Start a node that says of itself all but this."""
    domain_id = None if lacking == "domain" else "A"
    unit_id = None if lacking == "unit" else "u1"
    return cluster.join("vague", infra_rank=0, addr="gpu0", domain_id=domain_id, unit_id=unit_id)


def join_pair(cluster: Cluster) -> None:
    for number, name in enumerate(("a", "b"), start=1):
        cluster.join(name, infra_rank=number, domain_id="A", unit_id="u1")
        cluster.settle()


@pytest.mark.parametrize(("rules", "lacking"), NEEDY)
@pytest.mark.parametrize("comes", ["first", "last"])
def test_a_node_without_a_needed_name_is_refused_and_disturbs_no_other(
    rules: dict[str, Any], lacking: str, comes: str
) -> None:
    cluster = Cluster(RunSettings(run_id="r", min_nodes=2, max_nodes=4, **rules), SimStore())
    if comes == "last":
        join_pair(cluster)
    vague = join_vaguely(cluster, lacking)
    cluster.settle()
    if comes == "first":
        join_pair(cluster)
    cluster.advance(2 * SETTINGS.beat_s)
    assert isinstance(vague.outcome, Refused)
    name = f"infra rank 0 at gpu0 pid {vague.participant.node.pid}"
    assert vague.outcome.reason == f"{name} has no {lacking}, and this run needs one: see ftr docs placement"
    assert [node.name for node in cluster.training] == ["a", "b"]
    assert cluster.coordinator.cycle_id == 1


@pytest.mark.parametrize(("rules", "lacking"), NEEDY)
def test_a_node_that_was_refused_may_come_back_and_say_where_it_is(rules: dict[str, Any], lacking: str) -> None:
    cluster = Cluster(RunSettings(run_id="r", min_nodes=2, max_nodes=4, **rules), SimStore())
    join_vaguely(cluster, lacking)
    cluster.advance(SETTINGS.beat_s)
    for number, name in enumerate(("again", "other")):
        cluster.join(name, infra_rank=number, addr=f"gpu{number}", domain_id="A", unit_id="u1")
        cluster.settle()
    cluster.advance(SETTINGS.lease_s + SETTINGS.beat_s)
    assert [node.name for node in cluster.training] == ["again", "other"]


@pytest.mark.parametrize("lacking", ["domain", "unit"])
def test_a_node_without_a_name_is_admitted_if_the_rules_do_not_need_it(lacking: str) -> None:
    cluster = Cluster(SETTINGS, SimStore())
    join_vaguely(cluster, lacking)
    join_pair(cluster)
    cluster.advance(2 * SETTINGS.beat_s)
    assert len(cluster.training) == 2
    assert all(node.outcome is None for node in cluster.nodes.values())


def test_a_node_that_comes_and_goes_between_two_looks_leaves_no_trace() -> None:
    cluster = Cluster(SETTINGS, SimStore())
    brief = cluster.join("brief", infra_rank=7)
    arrive(brief)
    brief.leave(Outcome.LEFT, "SIGTERM")
    cluster.join("a", infra_rank=0)
    cluster.join("b", infra_rank=1)
    cluster.settle()
    assert [node.name for node in cluster.training] == ["a", "b"]
    store = cluster.store
    assert isinstance(store, SimStore)
    assert not any(brief.participant.incarnation in key for key in store.data)


def test_a_record_that_is_missing_is_looked_for_at_once_and_then_less_and_less_often() -> None:
    cluster = Cluster(SETTINGS, SimStore())
    cluster.store.perform(Add(cluster.coordinator.keys.arrived(1), 1))
    for name in ("a", "b"):
        cluster.join(name)
        cluster.settle()
    pauses_s: list[float] = []
    for _ in range(12):
        pauses_s.append(cluster.wake_at - cluster.clock())
        cluster.clock.now = cluster.wake_at
        for node in cluster.nodes.values():
            node.beat_if_due()
        cluster.settle()
    assert pauses_s[0] < 0.01
    assert all(later >= earlier for earlier, later in pairwise(pauses_s[:6]))
    assert sum(pauses_s) > SETTINGS.beat_s, "a dozen looks last longer than a beat"
    assert cluster.training == []
