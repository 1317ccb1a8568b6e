"""Decides which nodes train, and with which rank.

The world is a row of *segments*: blocks of consecutive ranks whose nodes share a domain. A segment has one node, unless
the setting `segment` says more. With `unit_size`, the world is a row of *units*. A unit trains as a whole or not at
all, and its nodes are placed in segments within the unit.

Sticky ranks: the first world is in topology order. Later, survivors keep their ranks. A hole in a segment is filled
from the segment's own domain: by the node with the hole's infra rank if it came back, else by the next node in topology
order. A segment that its domain cannot fill moves as a whole. If a domain cannot fill all of its segments, those with
the most survivors stay, so that as few nodes as possible lose their rank.

The result depends on which nodes arrived, not on when they arrived.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from heapq import heapify, heapreplace
from itertools import islice

from ft_rendezvous.core.capacity import PlacementRules, Ranks, Spread, capacity, is_complete, natural_key
from ft_rendezvous.core.model import Arrival, Placement

Domain = str | None


def place(
    arrivals: Mapping[str, Arrival], previous: Sequence[Arrival], world_size: int, rules: PlacementRules
) -> Placement:
    """Give `world_size` of the arrivals a rank each. The others are standbys.

    `previous` is the last sealed world by rank. The capacity of the arrivals must be at least `world_size`.
    """
    last = previous if rules.ranks is Ranks.STICKY else ()
    if rules.unit_size > 1:
        ranks = _place_units(arrivals, last, world_size, rules)
    else:
        ranks = _place_segments(arrivals, last, world_size, rules)
    placed = set(ranks)
    assert len(placed) == len(ranks) == world_size, "a rank was given twice or not at all"
    assert placed <= arrivals.keys(), "a rank was given to a node that has not arrived"
    return bench(Placement(ranks=tuple(ranks), standbys=()), arrivals)


def choose_candidates(
    arrivals: Mapping[str, Arrival], parked: AbstractSet[str], rules: PlacementRules
) -> Mapping[str, Arrival]:
    """The nodes that may be placed. Parked nodes are among them only if the others cannot form a world.

    Everything that asks how large a world can be asks this first, so that all agree. Whether a world is possible at all
    does not depend on it.
    """
    if not parked:
        return arrivals
    others = {incarnation: arrival for incarnation, arrival in arrivals.items() if incarnation not in parked}
    can_do_without = capacity([arrival.node for arrival in others.values()], rules) >= rules.min_nodes
    return others if can_do_without else arrivals


def bench(placement: Placement, arrivals: Mapping[str, Arrival]) -> Placement:
    """The same ranks. All other arrivals are standbys, also those that were no candidates."""
    placed = set(placement.ranks)
    rest = [arrival for incarnation, arrival in arrivals.items() if incarnation not in placed]
    return replace(placement, standbys=tuple(arrival.incarnation for arrival in in_topology_order(rest)))


# --- topology order ---------------------------------------------------------------------------------


def in_topology_order(arrivals: Iterable[Arrival]) -> list[Arrival]:
    """Sorted by domain, then by `_rank_key`."""
    return [arrival for nodes in _by_domain(arrivals).values() for arrival in sorted(nodes, key=_rank_key)]


def _rank_key(arrival: Arrival) -> tuple[object, ...]:
    """Order within a domain: by infra rank, then nodes without one, by address. No two nodes are equal."""
    node = arrival.node
    if node.infra_rank is None:
        return (True, node.addr, node.pid, arrival.incarnation)
    return (False, node.infra_rank, node.addr, node.pid, arrival.incarnation)


def _by_domain(arrivals: Iterable[Arrival]) -> dict[Domain, list[Arrival]]:
    """The nodes of every domain. Domains are sorted, nodes are not."""
    domains: dict[Domain, list[Arrival]] = defaultdict(list)
    for arrival in arrivals:
        domains[arrival.node.domain_id].append(arrival)
    return {domain: domains[domain] for domain in sorted(domains, key=natural_key)}


# --- segments ---------------------------------------------------------------------------------------


_Home = tuple[int, int]
"""A segment of the last world: minus the number of survivors, and its first rank. The smallest is the best to keep."""


@dataclass(slots=True)
class _Pool:
    """A domain: the segments of the last world that belong to it, and its nodes without a rank."""

    homes: list[_Home] = field(default_factory=list)
    free: list[Arrival] = field(default_factory=list)


@dataclass(slots=True)
class _Layout:
    """The segments of the new world while they are filled. Survivors come first."""

    previous: Sequence[Arrival]
    segment: int
    ranks: list[str | None]
    pools: dict[Domain, _Pool] = field(default_factory=lambda: defaultdict(_Pool))
    rank_before: dict[str, int] = field(default_factory=dict)
    """The old ranks of nodes that trained in the last world and lose their rank."""

    def seat_survivors(self, arrived: Mapping[str, Arrival]) -> None:
        """Give every survivor its old rank, and sort the other nodes by domain.

        A world that was placed by other rules may have a segment in several domains. Such a segment belongs to the
        domain of its first survivor.
        """
        previous, segment, ranks = self.previous, self.segment, self.ranks
        bound = min(len(ranks), len(previous)) // segment * segment
        settled: set[str] = set()
        for start in range(0, bound, segment):
            home, survivors = previous[start].node.domain_id, 0
            for rank, seat in enumerate(previous[start : start + segment], start):
                incarnation = seat.incarnation
                if incarnation not in arrived:
                    continue
                domain = seat.node.domain_id
                home = home if survivors else domain
                if domain == home:
                    survivors += 1
                    ranks[rank] = incarnation
                    settled.add(incarnation)
                else:
                    self.rank_before[incarnation] = rank
            self.pools[home].homes.append((-survivors, start))
        self.rank_before.update((seat.incarnation, rank) for rank, seat in enumerate(previous[bound:], bound))
        for incarnation, arrival in arrived.items():
            if incarnation not in settled:
                self.pools[arrival.node.domain_id].free.append(arrival)
        if segment > 1:
            self.pools.pop(None, None)

    def keep_segments(self, pool: _Pool) -> list[int]:
        """Fill the holes of as many segments as the domain has nodes for. Returns the first ranks of these segments."""
        room = (len(pool.free) - sum(minus_survivors for minus_survivors, _ in pool.homes)) // self.segment
        pool.homes.sort()
        if room < len(pool.homes):
            self._prefer_the_returned(pool)
        for _, start in pool.homes[room:]:
            self._unseat(start, pool)
        pool.free.sort(key=_rank_key)
        if self.rank_before:
            # A node that trained in the last world and lost its rank comes before nodes that did not train.
            pool.free.sort(key=lambda arrival: self.rank_before.get(arrival.incarnation, len(self.previous)))
        torn = sorted(start for minus_survivors, start in pool.homes[:room] if -minus_survivors < self.segment)
        self._fill_holes([rank for start in torn for rank in self._span(start) if self.ranks[rank] is None], pool)
        return [start for _, start in pool.homes[:room]]

    def _prefer_the_returned(self, pool: _Pool) -> None:
        """Among segments with equally many survivors, prefer those to which more nodes have come back."""
        here = {arrival.node.infra_rank for arrival in pool.free} - {None}
        returned = {
            start: sum(self.previous[rank].node.infra_rank in here for rank in self._span(start))
            for _, start in pool.homes
        }
        pool.homes.sort(key=lambda home: (home[0], -returned[home[1]], home[1]))

    def _span(self, start: int) -> range:
        return range(start, start + self.segment)

    def _unseat(self, start: int, pool: _Pool) -> None:
        for rank in self._span(start):
            if self.ranks[rank] is not None:
                pool.free.append(self.previous[rank])
                self.rank_before[self.previous[rank].incarnation] = rank
                self.ranks[rank] = None

    def _fill_holes(self, holes: Sequence[int], pool: _Pool) -> None:
        """Fill holes with the domain's free nodes: first those that came back with a hole's infra rank."""
        if not holes:
            return
        came_back: dict[int | None, Arrival] = {arrival.node.infra_rank: arrival for arrival in pool.free}
        came_back.pop(None, None)
        seated: set[str] = set()
        for rank in holes:
            own = came_back.pop(self.previous[rank].node.infra_rank, None)
            if own is not None:
                self.ranks[rank] = own.incarnation
                seated.add(own.incarnation)
        left = [arrival for arrival in pool.free if arrival.incarnation not in seated]
        unfilled = [rank for rank in holes if self.ranks[rank] is None]
        for rank, arrival in zip(unfilled, left, strict=False):
            self.ranks[rank] = arrival.incarnation
        pool.free = left[len(unfilled) :]

    def fill_segments(self, starts: Sequence[int], spread: Spread) -> None:
        """Give every empty segment the next free nodes of one domain."""
        free = {domain: len(self.pools[domain].free) for domain in sorted(self.pools, key=natural_key)}
        starts_left = iter(starts)
        for domain, count in _share_out(len(starts), free, spread, self.segment).items():
            nodes_left = iter(self.pools[domain].free)
            for start in islice(starts_left, count):
                self.ranks[start : start + self.segment] = [
                    arrival.incarnation for arrival in islice(nodes_left, self.segment)
                ]


def _place_segments(
    arrived: Mapping[str, Arrival], previous: Sequence[Arrival], size: int, rules: PlacementRules
) -> list[str]:
    """Incarnations by rank."""
    layout = _Layout(previous, rules.segment, [None] * size)
    layout.seat_survivors(arrived)
    stays = {start for pool in layout.pools.values() for start in layout.keep_segments(pool)}
    layout.fill_segments([start for start in range(0, size, rules.segment) if start not in stays], rules.spread)
    return [incarnation for incarnation in layout.ranks if incarnation is not None]


def _share_out(count: int, free: Mapping[Domain, int], spread: Spread, block: int) -> dict[Domain, int]:
    """How many blocks each domain gives. Without spread: domains in order, each as many as it can. With spread: every
    block comes from the domain with the most nodes left."""
    shares = dict.fromkeys(free, 0)
    if spread is Spread.NONE:
        for domain, nodes in free.items():
            shares[domain] = min(nodes // block, count)
            count -= shares[domain]
    elif count:
        # If two domains have equally many nodes left, the one that gave less gives: the other needs its spares more.
        heap = [(-nodes, 0, index, domain) for index, (domain, nodes) in enumerate(free.items())]
        heapify(heap)
        for _ in range(count):
            nodes, given, index, domain = heap[0]
            assert -nodes >= block, "more blocks are wanted than there are"
            heapreplace(heap, (nodes + block, given + 1, index, domain))
            shares[domain] += 1
        count = 0
    assert count == 0, "more blocks are wanted than there are"
    return shares


# --- units ------------------------------------------------------------------------------------------


def _place_units(
    arrived: Mapping[str, Arrival], previous: Sequence[Arrival], size: int, rules: PlacementRules
) -> list[str]:
    """Incarnations by rank: whole units, each laid out in segments."""
    unit_size = rules.unit_size
    units = _complete_units(arrived.values(), rules)
    # A world that was placed by other rules may have a unit in several blocks. The unit stays in the first.
    starts = range(0, len(previous) // unit_size * unit_size, unit_size)
    was_at = {previous[start].node.unit_id: start for start in reversed(starts)}
    chosen: list[str | None] = [None] * (size // unit_size)
    for unit in units:
        start = was_at.get(unit, size)
        if start < size:
            chosen[start // unit_size] = unit
    taken = set(chosen)
    spare = [unit for unit in units if unit not in taken]
    # A unit that trained in the last world and lost its place comes before units that did not train.
    spare.sort(key=lambda unit: was_at.get(unit, len(previous)))
    gone = {block: previous[block * unit_size].node.domain_id for block in range(min(len(starts), len(chosen)))}
    _fill(chosen, gone, spare, lambda unit: units[unit][0].node.domain_id, rules)
    ranks: list[str] = []
    for unit in filter(None, chosen):
        start = was_at.get(unit, len(previous))
        before = previous[start : start + unit_size]
        ranks.extend(_place_segments({node.incarnation: node for node in units[unit]}, before, unit_size, rules))
    return ranks


def _complete_units(arrived: Iterable[Arrival], rules: PlacementRules) -> dict[str, list[Arrival]]:
    """The nodes of every unit that can train, in topology order. Units are in the order of their first nodes."""
    units: dict[str, list[Arrival]] = defaultdict(list)
    for arrival in in_topology_order(arrived):
        if arrival.node.unit_id is not None:
            units[arrival.node.unit_id].append(arrival)
    return {unit: nodes for unit, nodes in units.items() if is_complete((arrival.node for arrival in nodes), rules)}


def _fill(
    chosen: list[str | None],
    gone: Mapping[int, Domain],
    spare: Sequence[str],
    domain_of: Callable[[str], Domain],
    rules: PlacementRules,
) -> None:
    """Give every empty block a spare unit: from the domain of the lost unit, if that domain has one."""
    pools: dict[Domain, deque[str]] = defaultdict(deque)
    for unit in spare:
        pools[domain_of(unit)].append(unit)
    empty: list[int] = []
    for block in (block for block, held in enumerate(chosen) if held is None):
        if block in gone and pools.get(gone[block]):
            chosen[block] = pools[gone[block]].popleft()
        else:
            empty.append(block)
    free = {domain: len(pools[domain]) for domain in sorted(pools, key=natural_key)}
    blocks_left = iter(empty)
    for domain, count in _share_out(len(empty), free, rules.spread, 1).items():
        for block in islice(blocks_left, count):
            chosen[block] = pools[domain].popleft()
