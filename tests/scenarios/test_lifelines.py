"""A switch fails: the lifelines of a thousand nodes hang up together. That is one decision, not a thousand cycles."""

from __future__ import annotations

from collections import Counter

import pytest

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.suspects import LifelineNews, LifelineSign
from ft_rendezvous.protocol import journal
from tests.scenarios.simulated_cluster import Cluster, Node
from tests.sim.store import SimStore

SURVIVORS, LOST = 500, 1_000
SETTINGS = RunSettings(run_id="many", min_nodes=SURVIVORS, max_nodes=SURVIVORS + LOST)
GRACE_S = SETTINGS.lifeline_grace_s


def formed(entries: list[journal.Entry]) -> Cluster:
    cluster = Cluster(SETTINGS, SimStore(), entries.append)
    for number in range(SURVIVORS + LOST):
        cluster.join(f"n{number}", infra_rank=number)
    cluster.settle()
    cluster.advance(SETTINGS.beat_s)
    assert (cluster.coordinator.cycle_id, len(cluster.training)) == (1, SURVIVORS)
    return cluster


def tell(cluster: Cluster, nodes: list[Node], sign: LifelineSign) -> None:
    """The host sees this sign of each, and wakes the coordinator once."""
    news = [LifelineNews(node.participant.incarnation, sign) for node in nodes]
    cluster.coordinator.membership.take_lifeline_news = lambda: [news.pop(0) for _ in range(len(news))]
    cluster.wake_at = cluster.clock()
    cluster.settle()


@pytest.mark.parametrize("batches", [1, 4])
@pytest.mark.parametrize("sign", [LifelineSign.HUNG_UP, LifelineSign.DEAD])
def test_a_thousand_nodes_that_die_together_are_one_decision(batches: int, sign: LifelineSign) -> None:
    """Two of three nodes, those that train and those that wait. Their ends may be seen within some milliseconds."""
    entries: list[journal.Entry] = []
    cluster = formed(entries)
    lost = [node for number, node in enumerate(cluster.nodes.values()) if number % 3]
    assert len(lost) == LOST
    for node in lost:
        node.kill()
    entries.clear()
    for batch in range(batches):
        tell(cluster, lost[batch::batches], sign)
        cluster.advance(GRACE_S / 20)
    cluster.advance(SETTINGS.lease_s / 2)
    told = Counter(type(entry) for entry in entries)
    assert told[journal.NodeFenced] == LOST
    assert told[journal.CycleOpened] == told[journal.CycleSealed] == 1
    assert cluster.coordinator.cycle_id == 2
    assert len(cluster.training) == SURVIVORS


def test_a_thousand_lifelines_that_hang_up_for_nothing_are_no_decision() -> None:
    """The process that holds them was replaced, say. All nodes live, and beat at once as they do."""
    entries: list[journal.Entry] = []
    cluster = formed(entries)
    entries.clear()
    nodes = list(cluster.nodes.values())
    tell(cluster, nodes, LifelineSign.HUNG_UP)
    for node in nodes:
        node.next_beat_at = cluster.clock()
    cluster.advance(SETTINGS.lease_s / 2)
    told = Counter(type(entry) for entry in entries)
    assert told[journal.NodeFenced] == told[journal.CycleOpened] == 0
    assert len(cluster.training) == SURVIVORS
    assert cluster.coordinator.membership.suspects.suspects == {}
