"""Notices that the head of a Ray cluster is gone.

Ray's calls then wait without a limit, and after a minute Ray ends the process, without a word that helps. So all work
with Ray is done in a thread of its own. The thread that waits for it stays free: it looks at the head, receives
signals, and is the one that says what has happened.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from ft_rendezvous.errors import ConfigError, HeadLost

HEAD_TIMEOUT_S = 30.0
"""How long a head may be silent. It may be back by then; Ray itself gives up after 60 s."""
PROBE_INTERVAL_S = 1.0
PROBE_TIMEOUT_S = 5.0

Result = TypeVar("Result")


def probe_head(head: str, timeout_s: float = PROBE_TIMEOUT_S) -> str:
    """Why nothing answers at this HOST:PORT; empty if something does."""
    host, _, port = head.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout_s).close()
    except OSError as error:
        return error.strerror or str(error)
    return ""


@dataclass(slots=True)
class HeadClock:
    """How long the head has been silent. Pure."""

    answered_at: float

    def note(self, answers: bool, now: float) -> float:
        """Take what a probe has found. Returns for how long none has found the head."""
        if answers:
            self.answered_at = now
        return now - self.answered_at


def while_head_lives(head: str, do: Callable[[], Result], next_step: str, timeout_s: float = HEAD_TIMEOUT_S) -> Result:
    """Do this in a thread of its own and return its result. Raises its error, or HeadLost.

    After HeadLost the thread is still there: it waits inside Ray, and Ray ends this process some time later.
    """
    done: Future[Result] = Future()
    threading.Thread(target=_work, args=(do, done), name="ft-ray", daemon=True).start()
    clock = HeadClock(time.monotonic())
    while True:
        try:
            return done.result(PROBE_INTERVAL_S)
        except TimeoutError:
            if done.done():
                raise  # It is the error of the work.
        except ConfigError as error:
            if probe_head(head):
                raise HeadLost(head, clock.note(False, time.monotonic()), next_step) from error
            raise
        silent_s = clock.note(not probe_head(head), time.monotonic())
        if silent_s >= timeout_s:
            raise HeadLost(head, silent_s, next_step)


def _work(do: Callable[[], Result], done: Future[Result]) -> None:
    try:
        done.set_result(do())
    except BaseException as error:  # The thread that waits raises it.
        done.set_exception(error)
