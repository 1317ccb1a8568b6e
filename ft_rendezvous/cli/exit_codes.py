"""How commands end: exit codes, one clear line for an error, and signals as exceptions."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import NoReturn

import typer

from ft_rendezvous.errors import ConfigError

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


@contextmanager
def telling_errors(after_signal: str) -> Iterator[None]:
    """One line on stderr instead of a traceback, for what the user can act on or has asked for."""
    try:
        with ended_by_signal():
            yield
    except ConfigError as error:
        print(f"ftr: {error}", file=sys.stderr)
        raise typer.Exit(MISUSED) from error
    except EndedBySignal as ended:
        print(f"ftr: {ended}: {after_signal}", file=sys.stderr)
        raise typer.Exit(ended.exit_code) from None


def leave_at_once(code: int) -> NoReturn:
    """End this process without the interpreter's own farewell.

    A signal may come while the store is being started. A thread of it that comes back from torch's C++ code while the
    interpreter is being taken down aborts the process, and then its exit code tells nothing.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
