"""Losses: which nodes were lost so often that they are parked.

A node that dies and comes back again and again costs an elastic world two restarts each time: one for the loss, one for
the growth. A parked node is the last choice (`placement.choose_candidates`). This module only keeps the book; it does
not know which nodes are alive.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

NODES_REMEMBERED = 10_000
"""Above this, the node whose last loss is oldest is forgotten."""


@dataclass(frozen=True, slots=True)
class LossRules:
    """The settings that parking depends on."""

    max_node_losses: int
    """0: no node is parked."""
    window_s: float
    """Losses count together if they lie within this time. A node is parked for as long."""


@dataclass(slots=True)
class LossBook:
    """When each node was lost, and until when it is parked. A node is known by its blame key."""

    rules: LossRules
    until: dict[str, float] = field(default_factory=dict)
    """Parked nodes, and the time at which each is an ordinary node again."""
    _times: dict[str, deque[float]] = field(default_factory=dict)
    """The newest losses of each node. The node that was lost last comes last."""

    def note(self, key: str, now: float) -> bool:
        """Book a loss. Returns whether the node is parked because of it."""
        limit, window_s = self.rules.max_node_losses, self.rules.window_s
        if limit == 0:
            return False
        times = self._times.pop(key, None) or deque(maxlen=limit)
        times.append(now)
        self._times[key] = times
        self._forget(now)
        is_parked = len(times) == limit and times[0] > now - window_s
        if is_parked:
            self.until[key] = now + window_s
        return is_parked

    def parked(self, now: float) -> AbstractSet[str]:
        """The keys of the nodes that are parked now."""
        for key in [key for key, until in self.until.items() if until <= now]:
            del self.until[key]
        return self.until.keys()

    def next_end(self) -> float:
        """When the next parked node becomes an ordinary node."""
        return min(self.until.values(), default=float("inf"))

    def _forget(self, now: float) -> None:
        """Forget nodes whose last loss does not count any more. They are not parked either."""
        for key in list(self._times):
            if self._times[key][-1] > now - self.rules.window_s and len(self._times) <= NODES_REMEMBERED:
                return
            del self._times[key]
            self.until.pop(key, None)
