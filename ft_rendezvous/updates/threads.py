"""Blocking calls in threads that never keep the interpreter from exiting, and waiting for what cannot be cancelled.

Each call has a daemon thread of its own. A pool would be joined at exit, and one call that never returns would block
the exit for ever.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import itertools
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol

_numbers = itertools.count(1)


class GivesUp(Protocol):
    """What knows whether a call is awaited any longer."""

    @property
    def is_given_up(self) -> bool: ...


CURRENT_CALL: ContextVar[GivesUp | None] = ContextVar("ft_party_call", default=None)
"""The call of a party that the current task carries."""


def call_in_thread(function: Callable[..., Any], *args: Any, **kwargs: Any) -> asyncio.Future[Any]:
    """Start a blocking call. The future has its result."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()
    run = partial(contextvars.copy_context().run, function, *args, **kwargs)
    name = f"ft-party-{next(_numbers)}"
    threading.Thread(target=_run, args=(loop, future, run), name=name, daemon=True).start()
    return future


def mirror(outer: concurrent.futures.Future[Any]) -> asyncio.Future[Any]:
    """A future of this loop that ends as a future of another thread does, and can be cancelled without it."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Any] = loop.create_future()

    def deliver(over: concurrent.futures.Future[Any]) -> None:
        error = over.exception()
        _deliver(loop, future, None if error is not None else over.result(), error)

    outer.add_done_callback(deliver)
    return future


async def until_over(future: asyncio.Future[Any]) -> Any:
    """Wait for a call that cannot be cancelled: it is over when it returns, not when its waiter is told to stop.

    A cancellation is raised when the call has returned, or when the party's call is given up.
    """
    call = CURRENT_CALL.get()
    is_cancelled = False
    while not future.done():
        try:
            await asyncio.wait((future,))
        except asyncio.CancelledError:
            if call is None or call.is_given_up:
                future.cancel()
                raise
            is_cancelled = True
    result = future.result()
    if is_cancelled:
        raise asyncio.CancelledError
    return result


def _run(loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], function: Callable[[], Any]) -> None:
    result, error = None, None
    try:
        result = function()
    except BaseException as raised:  # The task that waits for the call raises it again.
        error = raised
    _deliver(loop, future, result, error)


def _deliver(
    loop: asyncio.AbstractEventLoop, future: asyncio.Future[Any], result: Any, error: BaseException | None
) -> None:
    try:
        loop.call_soon_threadsafe(_settle, future, result, error)
    except RuntimeError:  # The loop is closed: nothing waits for the call any more.
        return


def _settle(future: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if future.done():  # It was given up.
        return
    if isinstance(error, StopIteration):  # A future refuses it.
        wrapped = RuntimeError("the call raised StopIteration")
        wrapped.__cause__ = error
        error = wrapped
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
