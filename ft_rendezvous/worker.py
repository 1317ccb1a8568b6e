"""What a training script may call: it can ask for this worker's place in the run, and send its agent three messages.

A message is one datagram. No call waits, and no call raises because of how the process was started: a script that uses
this module also runs without this backend. Importing it loads only the standard library.
"""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from ft_rendezvous.agent.worker_messages import (
    CheckpointMessage,
    DrainMessage,
    RestartMessage,
    WorkerMessage,
    encode,
    socket_name,
)
from ft_rendezvous.env_names import INBOX_VARIABLE
from ft_rendezvous.text import one_line


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """This worker's place in the run, in the cycle for which it was started."""

    run_id: str
    cycle_id: int
    rank: int
    world_size: int
    node_rank: int
    role: str
    domain: str | None
    infra_rank: int | None


def info() -> WorkerInfo | None:
    """This worker's place. None if this process is not a worker under this backend."""
    cycle_id, node_rank = _number("FT_CYCLE_ID"), _number("FT_NODE_RANK")
    rank, world_size = _number("RANK"), _number("WORLD_SIZE")
    run_id, role = os.environ.get("TORCHELASTIC_RUN_ID"), os.environ.get("ROLE_NAME")
    if cycle_id is None or node_rank is None or rank is None or world_size is None or run_id is None or role is None:
        return None
    return WorkerInfo(
        run_id=run_id,
        cycle_id=cycle_id,
        rank=rank,
        world_size=world_size,
        node_rank=node_rank,
        role=role,
        domain=os.environ.get("FT_NODE_DOMAIN") or None,
        infra_rank=_number("FT_NODE_INFRA_RANK"),
    )


def request_restart(reason: str) -> bool:
    """Ask that all workers of the run restart in a new cycle. False if there is no agent to ask."""
    return _send(RestartMessage, reason=one_line(reason))


def request_drain(reason: str = "") -> bool:
    """Ask to drain this node: it gives up its place in the next cycle. False if there is no agent to ask."""
    return _send(DrainMessage, reason=one_line(reason))


def at_checkpoint() -> bool:
    """Report that a checkpoint has just been written: if a cycle waits for a checkpoint, it opens now.

    False if there is no agent to ask.
    """
    return _send(CheckpointMessage)


def _send(message_type: type[WorkerMessage], **fields: str) -> bool:
    """Send a message to the agent's inbox. False if the inbox is full or gone: training must not stop for that."""
    cycle_id, local_rank = _number("FT_CYCLE_ID"), _number("LOCAL_RANK")
    address = os.environ.get(INBOX_VARIABLE, "")
    if cycle_id is None or local_rank is None or not address.startswith("@"):
        return False
    message = message_type(cycle_id=cycle_id, local_rank=local_rank, **fields)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sock:
            sock.sendto(encode(message), socket_name(address))
    except OSError:
        return False
    return True


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None
