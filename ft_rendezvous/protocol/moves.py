"""Moves on the store: the protocol's reads and writes, each a short generator of operations.

One writer per key family: nodes write counts, logs, their own beat and the bell. The coordinator writes everything
else. The store does not answer a `set` or an `append`, so writes that depend on each other go over one connection, in
order. Decides nothing.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ft_rendezvous.core import recent
from ft_rendezvous.core.model import (
    Answer,
    AnyEvent,
    AnyRecord,
    Arrival,
    Called,
    Closed,
    Head,
    Inquired,
    Opened,
    Sealed,
    Seat,
    Withdrawal,
)
from ft_rendezvous.core.recent import RecentNames
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.codec import BadRecord, Keys
from ft_rendezvous.protocol.ops import (
    Add,
    Append,
    Check,
    CompareSet,
    Delete,
    Get,
    InDoubt,
    Move,
    MultiGet,
    MultiSet,
    Op,
    Set,
)

REFUSED = "refused: "
"""Prefix of a fence's reason: the node must not come back."""

BATCH = 1024
"""Keys in one request: the server begins anew with a request whenever more of it comes in, so large ones cost it more
than several small ones."""

RELAPSE = 3
"""Cycles whose keys are deleted again: a late append by a fenced node brings a deleted log back."""

LONG_LOG_BYTES = 8 * 1024
"""A log of this size is emptied when it has been read. Most cycles of up to a thousand nodes have no such log."""

MOST_COMPARED_BYTES = 4 << 20
"""A log of more than this size is not emptied: the server hangs up on a value of 8 MiB."""

NO_FENCE = b"-"
"""What the read of a fence returns if there is none. No reason of a fence is so short."""

# --- by nodes ---------------------------------------------------------------------------------------


def ring(keys: Keys) -> Move[None]:
    """Wake the coordinator. All that it should see must have been written before, on this connection."""
    yield Set(keys.bell, b"1")


def count_arrival(keys: Keys, opened: Opened) -> Move[int]:
    """This node's number among the arrivals of the cycle's log, from 1."""
    return (yield from _count(keys.arrived(opened.log_id)))


def _count(key: str) -> Move[int]:
    """Count one more. Where a broken connection leaves that in doubt, the node counts again.

    No record may ever bear the first number then. The coordinator sees that counts and records disagree, and believes
    the records after a lease.
    """
    while True:
        try:
            number: int = yield Add(key, 1)
            return number
        except InDoubt:
            continue


def write_arrival(keys: Keys, opened: Opened, arrival: Arrival) -> Move[None]:
    """Record an arrival that has been counted; ring only if it may complete a world."""
    yield _append(keys, opened, arrival)
    if arrival.seq >= opened.ring_at:
        yield from ring(keys)


def write_record(keys: Keys, opened: Opened, record: AnyRecord, must_ring: bool = True) -> Move[None]:
    """Say something about the cycle."""
    if isinstance(record, Withdrawal):
        yield from _count(keys.withdrawn(opened.log_id))
    yield _append(keys, opened, record)
    if must_ring:
        yield from ring(keys)


def _append(keys: Keys, opened: Opened, record: AnyRecord) -> Op:
    shard = codec.spread(record.incarnation, opened.shards)
    return Append(keys.log(opened.log_id, shard), codec.encode_record(record))


def beat(keys: Keys, incarnation: str, before: int, after: int) -> Move[int]:
    """Advance the beat counter. Returns the counter that the store holds then: another one than `after` means a fence.

    Compare and set may be performed twice without harm, and does not bring a deleted counter back.
    """
    expected = str(before).encode() if before else b""
    found: bytes = yield CompareSet(keys.beat(incarnation), expected, str(after).encode())
    return int(found or 0)


def find_head() -> Move[Head | None]:
    """The head of the run in this store; None if the store belongs to another program."""
    if not (yield Check([codec.HEAD_KEY])):
        return None
    return (yield from read_head())


def read_head() -> Move[Head]:
    """The head of a run that is known to be in this store."""
    return codec.decode_head((yield Get(codec.HEAD_KEY)))


def read_event(keys: Keys, no: int, channel: int) -> Move[AnyEvent | None]:
    """Block until the event is published; None if it was deleted during the read."""
    data: bytes = yield Get(keys.event(no, channel))
    return codec.decode_event(data) if data else None


def read_fence(keys: Keys, incarnation: str) -> Move[str | None]:
    """Why the coordinator took the beat away; None if there is no reason in the store. Deletes both.

    The coordinator deletes an old fence at any time, and a `Get` of a deleted key would block for ever. A compare and
    set does not block. This one returns the value of a key that exists, and changes nothing.
    """
    reason: bytes = yield CompareSet(keys.fence(incarnation), NO_FENCE, NO_FENCE)
    if reason == NO_FENCE:
        return None
    yield Delete(keys.fence(incarnation))
    yield Delete(keys.beat(incarnation))
    return reason.decode()


