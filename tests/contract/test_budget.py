"""What a run costs its store: counted, never timed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import pytest
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.model import Outcome, Verdict
from ft_rendezvous.core.node_step import Drained
from ft_rendezvous.core.update_notes import UpdateNote, UpdateOutcome
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.coordinator import Coordinator
from ft_rendezvous.protocol.journal import UpdatesReported
from ft_rendezvous.protocol.ops import Get, MultiGet, Op
from ft_rendezvous.protocol.participant import Place
from ft_rendezvous.store.client import ServedStore, connect
from ft_rendezvous.store.net import listen
from tests.contract.benches import LONG_S
from tests.contract.counting import BEAT, CountingStore, CycleTally, GroupTally, Tally, counted
from tests.contract.live import LiveNode, live_run
from tests.contract.test_torch import spec_of
from tests.scenarios.simulated_cluster import Cluster, Node
from tests.sim.store import SimStore

BUDGET = 8
"""Operations per node and cycle, the agent's own included."""

Report = Callable[[str, object], None]


@pytest.fixture
def report(record_property: Report, capsys: pytest.CaptureFixture[str]) -> Report:
    """Write a measured number where it is seen: into the report and onto the screen."""

    def write(name: str, value: object) -> None:
        record_property(name, value)
        with capsys.disabled():
            print(f"\n    budget {name}: {value}", end="")

    return write


def start_workers(node: LiveNode) -> None:
    """What torch's agent does between its place and its workers."""
    place = node.place
    assert place is not None
    workers = SimpleElasticAgent._assign_worker_ranks(
        object(), node.agent_store, place.rank, place.world_size, spec_of(("trainer", 2))
    )
    assert len(workers) == 2


def assert_within_budget(tally: CycleTally, report: Report) -> None:
    """Every node in every cycle, from its arrival or the opening to the next opening or the close."""
    for phase in ("greeting", *tally.cycles, "leaving"):
        report(phase, tally.describe(phase))
    for cycle in tally.cycles:
        assert tally.most(cycle) <= BUDGET, tally.describe(cycle)
    assert tally.most("greeting") == 2, "once per process: is the head there, and what does it say"
    assert tally.most("leaving") == 1, "once per process: the goodbye"


def test_a_cycle_costs_a_node_at_most_eight_operations(monkeypatch: pytest.MonkeyPatch, report: Report) -> None:
    """Through the real link on a real TCPStore: joining, events, the agent's worker ranks, failures, the barrier."""
    tally = CycleTally()
    with live_run(min_nodes=3, max_nodes=4, beat_s=5.0) as run:
        nodes: list[LiveNode] = []
        for number in range(4):
            with counted(monkeypatch, tally, f"n{number}"):
                nodes.append(run.node(number, infra_rank=number))
        asked = [node.ask() for node in nodes[:3]]
        for node, future in zip(nodes, asked, strict=False):
            node.train(future)
            start_workers(node)
        parked = nodes[3].ask()
        run.wait_for(lambda: len(run.host.coordinator.roster.members) == 4)

        for cycle_id in range(1, 5):
            failing = nodes[cycle_id % 3]
            again: dict[LiveNode, Future[Place | Verdict | Drained]] = {failing: failing.ask()}
            for node in nodes[:3]:
                if node is not failing:
                    run.wait_for(lambda node=node, c=cycle_id: node.link.must_stop(c))  # type: ignore[misc]
                    again[node] = node.ask()
            for node, future in again.items():
                assert node.train(future).cycle_id == cycle_id + 1
                start_workers(node)
            run.wait_for(lambda c=cycle_id: sealed_in(nodes[3]) == c + 1)  # type: ignore[misc]

        for finishing in [node.finish() for node in nodes[:3]]:
            finishing.result(LONG_S)
        parked.result(LONG_S)
        for node in nodes:
            node.leave(Outcome.SUCCEEDED if node is not nodes[3] else Outcome.LEFT)
        assert run.host.wait(LONG_S)
        assert len(tally.cycles) == 5
        assert_within_budget(tally, report)


def sealed_in(node: LiveNode) -> int:
    """The newest cycle this node knows to be sealed."""
    view = node.participant.view
    return view.sealed.cycle_id if view is not None and view.sealed is not None else 0


