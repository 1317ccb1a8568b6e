"""Timed questions to the resolver, with a time limit.

A resolver without an answer blocks for long and cannot be interrupted. So it is asked in daemon threads, for which the
end of the process does not wait.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ft_rendezvous.doctor.facts import Lookup

LOOKUP_TIMEOUT_S = 10.0
"""glibc gives up after 5 s times two attempts times the name servers. To wait longer than this shows nothing new."""

MAX_PARALLEL = 8

ResolverCall = Callable[[], Sequence[str]]


def ask_all(
    questions: Mapping[str, ResolverCall], timeout_s: float = LOOKUP_TIMEOUT_S, at_once: int = MAX_PARALLEL
) -> dict[str, Lookup]:
    """Every question that was asked, with its answer or with how long the doctor has waited for it.

    No question is asked in the second half of the time. So the doctor has waited long enough for every open question.
    """
    waiting = deque(questions.items())
    began: dict[str, float] = {}
    answered: dict[str, Lookup] = {}

    def work() -> None:
        while waiting and time.perf_counter() < started + timeout_s / 2:
            try:
                of, ask = waiting.popleft()
            except IndexError:
                return
            began[of] = time.perf_counter()
            found: tuple[str, ...] = ()
            error = ""
            try:
                found = tuple(ask())
            except (OSError, UnicodeError) as failed:
                error = getattr(failed, "strerror", None) or str(failed)
            answered[of] = Lookup(of=of, seconds=time.perf_counter() - began[of], found=found, error=error)

    started = time.perf_counter()
    threads = [threading.Thread(target=work, daemon=True) for _ in range(min(at_once, len(questions)))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, started + timeout_s - time.perf_counter()))
    now = time.perf_counter()
    return {
        of: answered.get(of) or Lookup(of=of, seconds=now - since, is_over=False) for of, since in list(began.items())
    }


def name_of(address: str) -> ResolverCall:
    """Ask for the name of an address, as a TCPStore does for every client."""

    def ask() -> list[str]:
        found, _ = socket.getnameinfo((address, 0), socket.NI_NUMERICSERV)
        return [] if found == address else [found]

    return ask


def seen_as(address: str) -> str:
    """The address that a server on all addresses sees of this client: IPv4 is mapped into IPv6."""
    return address if ":" in address else f"::ffff:{address}"