# --- by operators -----------------------------------------------------------------------------------


def read_answer(keys: Keys, request: str) -> Move[Answer]:
    """Wait for the coordinator's answer to a request, and delete it."""
    answer = codec.decode_answer((yield Get(keys.answer(request))))
    yield from delete_answer(keys, request)
    return answer


# --- by the coordinator -----------------------------------------------------------------------------


def publish_opened(keys: Keys, opened: Opened, head: Head) -> Move[None]:
    """Open a cycle. Its counts and logs exist before any node can hear of it, so no read of them blocks.

    The cycle of a group has none of its own. They are an operation of their own: a large `multi_set` is not performed
    at once. The server sets what has come so far and begins anew when more comes, which would reset a count that a node
    has just used.
    """
    if opened.log_id == opened.cycle_id:
        names = [keys.arrived(opened.cycle_id), keys.withdrawn(opened.cycle_id)]
        values = [b"0", b"0"]
        for shard in range(opened.shards):
            names.append(keys.log(opened.cycle_id, shard))
            values.append(b"")
        yield MultiSet(names, values)
    yield MultiSet(*_publication(keys, [opened] * opened.channels, head))


def publish_sealed(keys: Keys, sealed: Sealed, seats: Mapping[str, Seat], head: Head) -> Move[None]:
    """Seal a cycle. Every node's seat is in its channel's copy of the event."""
    channels = codec.by_channel(seats, head.view.opened.channels)
    copies = [msgspec.structs.replace(sealed, seats=channel) for channel in channels]
    yield MultiSet(*_publication(keys, copies, head))


def publish_called(keys: Keys, called: Called, head: Head) -> Move[None]:
    """Ask nodes to give up their places. A channel's copy names those that listen to it."""
    channels = head.view.opened.channels
    names: list[list[str]] = [[] for _ in range(channels)]
    for incarnation in called.draining:
        names[codec.spread(incarnation, channels)].append(incarnation)
    copies = [msgspec.structs.replace(called, draining=tuple(channel)) for channel in names]
    yield MultiSet(*_publication(keys, copies, head))


def publish_to_all(keys: Keys, event: Closed | Inquired, head: Head) -> Move[None]:
    """Publish an event that says the same to every node."""
    yield MultiSet(*_publication(keys, [event] * head.view.opened.channels, head))


def _publication(keys: Keys, copies: Sequence[AnyEvent], head: Head) -> tuple[list[str], list[bytes]]:
    """An event, one copy per channel, and the head after it. Setting any of it twice changes nothing."""
    names = [keys.event(event.no, channel) for channel, event in enumerate(copies)]
    return [*names, codec.HEAD_KEY], [*(codec.encode(event) for event in copies), codec.encode(head)]


def publish_answer(keys: Keys, answer: Answer) -> Move[None]:
    """Answer an operator's request. The operator waits for this key, and deletes it."""
    yield Set(keys.answer(answer.request), codec.encode(answer))


def delete_answer(keys: Keys, request: str) -> Move[None]:
    yield Delete(keys.answer(request))


def fence(keys: Keys, incarnation: str, reason: str) -> Move[None]:
    """End an incarnation. The reason is written first: a node that finds its beat gone may read it."""
    yield Set(keys.fence(incarnation), reason.encode())
    yield Delete(keys.beat(incarnation))


def end_beat(keys: Keys, incarnation: str) -> Move[None]:
    yield Delete(keys.beat(incarnation))


def end_fence(keys: Keys, incarnation: str) -> Move[None]:
    """Forget a fenced incarnation, and the beat it may have brought back after the fence."""
    yield Delete(keys.fence(incarnation))
    yield from end_beat(keys, incarnation)


def find_beating(keys: Keys, incarnations: Sequence[str]) -> Move[set[str]]:
    """Those of the incarnations that have a beat. One check per batch if all do; halves where some do not."""
    if len(incarnations) > BATCH:
        batches = [incarnations[start : start + BATCH] for start in range(0, len(incarnations), BATCH)]
        found: set[str] = set()
        for batch in batches:
            found |= yield from find_beating(keys, batch)
        return found
    if not incarnations:
        return set()
    if (yield Check([keys.beat(incarnation) for incarnation in incarnations])):
        return set(incarnations)
    if len(incarnations) == 1:
        return set()
    middle = len(incarnations) // 2
    left = yield from find_beating(keys, incarnations[:middle])
    right = yield from find_beating(keys, incarnations[middle:])
    return left | right


def read_beats(keys: Keys, incarnations: Sequence[str]) -> Move[dict[str, int]]:
    """Every node's beat counter. The keys must exist: a missing one would block."""
    counters: dict[str, int] = {}
    for start in range(0, len(incarnations), BATCH):
        batch = incarnations[start : start + BATCH]
        values: list[bytes] = yield MultiGet([keys.beat(incarnation) for incarnation in batch])
        counters.update((name, int(value)) for name, value in zip(batch, values, strict=True))
    return counters


