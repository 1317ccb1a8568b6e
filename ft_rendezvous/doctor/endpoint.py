"""Looks at the endpoint with care: holds the port if it is free, and uses one connection to a live store.

A TCPStore looks up the name of every client on its only thread. Where that is slow, many clients would stall a live run
for longer than its leases. So one node looks, and the others connect only if no node trains there.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import threading
import time
from collections.abc import Sequence

from ft_rendezvous.doctor.facts import Attempt, EndpointFacts, EndpointState, Lookup, RunningRun
from ft_rendezvous.doctor.lookups import LOOKUP_TIMEOUT_S, ask_all, name_of
from ft_rendezvous.errors import ConfigError, ProtocolBug, StoreUnavailable
from ft_rendezvous.protocol import moves
from ft_rendezvous.protocol.ops import perform_move
from ft_rendezvous.store import net
from ft_rendezvous.store.raw_client import Found, NoStore, StoreSocket, find_addresses

ENDPOINT_TIMEOUT_S = 3.0
"""For a connection, and for an answer."""

MOST_ADDRESSES = 8

_STATES = {
    Found.NOTHING: EndpointState.NOTHING,
    Found.NO_ANSWER: EndpointState.NO_ANSWER,
    Found.UNKNOWN_HOST: EndpointState.UNKNOWN_HOST,
    Found.SILENT_RESOLVER: EndpointState.UNKNOWN_HOST,
}


def new_token() -> str:
    """The text that a held port sends to every client, so that a node knows that it has found the right port."""
    return secrets.token_hex(8)


class HeldPort:
    """The port of the endpoint, held by the doctor. Sends its token to every client and remembers the client."""

    def __init__(self, port: int, token: str) -> None:
        self._listener = net.listen(port)
        self._line = _line(token)
        self._lock = threading.Lock()
        self._clients: dict[str, None] = {}
        threading.Thread(target=self._answer, name="doctor-port", daemon=True).start()

    def clients(self) -> list[str]:
        """The addresses of the clients, as a store would see them."""
        with self._lock:
            return list(self._clients)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _answer(self) -> None:
        while True:
            try:
                client, address = self._listener.accept()
            except OSError:
                return  # Closed; or the process may open no more files, and then it cannot answer anyway.
            with self._lock:
                self._clients[str(address[0])] = None
            # The line fits into any send buffer, so no client can block this thread.
            with client, contextlib.suppress(OSError):
                client.setblocking(False)
                client.sendall(self._line)


def _line(token: str) -> bytes:
    return f"ft-doctor {token}\n".encode()


def hold_port(host: str, port: int, token: str) -> tuple[HeldPort | None, EndpointFacts]:
    """Hold the port of this machine, or find out what has it."""
    try:
        return HeldPort(port, token), EndpointFacts(state=EndpointState.HELD)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return None, EndpointFacts(state=EndpointState.FORBIDDEN, detail=error.strerror or str(error))
    seen = look_at_endpoint(host, port)
    return None, EndpointFacts(state=EndpointState.TAKEN) if seen.state is EndpointState.NOTHING else seen


def look_at_endpoint(host: str, port: int) -> EndpointFacts:
    """What is at the endpoint, over one connection."""
    try:
        store = StoreSocket(host, port, ENDPOINT_TIMEOUT_S)
    except NoStore as unavailable:
        return EndpointFacts(state=_STATES.get(unavailable.found, EndpointState.STRANGER), detail=unavailable.fact)
    try:
        head = perform_move(store, moves.find_head())
    except StoreUnavailable as unavailable:
        return EndpointFacts(state=EndpointState.NO_ANSWER, detail=f"a store, but {unavailable.fact}")
    except (ConfigError, ProtocolBug) as error:
        return EndpointFacts(state=EndpointState.OTHER_STORE, detail=str(error))
    finally:
        store.close()
    if head is None:
        return EndpointFacts(state=EndpointState.OTHER_STORE, detail="a TCPStore of another program, no ft rendezvous")
    run = RunningRun(
        run_id=head.run_id,
        cycle_id=head.view.cycle_id,
        is_sealed=head.view.sealed is not None,
        verdict="" if head.view.closed is None else str(head.view.closed.verdict),
        settings=head.settings,
    )
    return EndpointFacts(state=EndpointState.RUN, run=run)


def reach_endpoint(host: str, port: int, token: str) -> tuple[Attempt, ...]:
    """Try every address of the endpoint: expect the token of the held port or, without a token, a store."""
    try:
        addresses = find_addresses(host, port)
    except NoStore as unknown:
        return (Attempt(address=host, seconds=0.0, error=unknown.fact),)
    return tuple(_try(address, port, token) for address in addresses[:MOST_ADDRESSES])


def _try(address: str, port: int, token: str) -> Attempt:
    began = time.perf_counter()
    error = ""
    try:
        if token:
            error = _hear(address, port, _line(token))
        else:
            StoreSocket(address, port, ENDPOINT_TIMEOUT_S).close()
    except StoreUnavailable as unavailable:
        error = unavailable.fact
    return Attempt(address=address, seconds=time.perf_counter() - began, error=error)


def _hear(address: str, port: int, line: bytes) -> str:
    """Why the line does not come from there; empty if it does."""
    try:
        with socket.create_connection((address, port), timeout=ENDPOINT_TIMEOUT_S) as sock, sock.makefile("rb") as file:
            heard = file.readline(len(line))
    except TimeoutError:
        return f"no answer from {address} within {ENDPOINT_TIMEOUT_S:g} s"
    except OSError as error:
        return f"{address}: {error.strerror or error}"
    return "" if heard == line else f"another program answers at {address}"


def name_clients(addresses: Sequence[str], timeout_s: float = LOOKUP_TIMEOUT_S) -> tuple[tuple[Lookup, ...], int]:
    """Look up the names of clients as a store would. Also returns for how many there was no time."""
    lookups = ask_all({address: name_of(address) for address in addresses}, timeout_s)
    return tuple(lookups.values()), len(addresses) - len(lookups)
