"""Decides which nodes train in which replica group, and with which rank in it.

A group is a block of `group_size` ranks. It is within one domain where possible: that is a wish, while `segment` is a
rule. Where a segment holds several groups, those groups share a domain, and group ids come in rows of that length.

Survivors keep their group and their rank, and so do nodes that come back under a new incarnation. A hole is filled from
the group's domain, if that has a node to give. A group that lost all its nodes stays in its domain, if that has enough.
If fewer groups are possible than before, those with the most survivors stay.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from ft_rendezvous.core.capacity import PlacementRules, Ranks, Spread, capacity
from ft_rendezvous.core.model import INCARNATION_DIGITS, Arrival, NodeInfo, Placement
from ft_rendezvous.core.placement import bench, choose_candidates, in_topology_order, place

Domain = str | None
Worlds = Mapping[int, Sequence[Arrival]]
"""The last world of each group, by rank."""

_Pools = dict[Domain, dict[str, Arrival]]
"""Nodes without a place by domain. Both are in topology order."""

_NOWHERE = "\0"
"""A domain that no node is in. It is not None: a node that has no domain is at home where another one was."""


def place_groups(arrivals: Mapping[str, Arrival], worlds: Worlds, world_size: int, rules: PlacementRules) -> Placement:
    """Give `world_size` of the arrivals a group and a rank each. The others are standbys."""
    row_length = rules.step // rules.group_size
    """Groups that belong together."""
    last = worlds if rules.ranks is Ranks.STICKY else {}
    groups = _choose_groups(arrivals.keys(), last, world_size // rules.group_size, row_length)
    return _place_chosen(groups, arrivals, last, rules)


def fill_group(
    group: int, survivors: Mapping[str, Arrival], spares: Mapping[str, Arrival], worlds: Worlds, rules: PlacementRules
) -> tuple[str, ...] | None:
    """The ranks of one group, from its survivors and from nodes that stand by. None if they are too few.

    Nodes that were lost too often must not be among the spares, unless the group cannot do without them.
    """
    candidates = _allowed(group, {**survivors, **spares}, worlds, rules)
    own = _rules_of_one(rules)
    if capacity([arrival.node for arrival in candidates.values()], own) < rules.group_size:
        return None
    last = {group: worlds[group]} if group in worlds else {}
    sticky = _place_chosen([group], candidates, last, own).ranks
    if rules.ranks is Ranks.STICKY:
        return sticky
    chosen = {incarnation: candidates[incarnation] for incarnation in sticky}
    return _place_chosen([group], chosen, {}, own).ranks


def form_groups(spares: Mapping[str, Arrival], count: int, rules: PlacementRules) -> list[tuple[str, ...]]:
    """The ranks of new groups, at most so many. Not for groups that share a segment: those are bound to its domain."""
    assert rules.segment <= rules.group_size, "groups of one segment are formed one by one"
    fit = capacity([arrival.node for arrival in spares.values()], rules) // rules.group_size
    size = min(count, fit) * rules.group_size
    return [ranks for _, ranks in place_groups(spares, {}, size, rules).by_group()] if size else []


def choose_spares(  # noqa: PLR0917
    group: int,
    survivors: Mapping[str, Arrival],
    spares: Mapping[str, Arrival],
    parked: AbstractSet[str],
    worlds: Worlds,
    rules: PlacementRules,
) -> Mapping[str, Arrival]:
    """The nodes that may fill a group. Parked nodes are among them only if the group cannot be filled otherwise."""
    own = replace(_rules_of_one(rules), min_nodes=rules.group_size)
    allowed = _allowed(group, {**survivors, **spares}, worlds, rules)
    chosen = choose_candidates(allowed, parked - survivors.keys(), own)
    return {incarnation: arrival for incarnation, arrival in spares.items() if incarnation in chosen}


def _rules_of_one(rules: PlacementRules) -> PlacementRules:
    """The rules for a single group: a segment that holds several groups is as large as the group."""
    return replace(rules, segment=min(rules.segment, rules.group_size))


def find_neighbours(group: int, worlds: Worlds, rules: PlacementRules) -> list[Sequence[Arrival]]:
    """The worlds of the other groups of a segment. Their domain is the group's, too."""
    length = rules.step // rules.group_size
    first = group // length * length
    return [worlds[other] for other in range(first, first + length) if other != group and other in worlds]


