"""Sockets for the store of a cycle's workers: numbers instead of sockets, given out as an operating system does."""

from __future__ import annotations

from dataclasses import dataclass, field

FIRST_PORT = 20_000


@dataclass(slots=True)
class SimPorts:
    """The ports of one machine. A closed port is free again, and is given out last."""

    _next: int = FIRST_PORT
    open: set[int] = field(default_factory=set)

    def listen(self) -> SimListener:
        self._next += 1
        self.open.add(self._next)
        return SimListener(self, self._next)


@dataclass(slots=True)
class SimListener:
    """A listening socket, and the store that is served on it."""

    ports: SimPorts
    port: int

    def getsockname(self) -> tuple[str, int]:
        return "", self.port

    def close(self) -> None:
        self.ports.open.discard(self.port)

    def stop(self) -> None:
        self.close()
