"""Small runs with replica groups to place, drawn by Hypothesis: the last worlds of the groups, and the nodes that are
here now.

Small enough that every way to give segments to domains can be tried, and no smaller: groups that lost all or some of
their nodes, nodes that came back, groups that were given up, domains that are short of a node.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from random import Random

import msgspec
from hypothesis import strategies as st

from ft_rendezvous.core.capacity import PlacementRules, Ranks, Spread
from ft_rendezvous.core.group_placement import place_groups
from ft_rendezvous.core.model import Arrival, Placement
from tests.core.build import arrival, node
from tests.core.worlds import COMES_BACK, DOMAINS, IS_GONE, STAYS, by_name, capacity_of

Domain = str | None
Rank = tuple[int, int]
"""A group, and a rank in it."""


@dataclass(frozen=True, slots=True)
class GroupKind:
    """The size of groups and segments, and how many groups and nodes are drawn."""

    size: int
    segment: int
    most_groups: int = 3
    most_nodes: int = 9

    def __str__(self) -> str:
        return f"group_size={self.size} segment={self.segment}"

    @property
    def row(self) -> int:
        """How many groups share a segment."""
        return max(1, self.segment // self.size)


PAIRS = GroupKind(2, 1)
TRIPLES = GroupKind(3, 1, most_nodes=11)
PARTS = (GroupKind(4, 2, most_groups=2, most_nodes=9), GroupKind(3, 3, most_nodes=11), GroupKind(2, 2))
ROWS = (GroupKind(1, 2, most_groups=6), GroupKind(2, 4, most_groups=4, most_nodes=10))
GROUP_KINDS = (GroupKind(1, 1, most_groups=4), PAIRS, TRIPLES, *PARTS, *ROWS)


@dataclass(frozen=True)
class GroupWorld:
    """What a placement of all groups depends on."""

    rules: PlacementRules
    arrived: tuple[Arrival, ...]
    worlds: Mapping[int, tuple[Arrival, ...]]
    size: int

    @property
    def last(self) -> Mapping[int, tuple[Arrival, ...]]:
        """The last worlds, as far as the rules use them."""
        return self.worlds if self.rules.ranks is Ranks.STICKY else {}

    @property
    def row(self) -> int:
        return max(1, self.rules.segment // self.rules.group_size)

    @property
    def seats(self) -> dict[Rank, Arrival]:
        """The last worlds, as far as the rules use them, by group and rank."""
        return {(group, rank): one for group, seats in self.last.items() for rank, one in enumerate(seats)}

    def __repr__(self) -> str:
        rules = self.rules
        head = f"group_size={rules.group_size} segment={rules.segment} {rules.ranks} {rules.spread} size={self.size}"
        worlds = "; ".join(f"group {group}: {_tell(seats)}" for group, seats in self.worlds.items())
        return f"GroupWorld({head}; {worlds}; arrived {_tell(self.arrived)})"


def placed(world: GroupWorld) -> Placement:
    return place_groups(by_name(world.arrived), world.worlds, world.size, world.rules)


def ranks_of(placement: Placement) -> dict[Rank, str]:
    return {(group, rank): name for group, names in placement.by_group() for rank, name in enumerate(names)}


def _tell(nodes: Sequence[Arrival]) -> str:
    return " ".join(f"{int(one.incarnation, 16)}:{one.node.infra_rank}/{one.node.domain_id}" for one in nodes) or "none"


# --- trying everything ------------------------------------------------------------------------------

Pattern = tuple[Domain, ...]
"""The domain of every segment."""


def patterns(nodes: Sequence[Arrival], segments: int, segment: int) -> Iterator[Pattern]:
    """Every way to give segments to domains that have enough nodes."""
    counts = Counter(one.node.domain_id for one in nodes)
    domains = [domain for domain in counts if segment == 1 or domain is not None]
    for pattern in product(domains, repeat=segments):
        if all(count * segment <= counts[domain] for domain, count in Counter(pattern).items()):
            yield pattern


def most_whole_groups(world: GroupWorld) -> int:
    """How many groups can be within one domain, if no node was placed before."""
    rules, counts = world.rules, Counter(one.node.domain_id for one in world.arrived)
    if rules.segment >= rules.group_size:
        return world.size // rules.group_size
    domains = [domain for domain in counts if rules.segment == 1 or domain is not None]
    best = 0
    for whole in range(1, world.size // rules.group_size + 1):
        for chosen in combinations_with_replacement(domains, whole):
            taken = Counter({domain: number * rules.group_size for domain, number in Counter(chosen).items()})
            rest = sum((counts[domain] - taken[domain]) // rules.segment * rules.segment for domain in domains)
            is_possible = all(taken[domain] <= counts[domain] for domain in taken)
            if is_possible and rest >= world.size - whole * rules.group_size:
                best = whole
    return best


def most_kept(world: GroupWorld, groups: Sequence[int]) -> int:
    """How many nodes can keep group and rank, if these groups are formed."""
    segment, here = world.rules.segment, by_name(world.arrived)
    row = [world.last[group] if group in world.last else (None,) * world.rules.group_size for group in groups]
    seats = [one for seats in row for one in seats]

    def kept(pattern: Pattern) -> int:
        return sum(
            one is not None and one.incarnation in here and one.node.domain_id == pattern[rank // segment]
            for rank, one in enumerate(seats)
        )

    return max(map(kept, patterns(world.arrived, world.size // segment, segment)))


# --- drawing ----------------------------------------------------------------------------------------


@st.composite
def group_worlds(
    draw: st.DrawFn,
    kinds: Sequence[GroupKind] = GROUP_KINDS,
    is_first: Sequence[bool] = (False, False, False, True),
    ranks: Sequence[Ranks] = (Ranks.STICKY, Ranks.STICKY, Ranks.STICKY, Ranks.TOPOLOGY),
    spread: Sequence[Spread] = (Spread.NONE, Spread.NONE, Spread.DOMAINS),
) -> GroupWorld:
    """Last worlds that the same rules could have made, or none; and arrivals that can form the next."""
    kind, has_none_before = draw(st.sampled_from(kinds)), draw(st.sampled_from(is_first))
    rules = PlacementRules(
        min_nodes=max(kind.segment, kind.size),
        max_nodes=99,
        group_size=kind.size,
        segment=kind.segment,
        ranks=draw(st.sampled_from(ranks)),
        spread=draw(st.sampled_from(spread)),
    )
    shuffle = Random(draw(st.integers(0, 999))).shuffle
    infra_ranks: list[int | None] = [*range(40), *[None] * 8]
    shuffle(infra_ranks)
    domains = DOMAINS[1:] if rules.needs_domain or draw(st.booleans()) else DOMAINS[:3]
    some = st.sampled_from(domains)
    count = 0

    def start(domain: Domain, before: Arrival | None = None) -> Arrival:
        nonlocal count
        count += 1
        if before is not None:
            return arrival(count, info=msgspec.structs.replace(before.node, domain_id=domain, pid=100 + count))
        addr = f"host-{chr(ord('a') + 7 * count % 26)}{count}"
        return arrival(count, info=node(count, infra_rank=infra_ranks.pop(), domain_id=domain, addr=addr))

    worlds = {} if has_none_before else _draw_worlds(draw, kind, lambda: draw(some), start)
    arrived: list[Arrival] = []
    for seats in worlds.values():
        fates = draw(st.sampled_from([[STAYS], [STAYS, STAYS, COMES_BACK, IS_GONE], [COMES_BACK, IS_GONE], [IS_GONE]]))
        for before in seats:
            fate = draw(st.sampled_from(fates))
            if fate is COMES_BACK:
                arrived.append(start(draw(some) if draw(st.booleans()) else before.node.domain_id, before))
            elif fate is STAYS:
                arrived.append(before)
    some = st.sampled_from(domains[: draw(st.integers(1, len(domains)))])
    while len(arrived) < kind.most_nodes - draw(st.integers(0, 2)):
        arrived.append(start(draw(some)))
    if capacity_of(arrived, rules) < rules.min_nodes:
        domain = draw(st.sampled_from(domains[-2:]))
        arrived += [start(domain) for _ in range(rules.min_nodes)]
    shuffle(arrived)
    most = min(kind.most_groups * kind.size, capacity_of(arrived, rules)) // rules.step
    return GroupWorld(rules, tuple(arrived), worlds, draw(st.sampled_from(range(most, 0, -1))) * rules.step)


def _draw_worlds(
    draw: st.DrawFn, kind: GroupKind, domain: Callable[[], Domain], start: Callable[[Domain], Arrival]
) -> dict[int, tuple[Arrival, ...]]:
    """Each segment is within one domain; a group that was given up has no world."""
    rows = draw(st.integers(1, kind.most_groups // kind.row))
    shift = draw(st.sampled_from([0, 0, 0, 1]))
    worlds: dict[int, tuple[Arrival, ...]] = {}
    for row in range(shift, rows + shift):
        row_domain = domain()
        for group in range(row * kind.row, (row + 1) * kind.row):
            seats: list[Arrival] = []
            for _ in range(0, kind.size, min(kind.segment, kind.size)):
                segment_domain = row_domain if kind.segment >= kind.size or draw(st.booleans()) else domain()
                seats += [start(segment_domain) for _ in range(min(kind.segment, kind.size))]
            worlds[group] = tuple(seats)
    if len(worlds) > 1 and draw(st.sampled_from([False, False, True])):
        del worlds[draw(st.sampled_from(sorted(worlds)))]
    return worlds
