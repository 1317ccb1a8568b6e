"""Placement a second time, by trying everything: knows the sentences of docs/placement.md, and nothing else.

What may be placed where is a rule; what is better is a preference. Where the documentation leaves a choice open, it is
taken as it is found, and all else must be the best that it allows.
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
"""How a node fits a rank: it had it; it has infra rank and domain of the node that had it; its domain; nothing."""

SURVIVOR, UNIT, DOMAIN, INFRA_RANK = 1_000_000, 10_000, 100, 1
"""What a rank costs that a survivor, its unit, its domain or its infra rank has lost: one of the former outweighs all
of the latter."""


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
        """Whether no other possible placement is better, whatever is left open being as it is in this one."""
        least = min(map(self.cost, self.rankings))
        rivals = [other for other in self.rankings if self.cost(other) == least]
        mine = self.left_open(ranking)
        return ranking in rivals and self.disorder(ranking) == min(
            self.disorder(other) for other in rivals if self.left_open(other) == mine
        )

    def kept(self, ranking: Ranking) -> int:
        """How many nodes have the rank that they had."""
        return sum(one.incarnation == name for one, name in zip(self.last, ranking, strict=False))

    # --- whom and what a placement moves ---

    def cost(self, ranking: Ranking) -> int:
        return sum(costs[name] for costs, name in zip(self.costs, ranking, strict=True))

    def _cost(self, rank: int, name: str) -> int:
        return (
            SURVIVOR * (self.fits[rank][name] != KEPT)
            + UNIT * (not self._is_of_its_unit(rank, name))
            + DOMAIN * (self.fits[rank][name] == FAR and self._is_told(rank, name))
            + INFRA_RANK * (self.fits[rank][name] > OWN and self._is_told(rank, name))
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

    def _is_told(self, rank: int, name: str) -> bool:
        """Of units with nodes in several domains it is not said which comes next; within one that stays, all is."""
        return not self.is_spanning or self._is_of_its_unit(rank, name)

    # --- who is next ---

    def left_open(self, ranking: Ranking) -> tuple[object, ...]:
        """What the documentation does not choose."""
        told = [rank for rank, name in enumerate(ranking) if self._is_told(rank, name)]
        # Which ranks a domain gives up that cannot fill all of its own, if no more survivors can be kept.
        far = [rank for rank in told if self.fits[rank][ranking[rank]] == FAR]
        # Which domain gives a node, of those with equally many left.
        given = Counter(self._domain(ranking[rank]) for rank in far)
        return told, far, given if self.rules.spread is Spread.DOMAINS else None

    def disorder(self, ranking: Ranking) -> tuple[int, list[int], list[int]]:
        """Whoever came back has its rank again; others are next in topology order, of the domain and then of all."""
        fits = [
            FAR + 1 if not self._is_told(rank, name) else self.fits[rank][name] for rank, name in enumerate(ranking)
        ]
        near = [name for name, fit in zip(ranking, fits, strict=True) if fit == NEAR]
        far = [name for name, fit in zip(ranking, fits, strict=True) if fit == FAR]
        if self.last and self.rules.spread is Spread.DOMAINS:
            # Where they come from is settled; which of them takes which rank is not said.
            far.sort(key=self._domain)
        # Whether nodes that trained and have lost their rank go before others is not said.
        order = [] if self.is_anybody_displaced(ranking) else [self.order[name] for name in near + far]
        return -fits.count(OWN), [self._domain(name) for name in far], order

    def is_anybody_displaced(self, ranking: Ranking) -> bool:
        """Whether a survivor, or a unit of the last world that could train, is not where it was."""
        if self.kept(ranking) < len(self.world.survivors):
            return True
        stayed = {self.nodes[name].unit_id for rank, name in enumerate(ranking) if self._is_of_its_unit(rank, name)}
        return bool({one.node.unit_id for one in self.last} & self.complete_units - stayed)

    def _domain(self, name: str) -> int:
        return DOMAINS.index(self.nodes[name].domain_id)

    # --- who is left ---

    def is_spread(self, ranking: Ranking) -> bool:
        """Whether every node or segment that is not of the hole's domain is from where most nodes were left."""
        far = [name for rank, name in enumerate(ranking) if self.fits[rank][name] == FAR]
        left = Counter(self._domain(name) for name in self.nodes if name not in ranking or name in far)
        return Counter(map(self._domain, far)) in _largest_first(left, len(far), self.rules.segment)

    def spares(self, ranking: Ranking) -> list[int]:
        """How many nodes the domains have left, or where there are units, complete units. Most first."""
        spare: dict[str | None, int] = {name: self._domain(name) for name in self.nodes if name not in ranking}
        if self.rules.needs_unit:
            units = self.complete_units - {self.nodes[name].unit_id for name in ranking}
            spare = {node.unit_id: self._domain(name) for name, node in self.nodes.items() if node.unit_id in units}
        return sorted(Counter(spare.values()).values(), reverse=True)


def _is_spanning(nodes: Sequence[Arrival]) -> bool:
    places = {(one.node.unit_id, one.node.domain_id) for one in nodes if one.node.unit_id is not None}
    return len(places) > len({unit for unit, _ in places})


def _largest_first(left: Counter[int], count: int, segment: int) -> Iterator[Counter[int]]:
    """What every domain gives, if each segment is taken from one with the most nodes left."""
    if not count:
        yield Counter()
        return
    most = max(left.values())
    for domain in [domain for domain, nodes in left.items() if nodes == most]:
        for taken in _largest_first(left - Counter({domain: segment}), count - segment, segment):
            yield taken + Counter({domain: segment})
