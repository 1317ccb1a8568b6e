"""Serves the application on a socket, with limits on what all clients together can use.

It handles no signals. Any thread may stop it. docs/decisions/uvicorn.md says why it subclasses uvicorn.
"""

from __future__ import annotations

import asyncio
import resource
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import uvicorn
from starlette.types import ASGIApp

from ft_rendezvous.state.web.access import HEAD_BYTES
from ft_rendezvous.state.web.connections import Connection

MAX_CONNECTIONS = 512
BACKLOG = 128
KEEP_ALIVE_TIMEOUT_S = 5
STOP_GRACE_S = 1.0
"""For answers that are under way when the server is stopped."""
TICKS_BETWEEN_LOOKS = 10
"""uvicorn has ten ticks in a second."""


@dataclass(frozen=True)
class Serving:
    """A running server."""

    addr: str
    port: int
    stop: Callable[[], None]
    """End it; from any thread."""


def serve(app: ASGIApp, addr: str, port: int, on_ready: Callable[[Serving], None]) -> None:
    """Serve until it is stopped; port 0 is one that the system gives. Raises OSError if it cannot listen there."""
    with _listen(addr, port) as listener:
        limit_all = _connection_limit()

        class LimitedConnection(Connection):
            limit = limit_all

        config = uvicorn.Config(
            app,
            http=LimitedConnection,
            ws="none",
            loop="asyncio",
            lifespan="off",
            log_config=None,
            # Bad requests are not worth a log line, and the application logs bugs, once each.
            log_level="critical",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            # Never reached: `Connection` limits their number, and an idle connection makes room for a new one.
            limit_concurrency=2 * limit_all + BACKLOG,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_TIMEOUT_S,
            h11_max_incomplete_event_size=HEAD_BYTES,
        )
        name, number = listener.getsockname()[:2]
        server = _Server(config, on_ready, name, number)
        server.run(sockets=[listener])


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_ready: Callable[[Serving], None], addr: str, port: int) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._serving = Serving(addr, port, self._stop)

    def _stop(self) -> None:
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready(self._serving)

    async def on_tick(self, counter: int) -> bool:
        if counter % TICKS_BETWEEN_LOOKS == 0:
            now = asyncio.get_running_loop().time()
            for connection in list(self.server_state.connections):
                assert isinstance(connection, Connection)
                connection.look(now)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for sock in sockets or []:
            sock.close()
        connections = self.server_state.connections
        for connection in list(connections):
            connection.shutdown()
        loop = asyncio.get_running_loop()
        until = loop.time() + STOP_GRACE_S
        while connections and loop.time() < until:
            await asyncio.sleep(0.02)
        for connection in list(connections):
            connection.transport.abort()
        # Their tasks end now.
        if self.server_state.tasks:
            await asyncio.wait(self.server_state.tasks, timeout=STOP_GRACE_S)


@contextmanager
def _listen(addr: str, port: int) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in addr else socket.AF_INET
    # With the protocol named: only then does asyncio send small packets at once, and not 40 ms later.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((addr, port))
        # Here and not later: of two processes that bind with this option, only one may listen.
        listener.listen(BACKLOG)
        yield listener


def _connection_limit() -> int:
    """No more than half the files that this process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return MAX_CONNECTIONS if soft == resource.RLIM_INFINITY else max(8, min(MAX_CONNECTIONS, soft // 2))
