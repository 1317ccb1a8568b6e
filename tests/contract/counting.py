"""A store that counts what each node asks of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from ft_rendezvous.core.model import Closed, Opened, Sealed, is_placed
from ft_rendezvous.node import dialing
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.ops import Op, Store
from ft_rendezvous.store.raw_client import StoreSocket

BEAT = "beat"


def kind_of(op: Op) -> str:
    """What an operation is counted as: by its type, beats apart."""
    key = getattr(op, "key", "")
    return BEAT if "/beat/" in key else type(op).__name__.lower()


@dataclass
class Tally:
    """Operations by phase of the run, node and kind."""

    phase: str = ""
    counts: dict[tuple[str, str], Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    def count(self, node: str, op: Op, _: Any) -> None:
        self.counts[self.phase, node][kind_of(op)] += 1

    def of(self, phase: str) -> dict[str, Counter[str]]:
        return {node: kinds for (counted_in, node), kinds in self.counts.items() if counted_in == phase}

    def most(self, phase: str) -> int:
        """What the busiest node asked in a phase, its beats aside."""
        return max((sum(kinds.values()) - kinds[BEAT] for kinds in self.of(phase).values()), default=0)

    def describe(self, phase: str) -> str:
        node, kinds = max(self.of(phase).items(), key=lambda item: sum(item[1].values()))
        parts = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
        return f"{phase}: at most {self.most(phase)} without beats (node {node}: {parts})"


@dataclass
class CycleTally(Tally):
    """Counts every operation in the cycle its node is in.

    A node is in a cycle from when it arrives in it, or hears that it is open, until it hears of the next or of the
    close. Before the first it greets the store, after the close it leaves.
    """

    cycle_of: dict[str, str] = field(default_factory=dict)

    def count(self, node: str, op: Op, reply: Any) -> None:
        key = str(getattr(op, "key", ""))
        event = codec.decode_event(reply) if "/event/" in key else None
        if isinstance(event, Opened):
            self.cycle_of[node] = f"cycle {event.cycle_id}"
        elif key.endswith("/arrived"):
            self.cycle_of[node] = f"cycle {key.split('/')[4]}"
        self.counts[self.cycle_of.get(node, "greeting"), node][kind_of(op)] += 1
        if isinstance(event, Closed):
            self.cycle_of[node] = "leaving"

    @property
    def cycles(self) -> list[str]:
        return sorted({phase for phase, _ in self.counts if phase.startswith("cycle")})


@dataclass
class GroupTally(CycleTally):
    """Counts what a node reads of the cycles of other groups apart. All records go to the log of a common cycle."""

    incarnations: dict[str, str] = field(default_factory=dict)
    groups: dict[str, int] = field(default_factory=dict)
    """The group of each node that has a place."""

    def count(self, node: str, op: Op, reply: Any) -> None:
        key = str(getattr(op, "key", ""))
        if "/beat/" in key:
            self.incarnations[node] = key.rpartition("/")[2]
        event = codec.decode_event(reply) if "/event/" in key else None
        if isinstance(event, Sealed) and is_placed(event, self.incarnations[node]):
            self.groups[node] = event.seats[self.incarnations[node]].group
            self.cycle_of[node] = f"cycle {event.cycle_id}"
        group = getattr(event, "group", None)
        if group is not None and self.groups.get(node) != group:
            self.counts["other groups", node][kind_of(op)] += 1
        elif key.endswith("/arrived") and node in self.cycle_of:
            self.counts[self.cycle_of[node], node][kind_of(op)] += 1
        else:
            super().count(node, op, reply)

    def of_others(self) -> dict[str, int]:
        """How many operations each node has spent on the cycles of groups that it was not in."""
        return {node: sum(kinds.values()) for node, kinds in self.of("other groups").items()}


class CountingStore:
    """Counts an operation when it is answered: a read that still waits has not cost anything yet."""

    def __init__(self, store: Store, tally: Tally, node: str) -> None:
        self._store, self._tally, self._node = store, tally, node

    def perform(self, op: Op) -> Any:
        reply = self._store.perform(op)
        self._tally.count(self._node, op, reply)
        return reply


class CountingSocket(CountingStore):
    """A node's connection."""

    def __init__(self, socket: StoreSocket, tally: Tally, node: str) -> None:
        super().__init__(socket, tally, node)
        self._socket = socket

    def close(self) -> None:
        self._socket.close()


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch, tally: Tally, node: str) -> Iterator[None]:
    """Sessions opened here have both their connections counted."""
    with monkeypatch.context() as patch:
        patch.setattr(dialing, "StoreSocket", lambda *where: CountingSocket(StoreSocket(*where), tally, node))
        yield
