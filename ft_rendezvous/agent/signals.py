"""Signals handled otherwise for a while."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from typing import Any

from ft_rendezvous.config.load import caught_signals

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end."""


@contextlib.contextmanager
def on_signals(handler: Callable[[int], None], signums: Collection[int] | None = None) -> Iterator[Callable[[], None]]:
    """Have signals handled otherwise for a while, where Python allows it. Yields a way to end that early.

    Without `signums` these are the signals that torchrun catches.

    A handler runs between any two steps of this thread, perhaps within a log call: it must not log itself.
    """
    wanted = caught_signals() if signums is None else signums
    is_main = threading.current_thread() is threading.main_thread()
    former = {signum: signal.getsignal(signum) for signum in wanted} if is_main else {}

    def restore() -> None:
        for signum, before in former.items():
            signal.signal(signum, before)

    for signum in former:
        signal.signal(signum, lambda got, _frame: handler(got))
    try:
        yield restore
    finally:
        restore()


def signals_held() -> contextlib.AbstractContextManager[Any]:
    """A goodbye is said to its end: a second signal (a process and its group are often sent both) must not cut it."""
    return on_signals(lambda _signum: None)
