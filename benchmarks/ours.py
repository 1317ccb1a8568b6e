"""ft_rendezvous as a contender: a host with its coordinator, and nodes with the handler that torch's agent has."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.agent_node import AgentNode
from benchmarks.crowd import NODES_PER_PROCESS, Formed, form_world
from ft_rendezvous.agent.handler import FtRendezvousHandler
from ft_rendezvous.config.settings import NodeSettings, RunSettings, Settings
from ft_rendezvous.core.model import NodeInfo
from ft_rendezvous.host.host import Host
from ft_rendezvous.host.lifelines import start_lifelines
from ft_rendezvous.host.serve import new_id
from ft_rendezvous.protocol.journal import log_entry
from ft_rendezvous.state.record.recorder import Recorder
from ft_rendezvous.store.client import ServedStore
from ft_rendezvous.store.net import CONNECTIONS_PER_NODE, listen, raise_file_limit

HOST = "127.0.0.1"
ROLE, LOCAL_WORLD_SIZE = "default", 8
FILES_PER_NODE = CONNECTIONS_PER_NODE + 2
"""A node also holds a lifeline, and a socket for its workers."""
FILES_BESIDE = 256
"""What a process has open beside its nodes' connections."""


def run_settings(count: int, max_count: int | None = None) -> RunSettings:
    """As by default, but for the lease: threads of one interpreter starve each other longer than nodes do."""
    return RunSettings(run_id="benchmark", min_nodes=count, max_nodes=max_count or count, lease_s=60.0)


@contextmanager
def hosting(run: RunSettings) -> Iterator[tuple[Host, int]]:
    """Host a run, as `host.serve` does, on a port that the system gives."""
    raise_file_limit(CONNECTIONS_PER_NODE * run.max_nodes + FILES_BESIDE)
    _log_to_nowhere()
    served, epoch = ServedStore(listen()), new_id()
    lifelines = start_lifelines(epoch, port=0, max_nodes=run.max_nodes) if run.has_lifelines else None
    host = Host(served, run, epoch, log_entry, recorder=Recorder(), lifelines=lifelines)
    try:
        yield host, served.port
    finally:
        host.stop()


def _log_to_nowhere() -> None:
    """Format every log line and write it, as by default, but to a file that no reader sees."""
    log = logging.getLogger("ft_rendezvous")
    if not log.handlers:
        log.addHandler(logging.FileHandler(os.devnull))
    log.setLevel(logging.INFO)
    log.propagate = False


@contextmanager
def serve_run(run: RunSettings) -> Iterator[tuple[int, int]]:
    """Host a run; yields its port and the pid of its host."""
    with hosting(run) as (_, port):
        yield port, os.getpid()


@contextmanager
def serve(count: int) -> Iterator[int]:
    with hosting(run_settings(count)) as (_, port):
        yield port


def node_info(index: int) -> NodeInfo:
    return NodeInfo(addr=HOST, pid=os.getpid(), infra_rank=index, role=ROLE, local_world_size=LOCAL_WORLD_SIZE)


class Node(AgentNode):
    def __init__(self, handler: FtRendezvousHandler) -> None:
        super().__init__(handler)
        # The agent would call `attach`, which also starts what only workers need.
        handler._role, handler._local_world_size = ROLE, LOCAL_WORLD_SIZE
        # The others connect when they are made.
        self.link = handler._join().link

    @property
    def cycle_id(self) -> int:
        """Of the world this node is in; 0 in none."""
        place = self.handler._place
        return 0 if place is None else place.cycle_id

    @property
    def is_parked(self) -> bool:
        """Whether this node has arrived, even if it gets no seat."""
        return self.link.has_joined


def open_node(run: RunSettings, port: int, index: int) -> Node:
    node = NodeSettings(endpoint_host=HOST, endpoint_port=port, local_addr=HOST, infra_rank=index, is_host=False)
    return Node(FtRendezvousHandler(Settings(run=run, node=node)))


def form(count: int, port: int, per_process: int = NODES_PER_PROCESS) -> Formed:
    """Form a world of `count` nodes."""
    raise_file_limit(FILES_PER_NODE * count + FILES_BESIDE)
    run = run_settings(count)
    return form_world(count, lambda index: open_node(run, port, index).join, per_process)
