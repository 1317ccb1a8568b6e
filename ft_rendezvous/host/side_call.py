"""A call that may hang, in a thread of its own: a file system or a driver that does not answer must not stop the run.

Python cannot end a thread. A call that never ends costs its thread and nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SideCall(Generic[T]):
    """One call in a daemon thread.

    The caller waits for an event, not for the thread: after a signal has interrupted a join, Python 3.11 takes the
    thread for ended.
    """

    def __init__(self, call: Callable[[], T], name: str) -> None:
        self._call = call
        self._name = name
        self._has_ended = threading.Event()
        self.value: T | None = None
        """What the call returned; None until it has ended, and if it raised."""
        self.error: Exception | None = None
        """What the call raised, or why it could not begin."""

    def start(self) -> None:
        """Begin. Never raises: a machine without a free thread must not stop the run either."""
        try:
            threading.Thread(target=self._run, name=self._name, daemon=True).start()
        except RuntimeError as error:
            self.error = error
            self._has_ended.set()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether the call has ended within this time."""
        return self._has_ended.wait(timeout_s)

    def _run(self) -> None:
        try:
            self.value = self._call()
        except Exception as error:  # The end of a thread: the caller says what it means.
            self.error = error
        finally:
            self._has_ended.set()
