"""The workers' own TCPStore: a new one in every cycle, on a socket held since before the seal.

Torch's workers write unprefixed keys and take every attempt's store to be empty. A store per cycle makes that
true, and a socket that is never let go makes its port safe.
"""

from __future__ import annotations

import socket

from ft_rendezvous.store.client import ServedStore
from ft_rendezvous.store.net import listen


class Bootstrap:
    """A socket for the next world in which this node has rank 0, and the store of the one in which it has.

    The socket is there before the node arrives: to open one takes as long as to arrive. A socket that no world was told
    of is as good as new.
    """

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._served: ServedStore | None = None

    def hold(self) -> int:
        """Port of a listening socket of our own that no cycle's workers know of."""
        if self._listener is None:
            self._listener = listen()
        port: int = self._listener.getsockname()[1]
        return port

    def serve(self) -> None:
        """Become the cycle's store: the world has us as rank 0."""
        assert self._listener is not None, "nothing is held"
        self._served = ServedStore(self._listener)
        self._listener = None

    def retire(self) -> None:
        """Stop to be a cycle's store: the cycle is over for us."""
        if self._served is not None:
            self._served.stop()
            self._served = None

    def release(self) -> None:
        """Let go of everything: this node leaves, or its workers are to listen there themselves."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.retire()
