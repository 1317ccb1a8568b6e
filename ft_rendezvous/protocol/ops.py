"""What the protocol asks of the outside: store operations as values, rests, new connections, and a clock.

The protocol is written as generators of two kinds:

- a *move* yields store operations and receives their replies. Any store can perform it to its end;
- a *routine* also rests until something changes. That of a node's writer may ask for new connections, and that of its
  lifeline asks for nothing else. A routine needs a driver: a node's threads, or the simulation's scheduler.

So the same code runs on a TCPStore, on the simulated store and under a counting wrapper, and a simulated crash can fall
between any two operations. Nothing here performs anything.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from ft_rendezvous.errors import StoreUnavailable

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
class CompareSet:
    """Set the key to `desired` if its value is `expected`, or if it is missing and `expected` is empty.

    Returns the value after that. A missing key with another expectation stays missing, and the expectation is returned.
    """

    key: str
    expected: bytes
    desired: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    key: str


Op = Get | MultiGet | Check | Set | MultiSet | Append | Add | CompareSet | Delete

UNANSWERED = (Set, MultiSet, Append)
"""Operations that the store does not answer: a caller cannot know whether they were performed."""


def _always() -> bool:
    return True


@dataclass(frozen=True, slots=True, eq=False)
class Rest:
    """Go on when something has changed, and after `seconds` at the latest."""

    seconds: float = math.inf
    until: Callable[[], bool] = _always
    """A wake-up before this holds is in vain, though harmless."""


@dataclass(frozen=True, slots=True)
class Connect:
    """Replace the node's connections by new ones. The reply is the head; raises StoreUnavailable. One attempt."""


@dataclass(frozen=True, slots=True)
class Hail:
    """Connect the lifeline of an incarnation. Raises StoreUnavailable. One attempt."""

    incarnation: str


@dataclass(frozen=True, slots=True)
class AwaitHangUp:
    """Go on when the lifeline has ended."""


CHANGED = Rest()
"""Go on when anything about the node has changed."""

T = TypeVar("T")
Move = Generator[Op, Any, T]
Routine = Generator[Op | Rest, Any, T]
WriterRoutine = Generator[Op | Rest | Connect, Any, T]
LifelineRoutine = Generator[Rest | Hail | AwaitHangUp, Any, T]


class InDoubt(StoreUnavailable):
    """The connection broke under an operation that may have been performed, and must not be performed twice."""


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
