"""Waits for what other processes do."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

WAIT_S = 120.0
"""How long anything may take that takes seconds on a quiet machine."""
POLL_S = 0.02

T = TypeVar("T")


def wait_until(
    what: str, look: Callable[[], T | None], timeout_s: float = WAIT_S, explain: Callable[[], str] = str
) -> T:
    """What `look` finds, once it finds something. Fails with what was waited for."""
    deadline = time.monotonic() + timeout_s
    while True:
        found = look()
        if found is not None and found is not False:
            return found
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout_s:g} s: {what}\n{explain()}")
        time.sleep(POLL_S)
