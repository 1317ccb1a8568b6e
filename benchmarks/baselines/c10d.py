"""Torch's own dynamic rendezvous on its c10d backend, as torchrun runs it by default.

Its nodes start after a random delay of up to 0.3 s, share one pickled state through compare-and-set, and look at it
once a second, also when they are asked whether a node waits. With MIN = MAX it seals as soon as all have come, so no
setting slows it down here.
"""

from __future__ import annotations

import os
import pickle
from typing import Any

from torch.distributed.elastic.rendezvous.api import RendezvousParameters
from torch.distributed.elastic.rendezvous.c10d_rendezvous_backend import create_backend
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import create_handler

from benchmarks.agent_node import AgentNode
from benchmarks.baselines.raw import HOST
from benchmarks.crowd import NODES_PER_PROCESS, Formed, form_world
from ft_rendezvous.config.addresses import format_endpoint


class Node(AgentNode):
    def __init__(self, handler: Any, backend: Any) -> None:
        super().__init__(handler)
        self._backend = backend

    @property
    def is_parked(self) -> bool:
        """Whether a node waits as a spare. Only the shared state says so."""
        found = self._backend.get_state()
        return found is not None and bool(pickle.loads(found[0]).redundancy_list)


def named_parameters(count: int, port: int) -> dict[str, Any]:
    """What a node of a world of `count` passes to its backend."""
    return {
        "backend": "c10d",
        "endpoint": format_endpoint(HOST, port),
        "run_id": "benchmark",
        "min_nodes": count,
        "max_nodes": count,
        "local_addr": HOST,
        "is_host": False,
    }


def open_node(count: int, port: int, _index: int = 0) -> Node:
    params = RendezvousParameters(**named_parameters(count, port))
    backend, store = create_backend(params)
    return Node(create_handler(store, backend, params), backend)


def form(count: int, port: int, per_process: int = NODES_PER_PROCESS) -> Formed:
    return form_world(count, lambda _index: open_node(count, port).join, per_process)


def unshare_store() -> None:
    """Use torch's switch for this process: else a node that comes to a later round waits in vain for an address."""
    os.environ["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
