"""The workers' own TCPStore: a new one in every cycle, on a socket that listens since before the seal.

Torch's workers write unprefixed keys and assume that the store of every attempt is empty. A store per cycle makes that
true. A socket that stays open from the arrival on makes its port safe.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any, Protocol

from ft_rendezvous.store.net import listen


class Listener(Protocol):
    """A listening socket."""

    def getsockname(self) -> Any: ...
    def close(self) -> None: ...


class Served(Protocol):
    """A store that is being served."""

    def stop(self) -> None: ...


def serve_store(listener: socket.socket) -> Served:
    """Serve a TCPStore on a socket."""
    from ft_rendezvous.store.client import ServedStore  # noqa: PLC0415 - It imports torch, which takes seconds.

    return ServedStore(listener)


class Bootstrap:
    """A socket for the next world in which this node gets rank 0, and the store of the current one if it has rank 0.

    An arrival carries the port. A seal may name it even if this node never hears of that seal, and workers of that
    cycle may still try to reach it. So a port is announced in one cycle, by one incarnation only.
    """

    def __init__(
        self,
        open_listener: Callable[[], Listener] = listen,
        serve: Callable[[Any], Served] = serve_store,
    ) -> None:
        self._open_listener, self._serve = open_listener, serve
        self._listener: Listener | None = open_listener()  # Before the node arrives: to open one takes as long.
        self._announced: tuple[int, str] | None = None
        """The cycle in which the port was announced, and by which incarnation."""
        self._served: Served | None = None

    def hold(self, cycle_id: int, incarnation: str) -> int:
        """Port of a listening socket of this node that no other cycle's workers know of."""
        if self._listener is not None and self._announced not in (None, (cycle_id, incarnation)):
            self._listener.close()
            self._listener = None
        if self._listener is None:
            self._listener = self._open_listener()
        self._announced = (cycle_id, incarnation)
        port: int = self._listener.getsockname()[1]
        return port

    def serve(self) -> None:
        """Become the cycle's store: this node has rank 0."""
        assert self._listener is not None, "no socket is held"
        self._served = self._serve(self._listener)
        self._listener = None

    def retire(self) -> None:
        """Stop to be a cycle's store: the cycle is over for this node."""
        if self._served is not None:
            self._served.stop()
            self._served = None

    def release(self) -> None:
        """Close everything: this node leaves, or its workers are to listen there themselves."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.retire()
