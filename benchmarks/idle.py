"""A large world in which nothing happens: many nodes that only beat, and one real node among them.

The many nodes are participants in one process and one thread, with one connection each, and without a thread that
listens. They join, read the seal, and beat as real nodes do, evenly spread over the interval. The one real node has its
threads and both its connections, in a process of its own.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any
from unittest import mock

from benchmarks import ours
from benchmarks.consumption import cpu_s
from benchmarks.crowd import in_thread
from benchmarks.measure import require
from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.model import Head
from ft_rendezvous.host.serve import new_id
from ft_rendezvous.node import dialing
from ft_rendezvous.protocol import moves
from ft_rendezvous.protocol.ops import Op, Rest, Store, perform_move
from ft_rendezvous.protocol.participant import Participant, Place
from ft_rendezvous.store.client import connect
from ft_rendezvous.store.net import raise_file_limit
from ft_rendezvous.store.raw_client import StoreSocket

SETTLE_BEATS = 2
AGENT_S = 0.1
"""How often torch's agent asks whether its workers must stop."""


@dataclass(slots=True)
class Tally:
    operations: int = 0


class CountedStore:
    """Counts an operation when it is answered: a read that still waits has not cost anything yet."""

    def __init__(self, store: Store, tally: Tally) -> None:
        self._store, self._tally = store, tally

    def perform(self, op: Op) -> Any:
        reply = self._store.perform(op)
        self._tally.operations += 1
        return reply


class CountedSocket(CountedStore):
    """The same for a connection of the real node."""

    def __init__(self, socket: StoreSocket, tally: Tally) -> None:
        super().__init__(socket, tally)
        self._socket = socket

    def close(self) -> None:
        self._socket.close()


# --- the many ---------------------------------------------------------------------------------------


class IdleNode:
    """A participant without threads."""

    def __init__(self, run: RunSettings, port: int, index: int, tally: Tally) -> None:
        self._store = CountedStore(connect(ours.HOST, port), tally)
        head = self.read_head()
        self.participant = Participant(
            epoch=head.epoch,
            node=ours.node_info(index),
            lease_s=run.lease_s,
            clock=time.monotonic,
            new_incarnation=new_id,
            hold_bootstrap=lambda *_: 1,
            on_enlisted=lambda: None,
            greeted=head.view,
        )
        self._routine = self.participant.next_place()
        self._reply: Any = None

    def read_head(self) -> Head:
        return perform_move(self._store, moves.read_head())

    def go_on(self) -> Place | None:
        """Take part until there is nothing to do but wait; the place, once there is one."""
        while True:
            try:
                op = self._routine.send(self._reply)
            except StopIteration as stop:
                place: Place = stop.value
                return place
            if isinstance(op, Rest):
                self._reply = None
                return None
            self._reply = self._store.perform(op)

    def hear_event(self) -> None:
        """Read the next event; waits for it."""
        watch = self.participant.watch(self.participant.incarnation)
        op = next(watch)
        assert not isinstance(op, Rest), "its lease has run out"
        watch.send(self._store.perform(op))

    def beat(self) -> None:
        perform_move(self._store, self.participant.beat())
        require(not self.participant.pulse.is_fenced, "an idle node was fenced: the machine is too slow for so many")


@dataclass(slots=True)
class Crowd:
    """Idle nodes and when each beats next."""

    run: RunSettings
    tally: Tally
    nodes: list[IdleNode]
    due: deque[tuple[float, IdleNode]] = field(default_factory=deque)

    def enlist(self) -> None:
        """All join. Whoever has joined beats while the others do."""
        for node in self.nodes:
            require(node.go_on() is None, "a world was formed without the real node")
            self.due.append((time.monotonic() + self.run.beat_s, node))
            self.beat_due()

    def take_places(self, has_ended: threading.Event) -> None:
        """Wait for the seal as the one real node comes, and let all nodes read it."""
        while self.nodes[0].participant.view.sealed is None:  # type: ignore[union-attr]
            self.beat_due()
            if has_ended.wait(0.01):
                return
            if self._is_sealed():
                self.nodes[0].hear_event()
        for node in self.nodes[1:]:
            node.hear_event()
            self.beat_due()
        for node in self.nodes:
            require(node.go_on() is not None, "a node has no place")
        began, step_s = time.monotonic(), self.run.beat_s / len(self.nodes)
        self.due = deque((began + number * step_s, node) for number, node in enumerate(self.nodes))

    def _is_sealed(self) -> bool:
        return self.nodes[0].read_head().view.sealed is not None

    def beat_due(self) -> float:
        """Let every node beat whose time has come. Returns when the next node must beat."""
        while self.due[0][0] <= time.monotonic():
            planned_at, node = self.due.popleft()
            node.beat()
            self.due.append((planned_at + self.run.beat_s, node))
        return self.due[0][0]


@contextmanager
def crowding(run: RunSettings, port: int, outbox: Connection) -> Iterator[int]:
    """All nodes but one, idle. At the end, tells how many operations each performed per second, or what went wrong."""
    count = run.min_nodes - 1
    raise_file_limit(count + 256)
    tally, has_ended = Tally(), threading.Event()
    crowd = Crowd(run, tally, [IdleNode(run, port, index, tally) for index in range(count)])
    crowd.enlist()

    def stay_alive() -> float:
        crowd.take_places(has_ended)
        began, before = time.monotonic(), tally.operations
        while not has_ended.is_set():
            has_ended.wait(max(0.0, crowd.beat_due() - time.monotonic()))
        return (tally.operations - before) / (time.monotonic() - began) / count

    beating = in_thread(stay_alive)
    yield os.getpid()
    has_ended.set()
    outbox.send(beating.exception() or beating.result())


# --- the one ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Idled:
    """What a window of time has cost."""

    seconds: float
    operations: int
    """Of the real node, on both its connections."""
    node_cpu_s: float
    host_cpu_s: float


def watch_idle(run: RunSettings, port: int, host_pid: int, window_s: float) -> Idled:
    """Complete the world as its last node, and see what nothing costs."""
    tally = Tally()
    with mock.patch.object(dialing, "StoreSocket", lambda *where: CountedSocket(StoreSocket(*where), tally)):
        node = ours.open_node(run, port, run.min_nodes - 1)
    node.join()
    time.sleep(SETTLE_BEATS * run.beat_s)
    # The kernel tells of other processes in hundredths of a second, which is more than a node uses.
    before = (time.monotonic(), tally.operations, time.process_time(), cpu_s(host_pid))
    while time.monotonic() < before[0] + window_s:
        require(node.handler.num_nodes_waiting() == 0, "the world did not stand: a node was lost")
        time.sleep(AGENT_S)
    after = (time.monotonic(), tally.operations, time.process_time(), cpu_s(host_pid))
    seconds, operations, node_cpu_s, host_cpu_s = (b - a for a, b in zip(before, after, strict=True))
    return Idled(seconds, int(operations), node_cpu_s, host_cpu_s)
