"""What a node does on a request. The leading node and the reporting nodes do the same."""

from __future__ import annotations

import time

from ft_rendezvous.doctor.endpoint import HeldPort, hold_port, look_at_endpoint, name_clients, reach_endpoint
from ft_rendezvous.doctor.facts import (
    Attempts,
    Clients,
    ClockRead,
    EndpointSeen,
    LookAtEndpoint,
    NameClients,
    NodeAnswer,
    NodeRequest,
    Reach,
    ReadClock,
)


class NodeActions:
    """Carries out requests in this process. `close` releases a port that it holds."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._held: HeldPort | None = None

    def do(self, request: NodeRequest) -> NodeAnswer:
        match request:
            case LookAtEndpoint(token=token, is_holder=True):
                self.close()
                self._held, seen = hold_port(self._host, self._port, token)
                return EndpointSeen(endpoint=seen)
            case LookAtEndpoint():
                return EndpointSeen(endpoint=look_at_endpoint(self._host, self._port))
            case Reach(token=token):
                return Attempts(attempts=reach_endpoint(self._host, self._port, token))
            case NameClients():
                addresses = [] if self._held is None else self._held.clients()
                # Lookups may take long. A run that starts now must find its port free.
                self.close()
                lookups, untried = name_clients(addresses)
                return Clients(lookups=lookups, untried=untried)
            case ReadClock():
                return ClockRead(at=time.time())
        raise AssertionError(f"not a request to a node: {request}")

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None
