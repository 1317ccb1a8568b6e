"""An event loop whose clock is simulated: a minute passes at once, and every run of the same code is the same."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class SimulatedLoop(asyncio.SelectorEventLoop):
    """When nothing is ready, the clock goes to the next timer."""

    def __init__(self) -> None:
        super().__init__()
        self._now_s = 0.0

    def time(self) -> float:
        return self._now_s

    def _run_once(self) -> None:
        loop: Any = self
        if not loop._ready:
            if not loop._scheduled:
                raise RuntimeError("nothing will ever happen: all tasks wait, and there is no timer")
            self._now_s = max(self._now_s, loop._scheduled[0].when())
        super()._run_once()  # type: ignore[misc]


def simulate(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end, in simulated time. No other task may be left then."""
    loop = SimulatedLoop()
    try:
        result = loop.run_until_complete(main)
        left = asyncio.all_tasks(loop)
        assert not left, left
        return result
    finally:
        loop.close()
