"""Nodes that stand by for replica groups, so sorted that an offer to one group does not cost the time of all of them.

When a switch takes a node of each of a thousand groups, a thousand groups ask for spares in one look of the
coordinator. A group can use only a few: of its own domains, and of the first others. The pool offers these, and decides
nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet

from ft_rendezvous.core.capacity import PlacementRules, Spread
from ft_rendezvous.core.model import Arrival
from ft_rendezvous.core.placement import in_topology_order

Domain = str | None


class SparePool:
    """The nodes that stand by and are not given yet."""

    def __init__(self, spares: Mapping[str, Arrival], parked: AbstractSet[str], rules: PlacementRules) -> None:
        self.left = dict(spares)
        self._size, self._segment = rules.group_size, min(rules.segment, rules.group_size)
        self._offers_all_domains = rules.spread is Spread.DOMAINS
        self._domains: dict[Domain, deque[str]] = {}
        """Nodes by domain. Domains and nodes are in topology order, parked nodes come last."""
        self._by_infra_rank: dict[int, str] = {}
        for arrival in sorted(in_topology_order(spares.values()), key=lambda each: each.incarnation in parked):
            self._domains.setdefault(arrival.node.domain_id, deque()).append(arrival.incarnation)
            if arrival.node.infra_rank is not None:
                self._by_infra_rank[arrival.node.infra_rank] = arrival.incarnation

    def offer(self, last: Sequence[Arrival]) -> dict[str, Arrival]:
        """All that a group can use, which had these seats: those who came back to them, and of each domain it was in,
        and of further domains until there are enough, as many as it has seats."""
        homes = {seat.node.domain_id for seat in last}
        names = [self._by_infra_rank.get(seat.node.infra_rank, "") for seat in last if seat.node.infra_rank is not None]
        elsewhere = 0
        for domain in self._domains:
            is_home = domain in homes
            if is_home or self._offers_all_domains or elsewhere < self._size:
                found = self._first_of(domain)
                names.extend(found)
                elsewhere += 0 if is_home else len(found) // self._segment * self._segment
        return {name: self.left[name] for name in names if name in self.left}

    def _first_of(self, domain: Domain) -> list[str]:
        """The first nodes of a domain, as many as a group has seats."""
        nodes, found = self._domains[domain], list[str]()
        while nodes and nodes[0] not in self.left:
            nodes.popleft()
        for name in nodes:
            if name in self.left:
                found.append(name)
                if len(found) == self._size:
                    break
        return found

    def take(self, names: Iterable[str]) -> None:
        """These nodes are given."""
        for name in names:
            self.left.pop(name, None)
