"""How commands end: exit codes, one clear line for an error, and signals as exceptions."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

FAILED = 1
MISUSED = 2
CANCELLED = 3

ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class EndedBySignal(BaseException):
    """A signal asks this process to end. Not an Exception: nothing but the command itself may answer it."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"{signal.Signals(signum).name} was received")
        self.exit_code = 128 + signum


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """Inside, the first ending signal raises EndedBySignal; further ones do not disturb the cleaning up."""

    def answer(signum: int, _frame: FrameType | None) -> None:
        for each in ENDING_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise EndedBySignal(signum)

    before = {each: signal.signal(each, answer) for each in ENDING_SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