def counting_cluster(tally: Tally, port: int, settings: RunSettings) -> Cluster:
    """A run in one thread on a real TCPStore, every node on a counted connection of its own."""
    return Cluster(
        settings,
        connect("127.0.0.1", port),
        store_for=lambda name: CountingStore(connect("127.0.0.1", port), tally, name),
    )


@pytest.fixture
def served() -> Iterator[ServedStore]:
    served = ServedStore(listen())
    yield served
    served.stop()


SETTINGS = RunSettings(run_id="budget", min_nodes=3, max_nodes=4, max_node_failures=0, crash_loop=0)


def joined(cluster: Cluster, count: int) -> None:
    for number in range(count):
        cluster.join(f"n{number}", infra_rank=number)
        cluster.settle()


@pytest.mark.parametrize("restarts", [0, 3])
def test_the_unluckiest_node_stays_within_the_budget(served: ServedStore, report: Report, restarts: int) -> None:
    """It is always the last to arrive, so it rings; its workers fail; and it is the last into the exit barrier."""
    tally = CycleTally()
    cluster = counting_cluster(tally, served.port, SETTINGS)
    joined(cluster, 3)
    unlucky = cluster.nodes["n2"]
    for _ in range(restarts):
        unlucky.fail()
        assert unlucky.step(), "it reports"
        unlucky.is_frozen = True
        cluster.settle()
        unlucky.is_frozen = False
        cluster.settle()
        assert len(cluster.training) == 3
    for node in cluster.training:
        node.finish()
    cluster.settle()
    assert str(cluster.verdict) == "succeeded"
    assert len(tally.cycles) == restarts + 1
    assert_within_budget(tally, report)
    assert tally.most(tally.cycles[-1]) == BUDGET, "no operation is left to be saved without being noticed"


# --- replica groups ---------------------------------------------------------------------------------

GROUPS = replace(SETTINGS, min_nodes=6, max_nodes=8, group_size=2, max_group_failures=0)


def counted_groups(served: ServedStore, tally: Tally, count: int) -> Cluster:
    """Three groups of two nodes, and spares."""
    cluster = counting_cluster(tally, served.port, GROUPS)
    joined(cluster, count)
    assert [(node.place.group, node.place.rank) for node in cluster.nodes.values() if node.place] == [
        (group, rank) for group in range(3) for rank in range(2)
    ]
    return cluster


def restart_unluckily(cluster: Cluster, unlucky: Node) -> None:
    """Its workers fail, and it is the last of its group to arrive."""
    unlucky.fail()
    assert unlucky.step(), "it reports"
    unlucky.is_frozen = True
    cluster.settle()
    unlucky.is_frozen = False
    cluster.settle()
    assert len(cluster.training) == 6


@pytest.mark.parametrize("restarts", [0, 3])
def test_the_unluckiest_node_of_a_group_stays_within_the_budget(
    served: ServedStore, report: Report, restarts: int
) -> None:
    """In each cycle of its group, as it would in a run without groups. What it reads of other groups is counted apart.

    It is the last to arrive, its workers fail, and it is the last into the exit barrier.
    """
    tally = GroupTally()
    cluster = counted_groups(served, tally, 6)
    unlucky = cluster.nodes["n5"]
    for _ in range(restarts):
        restart_unluckily(cluster, unlucky)
    for node in list(cluster.nodes.values()):
        node.finish()
    cluster.settle()
    assert str(cluster.verdict) == "succeeded"
    assert len(tally.cycles) == restarts + 1
    assert_within_budget(tally, report)
    assert tally.most(tally.cycles[-1]) == BUDGET, "no operation is left to be saved without being noticed"
    others = [f"n{number}" for number in range(4)] if restarts else []
    assert tally.of_others() == dict.fromkeys(others, 2 * restarts)


def test_a_restart_of_one_group_costs_all_other_nodes_two_reads(served: ServedStore, report: Report) -> None:
    tally = Tally()
    cluster = counted_groups(served, tally, 8)
    tally.phase = "restart of group 2"
    restart_unluckily(cluster, cluster.nodes["n5"])
    spent = {node: dict(kinds) for node, kinds in tally.of(tally.phase).items()}
    report(tally.phase, spent)
    others = [node for node in cluster.nodes if node not in ("n4", "n5")]
    assert {node: spent[node] for node in others} == {node: {"get": 2} for node in others}
    assert spent["n5"] == {"get": 2, "add": 1, "append": 2, "set": 2}
    assert spent["n4"] == {"get": 2, "add": 1, "append": 1, "set": 1}


