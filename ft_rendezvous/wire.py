"""Names of keys, and bytes of values. The only module that knows either.

Every key but the identity lives under the store's epoch and the group, so that nothing of an earlier life
of the store, and nothing of another group, can be met. A log holds records as JSON lines, each wrapped in
newlines of its own, so that a bad one spoils only itself.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from ft_rendezvous.core.model import (
    FORMAT,
    GROUP,
    AnyEvent,
    AnyRecord,
    Arrival,
    Identity,
    Seat,
    View,
)
from ft_rendezvous.errors import ConfigError, ProtocolBug

IDENTITY_KEY = "ft/identity"
MAX_RECORD_BYTES = 4096
CHUNK = 64
"""Arrivals per placement chunk. A node reads the chunk of its own arrival number and no other."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Key names of one epoch."""

    epoch: str

    @property
    def _base(self) -> str:
        return f"ft/{self.epoch}/{GROUP}"

    @property
    def head(self) -> str:
        return f"{self._base}/head"

    @property
    def bell(self) -> str:
        return f"{self._base}/bell"

    def event(self, no: int) -> str:
        return f"{self._base}/event/{no}"

    def beat(self, incarnation: str) -> str:
        return f"{self._base}/beat/{incarnation}"

    def fence(self, incarnation: str) -> str:
        return f"{self._base}/fence/{incarnation}"

    def arrived(self, cycle_id: int) -> str:
        return f"{self._base}/cycle/{cycle_id}/arrived"

    def withdrawn(self, cycle_id: int) -> str:
        return f"{self._base}/cycle/{cycle_id}/withdrawn"

    def log(self, cycle_id: int, shard: int) -> str:
        return f"{self._base}/cycle/{cycle_id}/log/{shard}"

    def chunk(self, cycle_id: int, chunk: int) -> str:
        return f"{self._base}/cycle/{cycle_id}/seats/{chunk}"

    def barrier_entered(self, cycle_id: int) -> str:
        return self.agent(cycle_id, "barrier/entered")

    def barrier_complete(self, cycle_id: int) -> str:
        return self.agent(cycle_id, "barrier/complete")

    def agent(self, cycle_id: int, key: str) -> str:
        """Where the elastic agent's own key lives: what it writes in a cycle dies with the cycle."""
        return f"{self._base}/cycle/{cycle_id}/agent/{key}"


def shard_of(incarnation: str, shards: int) -> int:
    """A node keeps to one shard of a cycle's log, so its records stay in order."""
    return zlib.crc32(incarnation.encode()) % shards


def shard_count(max_nodes: int) -> int:
    """Shards per cycle: enough that no value comes near the 8 MiB at which the server hangs up."""
    return max(16, max_nodes // 2048)


# --- records ----------------------------------------------------------------------------------------

_encoder = msgspec.json.Encoder()
_record: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)
_UNDECODABLE = (msgspec.MsgspecError, ValueError, RecursionError)
"""What strict decoding raises on hostile bytes; deep nesting overflows before it is found invalid."""
_incarnation = re.compile("[0-9a-f]{16}")
_version = msgspec.json.Decoder(dict[str, msgspec.Raw])


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
            "shorten domain, role or reason"
        )
    return b"\n" + line + b"\n"


def decode_records(data: bytes, epoch: str, cycle_id: int, arrived: int) -> tuple[list[AnyRecord], list[BadRecord]]:
    """The records of a stretch of one cycle's log, and those that must not count.

    `arrived` is the cycle's count as read with the log: no honest arrival has a higher number.
    """
    lines = [line for line in data.split(b"\n") if line]
    records: list[AnyRecord] = []
    bad: list[BadRecord] = []
    for line in lines:
        reason: str | None
        try:
            record = _record.decode(line) if len(line) <= MAX_RECORD_BYTES else None
            reason = _fault(record, len(line), epoch, cycle_id, arrived)
        except _UNDECODABLE as error:
            record, reason = None, _undecodable(line, error)
        if record is not None and reason is None:
            records.append(record)
        else:
            bad.append(BadRecord(reason or "", line[:120].decode(errors="replace")))
    return records, bad


