"""How an agent gets into a run: host the store or find it, check whose it is, and link up."""

from __future__ import annotations

import errno
import logging
import secrets
import time
from dataclasses import dataclass
from pathlib import Path

from ft_rendezvous.config.lint import remark_on
from ft_rendezvous.config.settings import RunSettings, Settings, differing_keys
from ft_rendezvous.config.state_settings import StateSettings
from ft_rendezvous.core.model import Head, NodeInfo
from ft_rendezvous.env_names import MARKER_VARIABLE
from ft_rendezvous.errors import ConfigError, StoreUnavailable
from ft_rendezvous.host.host import Host
from ft_rendezvous.node.threads import Link
from ft_rendezvous.protocol import operations
from ft_rendezvous.protocol.journal import Journal, log_entry
from ft_rendezvous.protocol.ops import perform_move
from ft_rendezvous.protocol.participant import Participant
from ft_rendezvous.state.record.folders import run_folder
from ft_rendezvous.state.record.pipe import Feed, KeeperConfig
from ft_rendezvous.state.record.recorder import Recorder
from ft_rendezvous.store import net
from ft_rendezvous.store.client import ServedStore, TcpStore, connect
from ft_rendezvous.store.raw_client import Found, StoreSocket, probe
from ft_rendezvous.store.worker_store import Bootstrap

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
    deadline = time.monotonic() + settings.run.join_s
    host = _try_to_host(settings, journal)
    try:
        address = settings.node.endpoint_host if host is None else "localhost"
        session = _link_up(settings, node, _find(settings, address, deadline))
    except BaseException:
        if host is not None:
            host.stop()
        raise
    session.host = host
    return session


def reopen_link(settings: Settings, node: NodeInfo, epoch: str, patience_s: float) -> Session:
    """Connect once more to the store this run began with; never host, never accept another epoch."""
    deadline = time.monotonic() + patience_s
    reached = _find(settings, settings.node.endpoint_host, deadline)
    if reached.head.epoch != epoch:
        raise StoreUnavailable(settings.node.endpoint, "the store is a new one; this run ended with the old")
    return _link_up(settings, node, reached)


def serve(
    settings: RunSettings,
    port: int,
    journal: Journal = log_entry,
    verdict_path: Path | None = None,
    state: StateSettings | None = None,
) -> Host:
    """Host a run's store and coordinator in this process. Raises OSError if the port is taken."""
    wanted = net.files_wanted(settings.max_nodes)
    allowed = net.raise_file_limit(wanted)
    if allowed < wanted:
        log.warning(
            "this host may open %d files, %d nodes need %d: raise the limit (ulimit -Hn)",
            allowed,
            settings.max_nodes,
            wanted,
        )
    served, epoch = ServedStore(net.listen(port)), new_id()
    for remark in remark_on(settings):
        log.warning("%s", remark)
    recorder = _start_recorder(settings.run_id, epoch, state or StateSettings())
    try:
        return Host(served, settings, epoch, journal, verdict_path, recorder=recorder)
    except BaseException:
        recorder.close()  # Its keeper would live as long as this process, and hold the port of the page.
        raise


def _start_recorder(run_id: str, epoch: str, state: StateSettings) -> Recorder:
    """What records the run; with a keeper if it is to be written down or shown."""
    if state.directory is None and state.port is None:
        return Recorder(state.history)
    folder = None if state.directory is None else run_folder(Path(state.directory).absolute(), run_id, epoch)
    config = KeeperConfig(
        folder=None if folder is None else str(folder),
        log_bytes=state.log_mb * 1_000_000,
        addr=state.addr,
        port=state.port,
        token=state.token,
    )
    return Recorder(state.history, lambda stream: Feed(stream, config, unset=[MARKER_VARIABLE]))


def _try_to_host(settings: Settings, journal: Journal) -> Host | None:
    """The run's host, if this machine should host and nobody does yet."""
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


@dataclass(frozen=True, slots=True)
class _Reached:
    """The run's store, found to be the right one."""

    address: str
    store: TcpStore
    head: Head


@dataclass(frozen=True, slots=True)
class _NotYet:
    """The run's store is not there."""

    fact: str
    is_other: bool
    """Somebody else's program is, so that waiting for long cannot help."""


def _find(settings: Settings, address: str, deadline: float) -> _Reached:
    """The run's store at this address, once it is there."""
    began = time.monotonic()
    pause_s = 0.02
    told = ""
    other_since: float | None = None
    while True:
        found = _greet(settings, address)
        if isinstance(found, _Reached):
            return found
        now = time.monotonic()
        endpoint = settings.node.endpoint
        if not found.is_other:
            other_since = None
        elif other_since is None:
            other_since = now
        elif now >= min(deadline, other_since + STRANGER_PATIENCE_S):
            raise ConfigError(f"{endpoint}: {found.fact}: choose another port in --rdzv-endpoint")
        if now >= deadline:
            raise StoreUnavailable(endpoint, f"{found.fact}, for {now - began:.0f} s")
        if found.fact != told:
            log.info("waiting for the store at %s: %s", endpoint, found.fact)
            told = found.fact
        time.sleep(min(pause_s, max(0.0, deadline - now)))
        pause_s = min(pause_s * 1.5, 1.0)


def _greet(settings: Settings, address: str) -> _Reached | _NotYet:
    port = settings.node.endpoint_port
    found = probe(address, port)
    if found is not Found.STORE:
        return _NotYet(str(found), is_other=found is Found.STRANGER)
    try:
        store = connect(address, port)
        head = _read_head(store)
    except StoreUnavailable:
        return _NotYet("the connection was lost while greeting", is_other=False)
    if head is None:
        return _NotYet("a TCPStore of another program is there, not an ft rendezvous", is_other=True)
    if head.run_id != settings.run.run_id:
        fact = f"the store there serves run {head.run_id!r}, not {settings.run.run_id!r}"
        return _NotYet(fact, is_other=True)
    _check_settings(head, settings.run)
    return _Reached(address, store, head)


def _read_head(store: TcpStore) -> Head | None:
    return perform_move(store, operations.find_head())


def _check_settings(head: Head, run: RunSettings) -> None:
    differing = differing_keys(run.as_dict(), head.settings)
    if differing:
        raise ConfigError(
            f"this node's settings differ from the run's: {'; '.join(differing)}: "
            "use the same --nnodes and --rdzv-conf on all nodes"
        )


def _link_up(settings: Settings, node: NodeInfo, reached: _Reached) -> Session:
    bootstrap = Bootstrap()
    participant = Participant(
        epoch=reached.head.epoch,
        node=node,
        lease_s=settings.run.lease_s,
        clock=time.monotonic,
        new_incarnation=new_id,
        hold_bootstrap=lambda _cycle_id: bootstrap.hold(),
        on_enlisted=lambda: None,
        greeted=reached.head.view,
    )
    address, port = reached.address, settings.node.endpoint_port
    beat_s, endpoint = settings.run.beat_s, settings.node.endpoint
    link = Link(reached.store, lambda: StoreSocket(address, port), participant, beat_s, endpoint)
    bootstrap.hold()
    return Session(settings, link, bootstrap)
