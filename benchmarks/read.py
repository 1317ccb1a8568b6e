"""`read`: a consistent snapshot of all nodes of a cycle, as typed records.

This is the part of the coordinator's work that reads the nodes' records. It also reads the beats, which are not part of
this. The first read decodes all records. A re-read finds nothing new; with slots, the only way to know that is to read
all slots again. Other rendezvous ask for all slots in one request. "By the thousand" is a better way, which none of
them uses. A sample is the mean of several reads in a row, the same number for every contender: 3 or 5 up to 10,000
nodes, one for 100,000 nodes. One read before them does not count.
"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from torch.distributed import Store, TCPStore

from benchmarks.arriving import most_retries_in_a_lease, read_while_arriving
from benchmarks.baselines import raw
from benchmarks.baselines.slots import COUNT_KEY, READERS, Reader, write_slots
from benchmarks.children import serving
from benchmarks.measure import OURS, Case, Finding, Sample, in_a_row, require, timed
from benchmarks.nodes import CYCLE_ID, EPOCH, make_arrivals
from ft_rendezvous.core.model import Arrival
from ft_rendezvous.protocol import codec, moves
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.ops import perform_move
from ft_rendezvous.store.client import TcpStore

NAME = "read"
PART_BYTES = 4 << 20
"""How much a raw `get` asks for at a time: the store hangs up on values of more than 8 MiB."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How often a case is measured."""

    rounds: int
    reads: int
    """How many reads in a row are a sample, of every contender; one before them is not counted. 0: one, and none."""


EFFORTS = {
    1_000: Effort(15, 5),
    4_096: Effort(9, 3),
    10_000: Effort(9, 3),
    32_768: Effort(3, 1),
    100_000: Effort(3, 0),
}
"""One read of 100,000 slots takes the store half a minute."""
GROWTH_ROUNDS, GROWTH_READS = 7, 3
MOST_GROWTH = 1.5
QUICK_EFFORTS = {1_000: Effort(5, 1), 10_000: Effort(1, 0)}


def cases(is_quick: bool) -> list[Case]:
    return [
        Case(
            NAME,
            f"{count:,} nodes, {'re-read' if is_again else 'first read'}",
            effort.rounds,
            partial(_prepare, count, effort.reads, is_again),
            warm_ups=0,
        )
        for count, effort in (QUICK_EFFORTS if is_quick else EFFORTS).items()
        for is_again in (False, True)
    ]


def findings(is_quick: bool) -> list[Finding]:
    return [*_find_growth(*((1_000, 10_000) if is_quick else (10_000, 100_000))), *_find_inconsistent(is_quick)]


def _find_growth(few: int, many: int) -> list[Finding]:
    """Our time per node of many nodes, to that of few, read alike and by turns: 1 where time grows with the nodes."""
    with _reading(few) as reads_of_few, _reading(many) as reads_of_many:
        gc.freeze()
        growths = {
            name: [
                in_a_row(reads_of_many[name], GROWTH_READS)() / in_a_row(sample, GROWTH_READS)()
                for _ in range(GROWTH_ROUNDS)
            ]
            for name, sample in reads_of_few.items()
        }
    return [judge_growth(name, few, many, ratios) for name, ratios in growths.items()]


def judge_growth(name: str, few: int, many: int, ratios: Sequence[float]) -> Finding:
    value = statistics.median(ratios) * few / many
    case, aim = f"{few:,} to {many:,} nodes, {name}", f"at most {MOST_GROWTH:g}"
    return Finding(NAME, case, "ours: growth of the time per node", value, "×", aim, value <= MOST_GROWTH)


@contextmanager
def _reading(count: int) -> Iterator[Mapping[str, Sample]]:
    with _filled(count) as (store, _):
        yield {"first read": partial(sample_ours, store, count), "re-read": _reread(store, count)}


def _find_inconsistent(is_quick: bool) -> list[Finding]:
    """Reads while nodes arrive: whether any snapshot was inconsistent, and how often one had to be read again."""
    count = 1_000 if is_quick else 10_000
    case = f"{count:,} nodes arrive meanwhile"
    seen, bound = read_while_arriving(count), most_retries_in_a_lease()
    return [
        Finding(NAME, case, "reads from the first arrival on", seen.reads, ""),
        Finding(NAME, case, "of them consistent, of some nodes", seen.partial, "", "at least 10", seen.partial >= 10),
        Finding(NAME, case, "snapshots or reads with a record missing or twice", seen.wrong, "", "0", seen.wrong == 0),
        Finding(NAME, case, "reads whose counts and records disagreed", seen.disagreed, ""),
        Finding(
            NAME, case, "most of those in a row", seen.most_retries, "", f"at most {bound}", seen.most_retries <= bound
        ),
    ]


