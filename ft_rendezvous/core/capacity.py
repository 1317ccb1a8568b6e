"""How large a world some nodes can form, and which losses the spares can replace.

It only counts. `placement` decides which node gets which rank.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from ft_rendezvous.core.model import NodeInfo


class Ranks(StrEnum):
    STICKY = "sticky"
    TOPOLOGY = "topology"
    """Every cycle is placed like a first cycle."""


class Spread(StrEnum):
    NONE = "none"
    DOMAINS = "domains"
    """Spares stay in as many domains as possible."""


class Policy(StrEnum):
    FIXED = "fixed"
    """MIN nodes train."""
    ELASTIC = "elastic"
    """All available nodes train, from MIN to MAX."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementRules:
    """The settings that a placement depends on. World sizes are multiples of `step`."""

    min_nodes: int
    max_nodes: int
    segment: int = 1
    unit_size: int = 1
    ranks: Ranks = Ranks.STICKY
    spread: Spread = Spread.NONE
    policy: Policy = Policy.FIXED
    group_size: int = 0
    """Nodes of a replica group. 0: all nodes are one group."""
    largest: int | None = None
    """The largest elastic world, if that is less than MAX."""

    @property
    def step(self) -> int:
        """Worlds grow and shrink by this many nodes: by whole blocks, and by whole groups."""
        return max(self.block, self.group_size)

    @property
    def block(self) -> int:
        """Nodes enter and leave a world in blocks. A block is a unit, which holds whole segments, or a segment."""
        return max(self.unit_size, self.segment)

    @property
    def block_name(self) -> str:
        return "unit" if self.unit_size > 1 else "segment"

    @property
    def needs_domain(self) -> bool:
        return self.segment > 1 or self.spread is Spread.DOMAINS

    @property
    def needs_unit(self) -> bool:
        return self.unit_size > 1

    def world_size(self, capacity: int) -> int:
        """The largest allowed world for a capacity. 0 if no world is possible."""
        most = (self.largest or self.max_nodes) if self.policy is Policy.ELASTIC else self.min_nodes
        size = min(most, capacity) // self.step * self.step
        return size if size >= self.min_nodes else 0


# --- capacity ---------------------------------------------------------------------------------------

Counts = Mapping[str | None, int]
"""Number of nodes by domain."""


def capacity(nodes: Collection[NodeInfo], rules: PlacementRules) -> int:
    """How many of these nodes can be placed together."""
    if rules.block == 1:
        return len(nodes)
    return sum(_blocks_in(counts, rules) for counts in _count(nodes, rules).values()) * rules.block


def is_complete(unit: Iterable[NodeInfo], rules: PlacementRules) -> bool:
    """Whether one unit can train: its nodes are enough, in whole segments."""
    return _blocks_in(Counter(node.domain_id for node in unit), rules) == 1


def leftovers(nodes: Iterable[NodeInfo], rules: PlacementRules) -> list[str]:
    """The nodes that fill no block, as text for people: `1 in domain A`."""
    if not rules.needs_unit:
        counts = Counter(node.domain_id for node in nodes)
        over = {domain: count - _fit(domain, count, rules) * rules.segment for domain, count in counts.items()}
        return [f"{over[domain]} in {_name(domain)}" for domain in sorted(over, key=natural_key) if over[domain]]
    units = _count(nodes, rules)
    texts = {unit: _describe_rest(unit, counts, rules) for unit, counts in units.items()}
    return [texts[unit] for unit in sorted(texts, key=natural_key) if texts[unit]]


def _describe_rest(unit: str, counts: Counts, rules: PlacementRules) -> str:
    count, size = sum(counts.values()), rules.unit_size
    if _blocks_in(counts, rules):
        return f"{count - size} more than {size} in unit {unit}" if count > size else ""
    if count < size:
        return f"{count} of {size} in unit {unit}"
    return f"{count} in unit {unit}, not in whole segments of {rules.segment}"


def natural_key(name: str | None) -> tuple[object, ...]:
    """Sort key. A missing name comes first. Numbers in names sort as numbers: rack2 comes before rack10."""
    parts: list[object] = list(re.split(r"([0-9]+)", name or ""))
    parts[1::2] = [int(str(part)) for part in parts[1::2]]
    return (name is not None, parts, name)


def _name(domain: str | None) -> str:
    return "no domain" if domain is None else f"domain {domain}"


