"""The endpoint, looked at with care: a port is held if it is free, a live store is spoken to over one connection.

A TCPStore looks up every client's name on its only thread. Where that is slow, a crowd that only wants to look would
stall a live run for longer than its leases; so one node looks, and the others keep away unless nobody trains there.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket
import threading
import time
from collections.abc import Sequence

from ft_rendezvous.doctor.facts import Attempt, Endpoint, LiveRun, Lookup, State
from ft_rendezvous.doctor.lookups import LIMIT_S, ask_all, name_of
from ft_rendezvous.errors import ConfigError, ProtocolBug, StoreUnavailable
from ft_rendezvous.protocol import operations
from ft_rendezvous.protocol.ops import perform_move
from ft_rendezvous.store import net
from ft_rendezvous.store.raw_client import Found, StoreSocket

PATIENCE_S = 3.0
"""For a connection to be made, and for an answer."""

MOST_ADDRESSES = 8

_STATES = {
    Found.NOTHING: State.NOTHING,
    Found.NO_ANSWER: State.NO_ANSWER,
    Found.UNKNOWN_HOST: State.UNKNOWN_HOST,
}


def new_token() -> str:
    """What a held port says to whoever comes, so that a node knows that it has come to the right one."""
    return secrets.token_hex(8)


class HeldPort:
    """The endpoint's port, held by the doctor: says its token, and remembers who came."""

    def __init__(self, port: int, token: str) -> None:
        self._listener = net.listen(port)
        self._line = _line(token)
        self._lock = threading.Lock()
        self._clients: dict[str, None] = {}
        threading.Thread(target=self._answer, name="doctor-port", daemon=True).start()

    def clients(self) -> list[str]:
        """The addresses of those who came, as a store there would see them."""
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
                return  # Closed; or out of files, and then nobody is served here anyway.
            with self._lock:
                self._clients[str(address[0])] = None
            # The line fits into any send buffer, so nobody can hold us here.
            with client, contextlib.suppress(OSError):
                client.setblocking(False)
                client.sendall(self._line)


def _line(token: str) -> bytes:
    return f"ft-doctor {token}\n".encode()


def hold(host: str, port: int, token: str) -> tuple[HeldPort | None, Endpoint]:
    """Hold the port of this machine, or tell who has it."""
    try:
        return HeldPort(port, token), Endpoint(state=State.HELD)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            return None, Endpoint(state=State.FORBIDDEN, detail=error.strerror or str(error))
    seen = look(host, port)
    return None, Endpoint(state=State.TAKEN) if seen.state is State.NOTHING else seen


def look(host: str, port: int) -> Endpoint:
    """What is there, over one connection."""
    try:
        store = StoreSocket(host, port, PATIENCE_S)
    except StoreUnavailable as unavailable:
        return Endpoint(state=_STATES.get(Found(unavailable.fact), State.STRANGER), detail=unavailable.fact)
    try:
        head = perform_move(store, operations.find_head())
    except StoreUnavailable as unavailable:
        return Endpoint(state=State.NO_ANSWER, detail=f"a store, but {unavailable.fact}")
    except (ConfigError, ProtocolBug) as error:
        return Endpoint(state=State.OTHER_STORE, detail=str(error))
    finally:
        store.close()
    if head is None:
        return Endpoint(state=State.OTHER_STORE, detail="a TCPStore of another program, no ft rendezvous")
    run = LiveRun(
        run_id=head.run_id,
        cycle_id=head.view.cycle_id,
        is_sealed=head.view.sealed is not None,
        verdict="" if head.view.closed is None else str(head.view.closed.verdict),
        settings=head.settings,
    )
    return Endpoint(state=State.RUN, run=run)


def reach(host: str, port: int, token: str) -> tuple[Attempt, ...]:
    """Try every address of the endpoint: for the held port's token or, without one, for a store's greeting."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return (Attempt(address=host, seconds=0.0, error=getattr(error, "strerror", None) or str(error)),)
    addresses = list(dict.fromkeys(str(address[0]) for *_, address in found))
    return tuple(_try(address, port, token) for address in addresses[:MOST_ADDRESSES])


def _try(address: str, port: int, token: str) -> Attempt:
    began = time.perf_counter()
    error = ""
    try:
        if token:
            error = _hear(address, port, _line(token))
        else:
            StoreSocket(address, port, PATIENCE_S).close()
    except StoreUnavailable as unavailable:
        error = unavailable.fact
    return Attempt(address=address, seconds=time.perf_counter() - began, error=error)


def _hear(address: str, port: int, line: bytes) -> str:
    """Why the line is not heard there; empty if it is."""
    try:
        with socket.create_connection((address, port), timeout=PATIENCE_S) as sock, sock.makefile("rb") as file:
            heard = file.readline(len(line))
    except TimeoutError:
        return f"no answer from {address} within {PATIENCE_S:g} s"
    except OSError as error:
        return f"{address}: {error.strerror or error}"
    return "" if heard == line else f"at {address} somebody else answers"


def name_clients(addresses: Sequence[str], limit_s: float = LIMIT_S) -> tuple[tuple[Lookup, ...], int]:
    """Look up clients' names as a store would; and how many there was no time for."""
    lookups = ask_all({address: name_of(address) for address in addresses}, limit_s)
    return tuple(lookups.values()), len(addresses) - len(lookups)