def delete_logs(keys: Keys, cycles: Iterable[int], shards: int) -> Move[None]:
    """Remove the counts and logs of cycles."""
    for old in cycles:
        yield Delete(keys.arrived(old))
        yield Delete(keys.withdrawn(old))
        for shard in range(shards):
            yield Delete(keys.log(old, shard))


def delete_events(keys: Keys, first: int, last: int, channels: int) -> Move[None]:
    for no in range(first, last + 1):
        for channel in range(channels):
            yield Delete(keys.event(no, channel))


_SEQ = operator.attrgetter("seq")


@dataclass(frozen=True, slots=True)
class Reading:
    """What is new in the logs, by one read of everything."""

    records: list[AnyRecord]
    bad: list[BadRecord]


@dataclass(slots=True)
class LogReader:
    """Reads one cycle's log as it grows; decodes only what is new. Keeps nothing for each record that it has read.

    The log of a common cycle also holds the records of the groups' cycles after it, up to the next common one.
    """

    cycle_id: int
    shards: int
    long_log_bytes: int = LONG_LOG_BYTES
    newest_id: int = field(init=False)
    """The newest cycle whose records this log may hold."""
    offsets: list[int] = field(default_factory=list)
    long_logs: dict[int, bytes] = field(default_factory=dict)
    """Logs that are long enough to be emptied, by shard, as they were last read."""
    arrivals_counted: int = 0
    arrivals_missing: set[int] = field(default_factory=set)
    """Numbers that were given to arrivals which have not been read."""
    withdrawals_read: int = 0
    withdrawn: RecentNames = field(default_factory=RecentNames)
    """Incarnations that withdrew: a node that lost its connection may write a record twice."""
    is_consistent: bool = True
    """Whether counts and records agreed in the last read."""

    def __post_init__(self) -> None:
        self.offsets = [0] * self.shards
        self.newest_id = self.cycle_id

    def key_names(self, keys: Keys) -> list[str]:
        logs = [keys.log(self.cycle_id, shard) for shard in range(self.shards)]
        return [keys.arrived(self.cycle_id), keys.withdrawn(self.cycle_id), *logs]

    def take(self, values: Sequence[bytes]) -> Reading:
        """Take in the values of `key_names`, read in one step."""
        arrived, withdrawn = int(values[0]), int(values[1])
        reading = Reading([], [])
        self.long_logs.clear()
        for shard, value in enumerate(values[2:]):
            offset = self.offsets[shard]
            if self.long_log_bytes <= len(value) <= MOST_COMPARED_BYTES:
                self.long_logs[shard] = value
            if len(value) > offset:
                new = value[offset:] if offset else value
                records, bad = codec.decode_records(new, self.cycle_id, arrived, self.newest_id)
                self.offsets[shard] = len(value)
                reading.records.extend(records)
                reading.bad.extend(bad)
        others = [record for record in reading.records if type(record) is not Arrival]
        # Ten thousand arrivals may come in one read, most often with nothing between them.
        arrivals = [record for record in reading.records if type(record) is Arrival] if others else reading.records
        self._note_arrivals(arrivals, arrived)
        for record in others:
            if type(record) is Withdrawal:
                self.withdrawals_read += self.withdrawn.add(record.incarnation)
        self.is_consistent = not self.arrivals_missing and withdrawn == self.withdrawals_read
        return reading

    def _note_arrivals(self, arrivals: Iterable[AnyRecord], counted: int) -> None:
        """Note which numbers are missing. A count that no record follows for a lease does not matter any more."""
        missing, most = self.arrivals_missing, recent.MOST_REMEMBERED
        missing.update(range(max(self.arrivals_counted, counted - most) + 1, counted + 1))
        missing.difference_update(map(_SEQ, arrivals))
        if len(missing) > most:
            missing.difference_update(sorted(missing)[:-most])
        self.arrivals_counted = counted


def read_logs(keys: Keys, readers: Sequence[LogReader]) -> Move[Reading]:
    """The periodic consistent re-read: counts and logs of all given cycles in one multi-get."""
    names = [reader.key_names(keys) for reader in readers]
    values: list[bytes] = yield MultiGet([name for group in names for name in group])
    total = Reading([], [])
    start = 0
    for reader, group in zip(readers, names, strict=True):
        reading = reader.take(values[start : start + len(group)])
        start += len(group)
        total.records.extend(reading.records)
        total.bad.extend(reading.bad)
    return total


def empty_logs(keys: Keys, reader: LogReader) -> Move[None]:
    """Empty a cycle's long logs, which have been read. A log to which a node has appended since then stays as it is."""
    for shard, value in reader.long_logs.items():
        remains: bytes = yield CompareSet(keys.log(reader.cycle_id, shard), value, b"")
        if not remains:
            reader.offsets[shard] = 0
    reader.long_logs.clear()
