"""Looks up the addresses of a name, in bounded time.

A resolver without an answer blocks for long and cannot be interrupted. So it is asked in a daemon thread, for which the
end of the process does not wait. Nothing is remembered: DNS may learn another address at any time.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future

from ft_rendezvous.text import is_address

LOOKUP_TIMEOUT_S = 3.0
"""How long a caller waits. A later caller gets the answer of a lookup that takes longer."""


class UnknownName(Exception):
    """A name has no address."""


class SilentResolver(Exception):
    """The resolver does not answer in time."""


def addresses_of(name: str) -> list[str]:
    """The addresses of a name, each once, in the resolver's order. Blocks as long as the resolver does.

    Raises OSError, or ValueError for a text that is no name.
    """
    found = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(address[0]) for *_, address in found))


class Resolver:
    """Asks for addresses. It asks for each name once at a time, however many callers wait for it."""

    def __init__(self, ask: Callable[[str], Sequence[str]] = addresses_of, timeout_s: float = LOOKUP_TIMEOUT_S) -> None:
        self._ask, self._timeout_s = ask, timeout_s
        self._lock = threading.Lock()
        self._asked: dict[str, Future[tuple[str, ...]]] = {}

    def look_up(self, name: str) -> tuple[str, ...]:
        """At least one address of a name, in the resolver's order. Raises UnknownName or SilentResolver."""
        if is_address(name):
            return (name,)
        answer = self._start(name)
        try:
            addresses = answer.result(self._timeout_s)
        except TimeoutError as error:
            raise SilentResolver(name) from error
        except (OSError, ValueError) as error:
            raise UnknownName(name) from error
        if not addresses:
            raise UnknownName(name)
        return addresses

    def _start(self, name: str) -> Future[tuple[str, ...]]:
        with self._lock:
            if name not in self._asked:
                answer = Future[tuple[str, ...]]()
                thread = threading.Thread(target=self._fetch, args=(name, answer), name="ft-resolver", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # The machine has no thread left. The next caller may find one.
                    raise SilentResolver(name) from error
                self._asked[name] = answer
            return self._asked[name]

    def _fetch(self, name: str, answer: Future[tuple[str, ...]]) -> None:
        addresses: tuple[str, ...] = ()
        failure: OSError | ValueError | None = None
        try:
            addresses = tuple(self._ask(name))
        except (OSError, ValueError) as error:
            failure = error
        with self._lock:
            del self._asked[name]
        if failure is None:
            answer.set_result(addresses)
        else:
            answer.set_exception(failure)


RESOLVER = Resolver()
"""The resolver of this process."""
