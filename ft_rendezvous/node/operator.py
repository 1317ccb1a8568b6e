"""What an operator may ask of a run from outside: drain nodes, restart all workers or one group, close the run.

An operator is no node: it has no lease and no place, it reads the head, appends one request and rings. The
coordinator answers under the request's own key.
"""

from __future__ import annotations

import secrets

from ft_rendezvous.config.addresses import parse_endpoint
from ft_rendezvous.core.model import Answer, Head, Request, RequestKind
from ft_rendezvous.errors import ConfigError, StoreUnavailable
from ft_rendezvous.protocol import moves
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.ops import perform_move
from ft_rendezvous.store.client import TcpStore, connect
from ft_rendezvous.store.raw_client import NoStore, StoreSocket

ANSWER_TIMEOUT_S = 10.0
"""How long the coordinator may take to answer: it looks several times per second."""


class Operator:
    """A connection to the run at an endpoint. Raises ConfigError if there is none."""

    def __init__(self, endpoint: str) -> None:
        host, port = parse_endpoint(endpoint)
        try:
            self._ear = StoreSocket(host, port, ANSWER_TIMEOUT_S)
        except NoStore as nothing:
            raise ConfigError(f"no run at {endpoint}: {nothing.fact}") from nothing
        self._endpoint = endpoint
        self._store: TcpStore = connect(self._ear.address, port)
        self.run_id = self.read().run_id

    def read(self) -> Head:
        """How the run stands."""
        head = perform_move(self._store, moves.find_head())
        if head is None:
            raise ConfigError(f"no run at {self._endpoint}: a TCPStore of another program is there")
        return head

    def ask(self, kind: RequestKind, target: str = "", reason: str = "") -> Answer:
        """Ask for a decision, and wait for the coordinator's answer. Raises StoreUnavailable if it gives none."""
        head = self.read()
        if head.view.closed is not None:
            raise ConfigError(f"run {head.run_id!r} is closed already: {head.view.closed.verdict}")
        request = Request(
            cycle_id=head.view.cycle_id,
            incarnation=secrets.token_hex(8),
            kind=kind,
            target=target,
            reason=reason[:200],
        )
        keys = Keys(head.epoch)
        perform_move(self._store, moves.write_record(keys, head.view.opened, request))
        try:
            return perform_move(self._ear, moves.read_answer(keys, request.incarnation))
        except StoreUnavailable:
            if kind is RequestKind.CLOSE:
                # The store goes with the run when no node needs it any more.
                return Answer(request.incarnation, True, "closed, and its store is gone")
            raise
