"""A sealed world, which is that of one group, and what has happened to its nodes since its seal.

It only counts. A world lasts until the next one of its group is sealed: while that one gathers, the failures and losses
of this one still come in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from ft_rendezvous.core.model import AnyWhy, Arrival, NodesLost


@dataclass(slots=True)
class SealedWorld:
    """The nodes of one group by rank, and what they reported. Some of them may be gone."""

    seats: tuple[Arrival, ...] = ()
    group: int = 0
    cycle_id: int = 0
    """The cycle in which it was sealed."""
    ranks: dict[str, int] = field(default_factory=dict)
    unfinished: set[str] = field(default_factory=set)
    """Active nodes that have not finished."""
    finished_count: int = 0
    """Nodes that finished. They never train again."""
    spent_count: int = 0
    """Nodes that left because their agent used up its restarts."""
    left_count: int = 0
    """Nodes that left for a reason of their own."""
    lost_count: int = 0
    """Nodes that died or left, for any reason other than failed workers."""
    lost: list[NodesLost] = field(default_factory=list)
    """Those of them that died, each for itself."""
    drained_count: int = 0
    """Nodes that drained and left. No other node has taken their places yet."""
    troubles: list[AnyWhy] = field(default_factory=list)
    """What happened while it trained, in the order of reading. Each is a reason to open the next cycle."""
    _addresses: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, seats: Sequence[Arrival], group: int, cycle_id: int) -> SealedWorld:
        """A world at its seal."""
        return cls(
            seats=tuple(seats),
            group=group,
            cycle_id=cycle_id,
            ranks={seat.incarnation: rank for rank, seat in enumerate(seats)},
            unfinished={seat.incarnation for seat in seats},
            _addresses=Counter(seat.node.addr for seat in seats),
        )

    def count_at(self, addr: str) -> int:
        """How many of its nodes are at an address."""
        return self._addresses[addr]

    @property
    def has_finished(self) -> bool:
        """Whether every node of it has finished."""
        return bool(self.seats) and not self.unfinished