def test_a_spare_that_fills_a_group_is_placed_by_two_reads(served: ServedStore, report: Report) -> None:
    """Its arrival stands: it writes nothing. All others spend what they spend on any restart of a group."""
    tally = Tally()
    cluster = counted_groups(served, tally, 8)
    tally.phase = "loss in group 1"
    cluster.nodes["n3"].kill()
    cluster.advance(GROUPS.lease_s + GROUPS.beat_s)
    spent = {node: {kind: count for kind, count in kinds.items() if kind != BEAT} for node, kinds in spent_in(tally)}
    report(tally.phase, spent)
    placed = [node for node in ("n6", "n7") if cluster.nodes[node].place is not None]
    assert len(placed) == 1
    others = [node for node in cluster.nodes if node not in ("n2", "n3")]
    assert {node: spent[node] for node in others} == {node: {"get": 2} for node in others}
    assert spent["n2"] == {"get": 2, "add": 1, "append": 1, "set": 1}


def test_a_group_that_is_dissolved_to_fill_another_costs_no_more_than_two_restarts(
    served: ServedStore, report: Report
) -> None:
    """The group that is filled opens once more. The group that is dissolved is not sealed."""
    tally = Tally()
    cluster = counted_groups(served, tally, 6)
    tally.phase = "losses in two groups"
    for lost in ("n3", "n5"):
        cluster.nodes[lost].kill()
        cluster.advance(GROUPS.lease_s + GROUPS.beat_s)
    assert len(cluster.training) == 4
    spent = {node: {kind: count for kind, count in kinds.items() if kind != BEAT} for node, kinds in spent_in(tally)}
    report(tally.phase, spent)
    assert spent["n0"] == spent["n1"] == {"get": 4}


def test_a_node_that_comes_late_and_fills_a_group_pays_for_joining_alone(served: ServedStore, report: Report) -> None:
    tally = Tally()
    cluster = counted_groups(served, tally, 6)
    cluster.nodes["n3"].kill()
    cluster.advance(GROUPS.lease_s + GROUPS.beat_s)
    tally.phase = "a late node comes"
    cluster.join("late", infra_rank=9)
    cluster.settle()
    assert cluster.nodes["late"].place is not None
    spent = {node: dict(kinds) for node, kinds in spent_in(tally)}
    report(tally.phase, spent)
    del spent["late"][BEAT]
    greeting = {"check": 1, "get": 1}
    assert Counter(spent["late"]) - Counter(greeting) == {"add": 1, "append": 1, "set": 1, "get": 2}
    others = ("n0", "n1", "n4", "n5")
    assert {node: spent[node] for node in others} == {node: {"get": 1} for node in others}, "the opening came before"


def test_a_group_that_is_sealed_while_a_node_joins_costs_that_node_nothing_more(
    served: ServedStore, report: Report
) -> None:
    """Its seat is in the last event of the head that it reads. That event is there."""
    tally = Tally()
    cluster = counted_groups(served, tally, 6)
    cluster.nodes["n3"].kill()
    cluster.advance(GROUPS.lease_s + GROUPS.beat_s)

    class SlowStore(CountingStore):
        """The coordinator is faster than this node, which has arrived and reads the head."""

        def perform(self, op: Op) -> Any:
            if op == Get(codec.HEAD_KEY) and tally.of(tally.phase)["late"]["append"]:
                cluster._coordinate()
            return super().perform(op)

    cluster.store_for = lambda name: SlowStore(connect("127.0.0.1", served.port), tally, name)
    tally.phase = "a late node joins a sealed group"
    cluster.join("late", infra_rank=9)
    cluster.settle()
    assert cluster.nodes["late"].place is not None
    spent = dict(tally.of(tally.phase)["late"])
    report(tally.phase, spent)
    greeting = Counter({"check": 1, "get": 1, BEAT: 1})
    assert Counter(spent) - greeting == {"add": 1, "append": 1, "set": 1, "get": 2}


def spent_in(tally: Tally) -> list[tuple[str, Counter[str]]]:
    return sorted(tally.of(tally.phase).items())


