"""Signals handled otherwise for a while."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

from ft_rendezvous.config.load import caught_signals


@contextlib.contextmanager
def on_signals(handler: Callable[[int], None]) -> Iterator[Callable[[], None]]:
    """Have signals handled otherwise for a while, where Python allows it. Yields a way to end that early.

    A handler runs between any two steps of this thread, perhaps within a log call: it must not log itself.
    """
    is_main = threading.current_thread() is threading.main_thread()
    former = {signum: signal.getsignal(signum) for signum in caught_signals()} if is_main else {}

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
