"""Torch's own event records of a rendezvous, as its other backends emit them.

A site that has plugged a handler into `torch.distributed.elastic.events` gets our events, too. By default there is no
handler, and then torch does not even build an event.
"""

from __future__ import annotations

from collections.abc import Callable

from torch.distributed.elastic.events import NodeState, construct_and_record_rdzv_event
from torch.distributed.elastic.rendezvous.api import RendezvousGracefulExitError, RendezvousInfo

from ft_rendezvous.config.addresses import format_endpoint


def record_rendezvous(run_id: str, next_info: Callable[[], RendezvousInfo]) -> RendezvousInfo:
    """Run the next rendezvous, and record that it began and how it ended."""
    _record(run_id, "next_rendezvous", f"this node wants a place in run {run_id!r}", NodeState.INIT)
    try:
        info = next_info()
    except RendezvousGracefulExitError as error:
        _record(run_id, "next_rendezvous", str(error), NodeState.SUCCEEDED)
        raise
    except Exception as error:
        _record(run_id, "next_rendezvous", f"{type(error).__name__}: {error}", NodeState.FAILED)
        raise
    store = info.bootstrap_store_info
    master = "" if store is None else format_endpoint(store.master_addr, store.master_port)
    message = f"this node has rank {info.rank} of {info.world_size} in run {run_id!r}"
    _record(run_id, "next_rendezvous", message, NodeState.RUNNING, master=master, rank=info.rank)
    return info


def record_shutdown(run_id: str, outcome: str, reason: str) -> None:
    """Record that this node leaves its run."""
    state = NodeState.FAILED if outcome == "failed" else NodeState.SUCCEEDED
    _record(run_id, "shutdown", f"this node leaves run {run_id!r}: {reason or outcome}", state)


def _record(
    run_id: str, name: str, message: str, state: NodeState, *, master: str = "", rank: int | None = None
) -> None:
    construct_and_record_rdzv_event(
        run_id=run_id,
        name=f"FtRendezvousHandler.{name}",
        message=message,
        node_state=state,
        master_endpoint=master,
        rank=rank,
    )
