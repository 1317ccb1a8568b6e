"""Bare TCPStore operations: the floor under everything built on it.

A node performs the operations that a node of ours performs to get its seat, over one connection, with values
of the same size. Nobody decides anything: the last to be counted publishes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed import TCPStore

from benchmarks.crowd import Formed, Join, Seat, form_world
from benchmarks.nodes import make_arrivals
from ft_rendezvous import wire
from ft_rendezvous.core.model import Sealed, WorkerRanks
from ft_rendezvous.core.model import Seat as PublishedSeat

HOST = "127.0.0.1"
MASTER = "127.0.0.1:29500"
SHARDS = 16

NODE_OPERATIONS = ("add", "add", "append", "get", "get")
"""What `form` performs per node; a test compares it with what a node of ours performs."""


@contextmanager
def serve() -> Iterator[int]:
    """A TCPStore server of this process on a port that the system gives."""
    store = TCPStore(HOST, 0, is_master=True, wait_for_workers=False)
    store.set("head", "x" * 800)
    yield store.port


def form(count: int, port: int) -> Formed:
    record = wire.encode_record(make_arrivals(1)[0])
    seats = {f"{seq:016x}": PublishedSeat(seq, WorkerRanks(8, 64, 8, 64)) for seq in range(min(count, 64))}
    sealed = Sealed(no=2, cycle_id=1, world_size=count, counted=count, master_addr=HOST, master_port=29500, seats=seats)
    event = wire.encode(sealed)

    def connect(index: int) -> Join:
        store = TCPStore(HOST, port, is_master=False, wait_for_workers=False)

        def join() -> Seat:
            store.add(f"beat/{index}", 1)
            number = store.add("arrived", 1)
            store.append(f"log/{index % SHARDS}", record)  # type: ignore[attr-defined]
            store.get("head")
            if number == count:
                store.multi_set(["sealed", "head"], [event, b"x" * 800])  # type: ignore[attr-defined]
            store.get("sealed")
            return Seat(number - 1, count, MASTER)

        return join

    return form_world(count, connect)
