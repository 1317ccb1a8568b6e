"""Torch's own dynamic rendezvous on its c10d backend, as torchrun runs it by default.

Its nodes start after a random delay of up to 0.3 s, share one pickled state through compare-and-set, and look
at it once a second. With MIN = MAX it seals as soon as all have come, so no setting slows it down here.
"""

from __future__ import annotations

from torch.distributed.elastic.rendezvous.api import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from benchmarks.baselines.raw import HOST
from benchmarks.crowd import Formed, Join, Seat, form_world
from ft_rendezvous.settings import format_endpoint


def form(count: int, port: int) -> Formed:
    def connect(_index: int) -> Join:
        params = RendezvousParameters(
            backend="c10d",
            endpoint=format_endpoint(HOST, port),
            run_id="benchmark",
            min_nodes=count,
            max_nodes=count,
            local_addr=HOST,
            is_host=False,
        )
        backend, store = create_backend(params)
        handler = create_handler(store, backend, params)

        def join() -> Seat:
            info = handler.next_rendezvous()
            master = info.bootstrap_store_info
            assert master is not None, "torch shares its store by default"
            return Seat(info.rank, info.world_size, format_endpoint(master.master_addr, master.master_port))

        return join

    return form_world(count, connect)
