"""A party of a fleet: its name, what it stands for, and how actions call it.

Actions get a handle. A party may be an object with async or blocking methods, an actor, or several ranks: a method of
its handle always returns an awaitable, and never blocks the event loop. An adapter makes that true for one kind.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from ft_rendezvous.errors import PartyDead
from ft_rendezvous.updates.rules import EndKind
from ft_rendezvous.updates.threads import call_in_thread, until_over

PartyAction = Callable[[Any], Awaitable[Any] | None]
"""Gets the handle of a party. Returns what to await, or None if there is nothing to do."""


class PartyAdapter(Protocol):
    """How one kind of party is called."""

    def attribute(self, name: str) -> Any:
        """What a handle has under this name. A method returns an awaitable, and does not block."""
        ...

    def judge(self, error: BaseException) -> EndKind:
        """What an error of a call says about the party: RAISED, UNAVAILABLE or DEAD."""
        ...


class PlainAdapter:
    """An object of this process. Its blocking methods run in threads."""

    def __init__(self, target: object) -> None:
        self._target = target

    def attribute(self, name: str) -> Any:
        value = getattr(self._target, name)
        code = getattr(value, "__code__", None)
        if code is not None and code.co_flags & inspect.CO_COROUTINE:
            return value  # An async method. This is what `inspect` would find, in a fraction of the time.
        if not callable(value) or inspect.iscoroutinefunction(value):
            return value
        return partial(await_in_thread, value)

    def judge(self, error: BaseException) -> EndKind:
        return EndKind.DEAD if isinstance(error, PartyDead) else EndKind.RAISED


async def await_in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of a blocking call. If it returns an awaitable, like a decorated async method, the result of that."""
    result = await until_over(call_in_thread(function, *args, **kwargs))
    return await result if inspect.isawaitable(result) else result


class PartyHandle:
    """A party as actions see it: the attributes of its adapter, and its name."""

    __slots__ = ("_adapter", "party_name")

    def __init__(self, party: Party) -> None:
        self.party_name = party.name
        self._adapter = party.adapter

    def __getattr__(self, name: str) -> Any:
        return self._adapter.attribute(name)

    def __repr__(self) -> str:
        return f"<party {self.party_name!r}>"


@dataclass(frozen=True, slots=True)
class Party:
    """Takes part in updates under its name. Give `adapter` only for a kind of party that is not here."""

    name: str
    target: Any
    essential: bool = field(default=False, kw_only=True)
    """Without it, an update makes no sense: the trainer. It does not count for `min_parties`, and never serves."""
    adapter: PartyAdapter = field(default=None, kw_only=True, repr=False, compare=False)  # type: ignore[assignment]
    handle: PartyHandle = field(init=False, repr=False, compare=False)
    """The party as actions see it."""

    def __post_init__(self) -> None:
        if self.adapter is None:
            object.__setattr__(self, "adapter", PlainAdapter(self.target))
        object.__setattr__(self, "handle", PartyHandle(self))