def _count(nodes: Iterable[NodeInfo], rules: PlacementRules) -> Mapping[str, Counts]:
    """Nodes by unit and domain. Without units there is one entry, with all nodes by domain."""
    if not rules.needs_unit:
        return {"": Counter(node.domain_id for node in nodes)}
    units: dict[str, Counter[str | None]] = defaultdict(Counter)
    for node in nodes:
        if node.unit_id is not None:
            units[node.unit_id][node.domain_id] += 1
    return units


def _blocks_in(counts: Counts, rules: PlacementRules) -> int:
    segments = sum(_fit(domain, count, rules) for domain, count in counts.items())
    return min(1, segments * rules.segment // rules.unit_size) if rules.needs_unit else segments


def _fit(domain: str | None, count: int, rules: PlacementRules) -> int:
    """Number of whole segments in one domain. Nodes without a domain cannot share a segment."""
    return 0 if domain is None and rules.segment > 1 else count // rules.segment


# --- what can be lost -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Cover:
    """The losses after which the run continues without waiting for a replacement or a last call."""

    any_nodes: int
    """This many nodes can be lost, no matter which."""
    nodes: int
    """Number of active nodes that can be lost, one alone."""
    of_nodes: int
    domains: int
    """Number of the active nodes' domains that can be lost as a whole, one alone."""
    of_domains: int

    def __str__(self) -> str:
        if self.nodes == 0:
            return "no loss"
        losses = [f"{self.nodes} of {self.of_nodes} single nodes"]
        if self.any_nodes:
            losses.insert(0, f"any {self.any_nodes} node{'' if self.any_nodes == 1 else 's'}")
        if self.of_domains:
            losses.append(f"{self.domains} of {self.of_domains} single domains")
        return ", ".join(losses)


def cover_of(active: Collection[NodeInfo], nodes: Iterable[NodeInfo], rules: PlacementRules) -> Cover:
    """The losses that a world can bear. `nodes` are all live nodes, with the active ones."""
    pools = _count(nodes, rules)
    spare = sum(_blocks_in(counts, rules) for counts in pools.values()) - len(active) // rules.block
    held = Counter((node.unit_id or "" if rules.needs_unit else "", node.domain_id) for node in active)
    lost_whole = dict.fromkeys((domain for _, domain in held if domain is not None), 0)
    for counts in pools.values():
        for domain in lost_whole.keys() & counts.keys():
            lost_whole[domain] += _lost_blocks(counts, domain, counts[domain], rules)
    return Cover(
        any_nodes=_least_loss(pools.values(), spare + 1, rules) - 1,
        nodes=sum(
            count for (pool, domain), count in held.items() if _lost_blocks(pools[pool], domain, 1, rules) <= spare
        ),
        of_nodes=len(active),
        domains=sum(lost <= spare for lost in lost_whole.values()),
        of_domains=len(lost_whole),
    )


def _lost_blocks(counts: Counts, domain: str | None, lost: int, rules: PlacementRules) -> int:
    """How many blocks a pool loses when a domain in it loses `lost` nodes."""
    if not rules.needs_unit:
        return _fit(domain, counts[domain], rules) - _fit(domain, counts[domain] - lost, rules)
    return _blocks_in(counts, rules) - _blocks_in({**counts, domain: counts[domain] - lost}, rules)


def _least_loss(pools: Iterable[Counts], blocks: int, rules: PlacementRules) -> int:
    """The smallest number of nodes whose loss costs `blocks` blocks."""
    if not rules.needs_unit:
        return sum(_least_nodes(counts, blocks, rules) for counts in pools)
    complete = [counts for counts in pools if _blocks_in(counts, rules)]
    wanted = rules.unit_size // rules.segment
    costs = (
        _least_nodes(counts, sum(_fit(*item, rules) for item in counts.items()) - wanted + 1, rules)
        for counts in complete
    )
    return sum(sorted(costs)[:blocks])


def _least_nodes(counts: Counts, segments: int, rules: PlacementRules) -> int:
    """The smallest number of nodes whose loss costs a pool `segments` segments.

    To break a domain's first segment, its surplus nodes and one more must be lost. Each further segment costs a whole
    segment of nodes.
    """
    firsts = sorted(count % rules.segment + 1 for domain, count in counts.items() if _fit(domain, count, rules))
    return sum(firsts[:segments]) + rules.segment * max(0, segments - len(firsts))
