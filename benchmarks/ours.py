"""ft_rendezvous as a contender: a host with its coordinator, and nodes with real links."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.crowd import Formed, Seat, form_world
from ft_rendezvous.addresses import format_endpoint
from ft_rendezvous.core.joining import Drained
from ft_rendezvous.core.model import NodeInfo, Verdict
from ft_rendezvous.host import Host
from ft_rendezvous.net import CONNECTIONS_PER_NODE, listen, raise_file_limit
from ft_rendezvous.participant import CHANGED, Flow, Place
from ft_rendezvous.session import Session, new_id, open_session
from ft_rendezvous.settings import NodeSettings, RunSettings, Settings
from ft_rendezvous.state.recorder import Recorder
from ft_rendezvous.tcp_store import ServedStore

HOST = "127.0.0.1"
FILES_PER_NODE = CONNECTIONS_PER_NODE + 1
"""A node also holds a socket for its workers."""
FILES_BESIDE = 256
"""What a process has open beside its nodes' connections."""


def run_settings(count: int, max_count: int | None = None) -> RunSettings:
    """As by default, but for the lease: threads of one interpreter starve each other longer than nodes do."""
    return RunSettings(run_id="benchmark", min_nodes=count, max_nodes=max_count or count, lease_s=60.0)


@contextmanager
def hosting(run: RunSettings) -> Iterator[tuple[Host, int]]:
    """Host a run, as `session.serve` does, on a port that the system gives."""
    raise_file_limit(CONNECTIONS_PER_NODE * run.max_nodes + FILES_BESIDE)
    served = ServedStore(listen())
    host = Host(served, run, new_id(), journal=lambda _entry: None, recorder=Recorder())
    try:
        yield host, served.port
    finally:
        host.stop()


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
    return NodeInfo(addr=HOST, pid=os.getpid(), infra_rank=index, role="default", local_world_size=8)


class Node:
    """A session, used as our handler uses it."""

    def __init__(self, session: Session) -> None:
        self.link = session.link
        self.cycle_id = 0

    def join(self) -> Seat:
        """Take part until this node has a place in the next world; who has one reports that its workers failed."""
        place = self.link.run(self.link.participant.next_place())
        self.cycle_id = place.cycle_id if isinstance(place, Place) else 0
        return seat_of(place)

    def wait_over(self) -> None:
        """Wait until the workers of this node's world must stop, without asking again and again."""
        self.link.run(self._until_over())

    def _until_over(self) -> Flow[None]:
        while not self.link.participant.must_stop(self.cycle_id):
            yield CHANGED

    @property
    def is_parked(self) -> bool:
        """Whether this node has arrived, whatever becomes of it."""
        return self.link.participant.view is not None


def open_node(run: RunSettings, port: int, index: int) -> Node:
    node = NodeSettings(endpoint_host=HOST, endpoint_port=port, infra_rank=index, is_host=False)
    return Node(open_session(Settings(run=run, node=node), node_info(index)))


def form(count: int, port: int) -> Formed:
    """Form a world of `count` nodes."""
    raise_file_limit(FILES_PER_NODE * count + FILES_BESIDE)
    run = run_settings(count)
    return form_world(count, lambda index: open_node(run, port, index).join)


def seat_of(place: Place | Verdict | Drained) -> Seat:
    """What a node holds; a run that is over has no seats."""
    if not isinstance(place, Place):
        raise RuntimeError(f"the run is over for this node: {place}")
    return Seat(place.rank, place.world_size, format_endpoint(place.master_addr, place.master_port))
