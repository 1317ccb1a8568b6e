"""What a worker and its agent say to each other, and how it is encoded: one JSON object in one datagram.

The agent and `ft_rendezvous.worker` share this module, and training scripts import it: it needs nothing beyond the
standard library. Any process of this machine can send to the inbox, so decoding is strict. It returns a fault instead
of raising.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any, TypeVar

from ft_rendezvous.agent.update_message import UPDATE_FIELDS, UpdateMessage, clean_names, clean_steps
from ft_rendezvous.text import one_line

MAX_MESSAGE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartMessage:
    """A worker asks for a restart of all workers, in a new cycle."""

    cycle_id: int
    local_rank: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainMessage:
    """A worker asks that its node gives up its place in the next cycle."""

    cycle_id: int
    local_rank: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointMessage:
    """A worker says that a checkpoint has just been written."""

    cycle_id: int
    local_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscribeMessage:
    """A worker wants to hear of lost groups. Its agent sends to the address from which this message came."""

    cycle_id: int
    local_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceQuestion:
    """A worker asks whether its place still stands. The answer goes to the address from which the question came."""

    cycle_id: int
    local_rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLostMessage:
    """The agent says that another replica group is lost: it takes part in no collective any more."""

    group: int
    cycle_id: int
    """The cycle of the worker that gets this message, not of the lost group."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceAnswer:
    """The agent says whether the place of this cycle still stands."""

    cycle_id: int
    is_trusted: bool


WorkerMessage = RestartMessage | DrainMessage | CheckpointMessage | SubscribeMessage | PlaceQuestion | UpdateMessage
AgentMessage = GroupLostMessage | PlaceAnswer

_WORKER_TYPES: dict[str, type[WorkerMessage]] = {
    "restart": RestartMessage,
    "drain": DrainMessage,
    "at_checkpoint": CheckpointMessage,
    "subscribe": SubscribeMessage,
    "is_place_trusted": PlaceQuestion,
    "update": UpdateMessage,
}
_AGENT_TYPES: dict[str, type[AgentMessage]] = {"group_lost": GroupLostMessage, "place": PlaceAnswer}
_NAMES: dict[type[WorkerMessage | AgentMessage], str] = {
    **{message_type: name for name, message_type in _WORKER_TYPES.items()},
    **{message_type: name for name, message_type in _AGENT_TYPES.items()},
}
_Message = TypeVar("_Message", bound=WorkerMessage | AgentMessage)


class Fault(StrEnum):
    """Why a datagram is ignored."""

    FOREIGN = "it is from another user"
    TOO_LONG = f"it has more than {MAX_MESSAGE_BYTES} bytes"
    NOT_JSON = "it is not JSON"
    UNKNOWN = "it is no known kind of message"
    BAD_FIELDS = "its fields are not those of its kind of message"
    NO_ADDRESS = "it needs an answer, and its socket has no address"


def encode(message: WorkerMessage | AgentMessage) -> bytes:
    """The datagram for a message."""
    return json.dumps({"says": _NAMES[type(message)], **asdict(message)}).encode()


def decode(data: bytes) -> WorkerMessage | Fault:
    """A worker's message in a datagram, or what is wrong with it. A reason comes out as one clean line."""
    return _decode(data, _WORKER_TYPES)


def decode_from_agent(data: bytes) -> AgentMessage | Fault:
    """An agent's message in a datagram, or what is wrong with it."""
    return _decode(data, _AGENT_TYPES)


def _decode(data: bytes, types: Mapping[str, type[_Message]]) -> _Message | Fault:
    if len(data) > MAX_MESSAGE_BYTES:
        return Fault.TOO_LONG
    try:
        content = json.loads(data.decode())
    except (ValueError, RecursionError):
        return Fault.NOT_JSON
    kind = content.pop("says", None) if isinstance(content, dict) else None
    if not isinstance(kind, str) or kind not in types:
        return Fault.UNKNOWN
    message_type = types[kind]
    if {item.name for item in fields(message_type)} != content.keys():
        return Fault.BAD_FIELDS
    if not all(_is_valid(name, value) for name, value in content.items()):
        return Fault.BAD_FIELDS
    if "reason" in content:
        content["reason"] = one_line(content["reason"])
    if message_type is UpdateMessage:
        content |= {"failed": clean_names(content["failed"]), "steps": clean_steps(content["steps"])}
    return message_type(**content)


def socket_name(address: str) -> str:
    """The name of the abstract socket. An environment variable cannot hold its leading NUL, so an address has an @."""
    assert address.startswith("@"), "the address of an inbox starts with @"
    return "\0" + address[1:]


def _is_valid(name: str, value: Any) -> bool:
    if name == "reason":
        return isinstance(value, str)
    if name in UPDATE_FIELDS:
        return UPDATE_FIELDS[name](value)
    if name == "is_trusted":
        return isinstance(value, bool)
    return type(value) is int and 0 <= value < 1 << 63  # In Python a bool is an int. Here it is not a number.
