"""Questions to the resolver, timed, and given up on in time.

A resolver that gets no answer blocks for as long as it likes and cannot be interrupted, so it is asked in threads that
nobody waits for at the end.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

from ft_rendezvous.doctor.facts import Lookup

LIMIT_S = 10.0
"""glibc gives up after 5 s times two attempts times the name servers; longer than this is as bad as it gets."""

AT_ONCE = 8

Ask = Callable[[], Sequence[str]]


def ask_all(questions: Mapping[str, Ask], limit_s: float = LIMIT_S, at_once: int = AT_ONCE) -> dict[str, Lookup]:
    """Every question that could be begun, with its answer or how long it has been waited for.

    None is begun in the second half of the time: one that is not answered has then been waited for long enough.
    """
    waiting = deque(questions.items())
    began: dict[str, float] = {}
    answered: dict[str, Lookup] = {}

    def work() -> None:
        while waiting and time.perf_counter() < started + limit_s / 2:
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
        thread.join(max(0.0, started + limit_s - time.perf_counter()))
    now = time.perf_counter()
    return {
        of: answered.get(of) or Lookup(of=of, seconds=now - since, is_over=False) for of, since in list(began.items())
    }


def addresses_of(name: str, port: int = 0) -> Ask:
    """Ask for a name's addresses, each once, in the resolver's order."""

    def ask() -> list[str]:
        found = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[0]) for *_, address in found))

    return ask


def name_of(address: str) -> Ask:
    """Ask for an address's name, as a TCPStore does for every client that it accepts."""

    def ask() -> list[str]:
        found, _ = socket.getnameinfo((address, 0), socket.NI_NUMERICSERV)
        return [] if found == address else [found]

    return ask


def seen_as(address: str) -> str:
    """The address under which a server on all addresses sees this client: IPv4 comes mapped into IPv6."""
    return address if ":" in address else f"::ffff:{address}"