@contextmanager
def _prepare(count: int, reads: int, is_again: bool) -> Iterator[Mapping[str, Sample]]:
    with _filled(count) as (store, size_bytes):
        ours: Sample = _reread(store, count) if is_again else partial(sample_ours, store, count)
        samples: dict[str, Sample] = {
            OURS: ours,
            "raw get": partial(_sample_get, store, size_bytes),
            **{name: partial(sample_slots, store, count, reader) for name, reader in READERS.items()},
        }
        yield {name: in_a_row(sample, reads) for name, sample in samples.items()}


@contextmanager
def _filled(count: int) -> Iterator[tuple[TCPStore, int]]:
    """A store in which so many nodes have arrived, and the bytes of their records."""
    with serving(raw.serve) as port:
        store = TCPStore(raw.HOST, port, is_master=False, wait_for_workers=False)
        yield store, fill(store, count)


def fill(store: Store, count: int) -> int:
    """Let `count` nodes arrive in every layout. Returns the bytes of their records."""
    keys, shards = Keys(EPOCH), codec.shard_count(count)
    arrivals = make_arrivals(count)
    logs = [b""] * shards
    for arrival in arrivals:
        logs[codec.spread(arrival.incarnation, shards)] += codec.encode_record(arrival)
    for shard, log in enumerate(logs):
        store.set(keys.log(CYCLE_ID, shard), log)  # type: ignore[arg-type]
    blob = b"".join(logs)
    for part in range(part_count(len(blob))):
        store.set(f"blob/{part}", blob[part * PART_BYTES :][:PART_BYTES])  # type: ignore[arg-type]
    store.set(keys.arrived(CYCLE_ID), str(count))
    store.set(keys.withdrawn(CYCLE_ID), "0")
    write_slots(store, arrivals)
    store.get(COUNT_KEY)  # Writes are not acknowledged: the first reader must not wait for them to land.
    return sum(map(len, logs))


def sample_ours(store: TCPStore, count: int) -> float:
    seconds, (reader, reading) = timed(partial(_read_first, store, count))
    _check_first(reader, reading, count)
    return seconds


def _reread(store: TCPStore, count: int) -> Sample:
    """Reads once; what it returns reads again."""
    reader, reading = _read_first(store, count)
    _check_first(reader, reading, count)

    def sample() -> float:
        seconds, again = timed(lambda: _read(store, reader))
        require(not again.records and not again.bad, "the re-read found something that was not written")
        require(reader.is_consistent and reader.arrivals_counted == count, "the re-read lost track")
        return seconds

    return sample


def _read_first(store: TCPStore, count: int) -> tuple[moves.LogReader, moves.Reading]:
    reader = moves.LogReader(CYCLE_ID, codec.shard_count(count))
    return reader, _read(store, reader)


def _read(store: TCPStore, reader: moves.LogReader) -> moves.Reading:
    return perform_move(TcpStore(store, "benchmark"), moves.read_logs(Keys(EPOCH), [reader]))


def _check_first(reader: moves.LogReader, reading: moves.Reading, count: int) -> None:
    require(reader.is_consistent and not reading.bad, "counts and records disagree")
    numbers = sorted(record.seq for record in reading.records if isinstance(record, Arrival))
    require(numbers == list(range(1, count + 1)), f"{len(reading.records)} records instead of {count}")


def sample_slots(store: TCPStore, count: int, reader: Reader) -> float:
    seconds, records = timed(lambda: reader.read(store))
    require([record.seq for record in records] == list(range(1, count + 1)), "slots are missing")
    return seconds


def _sample_get(store: TCPStore, size_bytes: int) -> float:
    parts = [f"blob/{part}" for part in range(part_count(size_bytes))]
    seconds, got = timed(lambda: [store.get(part) for part in parts])
    require(sum(map(len, got)) == size_bytes, "bytes are missing")
    return seconds


def part_count(size_bytes: int) -> int:
    return -(-size_bytes // PART_BYTES)
