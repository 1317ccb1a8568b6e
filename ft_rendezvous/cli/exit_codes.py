"""How commands end: exit codes, one clear line for an error, and signals as exceptions."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import typer

from ft_rendezvous.agent.signals import ENDING_SIGNALS, on_signals
from ft_rendezvous.errors import ConfigError

FAILED = 1
MISUSED = 2
CANCELLED = 3


class EndedBySignal(BaseException):
    """A signal asks this process to end. Not an Exception: only the command itself may catch it."""

    def __init__(self, signum: int) -> None:
        super().__init__(f"{signal.Signals(signum).name} was received")
        self.exit_code = 128 + signum


@contextmanager
def ended_by_signal() -> Iterator[None]:
    """Inside, the first ending signal raises EndedBySignal. Further ones do not disturb the cleaning up."""

    def answer(signum: int) -> None:
        for each in ENDING_SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        raise EndedBySignal(signum)

    with on_signals(answer, ENDING_SIGNALS):
        yield


@contextmanager
def telling_errors(after_signal: str) -> Iterator[None]:
    """One line on stderr instead of a traceback, for errors that the user can mend and for signals."""
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
    """End this process at once, without the interpreter's own cleaning up.

    A signal may come while the store starts. A thread that returns from torch's C++ code while the interpreter shuts
    down aborts the process, and then the exit code says nothing.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
