"""The one place that replaces signal handlers, for agent and commands. Python allows it in the main thread only."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

from ft_rendezvous.config.load import caught_signals

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end."""

Handler = Callable[[int, FrameType | None], None]
FormerHandlers = Mapping[signal.Signals, Any]

SIGNAL_BURST_S = 3.0
"""Signals that follow the first one within this time mean the same: SLURM signals the step and then the job."""


def replace_handlers(signums: Iterable[signal.Signals], handler: Handler) -> FormerHandlers:
    """Install a handler for these signals and return the former ones; in another thread than the main one, nothing.

    A handler runs between any two steps of the main thread, perhaps inside a log call: it must not log itself.
    """
    if threading.current_thread() is not threading.main_thread():
        return {}
    return {signum: signal.signal(signum, handler) for signum in signums}


def restore_handlers(former: FormerHandlers) -> None:
    for signum, handler in former.items():
        # Python has no object for a handler that was installed from C.
        signal.signal(signum, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def on_signals(handler: Callable[[int], None], signums: Iterable[signal.Signals]) -> Iterator[None]:
    """Call `handler` for these signals, for a while."""
    former = replace_handlers(signums, lambda signum, _frame: handler(signum))
    try:
        yield
    finally:
        restore_handlers(former)


def signals_held() -> contextlib.AbstractContextManager[None]:
    """Ignore signals for a while. A second signal must not interrupt a goodbye."""
    return on_signals(lambda _signum: None, caught_signals())


@contextlib.contextmanager
def first_signal_held() -> Iterator[Callable[[], signal.Signals | None]]:
    """Hold one signal back for a while. Yields a function that returns it, if it has come.

    Once the function has returned a signal, the former handlers are back, so the next signal acts as before.
    """
    came: list[int] = []
    former = replace_handlers(caught_signals(), lambda signum, _frame: came.append(signum))

    def take() -> signal.Signals | None:
        if not came:
            return None
        restore_handlers(former)
        first = signal.Signals(came[0])
        came.clear()
        return first

    try:
        yield take
    finally:
        restore_handlers(former)


def first_of_burst(handler: Handler) -> Handler:
    """A handler that ignores the signals that follow the first one at once."""
    handled_at = float("-inf")

    def handle_first(signum: int, frame: FrameType | None) -> None:
        nonlocal handled_at
        now = time.monotonic()
        if now - handled_at > SIGNAL_BURST_S:
            handled_at = now
            handler(signum, frame)

    return handle_first