# --- steady state -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("group_size", "has_lifelines"), [(0, True), (1, True), (0, False)])
def test_a_steady_run_costs_its_nodes_and_spares_one_beat_per_interval_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, report: Report, group_size: int, has_lifelines: bool
) -> None:
    """On the real link, with lifelines and without.

    Time only bounds the beats from above, so a slow machine cannot fail this.
    """
    tally = Tally(phase="before")
    beat_s = 0.1
    with live_run(beat_s=beat_s, group_size=group_size, has_lifelines=has_lifelines) as run:
        nodes: list[LiveNode] = []
        for number in range(3):
            with counted(monkeypatch, tally, f"n{number}"):
                nodes.append(run.node(number))
        run.seal(*nodes[:2])
        parked = nodes[2].ask()
        run.wait_for(lambda: sealed_in(nodes[2]) == 1)
        run.wait_for(lambda: all((node.link._lifeline is not None) == has_lifelines for node in nodes))
        # What led here has been counted when two more beats have.
        enough = {name: kinds[BEAT] + 2 for name, kinds in tally.of("before").items()}
        run.wait_for(lambda: all(tally.of("before")[name][BEAT] >= enough[name] for name in enough))
        before, began = run.host.coordinator.view.no, time.monotonic()
        tally.phase = "steady"
        run.wait_for(lambda: len(tally.of("steady")) == 3 and min(k[BEAT] for k in tally.of("steady").values()) >= 10)
        steady = {node: Counter(kinds) for node, kinds in tally.of("steady").items()}
        elapsed_s = time.monotonic() - began
        assert run.host.coordinator.view.no == before
        assert not parked.done()
        report("steady state", {node: dict(kinds) for node, kinds in sorted(steady.items())})
        for kinds in steady.values():
            assert set(kinds) == {BEAT}
            assert kinds[BEAT] <= elapsed_s / beat_s + 2


def test_updates_cost_one_append_per_beat_at_most_and_wake_no_coordinator(
    monkeypatch: pytest.MonkeyPatch, report: Report
) -> None:
    """A worker reports hundreds of them per beat. Time bounds nothing here: appends are compared with beats."""
    tally, reported = Tally(phase="before"), 0
    with live_run(beat_s=0.1) as run:
        nodes: list[LiveNode] = []
        for number in range(2):
            with counted(monkeypatch, tally, f"n{number}"):
                nodes.append(run.node(number))
        run.seal(*nodes)
        enough = {name: kinds[BEAT] + 2 for name, kinds in tally.of("before").items()}
        run.wait_for(lambda: all(tally.of("before")[name][BEAT] >= enough[name] for name in enough))
        tally.phase = "updates"
        while not tally.of("updates").get("n0") or tally.of("updates")["n0"][BEAT] < 10:
            for _ in range(50):
                reported += 1
                nodes[0].link.report_update(1, update(reported))
            time.sleep(0.01)
        run.wait_for(lambda: sum(entry.updates for entry in run.told(UpdatesReported)) == reported)
        spent = {node: dict(kinds) for node, kinds in spent_in(tally)}
        report("updates", {**spent, "reported": reported})
        assert spent["n0"].keys() == {BEAT, "append"}, "no bell"
        assert spent["n0"]["append"] <= spent["n0"][BEAT] + 1
        assert spent["n1"].keys() == {BEAT}
        assert run.host.coordinator.cycle_id == 1
        told = [each.version for entry in run.told(UpdatesReported) for each in entry.told if not each.is_plain]
        assert told == sorted(set(told))
        assert told[0] == 50, "the first that failed"
        assert len(run.told(UpdatesReported)) <= spent["n0"]["append"]


def update(version: int) -> UpdateNote:
    """Each fiftieth fails."""
    is_failed = version % 50 == 0
    return UpdateNote(
        version=version,
        outcome=UpdateOutcome.FAILED if is_failed else UpdateOutcome.COMPLETED,
        attempts=1,
        parties=2,
        updated=0 if is_failed else 2,
        failed_count=int(is_failed),
        failed=("gen-0",) if is_failed else (),
        steps=(),
        duration_s=0.5,
        lost_s=0.5 * is_failed,
        reason="",
    )


# --- a thousand cycles ------------------------------------------------------------------------------


def sizes_of(store: SimStore) -> dict[str, int]:
    return {"keys": len(store.data), "bytes": sum(len(key) + len(value) for key, value in store.data.items())}


