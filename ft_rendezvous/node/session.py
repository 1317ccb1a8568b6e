"""How an agent gets into a run: it hosts the store or finds it, checks whose it is, and links up."""

from __future__ import annotations

import errno
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ft_rendezvous.config.settings import RunSettings, Settings, differing_keys
from ft_rendezvous.core.model import Head, NodeInfo
from ft_rendezvous.errors import ConfigError, StoreUnavailable
from ft_rendezvous.host.host import Host
from ft_rendezvous.host.serve import new_id, serve
from ft_rendezvous.node.threads import Connections, Link
from ft_rendezvous.protocol import moves
from ft_rendezvous.protocol.journal import Journal, log_entry
from ft_rendezvous.protocol.ops import perform_move
from ft_rendezvous.protocol.participant import Participant
from ft_rendezvous.store import net, raw_client
from ft_rendezvous.store.raw_client import Found, NoStore, StoreSocket
from ft_rendezvous.store.worker_store import Bootstrap

log = logging.getLogger("ft_rendezvous")

STRANGER_TIMEOUT_S = 10.0
"""How long a port held by another program may take to become free: an earlier run may be leaving."""
FIRST_RETRY_DELAY_S, LONGEST_RETRY_DELAY_S = 0.02, 1.0
LONGEST_GREETING_TIMEOUT_S = 30.0


@dataclass(slots=True)
class Session:
    """An agent's hold on a run: its link, the socket for its workers' store, and the host if it is this process."""

    settings: Settings
    link: Link
    bootstrap: Bootstrap
    host: Host | None = None


def open_session(settings: Settings, node: NodeInfo, journal: Journal = log_entry) -> Session:
    """Host the store if this machine should and no process does yet, else connect; retried until join_timeout.

    Start order does not matter. Raises ConfigError when waiting cannot help, StoreUnavailable when it did not.
    """
    deadline = time.monotonic() + settings.run.join_s
    host = _try_to_host(settings, journal)
    try:
        dialer = StoreDialer(settings, settings.node.endpoint_host if host is None else "localhost")
        session = _link_up(settings, node, dialer, _find(settings, dialer.dial, deadline))
    except BaseException:
        if host is not None:
            host.stop()
        raise
    session.host = host
    return session


def _try_to_host(settings: Settings, journal: Journal) -> Host | None:
    """The run's host, if this machine should host and no process does yet."""
    if not _should_host(settings):
        return None
    try:
        path = settings.node.verdict_file
        verdict_path = Path(path) if path else None
        host = serve(settings.run, settings.node.endpoint_port, journal, verdict_path, settings.state)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise ConfigError(f"cannot host the store at {settings.node.endpoint}: {error}") from error
        log.debug("port %d is taken: looking for the run's store there", settings.node.endpoint_port)
        return None
    log.info("hosting the store of run %r at %s", settings.run.run_id, settings.node.endpoint)
    return host


def _should_host(settings: Settings) -> bool:
    if settings.node.is_host is not None:
        return settings.node.is_host
    route = net.route_to(settings.node.endpoint_host, settings.node.endpoint_port)
    return route is not None and route[1]


class WrongStore(StoreUnavailable):
    """Another program's store is at the endpoint, or another run's: waiting for long cannot help."""

    def __init__(self, endpoint: str, fact: str) -> None:
        super().__init__(endpoint, fact, is_refused=True)


class StoreDialer:
    """Opens connections to the store of one run. The name of the host is looked up anew each time.

    A store that accepts connections and does not answer gets twice as long at each attempt. It may be busy with the
    connections of many nodes, and every connection that a node gives up and opens again adds to that.
    """

    def __init__(self, settings: Settings, host: str) -> None:
        self._settings = settings
        self._host = host
        self._port = settings.node.endpoint_port
        self._greeting_s = raw_client.GREETING_TIMEOUT_S

    def dial(self) -> Connections:
        """A pair of connections and the head, checked to be the run's. Raises ConfigError if the settings differ."""
        writer = self._connect(self._settings.run.lease_s)
        try:
            head = self._check(_read_head(writer))
            connections = Connections(writer, self.dial_listener(), head)
            self._greeting_s = raw_client.GREETING_TIMEOUT_S
            return connections
        except BaseException:
            writer.close()
            raise

    def dial_listener(self) -> StoreSocket:
        return self._connect(None)

    def _connect(self, timeout_s: float | None) -> StoreSocket:
        try:
            return StoreSocket(self._host, self._port, timeout_s, self._greeting_s)
        except NoStore as error:
            if error.found is Found.SILENT:
                longest_s = min(LONGEST_GREETING_TIMEOUT_S, self._settings.run.join_s)
                self._greeting_s = max(self._greeting_s, min(2 * self._greeting_s, longest_s))
            raise

    def _check(self, head: Head | None) -> Head:
        run, endpoint = self._settings.run, self._settings.node.endpoint
        if head is None:
            raise WrongStore(endpoint, "a store is there, but no ft run has begun in it")
        if head.run_id != run.run_id:
            raise WrongStore(endpoint, f"the store there serves run {head.run_id!r}, not {run.run_id!r}")
        _check_settings(head, run)
        return head


def _find(settings: Settings, dial: Callable[[], Connections], deadline: float) -> Connections:
    """Connections to the run's store, once it is there."""
    began = time.monotonic()
    endpoint, delay_s, logged_fact = settings.node.endpoint, FIRST_RETRY_DELAY_S, ""
    wrong_since: float | None = None
    while True:
        try:
            return dial()
        except StoreUnavailable as error:
            fact, is_wrong = error.fact, _is_wrong(error)
        now = time.monotonic()
        wrong_since = (wrong_since or now) if is_wrong else None
        if wrong_since is not None and now >= min(deadline, wrong_since + STRANGER_TIMEOUT_S):
            raise ConfigError(f"{endpoint}: {fact}: choose another port in --rdzv-endpoint")
        if now >= deadline:
            raise StoreUnavailable(endpoint, f"{fact}, for {now - began:.0f} s")
        if fact != logged_fact:
            log.info("waiting for the store at %s: %s", endpoint, fact)
            logged_fact = fact
        time.sleep(min(delay_s, max(0.0, deadline - now)))
        delay_s = min(delay_s * 1.5, LONGEST_RETRY_DELAY_S)


def _is_wrong(error: StoreUnavailable) -> bool:
    return isinstance(error, WrongStore) or (isinstance(error, NoStore) and error.found is Found.STRANGER)


def _read_head(store: StoreSocket) -> Head | None:
    return perform_move(store, moves.find_head())


def _check_settings(head: Head, run: RunSettings) -> None:
    differing = differing_keys(run.as_dict(), head.settings)
    if differing:
        raise ConfigError(
            f"this node's settings differ from the run's: {'; '.join(differing)}: "
            "use the same --nnodes and --rdzv-conf on all nodes"
        )


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
    )
    return Session(settings, link, bootstrap)
