"""What one node does when it is asked: the same for the node that collects and for those that report to it."""

from __future__ import annotations

import time

from ft_rendezvous.doctor.endpoint import HeldPort, hold, look, name_clients, reach
from ft_rendezvous.doctor.facts import (
    Answer,
    Attempts,
    Clients,
    Clock,
    Look,
    NameClients,
    Reach,
    ReadClock,
    Request,
    Seen,
)


class Node:
    """This process's hands. A port that it holds is let go by `close`."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._held: HeldPort | None = None

    def do(self, request: Request) -> Answer:
        match request:
            case Look(token=token, is_holder=True):
                self.close()
                self._held, seen = hold(self._host, self._port, token)
                return Seen(endpoint=seen)
            case Look():
                return Seen(endpoint=look(self._host, self._port))
            case Reach(token=token):
                return Attempts(attempts=reach(self._host, self._port, token))
            case NameClients():
                addresses = [] if self._held is None else self._held.clients()
                # Lookups may take long, and a run that starts now must not find a stranger at its port.
                self.close()
                lookups, untried = name_clients(addresses)
                return Clients(lookups=lookups, untried=untried)
            case ReadClock():
                return Clock(at=time.time())
        raise AssertionError(f"nobody asks a node to {request}")

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None
