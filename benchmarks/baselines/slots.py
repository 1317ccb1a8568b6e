"""The layout that other rendezvous use: one key per participant, and a count beside them.

As the field reads it, there is one `check` and one `multi_get` for all slots; the store's time for a request grows with
the square of its keys, so that requests of a thousand keys are much faster. The count is read before and after,
because slots are not read in one step with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, make_dataclass
from enum import StrEnum
from typing import Any

import msgspec
from torch.distributed import Store

from benchmarks.nodes import CYCLE_ID
from ft_rendezvous.core.model import AnyRecord, Arrival
from ft_rendezvous.protocol import codec

COUNT_KEY = "slots/count"
BATCH = 1_024

Participant = make_dataclass("Participant", Arrival.__struct_fields__, frozen=True, slots=True)
"""An arrival as a plain dataclass, as other rendezvous decode it."""


class Kind(StrEnum):
    """What is in a slot."""

    OBJECT = "object"
    """A JSON object with names, as other rendezvous have it."""
    RECORD = "record"
    """A record as ours."""


def slot_key(index: int, kind: Kind = Kind.OBJECT) -> str:
    return f"slots/{kind}/{index}"


def write_slots(store: Store, arrivals: Sequence[Arrival]) -> None:
    """Let every node have arrived, in slots of both kinds."""
    for kind, encode in ((Kind.OBJECT, encode_slot), (Kind.RECORD, codec.encode_record)):
        for start in range(0, len(arrivals), BATCH):
            some = range(start, min(start + BATCH, len(arrivals)))
            keys = [slot_key(index, kind) for index in some]
            store.multi_set(keys, [encode(arrivals[index]) for index in some])  # type: ignore[attr-defined]
    store.set(COUNT_KEY, str(len(arrivals)))


def encode_slot(arrival: Arrival) -> bytes:
    named = msgspec.structs.asdict(arrival)
    return msgspec.json.encode({**named, "node": msgspec.structs.asdict(arrival.node)})


def decode_json(slots: Sequence[bytes]) -> list[Any]:
    return [Participant(**json.loads(slot)) for slot in slots]


def decode_records(slots: Sequence[bytes]) -> list[AnyRecord]:
    """With our codec and its checks, to see what the layout alone costs."""
    records, bad = codec.decode_records(b"".join(slots), CYCLE_ID, len(slots))
    assert not bad
    return records


@dataclass(frozen=True, slots=True)
class Reader:
    """One way to read slots."""

    kind: Kind
    decode: Callable[[Sequence[bytes]], Sequence[Any]]
    batch: int | None = None
    """How many slots to ask for at a time; None: all."""

    def read(self, store: Store) -> Sequence[Any]:
        """A consistent snapshot: all slots of a count that did not change meanwhile."""
        while True:
            count = int(store.get(COUNT_KEY))
            size = self.batch or count
            batches = [
                [slot_key(index, self.kind) for index in range(start, min(start + size, count))]
                for start in range(0, count, size)
            ]
            if not all(store.check(keys) for keys in batches):
                continue
            slots = [slot for keys in batches for slot in store.multi_get(keys)]
            if int(store.get(COUNT_KEY)) == count:
                return self.decode(slots)


READERS = {
    "slots, JSON": Reader(Kind.OBJECT, decode_json),
    "slots, JSON, by the thousand": Reader(Kind.OBJECT, decode_json, BATCH),
    "slots, our codec, by the thousand": Reader(Kind.RECORD, decode_records, BATCH),
}
"""As other rendezvous read them, and in better ways."""
