"""ft_rendezvous as a contender: a host with its coordinator, and nodes with real links."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from benchmarks.crowd import Formed, Join, Seat, form_world
from ft_rendezvous.core.model import NodeInfo, Verdict
from ft_rendezvous.host import Host
from ft_rendezvous.session import new_id, open_session
from ft_rendezvous.settings import NodeSettings, RunSettings, Settings, format_endpoint
from ft_rendezvous.tcp_store import ServedStore, listen

HOST = "127.0.0.1"


def run_settings(count: int) -> RunSettings:
    """As by default, but for the lease: threads of one interpreter starve each other longer than nodes do."""
    return RunSettings(run_id="benchmark", min_nodes=count, max_nodes=count, lease_s=60.0)


@contextmanager
def serve(count: int) -> Iterator[int]:
    """Host a run, as `session.serve` does, on a port that the system gives."""
    served = ServedStore(listen())
    host = Host(served, run_settings(count), new_id(), journal=lambda _entry: None)
    try:
        yield served.port
    finally:
        host.stop()


def form(count: int, port: int) -> Formed:
    """Form a world of `count` nodes."""
    run = run_settings(count)

    def connect(index: int) -> Join:
        node = NodeSettings(endpoint_host=HOST, endpoint_port=port, infra_rank=index, is_host=False)
        info = NodeInfo(
            addr=HOST,
            pid=os.getpid(),
            infra_rank=index,
            role="default",
            local_world_size=8,
            digest=run.digest,
        )
        session = open_session(Settings(run=run, node=node), info)

        def join() -> Seat:
            place = session.link.run(session.link.participant.next_place())
            if isinstance(place, Verdict):
                raise RuntimeError(f"the run was closed: {place}")
            return Seat(place.rank, place.world_size, format_endpoint(place.master_addr, place.master_port))

        return join

    return form_world(count, connect)
