"""What the protocol asks of the outside: store operations as values, and a clock.

A *move* is a generator that yields store operations and receives their replies. The protocol is written
as moves, so the same code runs on a TCPStore, on the simulated store and under a counting wrapper, and a
simulated crash can fall between any two operations. Nothing here performs anything.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

Clock = Callable[[], float]
"""Seconds on a monotonic clock of this process; never compared with another process's."""


@dataclass(frozen=True, slots=True)
class Get:
    """The key's value; blocks until the key exists."""

    key: str


@dataclass(frozen=True, slots=True)
class MultiGet:
    """The values of all keys, read in one step; blocks until all exist."""

    keys: Sequence[str]


@dataclass(frozen=True, slots=True)
class Check:
    """Whether all keys exist."""

    keys: Sequence[str]


@dataclass(frozen=True, slots=True)
class Set:
    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class MultiSet:
    """Set all keys in one step."""

    keys: Sequence[str]
    values: Sequence[bytes]


@dataclass(frozen=True, slots=True)
class Append:
    """Append to the key's value in one step; creates the key."""

    key: str
    value: bytes


@dataclass(frozen=True, slots=True)
class Add:
    """Add to the key's integer and return the sum; a missing key counts as 0."""

    key: str
    amount: int


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


Op = Get | MultiGet | Check | Set | MultiSet | Append | Add | Delete

T = TypeVar("T")
Move = Generator[Op, Any, T]


class Store(Protocol):
    """Performs one operation. Raises StoreUnavailable when the server cannot be reached."""

    def perform(self, op: Op) -> Any: ...


def perform_move(store: Store, move: Move[T]) -> T:
    """Run a move to its end on one store."""
    reply: Any = None
    while True:
        try:
            op = move.send(reply)
        except StopIteration as stop:
            result: T = stop.value
            return result
        reply = store.perform(op)
