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
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, Generic, TypeVar

from benchmarks.crowd import Formed, Seat
from benchmarks.load import speech
from ft_rendezvous.protocol.ops import Move
from ft_rendezvous.store.net import raise_file_limit

T = TypeVar("T")

HOST = "127.0.0.1"
BATCH = 200
"""Connections opened at a time: fewer than any listener's backlog."""
FILES_BESIDE = 256
"""Files that a process has open beside its connections."""
GREETING_TIMEOUT_S = 30.0
HEARD_BYTES = 1 << 14


class _Caller(Generic[T]):
    """A node on its connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.result: T | None = None
        self._talk: speech.Talk[T] | None = None
        self._read: speech.Reader = speech.read_waited
        self._heard = b""

    def begin(self, move: Move[T]) -> None:
        self.result, self._talk = None, speech.talk(move)
        self._go_on(None)

    def hear(self) -> None:
        part = self.socket.recv(HEARD_BYTES)
        if not part:
            raise ConnectionResetError("the store hung up")
        heard = self._heard + part
        answer = self._read(heard)
        if answer is None:
            self._heard = heard
        else:
            self._heard = b""
            self._go_on(answer)

    def _go_on(self, answer: Any) -> None:
        """Take in an answer and ask what follows, if anything does."""
        assert self._talk is not None, "the store said something unasked"
        try:
            said, self._read = self._talk.send(answer)
        except StopIteration as stop:
            self.result = stop.value
            return
        if self.socket.send(said) < len(said):
            raise BlockingIOError("a question did not fit into the socket's buffer")


class Crowd(Generic[T]):
    """So many nodes that the store knows; their connections end with the block. The result of a move is not None."""

    def __init__(self, port: int, count: int) -> None:
        raise_file_limit(count + FILES_BESIDE)
        self._waiting = 0
        with ExitStack() as stack:
            sockets = [stack.enter_context(sock) for sock in connect(port, count)]
            self._selector = stack.enter_context(selectors.DefaultSelector())
            self._callers: list[_Caller[T]] = [_Caller(sock) for sock in sockets]
            for caller in self._callers:
                self._selector.register(caller.socket, selectors.EVENT_READ, caller)
            self._opened = stack.pop_all()

    def __enter__(self) -> Crowd[T]:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def begin(self, moves: Mapping[int, Move[T]]) -> None:
        """Let nodes, by index, ask the first question of a move each."""
        for index, move in moves.items():
            caller = self._callers[index]
            caller.begin(move)
            self._waiting += caller.result is None

    def perform(self) -> list[T]:
        """Perform the moves that have begun until each has its result. Returns the last result of every node."""
        while self._waiting:
            for ready, _ in self._selector.select():
                caller = ready.data
                caller.hear()
                self._waiting -= caller.result is not None
        return [caller.result for caller in self._callers if caller.result is not None]


def form_world(port: int, moves: Sequence[Move[Seat]], around: Callable[[], None] = lambda: None) -> Formed:
    """Connect a node for every move, release them together, and perform the moves until each node has its seat.

    `around` is called when the clock starts, and when it stops.
    """
    with Crowd[Seat](port, len(moves)) as crowd:
        gc.collect()
        gc.freeze()  # What is there stays there: looking through it again would be part of the time.
        around()
        started_at, busy_before = time.perf_counter(), time.process_time()
        crowd.begin(dict(enumerate(moves)))
        seats = crowd.perform()
        ended_at, busy_after = time.perf_counter(), time.process_time()
        around()
    return Formed(ended_at - started_at, seats, busy_after - busy_before)


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
