"""What an operator may ask of a run from outside: drain nodes, restart the group, close the run.

An operator is no node: it has no lease and no place, it reads the head, appends one request and rings. The
coordinator answers in the head.
"""

from __future__ import annotations

import secrets
import time

from ft_rendezvous import board, wire
from ft_rendezvous.core.model import Answer, Head, Request, RequestKind
from ft_rendezvous.errors import ConfigError, StoreUnavailable
from ft_rendezvous.ports import Check, Get, perform_move
from ft_rendezvous.settings import parse_endpoint
from ft_rendezvous.store_socket import Found, probe
from ft_rendezvous.tcp_store import TcpStore, connect
from ft_rendezvous.wire import Keys

LOOK_S = 0.05
PATIENCE_S = 10.0
"""How long the coordinator may take to answer: it looks several times per second."""


class Operator:
    """A connection to the run at an endpoint. Raises ConfigError if there is none."""

    def __init__(self, endpoint: str) -> None:
        host, port = parse_endpoint(endpoint)
        found = probe(host, port)
        if found is not Found.STORE:
            raise ConfigError(f"no run at {endpoint}: {found}")
        self._endpoint = endpoint
        self._store: TcpStore = connect(host, port)
        self.run_id = self.read().run_id

    def read(self) -> Head:
        """How the run stands."""
        if not self._store.perform(Check([wire.HEAD_KEY])):
            raise ConfigError(f"no run at {self._endpoint}: a TCPStore of another program is there")
        return wire.decode_head(self._store.perform(Get(wire.HEAD_KEY)))

    def ask(self, kind: RequestKind, target: str = "", reason: str = "", timeout_s: float = PATIENCE_S) -> Answer:
        """Ask for a decision, and wait for the coordinator's answer. Raises StoreUnavailable if it gives none."""
        head = self.read()
        if head.view.closed is not None:
            raise ConfigError(f"run {head.run_id!r} is closed already: {head.view.closed.verdict}")
        request = Request(
            epoch=head.epoch,
            cycle_id=head.view.cycle_id,
            incarnation=secrets.token_hex(8),
            kind=kind,
            target=target,
            reason=reason[:200],
        )
        perform_move(self._store, board.write_record(Keys(head.epoch), head.view.opened, request))
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            for answer in self.read().answers:
                if answer.request == request.incarnation:
                    return answer
            time.sleep(LOOK_S)
        raise StoreUnavailable(self._endpoint, f"the coordinator has not answered within {timeout_s:g} s")
