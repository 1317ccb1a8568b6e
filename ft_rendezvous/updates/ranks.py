"""Several ranks of a process group that live in this process, as one party: they change together, and fail together."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

from ft_rendezvous.errors import PartyDead
from ft_rendezvous.updates.party import Party, await_in_thread
from ft_rendezvous.updates.rules import EndKind


class RanksAdapter:
    """Calls a method on all ranks at the same time: a collective returns only when all of them have entered it."""

    def __init__(self, ranks: Sequence[Any], abort: Callable[[Any], object] | None) -> None:
        self._ranks = ranks
        self._abort = abort

    def attribute(self, name: str) -> Any:
        return partial(self._call_all, name)

    def judge(self, error: BaseException) -> EndKind:
        return EndKind.DEAD if isinstance(error, PartyDead) else EndKind.RAISED

    async def _call_all(self, name: str, *args: Any, **kwargs: Any) -> list[Any]:
        """What each rank returned. Raises the first error, when the calls of all ranks are over."""
        loop = asyncio.get_running_loop()
        over: list[asyncio.Task[Any]] = []
        methods = [getattr(rank, name) for rank in self._ranks]  # All of them, before any is called.
        tasks = [loop.create_task(_call(method, args, kwargs)) for method in methods]
        for task in tasks:
            task.add_done_callback(over.append)
        await _wait(tasks, asyncio.FIRST_EXCEPTION)
        aborts: list[asyncio.Task[Any]] = []
        if self._abort is not None:
            stuck = [rank for rank, task in zip(self._ranks, tasks, strict=True) if not task.done()]
            aborts = [loop.create_task(_call(self._abort, (rank,), {})) for rank in stuck]
        await _wait([*tasks, *aborts], asyncio.ALL_COMPLETED)
        errors = [error for task in [*over, *aborts] if (error := task.exception()) is not None]
        if errors:
            raise errors[0]
        return [task.result() for task in tasks]


async def _wait(tasks: Sequence[asyncio.Task[Any]], return_when: str) -> None:
    """Wait for calls of ranks. A cancellation is passed to each of them, and raised when all are over."""
    cancellation = None
    while running := [task for task in tasks if not task.done()]:
        try:
            await asyncio.wait(running, return_when=return_when)
        except asyncio.CancelledError as error:
            cancellation, return_when = error, asyncio.ALL_COMPLETED
            for task in running:
                task.cancel()
        if cancellation is None and return_when == asyncio.FIRST_EXCEPTION:
            break
    if cancellation is not None:
        for task in tasks:
            if not task.cancelled():
                task.exception()  # The cancellation is raised. Otherwise asyncio would log this as lost.
        raise cancellation


async def _call(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    return await await_in_thread(function, *args, **kwargs)


def ranks_party(
    name: str,
    ranks: Sequence[Any],
    *,
    abort: Callable[[Any], Awaitable[object] | object] | None = None,
    essential: bool = False,
) -> Party:
    """A party of several ranks in this process. `abort(rank)` releases a rank that waits for one that raised."""
    return Party(name, ranks, essential=essential, adapter=RanksAdapter(ranks, abort))
