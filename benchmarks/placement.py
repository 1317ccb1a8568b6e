"""`placement`: which node gets which rank, for many nodes in 140 domains, in segments of 8. No store.

"Sorting anew" orders all nodes by domain and infra rank, and gives them ranks in that order. It keeps no segment within
a domain, and no survivor's rank. Any placement that wants an order must do at least this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from random import Random

import msgspec

from benchmarks.measure import OURS, Case, Sample, require, timed
from benchmarks.nodes import make_arrivals
from ft_rendezvous.core.capacity import PlacementRules
from ft_rendezvous.core.model import Arrival
from ft_rendezvous.core.placement import place

NAME = "placement"
DOMAINS = 140
SEGMENT = 8


def cases(is_quick: bool) -> list[Case]:
    counts = [10_000] if is_quick else [10_000, 100_000]
    rounds = 5 if is_quick else 15
    return [
        Case(NAME, f"{count:,} nodes, {how}", rounds, partial(_prepare, count, is_first))
        for count in counts
        for how, is_first in (("first world", True), ("sticky after a loss", False))
    ]


@contextmanager
def _prepare(count: int, is_first: bool) -> Iterator[Mapping[str, Sample]]:
    """A crowd in no order, an eighth of it spares; one in a hundred is lost after the first world."""
    rng = Random(count)
    nodes = [_in_a_domain(arrival, number) for number, arrival in enumerate(make_arrivals(count))]
    rng.shuffle(nodes)
    arrived = {arrival.incarnation: arrival for arrival in nodes}
    size = count * 7 // 8 // SEGMENT * SEGMENT
    rules = PlacementRules(min_nodes=size, max_nodes=count, segment=SEGMENT)
    previous: Sequence[Arrival] = ()
    if not is_first:
        previous = [arrived[name] for name in place(arrived, (), size, rules).ranks]
        for lost in rng.sample(list(arrived), count // 100):
            del arrived[lost]
    yield {
        OURS: partial(
            _sample, lambda: place(arrived, previous, size, rules).ranks, size, partial(_check, arrived, previous)
        ),
        "sorting anew": partial(_sample, lambda: _sort(arrived)[:size], size),
    }


def _in_a_domain(arrival: Arrival, number: int) -> Arrival:
    node = msgspec.structs.replace(arrival.node, infra_rank=number, domain_id=f"rack{number % DOMAINS}")
    return msgspec.structs.replace(arrival, node=node)


def _sort(arrived: Mapping[str, Arrival]) -> Sequence[str]:
    ordered = sorted(arrived.values(), key=lambda arrival: (arrival.node.domain_id, arrival.node.infra_rank))
    return [arrival.incarnation for arrival in ordered]


def _sample(
    work: Callable[[], Sequence[str]], size: int, check: Callable[[Sequence[str]], None] = lambda _ranks: None
) -> float:
    seconds, ranks = timed(work)
    require(len(set(ranks)) == len(ranks) == size, f"{len(set(ranks))} nodes have a rank instead of {size}")
    check(ranks)
    return seconds


def _check(arrived: Mapping[str, Arrival], previous: Sequence[Arrival], ranks: Sequence[str]) -> None:
    """Whether no segment is torn, and no more survivors lost their ranks than share a segment with the lost."""
    for start in range(0, len(ranks), SEGMENT):
        domains = {arrived[name].node.domain_id for name in ranks[start : start + SEGMENT]}
        require(len(domains) == 1, f"the segment at rank {start} is in {len(domains)} domains")
    survivors = [rank for rank, arrival in enumerate(previous) if arrival.incarnation in arrived]
    kept = sum(ranks[rank] == previous[rank].incarnation for rank in survivors)
    require(kept >= len(survivors) - SEGMENT * (len(previous) - len(survivors)), f"only {kept} kept their ranks")
