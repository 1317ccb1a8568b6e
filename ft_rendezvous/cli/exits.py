"""How commands end: exit codes, one clear line for an error, and signals as exceptions."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

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


def leave_at_once(code: int) -> NoReturn:
    """End this process without the interpreter's own farewell.

    A signal may come while the store is being started. A thread of it that comes back from torch's C++ code while the
    interpreter is being taken down aborts the process, and then its exit code tells nothing.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
