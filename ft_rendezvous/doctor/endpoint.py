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
from collections.abc import Callable, Sequence

from ft_rendezvous.doctor.facts import Attempt, EndpointFacts, EndpointState, LifelinePort, Lookup, RunningRun
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
    """A port of the store host, held by the doctor. Sends its token to every client and remembers the client."""

    def __init__(self, port: int, token: str) -> None:
        self._listener = net.listen(port)
        self.port: int = self._listener.getsockname()[1]
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


def hold_lifeline_port(port: int, token: str) -> tuple[HeldPort | None, LifelinePort]:
    """Hold the port at which the store host would listen for lifelines."""
    try:
        held = HeldPort(port, token)
    except OSError as error:
        return None, LifelinePort(port=port, error=error.strerror or str(error))
    return held, LifelinePort(port=held.port)


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
    lifelines = LifelinePort(port=head.lifeline_port) if head.lifeline_port else None
    return EndpointFacts(state=EndpointState.RUN, run=run, lifelines=lifelines)


def reach_endpoint(host: str, port: int, token: str) -> tuple[Attempt, ...]:
    """Try every address of the endpoint: expect the token of the held port or, without a token, a store."""
    return _try_all(host, port, lambda address: _hear(address, port, token) if token else _greet_store(address, port))


def reach_lifelines(host: str, port: int, token: str) -> tuple[Attempt, ...]:
    """Try the port of the lifelines at every address: expect the token of the held port or, without one, a connection.

    The process that holds a run's lifelines looks up no name. So this does not disturb a run that trains.
    """
    return _try_all(host, port, lambda address: _hear(address, port, token))


def _try_all(host: str, port: int, try_one: Callable[[str], str]) -> tuple[Attempt, ...]:
    try:
        addresses = find_addresses(host, port)
    except NoStore as unknown:
        return (Attempt(address=host, seconds=0.0, error=unknown.fact),)
    attempts = []
    for address in addresses[:MOST_ADDRESSES]:
        began = time.perf_counter()
        error = try_one(address)
        attempts.append(Attempt(address=address, seconds=time.perf_counter() - began, error=error))
    return tuple(attempts)


def _greet_store(address: str, port: int) -> str:
    """Why there is no store; empty if there is one."""
    try:
        StoreSocket(address, port, ENDPOINT_TIMEOUT_S).close()
    except StoreUnavailable as unavailable:
        return unavailable.fact
    return ""


def _hear(address: str, port: int, token: str) -> str:
    """Why the line with the token does not come from there; empty if it does. Without a token, a connection will do."""
    line = _line(token)
    try:
        with socket.create_connection((address, port), timeout=ENDPOINT_TIMEOUT_S) as sock, sock.makefile("rb") as file:
            heard = file.readline(len(line)) if token else line
    except TimeoutError:
        return f"no answer from {address} within {ENDPOINT_TIMEOUT_S:g} s"
    except OSError as error:
        return f"{address}: {error.strerror or error}"
    return "" if heard == line else f"another program answers at {address}"


def name_clients(addresses: Sequence[str], timeout_s: float = LOOKUP_TIMEOUT_S) -> tuple[tuple[Lookup, ...], int]:
    """Look up the names of clients as a store would. Also returns for how many there was no time."""
    lookups = ask_all({address: name_of(address) for address in addresses}, timeout_s)
    return tuple(lookups.values()), len(addresses) - len(lookups)