def _fault(record: AnyRecord | None, size_bytes: int, epoch: str, cycle_id: int, arrived: int) -> str | None:
    if record is None:
        return f"{size_bytes} bytes, over the {MAX_RECORD_BYTES} a record may have"
    if record.v != FORMAT:
        return f"format {record.v}, this run speaks {FORMAT}: install the same ft-rendezvous everywhere"
    if record.epoch != epoch:
        return f"written for another run (epoch {record.epoch}, this is {epoch})"
    if record.cycle_id != cycle_id:
        return f"written for cycle {record.cycle_id} into the log of cycle {cycle_id}"
    if not is_incarnation(record.incarnation):
        return "its incarnation is not 16 hex digits"
    if isinstance(record, Arrival) and not 1 <= record.seq <= arrived:
        return f"its arrival number {record.seq} was never given"
    return None


def _undecodable(line: bytes, error: Exception) -> str:
    """A record of another version often differs in fields too: name the version, it is the cause."""
    try:
        version = msgspec.json.decode(_version.decode(line)["v"], type=int)
    except (*_UNDECODABLE, KeyError):
        return f"does not decode: {error}"
    if version != FORMAT:
        return f"format {version}, this run speaks {FORMAT}: install the same ft-rendezvous everywhere"
    return f"does not decode: {error}"


def is_incarnation(text: str) -> bool:
    return _incarnation.fullmatch(text) is not None


# --- what the coordinator publishes -----------------------------------------------------------------

T = TypeVar("T")
_event: msgspec.json.Decoder[AnyEvent] = msgspec.json.Decoder(AnyEvent)
_view = msgspec.json.Decoder(View)
_seats = msgspec.json.Decoder(dict[str, Seat])
_identity = msgspec.json.Decoder(Identity)


def encode(value: AnyEvent | View | Identity | dict[str, Seat]) -> bytes:
    return _encoder.encode(value)


def _strictly(decoder: msgspec.json.Decoder[T], data: bytes, what: str) -> T:
    try:
        return decoder.decode(data)
    except msgspec.DecodeError as error:
        raise ProtocolBug(f"the coordinator's {what} does not decode: {error}") from error


def decode_event(data: bytes) -> AnyEvent:
    return _strictly(_event, data, "event")


def decode_view(data: bytes) -> View:
    return _strictly(_view, data, "head")


def decode_seats(data: bytes) -> dict[str, Seat]:
    return _strictly(_seats, data, "placement")


def decode_identity(data: bytes) -> Identity:
    """The store's identity; the version is checked before the rest, which may have changed with it."""
    try:
        version = msgspec.json.decode(_version.decode(data)["v"], type=int)
    except (msgspec.DecodeError, KeyError) as error:
        raise ConfigError(f"the store at this endpoint is not an ft rendezvous: {error}") from error
    if version != FORMAT:
        raise ConfigError(
            f"the run speaks format {version}, this node {FORMAT}: install the same ft-rendezvous everywhere"
        )
    return _strictly(_identity, data, "identity")


def chunk_seats(seats: Sequence[tuple[int, str, Seat]]) -> list[dict[str, Seat]]:
    """Seats by chunk of arrival number; every chunk up to the last exists, so that no reader blocks."""
    last = max((seq for seq, _, _ in seats), default=0)
    chunks: list[dict[str, Seat]] = [{} for _ in range(chunk_of(last) + 1)]
    for seq, incarnation, seat in seats:
        chunks[chunk_of(seq)][incarnation] = seat
    return chunks


def chunk_of(seq: int) -> int:
    """Arrival numbers count from 1."""
    return max(seq - 1, 0) // CHUNK
