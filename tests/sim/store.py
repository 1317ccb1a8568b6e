"""An in-memory store with TCPStore's semantics, including those one would rather not have.

Owns keys, values and who waits for which key. Knows no time, no network and no protocol. As on TCPStore, a
blocking read is two steps of the server: a wait that ends when every key that was missing has been set, then a
read; a key deleted between the two reads as empty bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ft_rendezvous.protocol.ops import Add, Append, Check, CompareSet, Delete, Get, MultiGet, MultiSet, Op, Set


class WouldBlock(Exception):
    """A read of a missing key was performed where nobody can wait."""

    def __init__(self, keys: Sequence[str]) -> None:
        super().__init__(f"blocks on {', '.join(keys)}")
        self.keys = tuple(keys)


@dataclass(slots=True, eq=False)
class Waiter:
    """Somebody parked until the keys that were missing have been set; `owner` is whoever waits."""

    owner: object
    missing: set[str]
    wake: Callable[[], None]


class SimStore:
    """Performs one operation at a time."""

    def __init__(self) -> None:
        self.data: dict[str, bytes] = {}
        self.waiters: dict[str, list[Waiter]] = {}
        self._perform: dict[type, Callable[[Any], Any]] = {
            Get: lambda op: self.data.get(op.key, b""),
            MultiGet: lambda op: [self.data.get(key, b"") for key in op.keys],
            Check: lambda op: all(key in self.data for key in op.keys),
            Set: lambda op: self._put(op.key, op.value),
            MultiSet: self._multi_set,
            Append: lambda op: self._put(op.key, self.data.get(op.key, b"") + op.value),
            Add: self._add,
            CompareSet: self._compare_set,
            Delete: lambda op: self.data.pop(op.key, None) is not None,
        }

    def perform(self, op: Op) -> Any:
        """Perform an operation at once. Raises WouldBlock where a TCPStore would wait."""
        missing = self.missing(op)
        if missing:
            raise WouldBlock(missing)
        return self.apply(op)

    def missing(self, op: Op) -> list[str]:
        """The keys a blocking read has to wait for; none for any other operation."""
        if type(op) is Get:
            return [] if op.key in self.data else [op.key]
        if type(op) is MultiGet:
            return [key for key in op.keys if key not in self.data]
        return []

    def apply(self, op: Op) -> Any:
        """One step of the server. Reads do not wait: a missing key is empty."""
        return self._perform[type(op)](op)

    def park(self, owner: object, keys: Sequence[str], wake: Callable[[], None]) -> None:
        """Call `wake` once all of the keys, which are missing, have been set."""
        waiter = Waiter(owner, set(keys), wake)
        for key in keys:
            self.waiters.setdefault(key, []).append(waiter)

    def unpark(self, owner: object) -> None:
        """Forget whatever `owner` waits for: its connection is gone."""
        for key in [key for key, waiters in self.waiters.items() if any(w.owner is owner for w in waiters)]:
            self.waiters[key] = [waiter for waiter in self.waiters[key] if waiter.owner is not owner]
            if not self.waiters[key]:
                del self.waiters[key]

    # --- parts --------------------------------------------------------------------------------------

    def _put(self, key: str, value: bytes) -> None:
        self.data[key] = value
        if key in self.waiters:
            self._wake([key])

    def _multi_set(self, op: MultiSet) -> None:
        # All keys land before anybody is woken: whoever saw one of them sees all.
        self.data.update(zip(op.keys, op.values, strict=True))
        self._wake(op.keys)

    def _add(self, op: Add) -> int:
        total = int(self.data.get(op.key, b"0")) + op.amount
        self._put(op.key, str(total).encode())
        return total

    def _compare_set(self, op: CompareSet) -> bytes:
        if op.key not in self.data:
            if op.expected:
                return op.expected
            self._put(op.key, op.desired)
        elif self.data[op.key] == op.expected:
            self._put(op.key, op.desired)
        return self.data[op.key]

    def _wake(self, keys: Sequence[str]) -> None:
        for key in keys:
            for waiter in self.waiters.pop(key, ()):
                waiter.missing.discard(key)
                if not waiter.missing:
                    waiter.wake()
