"""Names of keys, and bytes of values. The only module that knows either.

Every key but the head lives under the store's epoch, so that nothing of an earlier life of the store can be met. A log
holds records as JSON lines, each wrapped in newlines of its own, so that a bad one spoils only itself.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from ft_rendezvous.core.model import (
    INCARNATION_DIGITS,
    STORE_FORMAT,
    Answer,
    AnyEvent,
    AnyRecord,
    Arrival,
    Head,
    NodeInfo,
    Seat,
    UpdateNews,
)
from ft_rendezvous.errors import ConfigError, ProtocolBug

HEAD_KEY = "ft/head"
MAX_RECORD_BYTES = 4096
NODES_PER_CHANNEL = 64
"""About how many nodes share a channel: each of them reads the seats of all."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names of one epoch."""

    epoch: str

    @property
    def _base(self) -> str:
        return f"ft/{self.epoch}/run"

    @property
    def bell(self) -> str:
        return f"{self._base}/bell"

    def event(self, no: int, channel: int) -> str:
        return f"{self._base}/event/{no}/{channel}"

    def beat(self, incarnation: str) -> str:
        return f"{self._base}/beat/{incarnation}"

    def fence(self, incarnation: str) -> str:
        return f"{self._base}/fence/{incarnation}"

    def answer(self, request: str) -> str:
        return f"{self._base}/answer/{request}"

    def arrived(self, cycle_id: int) -> str:
        return f"{self._base}/cycle/{cycle_id}/arrived"

    def withdrawn(self, cycle_id: int) -> str:
        return f"{self._base}/cycle/{cycle_id}/withdrawn"

    def log(self, cycle_id: int, shard: int) -> str:
        return f"{self._base}/cycle/{cycle_id}/log/{shard}"

    @property
    def window_bell(self) -> str:
        return f"{self._base}/window/bell"

    @property
    def window_count(self) -> str:
        return f"{self._base}/window/count"

    def window_ask(self, number: int) -> str:
        return f"{self._base}/window/ask/{number}"

    def window_answer(self, number: int, part: int) -> str:
        return f"{self._base}/window/answer/{number}/{part}"

    def agent(self, cycle_id: int, key: str) -> str:
        """A key that the elastic agent itself writes in a cycle. It stays until the store ends: nothing deletes it."""
        return f"{self._base}/cycle/{cycle_id}/agent/{key}"


def spread(incarnation: str, count: int) -> int:
    """Which of `count` shards or channels an incarnation keeps to: its records, and its events, stay in order."""
    return zlib.crc32(incarnation.encode()) % count


