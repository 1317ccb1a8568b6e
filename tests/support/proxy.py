"""The network between one node and the store, in the test's hands: it can be cut, fall silent, or lose what was sent.

Only the node's own connections to the store pass here; its workers reach the other workers directly. So a node can lose
the store while its workers go on, which is what a lease is for.
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from enum import Enum

RESET_DELAY_S = 0.05
"""How long a connection that loses what is sent stays open: its client sends on, and notices nothing."""

WRITER, LISTENER = b"/beat/", b"/event/"
"""What a node sends only over the one, or only over the other of its connections."""


class Fate(Enum):
    """What becomes of a request whose connection is reset."""

    LOST = "the store never gets it, nor anything that follows it"
    PERFORMED = "the store performs it, and the client never gets the answer"


@dataclass(slots=True, eq=False)
class _Connection:
    client: socket.socket
    server: socket.socket
    sent: bytearray = field(default_factory=bytearray)
    """All that the client has sent."""


class Proxy:
    """Forwards connections to a port of this machine, until told otherwise."""

    def __init__(self, target_port: int, address: str = "127.0.0.1", port: int = 0) -> None:
        self.target_port = target_port
        """New connections go there."""
        self.accepted = 0
        """How many connections there were so far."""
        self.accept_delay_s = 0.0
        """How long each new connection keeps all later ones waiting, as a server does that looks up names."""
        self._flows = threading.Event()
        self._flows.set()
        self._lock = threading.Lock()
        self._connections: list[_Connection] = []
        self._trap: tuple[bytes, Fate] | None = None
        self._listener = socket.create_server((address, port))
        self.port: int = self._listener.getsockname()[1]
        self._spawn(self._accept)

    def cut(self, sent: bytes = b"") -> int:
        """Reset every connection over which these bytes were sent; new ones are served. Returns how many those were."""
        with self._lock:
            doomed = [connection for connection in self._connections if sent in connection.sent]
            self._connections = [connection for connection in self._connections if connection not in doomed]
        for connection in doomed:
            _reset(connection.client)
            _reset(connection.server)
        return len(doomed)

    def reset_at(self, request: bytes, fate: Fate) -> None:
        """Reset the connection over which these bytes are sent next, once."""
        self._trap = (request, fate)

    @property
    def has_sprung(self) -> bool:
        """Whether the connection was reset that `reset_at` speaks of."""
        return self._trap is None

    def fall_silent(self) -> None:
        """Keep every connection open and forward nothing, as a partition does."""
        self._flows.clear()

    def speak_again(self) -> None:
        """End the silence. Nothing that was sent meanwhile is lost."""
        self._flows.set()

    def refuse(self) -> None:
        """Reset every connection and accept no more: no process listens here."""
        # A thread that is blocked in accept holds the port until it is woken.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def close(self) -> None:
        self._flows.set()
        self.refuse()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    # --- threads ------------------------------------------------------------------------------------

    def _spawn(self, target: object, *args: object) -> None:
        threading.Thread(target=target, args=args, daemon=True).start()  # type: ignore[arg-type]

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self._flows.wait()
            time.sleep(self.accept_delay_s)
            try:
                server = socket.create_connection(("127.0.0.1", self.target_port))
            except OSError:
                client.close()
                continue
            connection = _Connection(client, server)
            with self._lock:
                self.accepted += 1
                self._connections.append(connection)
            self._spawn(self._pump_requests, connection)
            self._spawn(self._pump_answers, connection)

    def _pump_requests(self, connection: _Connection) -> None:
        with contextlib.suppress(OSError):
            while data := connection.client.recv(1 << 16):
                self._flows.wait()
                connection.sent += data
                trap = self._trap
                if trap is not None and trap[0] in data:
                    self._spring(connection, data, trap[1])
                    return
                connection.server.sendall(data)
            connection.server.shutdown(socket.SHUT_WR)

    def _pump_answers(self, connection: _Connection) -> None:
        with contextlib.suppress(OSError):
            while data := connection.server.recv(1 << 16):
                self._flows.wait()
                connection.client.sendall(data)
            connection.client.shutdown(socket.SHUT_WR)

    def _spring(self, connection: _Connection, data: bytes, fate: Fate) -> None:
        with self._lock:
            self._connections.remove(connection)
        if fate is Fate.PERFORMED:
            _reset(connection.client)
            # An orderly end: the store reads all of it first.
            connection.server.sendall(data)
            connection.server.shutdown(socket.SHUT_WR)
        else:
            threading.Event().wait(RESET_DELAY_S)
            _reset(connection.client)
            _reset(connection.server)
        self._trap = None


def _reset(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        # Lingering for no time makes the close a reset, which also reaches a thread blocked in recv.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.shutdown(socket.SHUT_RD)
    sock.close()
