"""How an agent gets into a run: host the store or find it, check whose it is, and link up."""

from __future__ import annotations

import logging
import secrets
import time
from dataclasses import dataclass

from ft_rendezvous import net, wire
from ft_rendezvous.bootstrap import Bootstrap
from ft_rendezvous.core.model import Identity, NodeInfo
from ft_rendezvous.errors import ConfigError, StoreUnavailable
from ft_rendezvous.host import Host
from ft_rendezvous.journal import Journal, log_entry
from ft_rendezvous.link import Link
from ft_rendezvous.participant import Participant
from ft_rendezvous.ports import Check, Get
from ft_rendezvous.settings import RunSettings, Settings, differing_keys
from ft_rendezvous.tcp_store import Found, ServedStore, TcpStore, connect, listen, probe

log = logging.getLogger("ft_rendezvous")

STRANGER_PATIENCE_S = 10.0
"""How long a port held by something else may take to become free; an earlier run may be leaving."""


def new_id() -> str:
    """An epoch or an incarnation: 16 hex digits."""
    return secrets.token_hex(8)


@dataclass(slots=True)
class Session:
    """An agent's hold on a run: its link, and the host if it is this process."""

    settings: Settings
    link: Link
    bootstrap: Bootstrap
    host: Host | None = None


def open_session(settings: Settings, node: NodeInfo, journal: Journal = log_entry) -> Session:
    """Host the store if this machine should and nobody does yet, else connect; retried until join_timeout.

    Start order does not matter. Raises ConfigError when waiting cannot help, StoreUnavailable when it did not.
    """
    host, store, identity = _reach(settings, journal)
    try:
        return _link_up(settings, node, host, store, identity)
    except BaseException:
        if host is not None:
            host.stop()
        raise


def reopen_link(settings: Settings, node: NodeInfo, epoch: str, patience_s: float) -> Session:
    """Connect once more to the store this run began with; never host, never accept another epoch."""
    store, identity = _find(settings, time.monotonic() + patience_s)
    if identity.epoch != epoch:
        raise StoreUnavailable(settings.node.endpoint, "the store is a new one; this run ended with the old")
    return _link_up(settings, node, None, store, identity)


def serve(settings: RunSettings, port: int, journal: Journal = log_entry) -> Host:
    """Host a run's store and coordinator in this process. Raises OSError if the port is taken."""
    served = ServedStore(listen(port))
    return Host(served, settings, new_id(), journal)


def _reach(settings: Settings, journal: Journal) -> tuple[Host | None, TcpStore, Identity]:
    deadline = time.monotonic() + settings.run.join_s
    if _should_host(settings):
        try:
            host = serve(settings.run, settings.node.endpoint_port, journal)
        except OSError:
            log.debug("port %d is taken: looking for the run's store there", settings.node.endpoint_port)
        else:
            log.info("hosting the store of run %r at %s", settings.run.run_id, settings.node.endpoint)
            store, identity = _find(settings, deadline, address="localhost")
            return host, store, identity
    store, identity = _find(settings, deadline)
    return None, store, identity


def _should_host(settings: Settings) -> bool:
    if settings.node.is_host is not None:
        return settings.node.is_host
    route = net.route_to(settings.node.endpoint_host, settings.node.endpoint_port)
    return route is not None and route[1]


def _find(settings: Settings, deadline: float, address: str | None = None) -> tuple[TcpStore, Identity]:
    """The run's store and its checked identity."""
    node = settings.node
    host = address or node.endpoint_host
    stranger_deadline = time.monotonic() + STRANGER_PATIENCE_S
    pause_s = 0.02
    told: object = None
    while True:
        found = probe(host, node.endpoint_port)
        fact = str(found)
        if found is Found.STORE:
            try:
                store = connect(host, node.endpoint_port)
                identity = _identify(store)
            except StoreUnavailable:
                identity, fact = None, "the connection was lost while greeting"
            if identity is not None and identity.run_id == settings.run.run_id:
                _check_settings(identity, settings.run)
                return store, identity
            if identity is not None:
                fact = f"the store there serves run {identity.run_id!r}, not {settings.run.run_id!r}"
            elif fact == str(found):
                fact = "a TCPStore of another program is there, not an ft rendezvous"
        now = time.monotonic()
        if found in (Found.STORE, Found.STRANGER, Found.SILENT) and now >= min(deadline, stranger_deadline):
            raise ConfigError(f"{node.endpoint}: {fact}: choose another port in --rdzv-endpoint")
        if now >= deadline:
            raise StoreUnavailable(node.endpoint, f"{fact} after {settings.run.join_s:g} s (join_timeout)")
        if fact != told:
            log.info("waiting for the store at %s: %s", node.endpoint, fact)
            told = fact
        time.sleep(pause_s)
        pause_s = min(pause_s * 1.5, 1.0)


def _identify(store: TcpStore) -> Identity | None:
    if not store.perform(Check([wire.IDENTITY_KEY])):
        return None
    return wire.decode_identity(store.perform(Get(wire.IDENTITY_KEY)))


def _check_settings(identity: Identity, run: RunSettings) -> None:
    differing = differing_keys(run.as_dict(), identity.settings)
    if differing:
        raise ConfigError(
            f"this node's settings differ from the run's: {'; '.join(differing)}: "
            "use the same --nnodes and --rdzv-conf on all nodes"
        )


def _link_up(settings: Settings, node: NodeInfo, host: Host | None, store: TcpStore, identity: Identity) -> Session:
    bootstrap = Bootstrap(node.addr)
    participant = Participant(
        epoch=identity.epoch,
        node=node,
        lease_s=settings.run.lease_s,
        clock=time.monotonic,
        new_incarnation=new_id,
        hold_bootstrap=bootstrap.hold,
        on_enlisted=lambda: None,
    )
    link = Link(store, participant, settings.run.beat_s, settings.node.endpoint)
    return Session(settings, link, bootstrap, host)
