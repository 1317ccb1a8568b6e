"""The newest names of a row that never ends: what may be forgotten, and in which order.

A run may last for months, and a node that is refused may be started again every few seconds. So nothing may be kept
for each of them.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field

MOST_REMEMBERED = 1 << 16
"""Names that are kept: a few megabytes, and several times the nodes of the largest runs."""


@dataclass(slots=True)
class RecentNames:
    """The names that were added last. The oldest name is forgotten first."""

    most: int = field(default_factory=lambda: MOST_REMEMBERED)
    _names: set[str] = field(default_factory=set)
    _in_order: deque[str] = field(default_factory=deque)

    def __contains__(self, name: str) -> bool:
        return name in self._names

    def __len__(self) -> int:
        return len(self._names)

    def add(self, name: str) -> bool:
        """Remember a name. False if it is remembered already."""
        if name in self._names:
            return False
        self._names.add(name)
        self._in_order.append(name)
        if len(self._in_order) > self.most:
            self._names.remove(self._in_order.popleft())
        return True


@dataclass(slots=True)
class RecentNumbers:
    """The last number under each of the names that were used last."""

    most: int = field(default_factory=lambda: MOST_REMEMBERED)
    _numbers: OrderedDict[str, int] = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._numbers)

    def advance(self, name: str, number: int) -> bool:
        """Remember a number. False if it is not larger than the last one under this name."""
        if number <= self._numbers.get(name, 0):
            return False
        self._numbers[name] = number
        self._numbers.move_to_end(name)
        if len(self._numbers) > self.most:
            self._numbers.popitem(last=False)
        return True
