"""Starts the host of a run: its store, its coordinator, and its recorder."""

from __future__ import annotations

import logging
import secrets
from pathlib import Path

from ft_rendezvous.config.lint import remark_on
from ft_rendezvous.config.settings import RunSettings, StateSettings
from ft_rendezvous.env_names import MARKER_VARIABLE
from ft_rendezvous.host.host import Host
from ft_rendezvous.host.lifelines import Lifelines, start_lifelines
from ft_rendezvous.host.lighthouse import Lighthouse
from ft_rendezvous.host.lighthouse_rules import derive_rules
from ft_rendezvous.protocol.journal import Journal, log_entry
from ft_rendezvous.state.record.folders import run_folder
from ft_rendezvous.state.record.keeper_pipe import KeeperConfig, KeeperPipe
from ft_rendezvous.state.record.recorder import Recorder
from ft_rendezvous.store import net
from ft_rendezvous.store.client import ServedStore

log = logging.getLogger("ft_rendezvous")


def new_id() -> str:
    """An epoch or an incarnation: 16 hex digits."""
    return secrets.token_hex(8)


def serve(
    settings: RunSettings,
    port: int,
    journal: Journal = log_entry,
    verdict_path: Path | None = None,
    state: StateSettings | None = None,
    *,
    advertised_addr: str = "localhost",
    lifeline_port: int = 0,
) -> Host:
    """Host a run's store and coordinator in this process. Raises OSError if the port is taken.

    `advertised_addr` is the address under which nodes reach this one. The lighthouse is there too, if there is one.
    """
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
    recorder = start_recorder(settings.run_id, epoch, state or StateSettings())
    lighthouse: Lighthouse | None = None
    lifelines: Lifelines | None = None
    try:
        lighthouse = start_lighthouse(settings, advertised_addr)
        lifelines = start_lifelines(epoch, lifeline_port, settings.max_nodes) if settings.has_lifelines else None
        return Host(
            served,
            settings,
            epoch,
            journal,
            verdict_path,
            recorder=recorder,
            lighthouse=lighthouse,
            lifelines=lifelines,
        )
    except BaseException:
        recorder.close()  # Else its keeper would live as long as this process, and hold the port of the page.
        for started in (lighthouse, lifelines):
            if started is not None:
                started.close()
        served.stop()
        raise


def start_lighthouse(settings: RunSettings, advertised_addr: str) -> Lighthouse | None:
    """The lighthouse of a run with replica groups that wants one. Raises ConfigError if torchft is missing."""
    if not (settings.group_size and settings.has_lighthouse):
        return None
    lighthouse = Lighthouse.start(derive_rules(settings.lease_s, settings.min_groups), advertised_addr)
    log.info("the lighthouse of this run is at %s", lighthouse.address)
    return lighthouse


def start_recorder(run_id: str, epoch: str, state: StateSettings) -> Recorder:
    """The recorder of the run. With a keeper, if the settings ask for files or a page."""
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
    return Recorder(state.history, lambda stream: KeeperPipe(stream, config, unset=[MARKER_VARIABLE]))
