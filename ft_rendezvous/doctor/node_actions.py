"""What a node does on a request. The leading node and the reporting nodes do the same."""

from __future__ import annotations

import time

from msgspec.structs import replace

from ft_rendezvous.doctor.endpoint import (
    HeldPort,
    hold_lifeline_port,
    hold_port,
    look_at_endpoint,
    name_clients,
    reach_endpoint,
    reach_lifelines,
)
from ft_rendezvous.doctor.facts import (
    Attempts,
    Clients,
    ClockRead,
    EndpointFacts,
    EndpointSeen,
    LookAtEndpoint,
    NameClients,
    NodeAnswer,
    NodeRequest,
    Reach,
    ReachLifelines,
    ReadClock,
)


class NodeActions:
    """Carries out requests in this process. `close` releases the ports that it holds."""

    def __init__(self, host: str, port: int) -> None:
        self._host, self._port = host, port
        self._held: HeldPort | None = None
        self._held_for_lifelines: HeldPort | None = None

    def do(self, request: NodeRequest) -> NodeAnswer:
        match request:
            case LookAtEndpoint(token=token, is_holder=True, lifeline_port=lifeline_port):
                return EndpointSeen(endpoint=self._hold(token, lifeline_port))
            case LookAtEndpoint():
                return EndpointSeen(endpoint=look_at_endpoint(self._host, self._port))
            case Reach(token=token):
                return Attempts(attempts=reach_endpoint(self._host, self._port, token))
            case ReachLifelines(port=port, token=token):
                return Attempts(attempts=reach_lifelines(self._host, port, token))
            case NameClients():
                addresses = [] if self._held is None else self._held.clients()
                # Lookups may take long. A run that starts now must find its port free.
                self.close()
                lookups, untried = name_clients(addresses)
                return Clients(lookups=lookups, untried=untried)
            case ReadClock():
                return ClockRead(at=time.time())
        raise AssertionError(f"not a request to a node: {request}")

    def _hold(self, token: str, lifeline_port: int | None) -> EndpointFacts:
        self.close()
        self._held, seen = hold_port(self._host, self._port, token)
        if self._held is None or lifeline_port is None:
            return seen
        self._held_for_lifelines, lifelines = hold_lifeline_port(lifeline_port, token)
        return replace(seen, lifelines=lifelines)

    def close(self) -> None:
        for held in (self._held, self._held_for_lifelines):
            if held is not None:
                held.close()
        self._held = self._held_for_lifelines = None
