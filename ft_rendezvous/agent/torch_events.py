"""Torch's own event records of a rendezvous, as its other backends emit them.

Whoever has plugged a handler into `torch.distributed.elastic.events` sees ours too; by default nobody does, and then
nothing is even put together.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed.elastic.events import NodeState, construct_and_record_rdzv_event
from torch.distributed.elastic.rendezvous.api import RendezvousGracefulExitError, RendezvousInfo

from ft_rendezvous.config.addresses import format_endpoint


def tell_rendezvous(run_id: str, next_info: Callable[[], RendezvousInfo]) -> RendezvousInfo:
    """What comes of the next rendezvous; torch hears that it began, and how it ended."""
    _tell(run_id, "next_rendezvous", f"this node wants a place in run {run_id!r}", NodeState.INIT)
    try:
        info = next_info()
    except RendezvousGracefulExitError as error:
        _tell(run_id, "next_rendezvous", str(error), NodeState.SUCCEEDED)
        raise
    except Exception as error:
        _tell(run_id, "next_rendezvous", f"{type(error).__name__}: {error}", NodeState.FAILED)
        raise
    store = info.bootstrap_store_info
    master = "" if store is None else format_endpoint(store.master_addr, store.master_port)
    message = f"this node has rank {info.rank} of {info.world_size} in run {run_id!r}"
    _tell(run_id, "next_rendezvous", message, NodeState.RUNNING, master=master, rank=info.rank)
    return info


def tell_shutdown(run_id: str, outcome: str, reason: str) -> None:
    state = NodeState.FAILED if outcome == "failed" else NodeState.SUCCEEDED
    _tell(run_id, "shutdown", f"this node leaves run {run_id!r}: {reason or outcome}", state)


def _tell(run_id: str, name: str, message: str, state: NodeState, *, master: str = "", rank: int | None = None) -> None:
    construct_and_record_rdzv_event(
        run_id=run_id,
        name=f"FtRendezvousHandler.{name}",
        message=message,
        node_state=state,
        master_endpoint=master,
        rank=rank,
    )
