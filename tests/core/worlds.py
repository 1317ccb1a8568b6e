"""Small worlds to place, drawn by Hypothesis: the nodes of the last world, those that are back, and new ones.

Small enough that every possible placement can be tried, and no smaller: domains that are short of a node, segments
and units that must move, spares of all kinds, worlds that shrink and grow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

import msgspec
from hypothesis import strategies as st

from ft_rendezvous.core.capacity import PlacementRules, Ranks, Spread, capacity
from ft_rendezvous.core.model import Arrival, Placement
from ft_rendezvous.core.placement import place
from tests.core.build import arrival, incarnation, node

DOMAINS = (None, "rack2", "rack10", "room1")
"""In topology order."""


def seat(
    number: int, infra_rank: int | None = None, domain_id: str | None = None, unit_id: str | None = None
) -> Arrival:
    return arrival(number, info=node(number, infra_rank=infra_rank, domain_id=domain_id, unit_id=unit_id))


def by_name(nodes: Iterable[Arrival]) -> dict[str, Arrival]:
    return {one.incarnation: one for one in nodes}


def names(numbers: Iterable[int]) -> tuple[str, ...]:
    return tuple(map(incarnation, numbers))


def capacity_of(nodes: Iterable[Arrival], rules: PlacementRules) -> int:
    return capacity([one.node for one in nodes], rules)


# --- what is placed ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kind:
    """What blocks a world is made of, and how large it is drawn."""

    segment: int = 1
    unit_size: int = 1
    most_ranks: int = 4
    most_nodes: int = 6

    def __str__(self) -> str:
        return f"segment={self.segment} unit_size={self.unit_size}"

    def rules(self, ranks: Ranks = Ranks.STICKY, spread: Spread = Spread.NONE) -> PlacementRules:
        segment, unit_size = self.segment, self.unit_size
        block = max(segment, unit_size)
        return PlacementRules(
            min_nodes=block, max_nodes=99, segment=segment, unit_size=unit_size, ranks=ranks, spread=spread
        )


NODES = Kind()
SEGMENTS = (Kind(2, most_nodes=7), Kind(3, most_ranks=6, most_nodes=7))
UNITS = (Kind(1, 2, most_nodes=8), Kind(1, 3, most_ranks=6, most_nodes=8), Kind(2, 4, most_ranks=8, most_nodes=9))
KINDS = (NODES, *SEGMENTS, *UNITS)


@dataclass(frozen=True)
class World:
    """What a placement depends on."""

    rules: PlacementRules
    arrived: tuple[Arrival, ...]
    previous: tuple[Arrival, ...]
    size: int

    @property
    def last(self) -> tuple[Arrival, ...]:
        """The last world, as far as the rules use it."""
        return self.previous if self.rules.ranks is Ranks.STICKY else ()

    @property
    def survivors(self) -> list[str]:
        """Nodes of the last world that have arrived."""
        here = by_name(self.arrived)
        return [one.incarnation for one in self.last if one.incarnation in here]

    def __repr__(self) -> str:
        rules = f"segment={self.rules.segment} unit_size={self.rules.unit_size} {self.rules.ranks} {self.rules.spread}"
        return f"World({rules} size={self.size}; previous {_tell(self.previous)}; arrived {_tell(self.arrived)})"


def placed(world: World) -> Placement:
    return place(by_name(world.arrived), world.previous, world.size, world.rules)


def _tell(nodes: Sequence[Arrival]) -> str:
    """Nodes as `number:infra rank/domain/unit`."""
    facts = [(int(one.incarnation, 16), one.node) for one in nodes]
    return " ".join(f"{number}:{info.infra_rank}/{info.domain_id}/{info.unit_id}" for number, info in facts) or "none"


# --- drawing ----------------------------------------------------------------------------------------

STAYS, COMES_BACK, IS_GONE = "stays", "comes back", "is gone"


@dataclass(slots=True)
class _Drawer:
    """Starts nodes. Those of a unit are in one domain, unless units span domains."""

    draw: st.DrawFn
    rules: PlacementRules
    domains: Sequence[str | None]
    is_spanning: bool
    infra_ranks: list[int | None]
    unit_domains: dict[str, str | None] = field(default_factory=dict)
    count: int = 0

    def domain(self, unit_id: str | None) -> str | None:
        domain = self.draw(st.sampled_from(self.domains))
        return domain if unit_id is None or self.is_spanning else self.unit_domains.setdefault(unit_id, domain)

    def newcomer(self, domain_id: str | None, unit_id: str | None) -> Arrival:
        """A new node. Addresses are in another order than numbers."""
        number, self.count = self.count, self.count + 1
        addr = f"host-{chr(ord('a') + 7 * number % 26)}"
        infra_rank = self.infra_ranks.pop()
        return arrival(
            number, info=node(number, infra_rank=infra_rank, domain_id=domain_id, unit_id=unit_id, addr=addr)
        )

    def another_start(self, before: Arrival) -> Arrival:
        """The same node as another process. Without units, it may be another machine in another domain."""
        number, self.count = self.count, self.count + 1
        is_elsewhere = not self.rules.needs_unit and self.draw(st.booleans())
        domain = self.domain(None) if is_elsewhere else before.node.domain_id
        return arrival(number, info=msgspec.structs.replace(before.node, domain_id=domain, pid=100 + number))

    def block(self, unit_id: str | None) -> list[Arrival]:
        """Nodes that can train together."""
        nodes: list[Arrival] = []
        for _ in range(self.rules.block // self.rules.segment):
            domain = self.domain(unit_id)
            nodes += [self.newcomer(domain, unit_id) for _ in range(self.rules.segment)]
        return nodes


@st.composite
def worlds(draw: st.DrawFn, kinds: Sequence[Kind] = KINDS) -> World:
    """A last world that the same rules could have made, or none; and arrivals that can form the next."""
    kind, is_first = draw(st.sampled_from(kinds)), draw(st.sampled_from([False, False, False, True]))
    ranks = draw(st.sampled_from([Ranks.STICKY, Ranks.STICKY, Ranks.STICKY, Ranks.TOPOLOGY]))
    rules = kind.rules(ranks, draw(st.sampled_from(Spread)))
    shuffle = Random(draw(st.integers(0, 999))).shuffle
    infra_ranks: list[int | None] = [*range(24), *[None] * 8]
    shuffle(infra_ranks)
    domains = DOMAINS[1:] if rules.needs_domain or draw(st.booleans()) else DOMAINS[:3]
    is_spanning = rules.needs_unit and draw(st.sampled_from([False, False, True]))
    drawer = _Drawer(draw, rules, domains[draw(st.integers(0, len(domains) - 1)) :], is_spanning, infra_ranks)

    most_blocks = kind.most_ranks // rules.block
    previous: list[Arrival] = []
    for block in range(0 if is_first else draw(st.sampled_from([*range(1, most_blocks + 2), most_blocks]))):
        previous += drawer.block(f"u{block}" if rules.needs_unit else None)
    arrived: list[Arrival] = []
    for before in previous[: kind.most_nodes]:
        fate = draw(st.sampled_from([STAYS, STAYS, COMES_BACK, IS_GONE]))
        arrived += [before] if fate is STAYS else [drawer.another_start(before)] if fate is COMES_BACK else []
    # Not in the domains of the others: otherwise a domain would almost always have spares for all of its holes.
    drawer.domains = domains[: draw(st.integers(1, len(domains)))]
    for spare_unit in ("u8", "u9"):
        if len(arrived) + rules.block <= kind.most_nodes and draw(st.booleans()):
            arrived += drawer.block(spare_unit if rules.needs_unit else None)
    for _ in range(kind.most_nodes - len(arrived) - draw(st.integers(0, 2))):
        unit = draw(st.sampled_from(["u0", "u8", "u9"])) if rules.needs_unit else None
        arrived.append(drawer.newcomer(drawer.domain(unit), unit))
    if not capacity_of(arrived, rules):
        arrived = arrived[: kind.most_nodes - rules.block] + drawer.block("u7" if rules.needs_unit else None)
    shuffle(arrived)

    blocks = min(most_blocks, capacity_of(arrived, rules) // rules.block)
    return World(rules, tuple(arrived), tuple(previous), draw(st.sampled_from(range(blocks, 0, -1))) * rules.block)
