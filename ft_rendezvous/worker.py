"""What a training script may call: it can ask for this worker's place in the run, and speak with its agent.

A message is one datagram. No call raises because of how the process was started: a script that uses this module also
runs without this backend. Only `is_place_trusted` waits, for an answer. Importing this module loads only the standard
library.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from typing import Any

from ft_rendezvous.agent.datagrams import open_socket, receive, send_at_once
from ft_rendezvous.agent.progress_cells import STACK_SIGNAL, CellWriter, create_memory
from ft_rendezvous.agent.update_message import UpdateMessage, cut_to_fit
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
from ft_rendezvous.env_names import INBOX_VARIABLE, PROGRESS_VARIABLE
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


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateStep:
    """How long one step of an update took."""

    name: str
    duration_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateReport:
    """How an update went: several parties changed together to a version, or were to."""

    version: int
    outcome: str
    """`completed` or `failed`."""
    attempts: int
    parties: int
    """How many took part in the first attempt."""
    updated: int
    """How many have the version now."""
    failed: tuple[str, ...]
    """The names of the parties that failed."""
    steps: tuple[UpdateStep, ...]
    duration_s: float
    lost_s: float
    """Time of attempts that failed, with their clean-up."""
    reason: str = ""
    """The first error, in one line."""


def report_update(report: UpdateReport) -> bool:
    """Report an update, for those who look at the run. It changes nothing. False if there is no agent to tell.

    One worker reports an update, not all of them. Long names and reasons are cut.
    """
    message, address = _compose(UpdateMessage, **_fields_of(report)), _inbox_address()
    return isinstance(message, UpdateMessage) and address is not None and _deliver(cut_to_fit(message), address)


def _fields_of(report: UpdateReport) -> dict[str, Any]:
    values = {item.name: getattr(report, item.name) for item in fields(report)}
    steps = tuple((step.name, step.duration_s) for step in report.steps)
    return values | {"failed_count": len(report.failed), "steps": steps}


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


def progress(step: int) -> bool:
    """Say that this worker has made a step. Takes about a microsecond. False if no agent watches its progress.

    A worker that has said so once, and then does not say it again for `hang_timeout`, is late.
    """
    cell = _progress.cell or _progress.open()
    if cell is None:
        return False
    cell.move(step)
    return True


@contextlib.contextmanager
def pause_progress(reason: str) -> Iterator[None]:
    """Announce that no progress is to be expected within this block: a checkpoint, an evaluation, a compilation.

    Neither this worker nor those that wait for it are late meanwhile. Pauses may be nested, also in several threads.
    """
    cell = _progress.cell or _progress.open()
    if cell is None:
        yield
        return
    with _progress.lock:
        cell.pause(one_line(reason) or "no reason given")
    try:
        yield
    finally:
        with _progress.lock:
            cell.resume()


def watch_optimizer() -> bool:
    """Take every step of any torch optimizer of this process for progress. False if no agent watches its progress."""
    if _progress.cell is None and _progress.open() is None:
        return False
    if not _progress.watches_optimizer:
        from ft_rendezvous.agent.optimizer_progress import watch_steps  # noqa: PLC0415 - this needs torch.

        watch_steps(progress)
        _progress.watches_optimizer = True
    return True


class _Progress:
    """This worker's progress cell, once it is open."""

    def __init__(self) -> None:
        self.cell: CellWriter | None = None
        self.lock = threading.RLock()
        """A signal handler may announce a pause while its own thread is about to announce one."""
        self.watches_optimizer = False
        self._is_refused = False
        self._stacks = -1

    def open(self) -> CellWriter | None:
        """The cell; None if no agent watches the progress of this process. It is looked for once."""
        path, cycle_id, local_rank = os.environ.get(PROGRESS_VARIABLE), _number("FT_CYCLE_ID"), _number("LOCAL_RANK")
        with self.lock:
            if self.cell is not None or self._is_refused:
                return self.cell
            if not path or cycle_id is None or local_rank is None:
                self._is_refused = True
                return None
            try:
                cell = CellWriter(path, local_rank, cycle_id)
                self._offer_stacks(cell)
            except (OSError, ValueError):
                self._is_refused = True
                return None
            self.cell = cell
            return cell

    def _offer_stacks(self, cell: CellWriter) -> None:
        """Let the agent see where this worker is, even if it hangs, if the system allows that.

        A signal that the script uses is left alone.
        """
        if signal.getsignal(STACK_SIGNAL) is not signal.SIG_DFL:
            return
        try:
            self._stacks = create_memory("ft-stacks")
        except OSError:
            return
        faulthandler.register(STACK_SIGNAL, file=self._stacks, all_threads=True, chain=False)
        cell.offer_stacks(self._stacks)


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
    global _progress, _subscription
    _progress = _Progress()
    former, _subscription = _subscription, _Subscription()
    if former.socket is not None:
        former.socket.close()


_subscription = _Subscription()
_progress = _Progress()
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


def _send(message_type: type[WorkerMessage], **values: str) -> bool:
    """Send a message to the agent's inbox. False if the inbox is full or gone: training must not stop for that."""
    message, address = _compose(message_type, **values), _inbox_address()
    return message is not None and address is not None and _deliver(message, address)


def _deliver(message: WorkerMessage, address: str) -> bool:
    try:
        send_at_once(encode(message), socket_name(address))
    except OSError:
        return False
    return True


def _compose(message_type: type[WorkerMessage], **values: Any) -> WorkerMessage | None:
    cycle_id, local_rank = _number("FT_CYCLE_ID"), _number("LOCAL_RANK")
    if cycle_id is None or local_rank is None:
        return None
    return message_type(cycle_id=cycle_id, local_rank=local_rank, **values)


def _inbox_address() -> str | None:
    address = os.environ.get(INBOX_VARIABLE, "")
    return address if address.startswith("@") else None


def _number(name: str) -> int | None:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None
