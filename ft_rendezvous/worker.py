"""What a training script may call: it can ask for this worker's place in the run, and speak with its agent.

A message is one datagram. No call raises because of how the process was started: a script that uses this module also
runs without this backend. Only `is_place_trusted` waits, for an answer. Importing this module loads only the standard
library.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass

from ft_rendezvous.agent.datagrams import open_socket, receive, send_at_once
from ft_rendezvous.agent.worker_messages import (
    AgentMessage,
    CheckpointMessage,
    DrainMessage,
    Fault,
    GroupLostMessage,
    PlaceAnswer,
    PlaceQuestion,
    RestartMessage,
    SubscribeMessage,
    WorkerMessage,
    decode_from_agent,
    encode,
    socket_name,
)
from ft_rendezvous.env_names import INBOX_VARIABLE
from ft_rendezvous.text import one_line

log = logging.getLogger("ft_rendezvous")

GroupLostCallback = Callable[[int, str], None]
"""Gets the number of the lost group, and the reason."""


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
    group: int = 0
    """The replica group of this worker. `rank`, `world_size` and `node_rank` are those within the group."""
    group_count: int = 1
    """How many replica groups the run has or wants, whichever was more when this worker was started."""

    @property
    def rank_over_groups(self) -> int:
        """The rank over all groups, if every group has as many workers as this one."""
        return self.group * self.world_size + self.rank


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
        group=_number("FT_GROUP_ID") or 0,
        group_count=_number("NUM_REPLICA_GROUPS") or 1,
    )


def request_restart(reason: str) -> bool:
    """Ask that all workers of this replica group restart in a new cycle. Most runs have one group.

    False if there is no agent to ask.
    """
    return _send(RestartMessage, reason=one_line(reason))


def request_drain(reason: str = "") -> bool:
    """Ask to drain this node: it gives up its place in the next cycle. False if there is no agent to ask."""
    return _send(DrainMessage, reason=one_line(reason))


def at_checkpoint() -> bool:
    """Report that a checkpoint has just been written: if a cycle waits for a checkpoint, it opens now.

    False if there is no agent to ask.
    """
    return _send(CheckpointMessage)


def on_group_lost(callback: GroupLostCallback) -> bool:
    """Call `callback(group, reason)` each time another replica group is lost. False if there is no agent to tell it.

    A thread of this module calls it, for one group after another. It holds for this process, not for its forks.
    """
    with _subscription.lock:
        if _subscription.socket is None:
            message, address = _compose(SubscribeMessage), _inbox_address()
            if message is None or address is None:
                return False
            try:
                _subscription.socket = _send_from_own_socket(message, address)
            except OSError:
                return False
            arguments = (_subscription, _subscription.socket, message.cycle_id)
            threading.Thread(target=_listen, args=arguments, name="ft-listen", daemon=True).start()
        _subscription.callbacks.append(callback)
    return True


def is_place_trusted(timeout_s: float) -> bool:
    """Ask the agent whether this worker's place still stands. False if it does not, or if no answer comes in time.

    A process that stood still for long may have lost its place meanwhile. Its agent knows, or finds out at once.
    """
    message, address = _compose(PlaceQuestion), _inbox_address()
    if message is None or address is None:
        return False
    try:
        with _send_from_own_socket(message, address) as sock:
            sock.settimeout(timeout_s)
            answer = _receive(sock)
    except OSError:
        return False
    return isinstance(answer, PlaceAnswer) and answer.cycle_id == message.cycle_id and answer.is_trusted


class _Subscription:
    """The socket at which this process hears of lost groups, and what to call then."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.socket: socket.socket | None = None
        self.callbacks: list[GroupLostCallback] = []


def _listen(subscription: _Subscription, sock: socket.socket, cycle_id: int) -> None:
    """Hear what the agent says, until this process ends. If the agent is gone, nothing more comes."""
    while (said := _receive(sock)) is not None:
        if not isinstance(said, GroupLostMessage) or said.cycle_id != cycle_id:
            continue
        with subscription.lock:
            callbacks = list(subscription.callbacks)
        for callback in callbacks:
            try:
                callback(said.group, said.reason)
            except Exception:  # An error of one callback must not stop the others, or later calls.
                log.exception("the callback for the lost group %d failed", said.group)


def _receive(sock: socket.socket) -> AgentMessage | Fault | None:
    """What the agent says, or what is wrong with a datagram. None if the socket was shut down."""
    datagram = receive(sock, os.getuid())
    if datagram is None or isinstance(datagram.content, Fault):
        return None if datagram is None else Fault.FOREIGN
    return decode_from_agent(datagram.content)


def _start_anew_in_fork() -> None:
    """A fork has no thread that listens, and perhaps a lock that nobody releases. Its parent keeps the subscription."""
    global _subscription
    former, _subscription = _subscription, _Subscription()
    if former.socket is not None:
        former.socket.close()


_subscription = _Subscription()
os.register_at_fork(after_in_child=_start_anew_in_fork)


def _send_from_own_socket(message: WorkerMessage, address: str) -> socket.socket:
    """Send a message without waiting. Returns the socket to which the agent can answer."""
    sock = open_socket("")
    try:
        sock.setblocking(False)
        sock.sendto(encode(message), socket_name(address))
        sock.setblocking(True)
    except BaseException:
        sock.close()
        raise
    return sock


def _send(message_type: type[WorkerMessage], **fields: str) -> bool:
    """Send a message to the agent's inbox. False if the inbox is full or gone: training must not stop for that."""
    message, address = _compose(message_type, **fields), _inbox_address()
    if message is None or address is None:
        return False
    try:
        send_at_once(encode(message), socket_name(address))
    except OSError:
        return False
    return True


def _compose(message_type: type[WorkerMessage], **fields: str) -> WorkerMessage | None:
    cycle_id, local_rank = _number("FT_CYCLE_ID"), _number("LOCAL_RANK")
    if cycle_id is None or local_rank is None:
        return None
    return message_type(cycle_id=cycle_id, local_rank=local_rank, **fields)


def _inbox_address() -> str | None:
    address = os.environ.get(INBOX_VARIABLE, "")
    return address if address.startswith("@") else None


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None