def _allowed(group: int, arrivals: Mapping[str, Arrival], worlds: Worlds, rules: PlacementRules) -> dict[str, Arrival]:
    """The nodes that may be in a group: those of its segment's domain, if other groups of the segment have one."""
    others = find_neighbours(group, worlds, rules)
    if not others:
        return dict(arrivals)
    domain = others[0][0].node.domain_id
    return {name: arrival for name, arrival in arrivals.items() if arrival.node.domain_id == domain}


def _choose_groups(here: AbstractSet[str], worlds: Worlds, count: int, length: int) -> list[int]:
    """Which groups there are: those with the most survivors, then the lowest numbers. Rows of groups stay together."""
    survivors: Counter[int] = Counter()
    for group, seats in worlds.items():
        survivors[group // length] += sum(seat.incarnation in here for seat in seats)
    wanted = count // length
    rows = sorted(survivors, key=lambda row: (-survivors[row], row))[:wanted]
    rows = [row for row in rows if survivors[row]]
    new = (row for row in range(wanted + len(rows)) if row not in set(rows))
    rows += [row for row, _ in zip(new, range(wanted - len(rows)), strict=False)]
    return [row * length + offset for row in sorted(rows) for offset in range(length)]


def _place_chosen(
    groups: Sequence[int], arrivals: Mapping[str, Arrival], last: Worlds, rules: PlacementRules
) -> Placement:
    """Fill these groups, and no others. Nodes of their last worlds keep their places, where segments allow that."""
    row = _row(groups, last, rules)
    if rules.segment < rules.group_size:
        _Wishes(row, arrivals, rules).fulfil()
    ranks = place(arrivals, row, len(row), replace(rules, ranks=Ranks.STICKY)).ranks
    return bench(Placement(ranks, (), tuple(groups)), arrivals)


def _row(groups: Sequence[int], worlds: Worlds, rules: PlacementRules) -> list[Arrival]:
    """The last worlds of these groups, as one world. A new group is at home where those are that share its segment."""
    row: list[Arrival] = []
    length = rules.step // rules.group_size
    for index, group in enumerate(groups):
        others = groups[index // length * length :][:length]
        home = next((worlds[other][0].node.domain_id for other in others if other in worlds), _NOWHERE)
        row.extend(worlds.get(group) or [_no_node(home)] * rules.group_size)
    return row


def _no_node(domain: Domain) -> Arrival:
    """Stands where no node was: nothing can come back to that rank."""
    return Arrival(
        cycle_id=0,
        incarnation="-" * INCARNATION_DIGITS,
        seq=1,
        node=NodeInfo(addr="", pid=0, domain_id=domain),
        bootstrap_port=0,
    )


@dataclass(slots=True)
class _Wishes:
    """Puts nodes into the row of the last world as if they had been there, so that groups are within one domain.

    What it puts there may have to move: `place` keeps the rules of segments, whatever the last world was.
    """

    row: list[Arrival]
    arrivals: Mapping[str, Arrival]
    rules: PlacementRules

    def fulfil(self) -> None:
        here = {seat.incarnation for seat in self.row if seat.incarnation in self.arrivals}
        free: dict[Domain, dict[str, Arrival]] = defaultdict(dict)
        for arrival in in_topology_order(a for name, a in self.arrivals.items() if name not in here):
            free[arrival.node.domain_id][arrival.incarnation] = arrival
        if self.rules.segment == 1:
            self._seat_returned(free)
        else:
            self._put_returned_last(free)
        starts = range(0, len(self.row), self.rules.group_size)
        torn = [start for start in starts if self._holes(start) and self._survivors(start)]
        for start in sorted(torn, key=lambda start: (len(self._holes(start)), start)):
            if self.rules.segment == 1:
                self._fill(self._holes(start), free[_most_common(self._survivors(start))])
            else:
                self._reserve(start, free)
        self._fill_empty([start for start in starts if not self._survivors(start)], free)

    def _span(self, start: int) -> range:
        return range(start, start + self.rules.group_size)

    def _holes(self, start: int) -> list[int]:
        return [rank for rank in self._span(start) if self.row[rank].incarnation not in self.arrivals]

    def _survivors(self, start: int) -> list[Arrival]:
        return [self.row[rank] for rank in self._span(start) if self.row[rank].incarnation in self.arrivals]

    def _seat_returned(self, free: _Pools) -> None:
        """Nodes that came back have their places again, in whichever group. Only then are holes filled by others."""
        holes: dict[Domain, list[int]] = defaultdict(list)
        for rank, seat in enumerate(self.row):
            if seat.incarnation not in self.arrivals:
                holes[seat.node.domain_id].append(rank)
        for domain, ranks in holes.items():
            self._seat_own(ranks, free[domain])

    def _put_returned_last(self, free: _Pools) -> None:
        """Nodes that came back are given to other groups last: their own may still want them."""
        gone = {seat.node.infra_rank for seat in self.row if seat.incarnation not in self.arrivals} - {None}
        for domain, pool in free.items():
            free[domain] = dict(sorted(pool.items(), key=lambda item: item[1].node.infra_rank in gone))

    def _seat_own(self, ranks: Iterable[int], pool: dict[str, Arrival]) -> list[int]:
        """Seat the nodes that have the infra ranks of those that are gone. Returns the ranks without such a node."""
        found = {arrival.node.infra_rank: name for name, arrival in pool.items()}
        found.pop(None, None)
        left: list[int] = []
        for rank in ranks:
            name = found.pop(self.row[rank].node.infra_rank, None)
            if name is None:
                left.append(rank)
            else:
                self.row[rank] = pool.pop(name)
        return left

    def _fill(self, ranks: Iterable[int], pool: dict[str, Arrival]) -> None:
        """Fill holes from one domain, as far as its nodes go: in topology order, but for nodes that came back."""
        for rank, name in zip(self._seat_own(ranks, pool), list(pool), strict=False):
            self.row[rank] = pool.pop(name)

    def _reserve(self, start: int, free: _Pools) -> None:
        """Leave the nodes that fill the holes of larger segments to `place`: survivors there keep their ranks."""
        segment = self.rules.segment
        for first in range(start, start + self.rules.group_size, segment):
            seats = self.row[first : first + segment]
            homes = [seat.node.domain_id for seat in seats if seat.incarnation in self.arrivals]
            if homes:
                pool, gone = free[homes[0]], {seat.node.infra_rank for seat in seats} - {None}
                own_first = sorted(pool, key=lambda name: pool[name].node.infra_rank not in gone)
                for name in own_first[: segment - homes.count(homes[0])]:
                    del pool[name]

    def _fill_empty(self, starts: Sequence[int], free: _Pools) -> None:
        """Give every empty group to one domain, if one has enough nodes: to its last one, or in topology order."""
        size, is_spread = self.rules.group_size, self.rules.spread is Spread.DOMAINS
        new: list[int] = []
        for start in starts:
            home = _most_common(self.row[start : start + size])
            if home in self._large_enough(free):
                self._fill(self._span(start), free[home])
            else:
                new.append(start)
        for start in new:
            domains = self._large_enough(free)
            if domains:
                pool = free[max(domains, key=lambda domain: len(free[domain])) if is_spread else domains[0]]
                self._fill(self._span(start), pool)

    def _large_enough(self, free: _Pools) -> list[Domain]:
        """The domains that can fill a group. Nodes without a domain cannot share a segment."""
        size, may_be_none = self.rules.group_size, self.rules.segment == 1
        return [domain for domain, pool in free.items() if len(pool) >= size and (may_be_none or domain is not None)]


def _most_common(seats: Iterable[Arrival]) -> Domain:
    """The domain of most of these nodes."""
    homes = Counter(seat.node.domain_id for seat in seats)
    return max(homes, key=lambda domain: (homes[domain], domain is not None, str(domain)))
