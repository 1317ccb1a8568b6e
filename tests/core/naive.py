"""A second implementation of placement, which tries everything. It knows only the rules of docs/placement.md.

A rule says which placements are allowed. A preference says which placement is better. If the documentation leaves a
choice open, this code accepts the choice that was made; all else must be the best that the choice allows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from ft_rendezvous.core.capacity import PlacementRules, Spread
from ft_rendezvous.core.model import Arrival, NodeInfo
from tests.core.worlds import DOMAINS, World, by_name

Ranking = tuple[str, ...]
"""Incarnations by rank."""

# --- what may be ------------------------------------------------------------------------------------


def possible(nodes: Mapping[str, NodeInfo], size: int, rules: PlacementRules, begun: Ranking = ()) -> Iterator[Ranking]:
    """Every world of that size that is made of whole segments and units."""
    if len(begun) == size:
        yield begun
        return
    for name in nodes:
        if name not in begun and _may_be_next(name, begun, nodes, rules):
            yield from possible(nodes, size, rules, (*begun, name))


def _may_be_next(name: str, begun: Ranking, nodes: Mapping[str, NodeInfo], rules: PlacementRules) -> bool:
    rank, node = len(begun), nodes[name]
    if rules.segment > 1 and node.domain_id is None:
        return False
    if rank % rules.segment and nodes[begun[-1]].domain_id != node.domain_id:
        return False
    if rules.unit_size == 1:
        return True
    if rank % rules.unit_size:
        return nodes[begun[-1]].unit_id == node.unit_id
    return node.unit_id is not None and all(nodes[before].unit_id != node.unit_id for before in begun)


# --- what is better ---------------------------------------------------------------------------------

KEPT, OWN, NEAR, FAR = range(4)
"""How a node fits a rank: it had it; it has infra rank and domain of the node that had it; the domain; neither."""

SURVIVOR, UNIT, DOMAIN, INFRA_RANK = 1_000_000, 10_000, 100, 1
"""The cost of a rank that a survivor, its unit, its domain or its infra rank has lost. One of an earlier kind costs
more than all of a later kind."""


def topology_key(node: NodeInfo) -> tuple[object, ...]:
    within = (True, node.addr) if node.infra_rank is None else (False, node.infra_rank)
    return (DOMAINS.index(node.domain_id), *within)


class Judge:
    """Compares the possible placements of one world."""

    def __init__(self, world: World) -> None:
        self.world, self.rules, self.last = world, world.rules, world.last
        self.nodes = {name: one.node for name, one in by_name(world.arrived).items()}
        order = sorted(self.nodes, key=lambda name: topology_key(self.nodes[name]))
        self.order = {name: index for index, name in enumerate(order)}
        self.rankings = list(possible(self.nodes, world.size, world.rules))
        self.complete_units = {self.nodes[name].unit_id for ranking in self.rankings for name in ranking} - {None}
        self.is_spanning = _is_spanning([*world.previous, *world.arrived])
        ranks = range(world.size)
        self.fits = [{name: self._fit(rank, name) for name in self.nodes} for rank in ranks]
        self.costs = [{name: self._cost(rank, name) for name in self.nodes} for rank in ranks]

    def is_best(self, ranking: Ranking) -> bool:
        """Whether no other possible placement with the same open choices is better."""
        least = min(map(self.cost, self.rankings))
        rivals = [other for other in self.rankings if self.cost(other) == least]
        mine = self.left_open(ranking)
        return ranking in rivals and self.disorder(ranking) == min(
            self.disorder(other) for other in rivals if self.left_open(other) == mine
        )

    def kept(self, ranking: Ranking) -> int:
        """How many nodes keep their rank."""
        return sum(one.incarnation == name for one, name in zip(self.last, ranking, strict=False))

    # --- whom and what a placement moves ---

    def cost(self, ranking: Ranking) -> int:
        return sum(costs[name] for costs, name in zip(self.costs, ranking, strict=True))

    def _cost(self, rank: int, name: str) -> int:
        return (
            SURVIVOR * (self.fits[rank][name] != KEPT)
            + UNIT * (not self._is_of_its_unit(rank, name))
            + DOMAIN * (self.fits[rank][name] == FAR and self._is_documented(rank, name))
            + INFRA_RANK * (self.fits[rank][name] > OWN and self._is_documented(rank, name))
        )

    def _fit(self, rank: int, name: str) -> int:
        if rank >= len(self.last):
            return FAR
        before, node = self.last[rank].node, self.nodes[name]
        if self.last[rank].incarnation == name:
            return KEPT
        if before.domain_id != node.domain_id:
            return FAR
        return OWN if before.infra_rank is not None and before.infra_rank == node.infra_rank else NEAR

    def _is_of_its_unit(self, rank: int, name: str) -> bool:
        """Whether a rank stays with the unit that had it."""
        unit = self.nodes[name].unit_id
        return unit is not None and rank < len(self.last) and self.last[rank].node.unit_id == unit

    def _is_documented(self, rank: int, name: str) -> bool:
        """The documentation does not order units with nodes in several domains. Within a unit that stays, it does."""
        return not self.is_spanning or self._is_of_its_unit(rank, name)

    # --- which node is next ---

    def left_open(self, ranking: Ranking) -> tuple[object, ...]:
        """The choices that the documentation leaves open."""
        documented = [rank for rank, name in enumerate(ranking) if self._is_documented(rank, name)]
        # Which of its ranks a domain with too few nodes gives up, if it cannot keep more survivors.
        far = [rank for rank in documented if self.fits[rank][ranking[rank]] == FAR]
        # Which domain gives a node, if several have equally many nodes left.
        given = Counter(self._domain(ranking[rank]) for rank in far)
        return documented, far, given if self.rules.spread is Spread.DOMAINS else None

    def disorder(self, ranking: Ranking) -> tuple[int, list[int], list[int]]:
        """A node that came back has its rank again. Others are next in topology order: in the domain, then of all."""
        fits = [
            FAR + 1 if not self._is_documented(rank, name) else self.fits[rank][name]
            for rank, name in enumerate(ranking)
        ]
        near = [name for name, fit in zip(ranking, fits, strict=True) if fit == NEAR]
        far = [name for name, fit in zip(ranking, fits, strict=True) if fit == FAR]
        if self.last and self.rules.spread is Spread.DOMAINS:
            # Their domains are fixed. The documentation does not say which of them takes which rank.
            far.sort(key=self._domain)
        # The documentation does not say whether nodes that lost their rank come before others.
        order = [] if self.is_any_displaced(ranking) else [self.order[name] for name in near + far]
        return -fits.count(OWN), [self._domain(name) for name in far], order

    def is_any_displaced(self, ranking: Ranking) -> bool:
        """Whether a survivor, or a unit of the last world that could train, is not where it was."""
        if self.kept(ranking) < len(self.world.survivors):
            return True
        stayed = {self.nodes[name].unit_id for rank, name in enumerate(ranking) if self._is_of_its_unit(rank, name)}
        return bool({one.node.unit_id for one in self.last} & self.complete_units - stayed)

    def _domain(self, name: str) -> int:
        return DOMAINS.index(self.nodes[name].domain_id)

    # --- which nodes are left ---

    def is_spread(self, ranking: Ranking) -> bool:
        """Whether every node or segment from another domain comes from the domain with the most nodes left."""
        far = [name for rank, name in enumerate(ranking) if self.fits[rank][name] == FAR]
        left = Counter(self._domain(name) for name in self.nodes if name not in ranking or name in far)
        return Counter(map(self._domain, far)) in _largest_first(left, len(far), self.rules.segment)

    def spares(self, ranking: Ranking) -> list[int]:
        """How many nodes (with units: complete units) each domain has left, the largest first."""
        spare: dict[str | None, int] = {name: self._domain(name) for name in self.nodes if name not in ranking}
        if self.rules.needs_unit:
            units = self.complete_units - {self.nodes[name].unit_id for name in ranking}
            spare = {node.unit_id: self._domain(name) for name, node in self.nodes.items() if node.unit_id in units}
        return sorted(Counter(spare.values()).values(), reverse=True)


def _is_spanning(nodes: Sequence[Arrival]) -> bool:
    places = {(one.node.unit_id, one.node.domain_id) for one in nodes if one.node.unit_id is not None}
    return len(places) > len({unit for unit, _ in places})


def _largest_first(left: Counter[int], count: int, segment: int) -> Iterator[Counter[int]]:
    """What each domain gives, if every segment comes from a domain with the most nodes left."""
    if not count:
        yield Counter()
        return
    most = max(left.values())
    for domain in [domain for domain, nodes in left.items() if nodes == most]:
        for taken in _largest_first(left - Counter({domain: segment}), count - segment, segment):
            yield taken + Counter({domain: segment})
