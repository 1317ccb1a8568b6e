"""Bare TCPStore operations: the floor under everything built on it.

A node performs the operations that a node of ours performs to get its seat, over one connection, with keys and values
of the same size. Nobody decides anything: the last to be counted publishes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed import TCPStore

from benchmarks.crowd import NODES_PER_PROCESS, Formed, Join, Seat, form_world
from benchmarks.nodes import CYCLE_ID, EPOCH, make_arrivals
from ft_rendezvous.core.model import Arrival, Master, Sealed, WorkerRanks
from ft_rendezvous.core.model import Seat as PublishedSeat
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.ops import Add, Append, CompareSet, Get, Move, MultiSet, perform_move
from ft_rendezvous.store.client import TcpStore
from ft_rendezvous.store.net import raise_file_limit

HOST = "127.0.0.1"
MASTER = "127.0.0.1:29500"
HEAD = b"x" * 890
FILES = 20_000
"""As many as any crowd here needs, if the system allows it."""
_KEYS = Keys(EPOCH)
_SEALED_KEY = _KEYS.event(2, 0)


@contextmanager
def serve() -> Iterator[int]:
    """A TCPStore server of this process on a port that the system gives."""
    raise_file_limit(FILES)
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    store.set(codec.HEAD_KEY, HEAD)  # type: ignore[arg-type]
    yield store.port


def form(count: int, port: int, per_process: int = NODES_PER_PROCESS) -> Formed:
    """Form a world of `count` nodes, a thread each."""
    raise_file_limit(FILES)
    arrivals, event = make_arrivals(count), make_event(count)

    def connect(index: int) -> Join:
        store = TcpStore(TCPStore(HOST, port, is_master=False, wait_for_workers=False), "benchmark")
        move = take_part(count, arrivals[index], event)
        return lambda: perform_move(store, move)

    return form_world(count, connect, per_process)


def make_event(count: int) -> bytes:
    """As long as what a node of ours reads its seat from."""
    names = min(count, codec.NODES_PER_CHANNEL)
    seats = {f"{seq:016x}": PublishedSeat(seq, WorkerRanks(8, 64, 8, 64)) for seq in range(names)}
    return codec.encode(
        Sealed(no=2, cycle_id=1, world_size=count, counted=count, masters={0: Master(HOST, 29500)}, seats=seats)
    )


def take_part(count: int, arrival: Arrival, event: bytes) -> Move[Seat]:
    """One node's operations, with nothing left to compute between them."""
    shard = codec.spread(arrival.incarnation, codec.shard_count(count))
    beat, arrived = CompareSet(_KEYS.beat(arrival.incarnation), b"", b"1"), Add(_KEYS.arrived(CYCLE_ID), 1)
    record = Append(_KEYS.log(CYCLE_ID, shard), codec.encode_record(arrival))

    def perform() -> Move[Seat]:
        yield beat
        number: int = yield arrived
        yield record
        yield Get(codec.HEAD_KEY)
        if number == count:
            yield MultiSet([_SEALED_KEY, codec.HEAD_KEY], [event, HEAD])
        yield Get(_SEALED_KEY)
        return Seat(number - 1, count, MASTER)

    return perform()
