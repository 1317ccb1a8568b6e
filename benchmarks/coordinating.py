"""What one world costs the coordinator: the real one, on a dictionary instead of a store."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.consumption import cpu_of
from benchmarks.measure import require
from benchmarks.nodes import CYCLE_ID, EPOCH, make_arrivals
from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.lifecycle import Phase
from ft_rendezvous.core.model import AnyRecord, Arrival
from ft_rendezvous.host.host import began
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.coordinator import Coordinator
from ft_rendezvous.protocol.journal import Entry
from ft_rendezvous.protocol.ops import Check, CompareSet, Delete, Get, MultiGet, MultiSet, Op, Set, perform_move
from ft_rendezvous.state.record.recorder import Recorder


@dataclass(slots=True)
class Shelf:
    """A store that is a dictionary, and remembers what it was asked for."""

    values: dict[str, bytes] = field(default_factory=dict)
    asked: list[Op] = field(default_factory=list)

    def perform(self, op: Op) -> Any:
        self.asked.append(op)
        match op:
            case Get(key):
                return self.values[key]
            case MultiGet(keys):
                return [self.values[key] for key in keys]
            case Check(keys):
                return all(key in self.values for key in keys)
            case Set(key, value):
                self.values[key] = value
            case MultiSet(keys, values):
                self.values.update(zip(keys, values, strict=True))
            case Delete(key):
                self.values.pop(key, None)
            case CompareSet(key, expected, desired):
                if self.values[key] == expected:
                    self.values[key] = desired
                return self.values[key]
            case _:
                raise AssertionError(f"a coordinator does not {type(op).__name__}")
        return None


@dataclass(frozen=True, slots=True)
class Coordinated:
    """What a coordinator needed for one world, per node, and how large its messages are."""

    arrival_s: float
    look_s: float
    record_s: float
    record_bytes: float
    seal_bytes: float
    head_bytes: float
    asked: Sequence[Op]
    """What it asked the store for, from the last arrival to the seal."""


def time_coordinator(count: int) -> Coordinated:
    """Let the coordinator form a world of `count` nodes that have all arrived, then look at their beats once."""
    now = [0.0]
    shelf, keys = Shelf(), Keys(EPOCH)
    settings = RunSettings(run_id="benchmark", min_nodes=count, max_nodes=count)
    entries: list[Entry] = [began(settings, EPOCH)]
    coordinator = Coordinator(settings, EPOCH, lambda: now[0], entries.append)
    perform_move(shelf, coordinator.start())
    log_bytes = arrive(shelf, keys, make_arrivals(count))
    shelf.asked.clear()
    gc.collect()
    formed_s = cpu_of(lambda: perform_move(shelf, coordinator.tick()))
    require(coordinator.phase is Phase.SEALED, "the coordinator did not seal")
    asked = tuple(shelf.asked)
    copies = [value for key, value in shelf.values.items() if key.startswith(keys.event(2, 0)[:-1])]
    now[0] += settings.beat_s
    looked_s = cpu_of(lambda: perform_move(shelf, coordinator.tick()))
    require(len(coordinator.roster.members) == count, "the coordinator lost nodes")
    return Coordinated(
        arrival_s=formed_s / count,
        look_s=looked_s / count,
        record_s=_record(entries) / count,
        record_bytes=log_bytes / count,
        seal_bytes=statistics.mean(map(len, copies)),
        head_bytes=len(shelf.values[codec.HEAD_KEY]),
        asked=asked,
    )


def _record(entries: Sequence[Entry]) -> float:
    """CPU time to record these entries."""
    started = time.process_time()
    recorder = Recorder()
    for entry in entries:
        recorder(entry)
    recorder.close()
    return time.process_time() - started


def arrive(shelf: Shelf, keys: Keys, arrivals: Sequence[Arrival]) -> int:
    """Let these nodes arrive. Returns the bytes they wrote."""
    for arrival in arrivals:
        shelf.values[keys.beat(arrival.incarnation)] = b"1"
    shelf.values[keys.arrived(CYCLE_ID)] = str(len(arrivals)).encode()
    return write_logs(shelf, keys, arrivals)


def write_logs(shelf: Shelf, keys: Keys, records: Sequence[AnyRecord]) -> int:
    """Append these records to the logs. Returns their bytes."""
    shards = codec.shard_count(len(records))
    logs: list[list[bytes]] = [[] for _ in range(shards)]
    for record in records:
        logs[codec.spread(record.incarnation, shards)].append(codec.encode_record(record))
    for shard, lines in enumerate(logs):
        key = keys.log(CYCLE_ID, shard)
        shelf.values[key] = b"".join([shelf.values.get(key, b""), *lines])
    return sum(len(line) for lines in logs for line in lines)
