"""What a worker tells its agent, and the bytes of it: one JSON object in one datagram.

Both sides share this, and training scripts import the worker's: nothing beyond the standard library is needed here.
Decoding is strict, for whoever can reach the door may send anything, and returns what is wrong instead of raising it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from ft_rendezvous.text import one_line

MAX_MESSAGE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Restart:
    """A worker asks that the whole group restarts into a new cycle."""

    cycle_id: int
    local_rank: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """A worker asks that its node gives up its place in the next cycle."""

    cycle_id: int
    local_rank: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AtCheckpoint:
    """A worker tells that a checkpoint has just been written."""

    cycle_id: int
    local_rank: int


Message = Restart | Drain | AtCheckpoint

_TYPES: dict[str, type[Message]] = {"restart": Restart, "drain": Drain, "at_checkpoint": AtCheckpoint}
_NAMES = {message_type: name for name, message_type in _TYPES.items()}


class Fault(StrEnum):
    """Why a datagram is ignored."""

    FOREIGN = "it is from another user"
    TOO_LONG = f"it has more than {MAX_MESSAGE_BYTES} bytes"
    NOT_JSON = "it is not JSON"
    UNKNOWN = "it says nothing that is known here"
    BAD_FIELDS = "its fields are not those of such a message"


def encode(message: Message) -> bytes:
    return json.dumps({"says": _NAMES[type(message)], **asdict(message)}).encode()


def decode(data: bytes) -> Message | Fault:
    """The message in a datagram, its reason fit for any log and any record; or what is wrong with it."""
    if len(data) > MAX_MESSAGE_BYTES:
        return Fault.TOO_LONG
    try:
        told = json.loads(data.decode())
    except (ValueError, RecursionError):
        return Fault.NOT_JSON
    says = told.pop("says", None) if isinstance(told, dict) else None
    if not isinstance(says, str) or says not in _TYPES:
        return Fault.UNKNOWN
    message_type = _TYPES[says]
    if {item.name for item in fields(message_type)} != told.keys():
        return Fault.BAD_FIELDS
    if not all(_is_sound(name, value) for name, value in told.items()):
        return Fault.BAD_FIELDS
    if "reason" in told:
        told["reason"] = one_line(told["reason"])
    return message_type(**told)


def socket_name(address: str) -> str:
    """The abstract socket that an address means: a NUL cannot stand in an environment, so an @ stands for it."""
    assert address.startswith("@"), "the address of a door starts with @"
    return "\0" + address[1:]


def _is_sound(name: str, value: Any) -> bool:
    if name == "reason":
        return isinstance(value, str)
    return type(value) is int and 0 <= value < 1 << 63  # A bool is an int, and is no number here.
