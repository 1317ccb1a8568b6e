"""The live state is a fold over events: replayed from what was written down, it is the same, bit for bit."""

from __future__ import annotations

import pytest

from ft_rendezvous.state.model.events import (
    copy_state,
    decode_line,
    encode_state,
    encode_state_line,
    replay,
    take_event,
)
from ft_rendezvous.state.model.run_state import RunState
from tests.state.recording import record_seed

SEEDS = range(300)
PER_TEST = 50


@pytest.mark.parametrize("first", SEEDS[::PER_TEST])
def test_a_replay_gives_the_same_state_bit_for_bit(first: int) -> None:
    """The recording also compares, at every look, what was folded with what the coordinator itself knows."""
    for seed in range(first, first + PER_TEST):
        recording = record_seed(seed)
        assert encode_state(replay(iter(recording.lines))) == encode_state(recording.state), f"seed {seed}"


@pytest.mark.parametrize("seed", [3, 8, 21])
def test_who_begins_in_the_middle_with_a_told_state_ends_with_the_same(seed: int) -> None:
    recording = record_seed(seed)
    state, middle = RunState(), len(recording.lines) // 2
    for line in recording.lines[:middle]:
        state = take_event(state, decode_line(line))
    lines = [encode_state_line(state), *recording.lines[middle:]]
    assert encode_state(replay(iter(lines))) == encode_state(recording.state)


def test_a_copy_is_not_changed_by_what_comes_later() -> None:
    recording = record_seed(5)
    half = replay(iter(recording.lines[: len(recording.lines) // 2]))
    copy = copy_state(half)
    before = encode_state(copy)
    for event in recording.events[len(recording.lines) // 2 :]:
        half = take_event(half, event)
    assert encode_state(half) == encode_state(recording.state)
    assert encode_state(copy) == before
