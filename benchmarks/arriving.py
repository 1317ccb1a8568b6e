"""Reads of a cycle while its nodes arrive: what a reader sees, counted.

A writer in a process of its own lets nodes arrive as nodes do: count first, record after. The reader reads as the
coordinator does, and pauses as it does when counts and records disagree. Whenever they agree, the snapshot must hold
exactly the nodes that were counted.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from torch.distributed import TCPStore

from benchmarks.baselines import raw
from benchmarks.children import call, serving
from benchmarks.nodes import CYCLE_ID, EPOCH, make_arrivals
from ft_rendezvous import board, wire
from ft_rendezvous.coordinator import RETRY_S
from ft_rendezvous.core.model import Arrival, FirstCycle, Opened
from ft_rendezvous.ports import perform_move
from ft_rendezvous.tcp_store import TcpStore
from ft_rendezvous.wire import Keys

LIMIT_S = 120.0
BEAT_S, LEASE_S = 1.0, 5.0
"""The defaults: a coordinator pauses for at most a beat between two reads, and gives up agreement after a lease."""


@dataclass(frozen=True, slots=True)
class Seen:
    reads: int
    wrong: int
    """Snapshots that were taken for consistent and were not."""
    disagreed: int
    most_retries: int
    """Reads in a row that disagreed."""


def most_retries_in_a_lease() -> int:
    """How often a coordinator reads again before it takes the records for the truth."""
    waited_s, pause_s, count = 0.0, RETRY_S, 0
    while waited_s < LEASE_S:
        waited_s, pause_s, count = waited_s + pause_s, min(2 * pause_s, BEAT_S), count + 1
    return count


def read_while_arriving(count: int) -> Seen:
    """Read until all have arrived."""
    shards = wire.shard_count(count)
    with serving(raw.serve) as port, ThreadPoolExecutor(1) as pool:
        store = TCPStore(raw.HOST, port, is_master=False, wait_for_workers=False)
        names = board.LogReader(CYCLE_ID, shards).key_names(Keys(EPOCH))
        store.multi_set(names, [b"0", b"0", *[b""] * shards])  # type: ignore[attr-defined]
        writing = pool.submit(call, LIMIT_S, arrive, port, count)
        seen = _read_until(TcpStore(store, "benchmark"), count, shards, writing)
        writing.result()
    return seen


def _read_until(store: TcpStore, count: int, shards: int, writing: Future[None]) -> Seen:
    reader, numbers = board.LogReader(CYCLE_ID, shards), set[int]()
    reads = wrong = disagreed = retries = most_retries = 0
    pause_s = RETRY_S
    while len(numbers) < count and not (writing.done() and writing.exception()):
        reading = perform_move(store, board.read_logs(Keys(EPOCH), [reader]))
        reads += 1
        found = [record.seq for record in reading.records if isinstance(record, Arrival)]
        is_twice = not numbers.isdisjoint(found) or len(set(found)) < len(found)
        numbers.update(found)
        if reader.is_consistent:
            wrong += is_twice or numbers != set(range(1, reader.arrivals_counted + 1))
            retries, pause_s = 0, RETRY_S
        else:
            disagreed, retries = disagreed + 1, retries + 1
            most_retries = max(most_retries, retries)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, BEAT_S)
    return Seen(reads, wrong, disagreed, most_retries)


def arrive(port: int, count: int) -> None:
    """Let nodes arrive, one after the other."""
    store = TcpStore(TCPStore(raw.HOST, port, is_master=False, wait_for_workers=False), "benchmark")
    keys = Keys(EPOCH)
    opened = Opened(
        no=1, cycle_id=CYCLE_ID, shards=wire.shard_count(count), ring_at=count + 1, channels=1, why=FirstCycle()
    )
    for arrival in make_arrivals(count):
        assert perform_move(store, board.count_arrival(keys, CYCLE_ID)) == arrival.seq
        perform_move(store, board.write_arrival(keys, opened, arrival))
