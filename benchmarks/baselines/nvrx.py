"""The rendezvous of nvidia-resiliency-ext 0.4.1, its `FtRendezvousHandler`: torch's c10d handler, with spares added.

0.4.1 is the newest version on PyPI. Later releases have another handler, the barrier rendezvous: see `barrier`.

All nodes share one pickled state, as with c10d, and each node reads it once per second. A node checks its GPUs before
it joins; without GPUs that takes 3 ms. The agents exchange the workers' address through the store, so joining includes
that.

The package is optional (requirements-nvidia.txt). Only the processes that use it import it, because it configures
logging.
"""

from __future__ import annotations

import importlib.metadata
import logging
import threading
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.baselines import c10d
from benchmarks.baselines.raw import HOST
from benchmarks.crowd import NODES_PER_PROCESS, Formed, Seat, form_world
from ft_rendezvous.config.addresses import format_endpoint

CONTENDER = "nvrx"
"""Its name in result files; people read it with the version."""
PACKAGE = "nvidia-resiliency-ext"
_MODULES = "nvidia_resiliency_ext.fault_tolerance"
_opening = threading.Lock()


def installed_version() -> str | None:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


class Node(c10d.Node):
    def join(self) -> Seat:
        store, rank, world_size = self.handler.next_rendezvous()
        agent = _import("_torch_elastic_compat.agent.server.api").SimpleElasticAgent
        if rank == 0:
            agent._set_master_addr_port(store, None, None, HOST)
        return Seat(rank, world_size, format_endpoint(*agent._get_master_addr_port(store)))


def open_node(count: int, port: int, _index: int = 0) -> Node:
    logging.disable(logging.CRITICAL)  # It logs at every join that there are no GPUs.
    rendezvous = _import("_torch_elastic_compat.rendezvous.api")
    params = rendezvous.RendezvousParameters(**c10d.named_parameters(count, port))
    backend, store = _import("_torch_elastic_compat.rendezvous.c10d_rendezvous_backend").create_backend(params)
    # All handlers of a process open the same socket for their workers. Here are no workers: the handlers open it one
    # after the other, and leave no file behind.
    with _opening:
        handler = _import("_ft_rendezvous").create_handler(store, backend, params)
        Path(_import("launcher").FT_LAUNCHER_IPC_SOCKET).unlink()
    return Node(handler, backend)


def form(count: int, port: int, per_process: int = NODES_PER_PROCESS) -> Formed:
    return form_world(count, lambda _index: open_node(count, port).join, per_process)


def _import(name: str) -> Any:
    return import_module(f"{_MODULES}.{name}")
