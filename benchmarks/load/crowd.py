"""Performs the moves of thousands of nodes, one connection each, in one thread.

A node has at most one question on its way, as the protocol orders it; nothing is sent ahead. All nodes are connected
and known to the store before the clock starts.
"""

from __future__ import annotations

import gc
import os
import selectors
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from benchmarks.crowd import Formed, Seat
from benchmarks.load import speech
from ft_rendezvous.protocol.ops import Move
from ft_rendezvous.store.net import raise_file_limit

HOST = "127.0.0.1"
BATCH = 200
"""Connections opened at a time: fewer than any listener's backlog."""
FILES_BESIDE = 256
"""Files that a process has open beside its connections."""
GREETING_TIMEOUT_S = 30.0
HEARD_BYTES = 1 << 14


@dataclass(slots=True, eq=False)
class _Caller:
    """A node on its connection."""

    socket: socket.socket
    talk: speech.Talk[Seat]
    read: speech.Reader = speech.read_waited
    heard: bytes = b""
    seat: Seat | None = None

    def go_on(self, answer: Any) -> None:
        """Take in an answer and ask what follows, if anything does."""
        try:
            said, self.read = self.talk.send(answer)
        except StopIteration as stop:
            self.seat = stop.value
            return
        if self.socket.send(said) < len(said):
            raise BlockingIOError("a question did not fit into the socket's buffer")

    def hear(self) -> None:
        part = self.socket.recv(HEARD_BYTES)
        if not part:
            raise ConnectionResetError("the store hung up")
        heard = self.heard + part
        answer = self.read(heard)
        if answer is None:
            self.heard = heard
        else:
            self.heard = b""
            self.go_on(answer)


def form_world(port: int, moves: Sequence[Move[Seat]], around: Callable[[], None] = lambda: None) -> Formed:
    """Connect a node for every move, release them together, and perform the moves until each node has its seat.

    `around` is called when the clock starts, and when it stops.
    """
    raise_file_limit(len(moves) + FILES_BESIDE)
    with ExitStack() as stack:
        sockets = [stack.enter_context(sock) for sock in connect(port, len(moves))]
        callers = [_Caller(sock, speech.talk(move)) for sock, move in zip(sockets, moves, strict=True)]
        selector = stack.enter_context(selectors.DefaultSelector())
        for caller in callers:
            selector.register(caller.socket, selectors.EVENT_READ, caller)
        gc.collect()
        gc.freeze()  # What is there stays there: looking through it again would be part of the time.
        around()
        started_at, busy_before = time.perf_counter(), time.process_time()
        _perform(selector, callers)
        ended_at, busy_after = time.perf_counter(), time.process_time()
        around()
    seats = [caller.seat for caller in callers if caller.seat is not None]
    return Formed(ended_at - started_at, seats, busy_after - busy_before)


def _perform(selector: selectors.BaseSelector, callers: Iterable[_Caller]) -> None:
    waiting = 0
    for caller in callers:
        caller.go_on(None)
        waiting += caller.seat is None
    while waiting:
        for ready, _ in selector.select():
            caller = ready.data
            caller.hear()
            waiting -= caller.seat is not None


def connect(port: int, count: int) -> Iterator[socket.socket]:
    """Connections that the store has greeted, opened in batches."""
    for start in range(0, count, BATCH):
        batch = [socket.create_connection((HOST, port), GREETING_TIMEOUT_S) for _ in range(min(BATCH, count - start))]
        nonces = [os.urandom(speech.NONCE_BYTES) for _ in batch]
        for sock, nonce in zip(batch, nonces, strict=True):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(speech.greet(nonce))
        for sock, nonce in zip(batch, nonces, strict=True):
            if sock.recv(len(nonce), socket.MSG_WAITALL) != nonce:
                raise ConnectionError("what listens there is not a TCPStore")
            sock.setblocking(False)
        yield from batch
