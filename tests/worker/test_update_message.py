"""A report of an update always fits into one datagram, and only reports come out of one."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous import worker
from ft_rendezvous.agent.update_message import (
    MAX_COUNT,
    MAX_NAME_CHARS,
    MAX_SECONDS,
    MOST_NAMES,
    MOST_STEPS,
    UpdateMessage,
    cut_to_fit,
)
from ft_rendezvous.agent.worker_messages import MAX_MESSAGE_BYTES, Fault, decode, encode
from ft_rendezvous.core import update_notes
from ft_rendezvous.text import MAX_REASON_CHARS
from tests.worker.inbox_rig import CYCLE_ID, InboxRig

REPORT = worker.UpdateReport(
    version=12,
    outcome="completed",
    attempts=2,
    parties=4,
    updated=3,
    failed=("gen-1",),
    steps=(worker.UpdateStep(name="pause", duration_s=0.01), worker.UpdateStep(name="transfer", duration_s=1.5)),
    duration_s=3.25,
    lost_s=1.75,
    reason="gen-1: it hangs",
)
MESSAGE = UpdateMessage(
    cycle_id=CYCLE_ID,
    local_rank=2,
    version=12,
    outcome="completed",
    attempts=2,
    parties=4,
    updated=3,
    failed_count=1,
    failed=("gen-1",),
    steps=(("pause", 0.01), ("transfer", 1.5)),
    duration_s=3.25,
    lost_s=1.75,
    reason="gen-1: it hangs",
)
seconds = st.floats() | st.integers()
anything = st.builds(
    UpdateMessage,
    cycle_id=st.just((1 << 63) - 1),
    local_rank=st.just((1 << 63) - 1),
    version=st.integers(),
    outcome=st.sampled_from(["completed", "failed", "dreamt"]),
    attempts=st.integers(),
    parties=st.integers(),
    updated=st.integers(),
    failed_count=st.integers(),
    failed=st.lists(st.text(st.characters(), max_size=200), max_size=20).map(tuple),
    steps=st.lists(st.tuples(st.text(st.characters(), max_size=200), seconds), max_size=40).map(tuple),
    duration_s=seconds,
    lost_s=seconds,
    reason=st.text(st.characters(), max_size=500),
)


def said_by(report: worker.UpdateReport, rig: InboxRig) -> UpdateMessage:
    assert worker.report_update(report)
    message = rig.hear()
    assert isinstance(message, UpdateMessage)
    return message


def test_a_report_comes_as_it_was_made(worker_inbox: InboxRig) -> None:
    assert said_by(REPORT, worker_inbox) == MESSAGE


def test_without_an_agent_there_is_nobody_to_tell() -> None:
    assert not worker.report_update(REPORT)


@given(message=anything)
def test_any_report_fits_and_comes_out_as_it_was_cut(message: UpdateMessage) -> None:
    short = cut_to_fit(message)
    data = encode(short)
    assert len(data) <= MAX_MESSAGE_BYTES
    assert decode(data) == short


@pytest.mark.parametrize("letter", ["x", "ü", "\U0001f40d"])
def test_the_longest_report_loses_letters_and_no_number(letter: str, worker_inbox: InboxRig) -> None:
    long = letter * 1000
    steps = tuple(worker.UpdateStep(name=long, duration_s=1.0) for _ in range(100))
    report = dataclasses.replace(REPORT, failed=(long,) * 500, steps=steps, reason=long)
    message = said_by(report, worker_inbox)
    assert (message.failed_count, len(message.failed), len(message.steps)) == (500, MOST_NAMES, MOST_STEPS)
    assert message.steps[-1] == (f"{100 - MOST_STEPS + 1} more steps"[: len(message.steps[-1][0])], 85.0)
    assert message.failed[0][:8] == letter * 8
    assert message.reason.startswith(letter * 25)
    assert (message.version, message.parties, message.lost_s) == (12, 4, 1.75)
    if letter == "x":
        assert (len(message.failed[0]), len(message.reason)) == (MAX_NAME_CHARS, MAX_REASON_CHARS)


def test_what_is_no_time_and_no_count_is_none(worker_inbox: InboxRig) -> None:
    steps = (worker.UpdateStep(name="a", duration_s=math.nan), worker.UpdateStep(name="b", duration_s=math.inf))
    odd = dataclasses.replace(
        REPORT, duration_s=-1.0, lost_s=math.inf, parties=-3, attempts=1 << 80, version=-1, steps=steps
    )
    message = said_by(odd, worker_inbox)
    assert (message.duration_s, message.lost_s, message.parties, message.attempts) == (0.0, MAX_SECONDS, 0, MAX_COUNT)
    assert (message.version, message.steps) == (-1, (("a", 0.0), ("b", MAX_SECONDS)))


def test_lines_and_controls_are_taken_out(worker_inbox: InboxRig) -> None:
    odd = dataclasses.replace(REPORT, failed=("gen\n1\x1b[2J",), reason="two\nlines")
    message = said_by(odd, worker_inbox)
    assert (message.failed, message.reason) == (("gen 1 [2J",), "two lines")


GOOD: dict[str, Any] = json.loads(encode(MESSAGE))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 1 << 63},
        {"version": True},
        {"version": 1.0},
        {"outcome": "dreamt"},
        {"outcome": ["completed"]},
        {"attempts": -1},
        {"parties": MAX_COUNT + 1},
        {"failed_count": None},
        {"failed": "gen-1"},
        {"failed": ["x" * (MAX_NAME_CHARS + 1)]},
        {"failed": ["x"] * (MOST_NAMES + 1)},
        {"failed": [1]},
        {"steps": [["pause"]]},
        {"steps": [["pause", 1.0, 2.0]]},
        {"steps": [["pause", "1"]]},
        {"steps": [["pause", -1.0]]},
        {"steps": [["pause", 1.0]] * (MOST_STEPS + 1)},
        {"duration_s": math.nan},
        {"duration_s": math.inf},
        {"lost_s": 1e10},
        {"lost_s": True},
        {"reason": 3},
        {"more": 1},
    ],
)
def test_decoding_is_strict(change: dict[str, Any]) -> None:
    assert isinstance(decode(json.dumps(GOOD).encode()), UpdateMessage)
    assert decode(json.dumps(GOOD | change).encode()) is Fault.BAD_FIELDS


def test_both_sides_of_the_agent_have_the_same_limits() -> None:
    """A worker loads only the standard library, so it cannot ask the core."""
    assert (MOST_STEPS, MOST_NAMES) == (update_notes.MOST_UPDATE_STEPS, update_notes.MOST_FAILED_NAMES)
    assert (MAX_NAME_CHARS, MAX_SECONDS, MAX_COUNT) == (64, 1e9, update_notes.MAX_SUM)
