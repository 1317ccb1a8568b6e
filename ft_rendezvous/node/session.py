"""How an agent gets into a run: it hosts the store or finds it, checks whose it is, and links up."""

from __future__ import annotations

import errno
import logging
import math
import time
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from ft_rendezvous.config.settings import NodeSettings, Settings
from ft_rendezvous.core.hosting import CLEAR_REMEDY, Hosting, HostingRole
from ft_rendezvous.core.model import NodeInfo
from ft_rendezvous.errors import ConfigError, StoreUnavailable
from ft_rendezvous.host.host import Host
from ft_rendezvous.host.serve import new_id, serve
from ft_rendezvous.node.dialing import StoreDialer, is_wrong
from ft_rendezvous.node.threads import Connections, Link
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.journal import Journal, log_entry
from ft_rendezvous.protocol.participant import Participant
from ft_rendezvous.store import net
from ft_rendezvous.store.raw_client import Found, NoStore, find_addresses
from ft_rendezvous.store.worker_store import Bootstrap

log = logging.getLogger("ft_rendezvous")

STRANGER_TIMEOUT_S = 10.0
"""How long a port held by another program may take to become free: an earlier run may be leaving."""
FIRST_RETRY_DELAY_S, LONGEST_RETRY_DELAY_S = 0.02, 1.0
CHANGED_LOG_INTERVAL_S, LOG_INTERVAL_S = 5.0, 60.0


@dataclass(slots=True)
class Session:
    """An agent's hold on a run: its link, the socket for its workers' store, and the host if it is this process."""

    settings: Settings
    link: Link
    bootstrap: Bootstrap
    lighthouse: str = ""
    """The address of the run's torchft lighthouse, if it has one."""
    host: Host | None = None


def open_session(settings: Settings, node: NodeInfo, journal: Journal = log_entry) -> Session:
    """Host the store if this machine should and no process does yet, else connect; retried until join_timeout.

    Start order does not matter. A node without an address gets the one from which it reaches the endpoint. Raises
    ConfigError when waiting cannot help, StoreUnavailable when it did not.
    """
    entrance = Entrance(settings, journal)
    codec.check_node(node)
    try:
        connections = _find(settings, entrance, time.monotonic() + settings.run.join_s)
        # Only now: the name of the endpoint may have been unknown before.
        node = node if node.addr else replace(node, addr=net.advertised_address(settings.node))
        session = _link_up(settings, node, entrance.dialer, connections)
    except BaseException:
        if entrance.host is not None:
            entrance.host.stop()
        raise
    session.host = entrance.host
    return session


class Entrance:
    """A node's way into its run: it hosts the store, or dials it."""

    def __init__(self, settings: Settings, journal: Journal) -> None:
        self._settings = settings
        self._journal = journal
        self._may_host = True
        self._has_said = False
        self.host: Host | None = None
        self.dialer = StoreDialer(settings, settings.node.endpoint_host)
        self.hosting: Hosting | None = None
        """What this node does about the store, as far as DNS knows the endpoint."""

    def enter(self) -> Connections:
        """One attempt. The node asks again each time whether it hosts: DNS may have learned its address since."""
        if self.host is None and self._may_host and self._should_host():
            self.host = self._try_to_host()
            self._may_host = False
            if self.host is not None:
                self.dialer = StoreDialer(self._settings, "localhost")
        return self.dialer.dial()

    def _should_host(self) -> bool:
        node = self._settings.node
        addresses = () if node.is_host is not None else find_addresses(node.endpoint_host, node.endpoint_port)
        self.hosting = hosting = net.choose_hosting(node, addresses)
        if hosting.role is HostingRole.UNCLEAR:
            raise ConfigError(f"{hosting.reason}: {CLEAR_REMEDY}")
        if hosting.is_by_index and hosting.role is HostingRole.CLIENT and not self._has_said:
            log.info("this node does not host the store: %s", hosting.reason)
            self._has_said = True
        return hosting.role is HostingRole.HOST

    def _try_to_host(self) -> Host | None:
        """The run's host, if no process has its port yet."""
        settings = self._settings
        try:
            path = settings.node.verdict_file
            verdict_path = Path(path) if path else None
            node = settings.node
            host = serve(
                settings.run,
                node.endpoint_port,
                self._journal,
                verdict_path,
                settings.state,
                advertised_addr=node.endpoint_host,
                lifeline_port=node.lifeline_port,
            )
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ConfigError(f"cannot host the store at {settings.node.endpoint}: {error}") from error
            log.debug("port %d is taken: looking for the run's store there", settings.node.endpoint_port)
            return None
        log.info("hosting the store of run %r at %s", settings.run.run_id, settings.node.endpoint)
        return host


