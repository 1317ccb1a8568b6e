"""The layout the field uses: one key per participant, a count beside them.

Written as well as the layout allows: one `check` and one `multi_get` for all slots. The count is read before
and after, because slots are not read in one step with it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import make_dataclass
from typing import Any, TypeVar

import msgspec
from torch.distributed import Store

from ft_rendezvous.core.model import Arrival

R = TypeVar("R")
COUNT_KEY = "slots/count"


class SlotNode(msgspec.Struct, frozen=True):
    """What an arrival tells of its node, by name."""

    addr: str
    pid: int
    infra_rank: int | None
    domain_id: str | None
    unit_id: str | None
    role: str | None
    local_world_size: int | None
    born_us: int


class SlotArrival(msgspec.Struct, frozen=True):
    """An arrival as the field writes it: an object with names."""

    v: int
    cycle_id: int
    incarnation: str
    seq: int
    node: SlotNode
    bootstrap_port: int


Participant = make_dataclass("Participant", SlotArrival.__struct_fields__, frozen=True, slots=True)
"""The same as a plain dataclass, which is what the field decodes to."""


def slot_key(index: int) -> str:
    return f"slots/arrived/{index}"


def write_slots(store: Store, arrivals: Sequence[Arrival]) -> None:
    """Let every node have arrived."""
    keys = [slot_key(index) for index in range(len(arrivals))]
    values = [encode_slot(arrival) for arrival in arrivals]
    for start in range(0, len(keys), 1_024):
        store.multi_set(keys[start : start + 1_024], values[start : start + 1_024])  # type: ignore[attr-defined]
    store.set(COUNT_KEY, str(len(arrivals)))


def encode_slot(arrival: Arrival) -> bytes:
    named = msgspec.structs.asdict(arrival)
    return msgspec.json.encode({**named, "node": msgspec.structs.asdict(arrival.node)})


def decode_json(slots: Sequence[bytes]) -> list[Any]:
    return [Participant(**json.loads(slot)) for slot in slots]


_arrival = msgspec.json.Decoder(SlotArrival)


def decode_msgspec(slots: Sequence[bytes]) -> list[SlotArrival]:
    """With our codec, to see what the layout alone costs."""
    return [_arrival.decode(slot) for slot in slots]


def read_slots(store: Store, decode: Callable[[Sequence[bytes]], list[R]]) -> list[R]:
    """A consistent snapshot: all slots of a count that did not change meanwhile."""
    while True:
        count = int(store.get(COUNT_KEY))
        keys = [slot_key(index) for index in range(count)]
        if not store.check(keys):
            continue
        slots = store.multi_get(keys)
        if int(store.get(COUNT_KEY)) == count:
            return decode(slots)
