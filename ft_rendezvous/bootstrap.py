"""The workers' own TCPStore: a new one in every cycle, on a socket held since before the seal.

Torch's workers write unprefixed keys and take every attempt's store to be empty. A store per cycle makes that
true, and a socket that is never let go makes its port safe.
"""

from __future__ import annotations

import socket

from ft_rendezvous.net import listen
from ft_rendezvous.tcp_store import ServedStore


class Bootstrap:
    """What this node holds for the cycle it takes part in."""

    def __init__(self) -> None:
        self._cycle_id = 0
        self._listener: socket.socket | None = None
        self._served: ServedStore | None = None

    def hold(self, cycle_id: int) -> int:
        """Port of a listening socket of our own for this cycle."""
        if self._listener is None or self._cycle_id != cycle_id:
            self.release()
            self._listener = listen()
            self._cycle_id = cycle_id
        port: int = self._listener.getsockname()[1]
        return port

    def serve(self) -> None:
        """Become the cycle's store: the world has us as rank 0."""
        assert self._listener is not None, "nothing is held"
        self._served = ServedStore(self._listener)
        self._listener = None

    def release(self) -> None:
        """Let go of socket and store: the cycle is over for us, or another node is rank 0."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        if self._served is not None:
            self._served.stop()
            self._served = None