def _find(settings: Settings, entrance: Entrance, deadline: float) -> Connections:
    """Connections to the run's store, once it is there."""
    began = time.monotonic()
    endpoint, delay_s, waits = settings.node.endpoint, FIRST_RETRY_DELAY_S, WaitLog(settings.node.endpoint)
    wrong_since: float | None = None
    while True:
        try:
            return entrance.enter()
        except StoreUnavailable as error:
            failed = error
        now = time.monotonic()
        wrong_since = (wrong_since or now) if is_wrong(failed) else None
        if wrong_since is not None and now >= min(deadline, wrong_since + STRANGER_TIMEOUT_S):
            raise ConfigError(f"{endpoint}: {failed.fact}: choose another port in --rdzv-endpoint")
        if now >= deadline:
            remedy = _remedy_for(failed, settings.node, entrance.hosting)
            raise StoreUnavailable(endpoint, f"{failed.fact}, for {now - began:.0f} s{remedy}")
        waits.note(failed.fact, now)
        time.sleep(min(delay_s, max(0.0, deadline - now)))
        delay_s = min(delay_s * 1.5, LONGEST_RETRY_DELAY_S)


class WaitLog:
    """Logs what a node waits for: at once, soon after it changes, and now and then."""

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._logged_fact = ""
        self._logged_at = -math.inf

    def note(self, fact: str, now: float) -> None:
        # The facts of a name with many addresses change often while nodes start.
        interval_s = CHANGED_LOG_INTERVAL_S if fact != self._logged_fact else LOG_INTERVAL_S
        if now - self._logged_at >= interval_s:
            log.info("waiting for the store at %s: %s", self._endpoint, fact)
            self._logged_fact, self._logged_at = fact, now


def _remedy_for(error: StoreUnavailable, node: NodeSettings, hosting: Hosting | None) -> str:
    """What the user can do where waiting did not help; empty if the fact says it all."""
    if isinstance(error, NoStore) and error.found in (Found.UNKNOWN_HOST, Found.SILENT_RESOLVER):
        return f": check the name in --rdzv-endpoint, and what `getent ahosts {node.endpoint_host}` prints on this node"
    if hosting is not None and hosting.is_by_index and hosting.role is HostingRole.CLIENT:
        return f": this node does not host the store, because {hosting.reason}: start that node, or set is_host"
    return ""


def _link_up(settings: Settings, node: NodeInfo, dialer: StoreDialer, connections: Connections) -> Session:
    bootstrap = Bootstrap()
    participant = Participant(
        epoch=connections.head.epoch,
        node=node,
        lease_s=settings.run.lease_s,
        clock=time.monotonic,
        new_incarnation=new_id,
        hold_bootstrap=bootstrap.hold,
        greeted=connections.head.view,
    )
    link = Link(
        connections,
        dialer,
        participant,
        beat_s=settings.run.beat_s,
        join_s=settings.run.join_s,
        endpoint=settings.node.endpoint,
        health_check_s=settings.node.health_check_s,
        lifeline_grace_s=settings.run.lifeline_grace_s,
    )
    return Session(settings, link, bootstrap, connections.head.lighthouse)