def shard_count(max_nodes: int) -> int:
    """Shards per cycle: enough that no value comes near the 8 MiB at which the server hangs up."""
    return max(16, max_nodes // 2048)


def channel_count(max_nodes: int) -> int:
    """Channels per run: few enough that an event is published at once, so many that a seat is found in few."""
    return max(1, max_nodes // NODES_PER_CHANNEL)


# --- records ----------------------------------------------------------------------------------------

_encoder = msgspec.json.Encoder()
_record: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)
_UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What strict decoding raises on hostile bytes; deep nesting overflows before it is found invalid."""
_hex_digits = re.compile("[0-9a-f]*")
_version = msgspec.json.Decoder(dict[str, msgspec.Raw])
_elements = msgspec.json.Decoder(list[msgspec.Raw])


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A record that was refused. The run goes on without it."""

    reason: str
    excerpt: str


def encode_record(record: AnyRecord) -> bytes:
    """A framed record. Raises ConfigError if it is too large to be accepted."""
    line = _encoder.encode(record)
    if len(line) > MAX_RECORD_BYTES:
        raise ConfigError(
            f"this node's record has {len(line)} bytes, over the {MAX_RECORD_BYTES} a record may have: "
            "shorten domain, unit, role or reason"
        )
    return b"\n" + line + b"\n"


def is_record_small(record: AnyRecord) -> bool:
    """Whether a record may be written."""
    return len(_encoder.encode(record)) <= MAX_RECORD_BYTES


def check_node(node: NodeInfo) -> None:
    """Raise ConfigError if this node could not write its arrival: before it is counted, and others wait for it."""
    most = 1 << 31
    encode_record(
        Arrival(
            cycle_id=most,
            incarnation="0" * INCARNATION_DIGITS,
            seq=most,
            node=node,
            bootstrap_port=most,
        )
    )


def decode_records(
    data: bytes, cycle_id: int, arrived: int, newest_id: int | None = None
) -> tuple[list[AnyRecord], list[BadRecord]]:
    """The records of a stretch of one cycle's log, and those that must not count.

    `arrived` is the log's count as read with it: no honest arrival has a higher number. A log also holds the records of
    groups' cycles, up to `newest_id`.
    """
    cycles = range(cycle_id, (cycle_id if newest_id is None else newest_id) + 1)
    try:
        records = _record.decode_lines(data)
    except _UNDECODABLE:
        return _decode_one_by_one(data, cycles, arrived)
    if _has_long_line(data) or not _are_faultless(records, cycles, arrived):
        return _decode_one_by_one(data, cycles, arrived)
    return records, []


def _has_long_line(data: bytes) -> bool:
    """Whether any record is larger than it may be. Leaps from one newline to the last that may follow it."""
    at, longest = 0, MAX_RECORD_BYTES + 2  # With the newlines around it.
    while len(data) - at > longest:
        following = data.rfind(b"\n", at, at + longest)
        if following <= at:
            return True
        at = following
    return False


def _are_faultless(records: Sequence[AnyRecord], cycles: range, arrived: int) -> bool:
    """Whether `_fault` finds nothing in any of them, in a tenth of the time."""
    first, last = cycles[0], cycles[-1]
    return (
        not [record for record in records if not first <= record.cycle_id <= last]
        and _are_hex_digits("".join([record.incarnation for record in records]))
        and not [
            record
            for record in records
            if (record.seq > arrived if type(record) is Arrival else _is_of_later(record, last))
        ]
    )


def _are_hex_digits(text: str) -> bool:
    """As the regular expression would say, in a fraction of the time."""
    return text.isascii() and not text.encode().translate(None, b"0123456789abcdef")


def _decode_one_by_one(data: bytes, cycles: range, arrived: int) -> tuple[list[AnyRecord], list[BadRecord]]:
    """Decode records. A bad record does not affect the others; it is returned with the reason."""
    records: list[AnyRecord] = []
    bad: list[BadRecord] = []
    for line in filter(None, data.split(b"\n")):
        reason: str | None
        try:
            record = _record.decode(line) if len(line) <= MAX_RECORD_BYTES else None
            reason = _fault(record, len(line), cycles, arrived)
        except _UNDECODABLE as error:
            record, reason = None, _undecodable(line, error)
        if record is not None and reason is None:
            records.append(record)
        else:
            bad.append(BadRecord(reason or "", line[:120].decode(errors="replace")))
    return records, bad


def _fault(record: AnyRecord | None, size_bytes: int, cycles: range, arrived: int) -> str | None:
    if record is None:
        return f"{size_bytes} bytes, over the {MAX_RECORD_BYTES} a record may have"
    if record.cycle_id not in cycles:
        return f"written for cycle {record.cycle_id} into the log of cycle {cycles[0]}"
    if not is_incarnation(record.incarnation):
        return "its incarnation is not 16 hex digits"
    if isinstance(record, Arrival) and record.seq > arrived:
        return f"its arrival number {record.seq} was never given"
    if _is_of_later(record, cycles[-1]):
        return "it reports updates of a cycle that has not been opened"
    return None


def _is_of_later(record: AnyRecord, newest_id: int) -> bool:
    """Whether a record is about workers of a cycle that is not there yet."""
    return type(record) is UpdateNews and record.worker_cycle_id > newest_id


def _undecodable(line: bytes, error: Exception) -> str:
    """A record of another version often differs in fields too: name the version, it is the cause."""
    try:
        version = msgspec.json.decode(_elements.decode(line)[1], type=int)
    except (*_UNDECODABLE, IndexError):
        return f"does not decode: {error}"
    if version != STORE_FORMAT:
        return f"format {version}, this run speaks {STORE_FORMAT}: install the same ft-rendezvous everywhere"
    return f"does not decode: {error}"


def is_incarnation(text: str) -> bool:
    return len(text) == INCARNATION_DIGITS and _hex_digits.fullmatch(text) is not None


# --- what the coordinator publishes -----------------------------------------------------------------

T = TypeVar("T")
_event: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_head = msgspec.json.Decoder(Head)
_answer = msgspec.json.Decoder(Answer)


def encode(value: AnyEvent | Head | Answer) -> bytes:
    return _encoder.encode(value)


def _strictly(decoder: msgspec.json.Decoder[T], data: bytes, what: str) -> T:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ProtocolBug(f"the coordinator's {what} does not decode: {error}") from error


def decode_event(data: bytes) -> AnyEvent:
    return _strictly(_event, data, "event")


def decode_answer(data: bytes) -> Answer:
    return _strictly(_answer, data, "answer")


def decode_head(data: bytes) -> Head:
    """The run's head; the version is checked before the rest, which may have changed with it."""
    try:
        version = msgspec.json.decode(_version.decode(data)["v"], type=int)
    except (msgspec.DecodeError, KeyError) as error:
        raise ConfigError(f"the store at this endpoint is not an ft rendezvous: {error}") from error
    if version != STORE_FORMAT:
        raise ConfigError(
            f"the run speaks format {version}, this node {STORE_FORMAT}: install the same ft-rendezvous everywhere"
        )
    return _strictly(_head, data, "head")


def by_channel(seats: Mapping[str, Seat], channels: int) -> list[dict[str, Seat]]:
    """Seats as each channel's copy of a seal carries them."""
    spread_out: list[dict[str, Seat]] = [{} for _ in range(channels)]
    for incarnation, seat in seats.items():
        spread_out[spread(incarnation, channels)][incarnation] = seat
    return spread_out