def memory_of(coordinator: Coordinator) -> dict[str, int]:
    """How much the coordinator remembers, by name."""
    roster = coordinator.roster
    return {
        "readers": len(coordinator.stored.readers),
        "opened_by": len(coordinator.stored.opened_by),
        "fenced_in": len(coordinator.stored.fences),
        "leases": len(coordinator.membership.leases.leases),
        "members": len(roster.members),
        "troubles": len(roster.troubles),
        "by_infra_rank": len(roster.by_infra_rank),
    }


def test_a_thousand_restarts_leave_the_store_and_the_coordinator_as_small_as_a_hundred(report: Report) -> None:
    store = SimStore()
    cluster = Cluster(SETTINGS, store)
    joined(cluster, 4)
    seen: dict[int, tuple[dict[str, int], dict[str, int]]] = {}
    for cycle_id in range(2, 1001):
        cluster.nodes[f"n{cycle_id % 3}"].fail()
        cluster.advance(SETTINGS.beat_s)
        assert cluster.coordinator.cycle_id == cycle_id
        if cycle_id in (100, 1000):
            seen[cycle_id] = sizes_of(store), memory_of(cluster.coordinator)
            report(f"at cycle {cycle_id}", {**seen[cycle_id][0], **seen[cycle_id][1]})
    (early_store, early_memory), (late_store, late_memory) = seen[100], seen[1000]
    assert late_memory == early_memory
    assert late_store["keys"] == early_store["keys"]
    assert late_store["bytes"] <= 1.1 * early_store["bytes"], "numbers have more digits, nothing else"


def test_losing_a_node_in_every_cycle_leaves_nothing_of_the_lost_in_the_store(report: Report) -> None:
    """A replacement comes for each; fences and beats of the dead are cleaned up though nobody asks for them."""
    store = SimStore()
    settings = RunSettings(run_id="budget", min_nodes=2, max_nodes=3, lease_s=4.0)
    cluster = Cluster(settings, store)
    joined(cluster, 3)
    seen: dict[int, dict[str, int]] = {}
    for cycle_id in range(2, 101):
        cluster.training[-1].kill()
        cluster.advance(settings.lease_s + settings.beat_s)
        cluster.nodes = {name: node for name, node in cluster.nodes.items() if not node.is_gone}
        cluster.join(f"r{cycle_id}", infra_rank=100 + cycle_id)
        cluster.advance(settings.beat_s)
        assert cluster.coordinator.cycle_id == cycle_id
        if cycle_id in (20, 100):
            seen[cycle_id] = {**sizes_of(store), **memory_of(cluster.coordinator)}
            report(f"with a loss per cycle, at cycle {cycle_id}", seen[cycle_id])
    report("incarnations remembered as over after 100 losses", len(cluster.coordinator.roster.fenced))
    assert seen[100]["keys"] == seen[20]["keys"]
    assert seen[100]["bytes"] <= 1.1 * seen[20]["bytes"]
    assert {name: seen[100][name] for name in memory_of(cluster.coordinator)} == {
        name: seen[20][name] for name in memory_of(cluster.coordinator)
    }


def bytes_in(served: ServedStore) -> int:
    """Bytes of the run's keys and values; 0 with a torch that cannot list its keys (2.8)."""
    store = served._store
    if store is None or not hasattr(store, "list_keys"):
        return 0
    names = [name.removeprefix("/") for name in store.list_keys()]
    names = [name for name in names if name.startswith("ft/")]
    return sum(len(name) + len(value) for name, value in zip(names, served.perform(MultiGet(names)), strict=True))


def test_a_hundred_restarts_on_a_real_store_leave_it_as_small_as_twenty(served: ServedStore, report: Report) -> None:
    tally = Tally()
    cluster = counting_cluster(tally, served.port, SETTINGS)
    joined(cluster, 4)
    seen: dict[int, dict[str, int]] = {}
    for cycle_id in range(2, 101):
        cluster.nodes[f"n{cycle_id % 3}"].fail()
        cluster.advance(SETTINGS.beat_s)
        if cycle_id in (20, 100):
            assert served._store is not None
            seen[cycle_id] = {"keys": served._store.num_keys(), "bytes": bytes_in(served)}
            report(f"on a TCPStore, at cycle {cycle_id}", seen[cycle_id])
    assert seen[100]["keys"] == seen[20]["keys"]
    assert seen[100]["bytes"] <= 1.1 * seen[20]["bytes"]
