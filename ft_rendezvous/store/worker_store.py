"""The workers' own TCPStore: a new one in every cycle, on a socket that listens since before the seal.

Torch's workers write keys without a prefix and expect an empty store at every start. A new store per cycle gives them
that. The socket is never closed in between, so no other process can take its port.
"""

from __future__ import annotations

import socket

from ft_rendezvous.store.client import ServedStore
from ft_rendezvous.store.net import listen


class Bootstrap:
    """A socket for the next world in which this node gets rank 0, and the store of the current one if it has rank 0.

    The socket is opened before the node arrives, because opening takes as long as arriving. A socket whose port was in
    no sealed world can be used again.
    """

    def __init__(self) -> None:
        self._listener: socket.socket | None = None
        self._served: ServedStore | None = None

    def hold(self) -> int:
        """The port of a listening socket of this process that no workers know yet."""
        if self._listener is None:
            self._listener = listen()
        port: int = self._listener.getsockname()[1]
        return port

    def serve(self) -> None:
        """Serve the cycle's store: this node has rank 0."""
        assert self._listener is not None, "no socket is held"
        self._served = ServedStore(self._listener)
        self._listener = None

    def retire(self) -> None:
        """Stop serving the cycle's store: the cycle is over for this node."""
        if self._served is not None:
            self._served.stop()
            self._served = None

    def release(self) -> None:
        """Close everything: this node leaves, or its workers will listen on the port themselves."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None
        self.retire()
