"""One cycle may last for months. Starts that are refused in it leave nothing behind, on both stores."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core import recent
from ft_rendezvous.core.model import Withdrawal
from ft_rendezvous.errors import Refused
from ft_rendezvous.protocol import codec, moves
from ft_rendezvous.protocol.ops import MultiGet, Op, Store, perform_move
from ft_rendezvous.store.client import ServedStore
from ft_rendezvous.store.net import listen
from tests.contract.test_budget import bytes_in, joined, sizes_of
from tests.scenarios.simulated_cluster import Cluster
from tests.sim.store import SimStore
from tests.support.footprint import count_items

SETTINGS = RunSettings(run_id="long", min_nodes=2, max_nodes=3, max_node_failures=0)
STARTS = 250
"""Refused starts between two measurements: the records of all are about 50 kB."""
LONG_LOG_BYTES = 1024
MOST_LOG_BYTES = codec.shard_count(SETTINGS.max_nodes) * (LONG_LOG_BYTES + 256)
"""What the logs of a cycle hold at most, if the coordinator looks at every start."""


@dataclass
class MeteredStore:
    """Counts the bytes that the coordinator reads."""

    store: Store
    read_bytes: list[int] = field(default_factory=list)
    """Of each read of the logs."""

    def perform(self, op: Op) -> Any:
        reply = self.store.perform(op)
        if isinstance(op, MultiGet) and "/log/" in op.keys[-1]:
            self.read_bytes.append(sum(map(len, reply)))
        return reply


@dataclass
class Bench:
    """A sealed world with a spare, and what can be measured of it."""

    cluster: Cluster
    store: MeteredStore
    measure_store: Callable[[], dict[str, int]]
    starts: int = 0

    def measure(self) -> dict[str, int]:
        self.cluster.advance(SETTINGS.lease_s * 20)
        return {
            **self.measure_store(),
            "remembered": count_items(self.cluster.coordinator),
            "read per look": self.store.read_bytes[-1],
        }

    def refuse(self, count: int, start_and_refuse: Callable[[Bench], None]) -> None:
        for _ in range(count):
            self.starts += 1
            start_and_refuse(self)


@pytest.fixture(params=["simulated", "tcp"])
def bench(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    monkeypatch.setattr(recent, "MOST_REMEMBERED", 50)
    if request.param == "simulated":
        store = SimStore()
        yield begin(store, None, lambda: sizes_of(store))
        return
    served = ServedStore(listen())

    def measure() -> dict[str, int]:
        assert served._store is not None
        return {"keys": served._store.num_keys(), "bytes": bytes_in(served)}

    # On one connection: a set has no answer, and must be seen by the next operation.
    yield begin(served, lambda _: served, measure)
    served.stop()


def begin(store: Store, store_for: Callable[[str], Store] | None, measure: Callable[[], dict[str, int]]) -> Bench:
    metered = MeteredStore(store)
    bench = Bench(Cluster(SETTINGS, metered, store_for=store_for), metered, measure)
    bench.cluster.coordinator.stored.readers[0].long_log_bytes = LONG_LOG_BYTES
    joined(bench.cluster, 3)
    assert bench.cluster.coordinator.view.sealed is not None
    return bench


def start_impostor(bench: Bench, *, dies: bool) -> None:
    """A node elsewhere claims an infra rank that is taken. It is refused, and dies before it reads why, or goes."""
    name = f"impostor{bench.starts}"
    node = bench.cluster.join(name, infra_rank=0, addr=name)
    bench.cluster.settle()
    if not dies:
        node.next_beat_at = bench.cluster.clock()
        node.beat_if_due()
        bench.cluster.settle()
        assert isinstance(node.outcome, Refused)
    node.kill()
    del bench.cluster.nodes[name]
    bench.cluster.names.clear()


def start_unfit(bench: Bench) -> None:
    """A node that fails its health check says so, and is started again."""
    coordinator, node = bench.cluster.coordinator, bench.cluster.nodes["n2"]
    incarnation = f"{1 << 40 | bench.starts:016x}"
    withdrawal = Withdrawal(cycle_id=1, incarnation=incarnation, node=node.participant.node, reason="a GPU is gone")
    perform_move(node.store, moves.write_record(coordinator.keys, coordinator.view.opened, withdrawal))
    bench.cluster.settle()


@pytest.mark.parametrize(
    "start_and_refuse",
    [
        pytest.param(lambda bench: start_impostor(bench, dies=True), id="dies at once"),
        pytest.param(lambda bench: start_impostor(bench, dies=False), id="reads why"),
        pytest.param(start_unfit, id="unfit"),
    ],
)
def test_refused_starts_leave_nothing_behind(bench: Bench, start_and_refuse: Callable[[Bench], None]) -> None:
    """What all of them leave is what the first half has left, but for numbers with more digits."""
    bench.refuse(STARTS, start_and_refuse)
    early = bench.measure()
    bench.refuse(STARTS, start_and_refuse)
    late = bench.measure()
    assert bench.cluster.coordinator.cycle_id == 1
    assert late["keys"] == early["keys"]
    assert late["bytes"] <= MOST_LOG_BYTES + 8192, "the logs, and the keys of a small run"
    assert late["remembered"] <= early["remembered"] + 100
    assert max(bench.store.read_bytes) <= MOST_LOG_BYTES
