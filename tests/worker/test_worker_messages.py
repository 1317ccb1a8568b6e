"""Every datagram is a message or a fault, and a reason is always one clean line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.agent.worker_messages import (
    MAX_MESSAGE_BYTES,
    AgentMessage,
    CheckpointMessage,
    DrainMessage,
    Fault,
    GroupLostMessage,
    PlaceAnswer,
    PlaceQuestion,
    RestartMessage,
    SubscribeMessage,
    WorkerMessage,
    decode,
    decode_from_agent,
    encode,
)
from ft_rendezvous.text import MAX_REASON_CHARS, one_line

GOOD: dict[str, Any] = {"says": "restart", "cycle_id": 3, "local_rank": 0, "reason": "slow"}

counts = st.integers(min_value=0, max_value=(1 << 63) - 1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(list(GOOD)), inner),
)


@given(kind=st.sampled_from([RestartMessage, DrainMessage]), cycle_id=counts, local_rank=counts, reason=st.text())
def test_requests_come_out_as_they_went_in(
    kind: type[RestartMessage] | type[DrainMessage], cycle_id: int, local_rank: int, reason: str
) -> None:
    message = kind(cycle_id=cycle_id, local_rank=local_rank, reason=one_line(reason))
    assert decode(encode(message)) == message


@pytest.mark.parametrize("kind", [CheckpointMessage, SubscribeMessage, PlaceQuestion])
def test_a_message_without_a_reason_comes_out_as_it_went_in(
    kind: type[CheckpointMessage | SubscribeMessage | PlaceQuestion],
) -> None:
    message = kind(cycle_id=2, local_rank=1)
    assert decode(encode(message)) == message


@pytest.mark.parametrize(
    "message",
    [
        GroupLostMessage(group=3, cycle_id=2, reason="node0 lost its lease"),
        PlaceAnswer(cycle_id=2, is_trusted=True),
        PlaceAnswer(cycle_id=2, is_trusted=False),
    ],
)
def test_what_an_agent_says_comes_out_as_it_went_in_at_a_worker_only(message: AgentMessage) -> None:
    assert decode_from_agent(encode(message)) == message
    assert decode(encode(message)) is Fault.UNKNOWN
    assert decode_from_agent(encode(CheckpointMessage(cycle_id=2, local_rank=1))) is Fault.UNKNOWN


@pytest.mark.parametrize("is_trusted", [1, "yes", None])
def test_an_answer_is_yes_or_no(is_trusted: object) -> None:
    said = json.dumps({"says": "place", "cycle_id": 2, "is_trusted": is_trusted})
    assert decode_from_agent(said.encode()) is Fault.BAD_FIELDS


@given(data=st.binary() | json_values.map(lambda value: json.dumps(value).encode()))
def test_nothing_makes_decoding_raise(data: bytes) -> None:
    assert isinstance(decode(data), WorkerMessage | Fault)
    assert isinstance(decode_from_agent(data), AgentMessage | Fault)


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        (b"", Fault.NOT_JSON),
        (b"restart", Fault.NOT_JSON),
        (b"\xff\xfe", Fault.NOT_JSON),
        (json.dumps(GOOD).encode("utf-16"), Fault.NOT_JSON),
        (b"[" * MAX_MESSAGE_BYTES, Fault.NOT_JSON),
        (b" " * (MAX_MESSAGE_BYTES + 1), Fault.TOO_LONG),
        (b"[]", Fault.UNKNOWN),
        (b"{}", Fault.UNKNOWN),
        ({**GOOD, "says": "close"}, Fault.UNKNOWN),
        ({**GOOD, "says": ["restart"]}, Fault.UNKNOWN),
        ({**GOOD, "says": "at_checkpoint"}, Fault.BAD_FIELDS),
        ({**GOOD, "also": 1}, Fault.BAD_FIELDS),
        ({name: GOOD[name] for name in ("says", "cycle_id", "local_rank")}, Fault.BAD_FIELDS),
        ({**GOOD, "cycle_id": "3"}, Fault.BAD_FIELDS),
        ({**GOOD, "cycle_id": True}, Fault.BAD_FIELDS),
        ({**GOOD, "cycle_id": 3.0}, Fault.BAD_FIELDS),
        ({**GOOD, "cycle_id": 1 << 63}, Fault.BAD_FIELDS),
        ({**GOOD, "local_rank": -1}, Fault.BAD_FIELDS),
        ({**GOOD, "reason": None}, Fault.BAD_FIELDS),
    ],
)
def test_what_is_wrong_is_named(data: bytes | dict[str, Any], fault: Fault) -> None:
    assert decode(data if isinstance(data, bytes) else json.dumps(data).encode()) is fault


@given(text=st.text(st.characters()) | st.text(st.characters(categories=["Cs", "Cc", "Zl"])))
def test_a_reason_is_one_short_printable_line_that_can_be_encoded(text: str) -> None:
    line = one_line(text)
    assert line.isprintable()
    assert len(line) <= MAX_REASON_CHARS
    assert one_line(line.encode().decode()) == line.strip()


def test_a_decoded_reason_is_clean_and_short() -> None:
    message = decode(json.dumps({**GOOD, "reason": "two\nlines \ud800 \x1b[31m" + "x" * 1000}).encode())
    assert isinstance(message, RestartMessage)
    assert message.reason.startswith("two lines ? [31mxxx")
    assert len(message.reason) == MAX_REASON_CHARS


@given(reason=st.text(st.characters(), min_size=MAX_REASON_CHARS))
def test_the_longest_reason_fits_into_a_message(reason: str) -> None:
    message = RestartMessage(cycle_id=(1 << 63) - 1, local_rank=(1 << 63) - 1, reason=one_line(reason))
    assert len(encode(message)) <= MAX_MESSAGE_BYTES
