"""One call of one party: a task that can be asked to end, awaited for a bounded time, and given up."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Iterable
from types import CoroutineType
from typing import Any

from ft_rendezvous.updates.membership import PartyRecord
from ft_rendezvous.updates.party import PartyAction
from ft_rendezvous.updates.rules import EndKind
from ft_rendezvous.updates.threads import CURRENT_CALL

log = logging.getLogger("ft_rendezvous")

GIVE_UP_S = 1.0
"""How long a coroutine may take to end after it was cancelled. One that takes longer is left behind."""


class PartyCall:
    """A call of a party. It keeps its own end: a value, or an error."""

    def __init__(self, record: PartyRecord, action: PartyAction, what: str, step: str) -> None:
        self.record = record
        self.what = what
        """`action`, `abort`, `undo` or `finish`."""
        self.step = step
        self.has_begun = False
        """The party was called. A task that is cancelled before its first step has not called it."""
        self.is_given_up = False
        self.value: Any = None
        self._action = action
        self._error: BaseException | None = None
        self._is_asked_to_end = False
        self._task: asyncio.Task[None] | None = None

    def start(self, on_over: Callable[[PartyCall], None] | None = None) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run())
        if on_over is not None:
            self._task.add_done_callback(lambda _: on_over(self))

    def __str__(self) -> str:
        what = "" if self.what == "action" else f"{self.what} of "
        return f"{what}step {self.step!r} on party {self.record.name!r}"

    async def _run(self) -> None:
        CURRENT_CALL.set(self)  # The task has a context of its own.
        self.has_begun = True
        try:
            awaitable = self._action(self.record.party.handle)
            if awaitable is None:
                return
            if type(awaitable) is not CoroutineType and not inspect.isawaitable(awaitable):
                raise TypeError(f"the {self.what} returned {type(awaitable).__name__}: return an awaitable, or None")
            self.value = await awaitable
        except GeneratorExit as error:  # The loop is gone, or the party raised it.
            self._error = RuntimeError("the call raised GeneratorExit")
            self._error.__cause__ = error
            raise
        except BaseException as error:
            # The update decides what follows from it. An interrupt that left the task would end the loop before the
            # clean-up: the caller gets it afterwards.
            self._error = error

    @property
    def task(self) -> asyncio.Task[None]:
        assert self._task is not None
        return self._task

    @property
    def is_over(self) -> bool:
        return self.task.done()

    @property
    def error(self) -> BaseException | None:
        return asyncio.CancelledError() if self._error is None and self.task.cancelled() else self._error

    @property
    def has_failed(self) -> bool:
        return self.is_given_up or self.error is not None

    @property
    def is_interrupted(self) -> bool:
        """The party raised what is no `Exception`: `KeyboardInterrupt`, for example."""
        return self._error is not None and not isinstance(self._error, Exception | asyncio.CancelledError)

    @property
    def end_kind(self) -> EndKind:
        if self.is_given_up:
            return EndKind.GIVEN_UP
        error = self.error
        if error is None:
            return EndKind.DONE
        if isinstance(error, asyncio.CancelledError):
            return EndKind.STOPPED if self._is_asked_to_end else EndKind.RAISED
        try:
            return self.record.party.adapter.judge(error)
        except Exception:  # An adapter of the user. No update may wait for ever for it.
            log.exception("the adapter of party %r cannot judge an error", self.record.name)
            return EndKind.RAISED

    def ask_to_end(self) -> None:
        """Cancel what can be cancelled. A call in a thread, or of another process, goes on until it returns."""
        self._is_asked_to_end = True
        self.task.cancel()

    def give_up(self) -> None:
        self.is_given_up = True
        self.task.cancel()


async def end_calls(calls: Iterable[PartyCall], timeout_s: float) -> None:
    """Wait until all calls are over. Those that are not over in time are given up."""
    late = await _wait(calls, timeout_s)
    for call in late:
        call.give_up()
    for call in await _wait(late, GIVE_UP_S):
        log.error("%s cannot be cancelled: its task is left behind", call)


async def _wait(calls: Iterable[PartyCall], timeout_s: float) -> list[PartyCall]:
    """Wait for calls. Returns those that are not over."""
    running = [call for call in calls if not call.is_over]
    if running:
        await asyncio.wait([call.task for call in running], timeout=max(0.0, timeout_s))
    return [call for call in running if not call.is_over]


async def outlast(work: Coroutine[Any, Any, None]) -> asyncio.CancelledError | None:
    """Do the work to its end, even if the caller is cancelled meanwhile. Returns that cancellation."""
    task = asyncio.get_running_loop().create_task(work)
    cancellation = None
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError as error:
            cancellation = error
    task.result()
    return cancellation
