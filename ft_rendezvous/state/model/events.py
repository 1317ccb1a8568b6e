"""Events: entries of the journal with a number and a time, one line of JSON each.

The same lines are written to the export log, sent to clients that follow a run, and folded into its state.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import StrEnum

import msgspec
from msgspec import UNSET, UnsetType

from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.fold import apply_entry
from ft_rendezvous.state.model.records import END_OF_RUN, SCHEMA_VERSION, RunStatus
from ft_rendezvous.state.model.run_state import RunState
from ft_rendezvous.state.model.version_one import RunStateOne, convert_state


class SourceType(StrEnum):
    """What an event is about."""

    RUN = "run"
    CYCLE = "cycle"
    NODE = "node"


class StateTold(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=True):
    """The whole state as of this event's id. A reader that missed events, or begins here, goes on from it."""

    state: RunState


AnyEntry = journal.Entry | StateTold


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the log: an entry of the journal with its number and its time."""

    event_id: int
    """From 1 without gaps. A `StateTold` has the number of the last event in it."""
    timestamp_ns: int
    """On the clock of the store's machine."""
    source_type: SourceType
    schema_version: int = SCHEMA_VERSION
    ends_run_as: RunStatus | UnsetType = UNSET
    """The status that the run has from now on, in the event that ends it alone."""
    event: AnyEntry


class _LineVersion(msgspec.Struct):
    schema_version: int = SCHEMA_VERSION


class _StateToldOne(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=StateTold.__name__):
    state: RunStateOne


class _EventOne(msgspec.Struct, frozen=True, kw_only=True):
    """An `Event` of version 1."""

    event_id: int
    timestamp_ns: int
    source_type: SourceType
    ends_run_as: RunStatus | UnsetType = UNSET
    event: journal.Entry | _StateToldOne


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Event)
_version_decoder = msgspec.json.Decoder(_LineVersion)
_decoder_one = msgspec.json.Decoder(_EventOne)
_state_decoder = msgspec.json.Decoder(RunState)


SOURCES: dict[type, SourceType] = {
    **dict.fromkeys(
        (
            journal.RunBegan,
            journal.Looked,
            journal.RecordRefused,
            journal.RunEnded,
            journal.HostLeft,
            StateTold,
        ),
        SourceType.RUN,
    ),
    **dict.fromkeys(
        (
            journal.CycleOpened,
            journal.CauseCorrected,
            journal.CycleWaits,
            journal.CycleSealed,
            journal.GroupDissolved,
            journal.CyclePlaced,
            journal.CycleCalled,
            journal.CycleSettled,
            journal.RankLate,
            journal.HangDenied,
            journal.HangFound,
        ),
        SourceType.CYCLE,
    ),
    **dict.fromkeys(
        (
            journal.NodeJoined,
            journal.NodesArrived,
            journal.NodesSilent,
            journal.NodesHeard,
            journal.NodeFenced,
            journal.NodeFinished,
            journal.NodeWent,
            journal.NodeUnhealthy,
            journal.NodeParked,
            journal.NodeUnparked,
            journal.WorkersEnded,
            journal.UpdatesReported,
        ),
        SourceType.NODE,
    ),
}
"""What each kind of event is about."""


def make_event(event_id: int, timestamp_ns: int, entry: AnyEntry) -> Event:
    ends_run_as: RunStatus | UnsetType = UNSET
    if isinstance(entry, journal.RunEnded | journal.HostLeft):
        ends_run_as = END_OF_RUN[entry.verdict.kind]
    return Event(
        event_id=event_id,
        timestamp_ns=timestamp_ns,
        source_type=SOURCES[type(entry)],
        ends_run_as=ends_run_as,
        event=entry,
    )


def encode_line(event: Event) -> bytes:
    """One line."""
    return _encoder.encode(event) + b"\n"


def version_of(line: bytes) -> int:
    """The schema version of a line, whatever else is in it. Raises msgspec.MsgspecError if it is no JSON object."""
    return _version_decoder.decode(line).schema_version


def decode_line(line: bytes) -> Event:
    """The event of a line, which becomes one of now if it is of an older version.

    Raises msgspec.MsgspecError for a line that is no event.
    """
    if version_of(line) > 1:
        return _decoder.decode(line)
    old = _decoder_one.decode(line)
    entry = StateTold(state=convert_state(old.event.state)) if isinstance(old.event, _StateToldOne) else old.event
    return Event(
        event_id=old.event_id,
        timestamp_ns=old.timestamp_ns,
        source_type=old.source_type,
        ends_run_as=old.ends_run_as,
        event=entry,
    )


def encode_state(state: RunState) -> bytes:
    return _encoder.encode(state)


def decode_state(data: bytes) -> RunState:
    return _state_decoder.decode(data)


def copy_state(state: RunState) -> RunState:
    """A state that no later event changes."""
    return decode_state(encode_state(state))


def encode_state_line(state: RunState) -> bytes:
    """The state as a line: a reader that knows nothing can go on from it."""
    return encode_line(make_event(state.event_id, state.time_ns, StateTold(state=state)))


def take_event(state: RunState, event: Event) -> RunState:
    """The state after one more event: the same object, changed, or the state that the event holds."""
    if isinstance(event.event, StateTold):
        return event.event.state
    assert event.event_id == state.event_id + 1, f"event {event.event_id} after {state.event_id}"
    apply_entry(state, event.event_id, event.timestamp_ns, event.event)
    return state


def replay(lines: Iterator[bytes]) -> RunState:
    """The state after all of these lines."""
    state = RunState()
    for line in lines:
        state = take_event(state, decode_line(line))
    return state
