"""Where nodes are, and how large a world they can form.

Counts as one would on paper, for the checkers to compare with; shares no code with what it judges.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from random import Random

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.capacity import Policy
from ft_rendezvous.core.model import NodeInfo

Home = tuple[str | None, str | None]
"""A node's domain and unit."""

DOMAINS = 3
"""How many domains nodes of segments are in: few, so that most of them can fill one."""


def block_of(settings: RunSettings) -> int:
    """Worlds are multiples of this."""
    return max(settings.segment, settings.unit_size, settings.group_size)


def least_nodes(settings: RunSettings, is_first: bool) -> int:
    """How many nodes a world needs. With groups, after the first seal: `min_groups` groups, in whole segments."""
    if is_first or not settings.group_size:
        return settings.min_nodes
    block = block_of(settings)
    return -(-settings.min_groups * settings.group_size // block) * block


def count_placeable(nodes: Collection[NodeInfo], settings: RunSettings) -> int:
    """How many of the nodes can train together, however large a world may be."""
    segment, unit_size = settings.segment, settings.unit_size
    if segment == unit_size == 1:
        return len(nodes) // max(1, settings.group_size) * max(1, settings.group_size)
    in_segments: Counter[str | None] = Counter()
    for (unit, _), count in Counter((node.unit_id, node.domain_id) for node in nodes).items():
        in_segments[unit] += count // segment * segment
    if unit_size == 1:
        return in_segments.total() // block_of(settings) * block_of(settings)
    return sum(unit_size for count in in_segments.values() if count >= unit_size)


def largest_world(nodes: Collection[NodeInfo], settings: RunSettings) -> int:
    """The largest allowed world of these nodes; 0 if there is none."""
    most = settings.max_nodes if settings.policy is Policy.ELASTIC else settings.min_nodes
    block = block_of(settings)
    size = min(count_placeable(nodes, settings), most) // block * block
    return size if size >= settings.min_nodes else 0


class Grounds:
    """Gives every new node its domain and its unit."""

    def __init__(self, settings: RunSettings, has_domains: bool, rng: Random) -> None:
        self._settings = settings
        self._has_domains = has_domains
        self._rng = rng
        self._units = 0

    def choose_home(self, index: int, others: Sequence[NodeInfo], must_fit: bool) -> Home:
        """A home for the node with this index, given who else is there.

        One that must fit goes where somebody lacks company, so that two of them make up a block at the latest.
        Others do mostly, and else become spares that fit nowhere yet, or a unit's own.
        """
        settings = self._settings
        if settings.segment == settings.unit_size == 1:
            return (f"d{index % 2}" if self._has_domains else None), None
        if settings.unit_size > 1:
            unit = self._choose_unit(others, must_fit)
            # A unit whose segments are within domains is in one; others may be torn over two.
            number = int(unit[1:]) if settings.segment > 1 else index
            return (f"d{number % 2}" if self._has_domains else None), unit
        counts = Counter(node.domain_id for node in others)
        lacking = sorted(str(domain) for domain, count in counts.items() if count % settings.segment)
        if lacking and (must_fit or self._rng.random() < 0.6):
            return lacking[0], None
        return f"d{self._rng.randrange(DOMAINS)}", None

    def _choose_unit(self, others: Sequence[NodeInfo], must_fit: bool) -> str:
        counts = Counter(node.unit_id for node in others)
        lacking = sorted(str(unit) for unit, count in counts.items() if count < self._settings.unit_size)
        if lacking and (must_fit or self._rng.random() < 0.6):
            return lacking[0]
        if counts and not must_fit and self._rng.random() < 0.5:
            return self._rng.choice(sorted(str(unit) for unit in counts))
        self._units += 1
        return f"u{self._units}"
