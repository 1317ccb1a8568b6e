"""Reads of a cycle while its nodes arrive: what a reader sees, counted.

Several writers in processes of their own let nodes arrive as nodes do, count first and record after, in bursts and for
longer than a lease. The reader reads as the coordinator does, and pauses as it does when counts and records disagree.
Whenever they agree, the snapshot must hold exactly the nodes that were counted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import msgspec
from torch.distributed import TCPStore

from benchmarks.baselines import raw
from benchmarks.children import call, serving
from benchmarks.nodes import CYCLE_ID, EPOCH, make_arrivals
from ft_rendezvous.core.model import Arrival, FirstCycle, Opened
from ft_rendezvous.protocol import codec, moves
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.coordinator import RETRY_DELAY_S
from ft_rendezvous.protocol.ops import perform_move
from ft_rendezvous.store.client import TcpStore

LIMIT_S = 120.0
BEAT_S, LEASE_S = 1.0, 5.0
"""The defaults: a coordinator pauses for at most a beat between two reads, and gives up agreement after a lease."""
WRITERS = 4
BURSTS = 25
PAUSE_S = 0.5
"""At most so long does a writer pause between two bursts; so all of them take longer than a lease."""


@dataclass(slots=True)
class Seen:
    """Counted from the first read that found anything."""

    reads: int = 0
    partial: int = 0
    """Consistent snapshots of some of the nodes."""
    wrong: int = 0
    """Snapshots that seemed consistent and were not, and reads that returned a node twice."""
    disagreed: int = 0
    most_retries: int = 0
    """Reads in a row that disagreed."""


def most_retries_in_a_lease() -> int:
    """How often a coordinator reads again before it takes the records for the truth."""
    waited_s, pause_s, count = 0.0, RETRY_DELAY_S, 0
    while waited_s < LEASE_S:
        waited_s, pause_s, count = waited_s + pause_s, min(2 * pause_s, BEAT_S), count + 1
    return count


def read_while_arriving(count: int) -> Seen:
    """Read until all have arrived."""
    shards = codec.shard_count(count)
    with serving(raw.serve) as port, ThreadPoolExecutor(WRITERS) as pool:
        store = TCPStore(raw.HOST, port, is_master=False, wait_for_workers=False)
        names = moves.LogReader(CYCLE_ID, shards).key_names(Keys(EPOCH))
        store.multi_set(names, [b"0", b"0", *[b""] * shards])  # type: ignore[attr-defined]
        writing = [pool.submit(call, LIMIT_S, arrive, port, count, writer) for writer in range(WRITERS)]
        seen = _read_until(TcpStore(store, "benchmark"), count, shards, writing)
        for each in writing:
            each.result()
    return seen


def _read_until(store: TcpStore, count: int, shards: int, writing: Sequence[Future[None]]) -> Seen:
    reader, numbers, seen = moves.LogReader(CYCLE_ID, shards), set[int](), Seen()
    retries, pause_s = 0, RETRY_DELAY_S
    while len(numbers) < count and not any(each.done() and each.exception() for each in writing):
        reading = perform_move(store, moves.read_logs(Keys(EPOCH), [reader]))
        found = [record.seq for record in reading.records if isinstance(record, Arrival)]
        seen.wrong += not numbers.isdisjoint(found) or len(set(found)) < len(found) or bool(reading.bad)
        numbers.update(found)
        if not reader.arrivals_counted:
            continue
        seen.reads += 1
        if reader.is_consistent:
            seen.wrong += numbers != set(range(1, reader.arrivals_counted + 1))
            seen.partial += len(numbers) < count
            retries, pause_s = 0, RETRY_DELAY_S
        else:
            seen.disagreed, retries = seen.disagreed + 1, retries + 1
            seen.most_retries = max(seen.most_retries, retries)
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, BEAT_S)
    return seen


def arrive(port: int, count: int, writer: int) -> None:
    """Let one writer's share of the nodes arrive, in bursts."""
    store = TcpStore(TCPStore(raw.HOST, port, is_master=False, wait_for_workers=False), "benchmark")
    keys, luck = Keys(EPOCH), random.Random(writer)
    opened = Opened(
        no=1,
        cycle_id=CYCLE_ID,
        shards=codec.shard_count(count),
        ring_at=count + 1,
        channels=1,
        why=FirstCycle(),
        log_id=CYCLE_ID,
    )
    mine = make_arrivals(count)[writer::WRITERS]
    size = -(-len(mine) // BURSTS)
    for number, arrival in enumerate(mine):
        if number % size == 0:
            time.sleep(luck.uniform(0, PAUSE_S))
        seq = perform_move(store, moves.count_arrival(keys, opened))
        perform_move(store, moves.write_arrival(keys, opened, msgspec.structs.replace(arrival, seq=seq)))
