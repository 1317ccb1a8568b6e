"""A gloo process group that carries weights for one update. A wait in it can be ended by another thread.

Gloo has no such way: `abort` of a gloo process group returns only when the pending collective has timed out. So every
wait is a poll in Python, and ends when `abort` sets an event. What gloo still has under way is left to its own timeout.
"""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import torch
from torch.distributed import BroadcastOptions, ProcessGroupGloo, TCPStore

Address = tuple[str, int]

POLL_S = 0.002
GLOO_TIMEOUT = timedelta(seconds=120)
"""When gloo itself gives up. The steps of an update have their own, shorter deadlines."""


class GroupKilled(ConnectionError):
    """Another thread has ended this group."""


class WeightGroup:
    """The process group of one try of an update, with a store of its own: no rank of another try can meet it."""

    def __init__(self, address: Address, rank: int, size: int) -> None:
        self.address = address
        self._rank, self._size = rank, size
        self._killed = threading.Event()
        self._gloo: Any = None
        self._works: list[Any] = []

    def connect(self) -> None:
        """Meet the other ranks. Gloo blocks until all are there: it does that in a thread that may be left behind."""
        met: Future[Any] = Future()

        def meet() -> None:
            try:
                met.set_result(self._meet())
            except BaseException as error:  # It is raised in the thread that waits.
                met.set_exception(error)

        threading.Thread(target=meet, name="meet", daemon=True).start()
        self._wait(met.done)
        self._gloo = met.result()

    def _meet(self) -> Any:
        store = TCPStore(*self.address, is_master=False, wait_for_workers=False, timeout=GLOO_TIMEOUT)
        options = ProcessGroupGloo._Options()
        options._timeout = GLOO_TIMEOUT
        options._threads = 2
        options._devices = [ProcessGroupGloo.create_device(hostname=_own_address(self.address))]
        return ProcessGroupGloo(store, self._rank, self._size, options)

    def broadcast(self, tensor: torch.Tensor) -> None:
        """Rank 0's tensor comes to all."""
        options = BroadcastOptions()
        options.rootRank = 0
        self._finish(self._gloo.broadcast([tensor], options))

    def meet_all(self) -> None:
        """No rank goes on before all are here."""
        self._finish(self._gloo.barrier())

    def _finish(self, work: Any) -> None:
        self._works.append(work)
        self._wait(work.is_completed)
        work.wait()  # It is over: this raises its error.
        self._works.remove(work)

    def _wait(self, is_over: Callable[[], bool]) -> None:
        while not is_over():
            if self._killed.wait(POLL_S):
                raise GroupKilled("the process group was killed")

    def abort(self) -> None:
        self._killed.set()

    @property
    def is_busy(self) -> bool:
        """Gloo has work under way: to destroy this group would block until gloo's timeout."""
        return any(not work.is_completed() for work in self._works)


class GroupMember:
    """Joins and leaves the process group of an update. Its methods are called by an update's steps, in any thread."""

    def __init__(self) -> None:
        self._group: WeightGroup | None = None
        self._killed_address: Address | None = None
        self._busy_groups: list[WeightGroup] = []
        """Groups that this member has left. Each is kept until it can be destroyed without a wait."""

    def join(self, address: Address, rank: int, size: int) -> None:
        self._group = WeightGroup(address, rank, size)
        if address == self._killed_address:  # The calls came in the other order.
            raise GroupKilled("the process group was killed before this rank joined")
        self._group.connect()

    def kill_group(self, address: Address) -> None:
        """Release a call that waits in this group, or will."""
        self._killed_address = address
        group = self._group
        if group is not None and group.address == address:
            group.abort()

    def leave_group(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.abort()
            self._busy_groups = [each for each in (*self._busy_groups, group) if each.is_busy]

    @property
    def group(self) -> WeightGroup:
        if self._group is None:
            raise RuntimeError("it is in no process group: join first")
        return self._group


def checksum_of(tensors: Iterable[torch.Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:12]


def _own_address(peer: Address) -> str:
    """The address of this machine that the peer can reach."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect(peer)
        return str(probe.getsockname()[0])
