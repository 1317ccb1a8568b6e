"""Leases from both sides: the coordinator's table and the node's pulse."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.core.leases import (
    ACK_SHIFT,
    MOST_STEPS,
    LeaseTable,
    Pulse,
    WorkersProgress,
    acknowledged,
    progress_in,
)

LEASE_S, BEAT_S, GAP_S = 5.0, 1.0, 0.25

# Dyadic fractions: sums and differences of these are exact, so a property cannot fail by rounding.
ticks = st.integers(min_value=0, max_value=640).map(lambda n: n / 64)
short_ticks = st.integers(min_value=1, max_value=128).map(lambda n: n / 64)


def table() -> LeaseTable:
    return LeaseTable(LEASE_S, BEAT_S)


# --- the coordinator's side -------------------------------------------------------------------------


def look_often(leases: LeaseTable, counters: dict[str, int], start: float, end: float) -> list[str]:
    """Look at every planned gap. Returns the nodes that are found dead first."""
    steps = round((end - start) / GAP_S)
    for step in range(steps + 1):
        now = start + step * GAP_S
        leases.observe(counters, now, GAP_S, published=0)
        dead = leases.judge_leases(now)
        if dead:
            return dead
    return []


def test_a_node_whose_beat_stands_still_is_dead_after_a_lease_and_not_before() -> None:
    leases = table()
    leases.grant("a", 0.0)
    assert look_often(leases, {"a": 1}, 0.0, LEASE_S - GAP_S) == []
    leases.observe({"a": 1}, LEASE_S, GAP_S, 0)
    assert leases.judge_leases(LEASE_S) == ["a"]


def test_only_the_silent_one_of_two_dies() -> None:
    leases = table()
    leases.grant("a", 0.0)
    leases.grant("b", 0.0)
    for step in range(40):
        now = step * GAP_S
        leases.observe({"a": 1, "b": 1 + step}, now, GAP_S, 0)
        dead = leases.judge_leases(now)
        if dead:
            break
    assert dead == ["a"]


def test_a_node_that_beats_backwards_is_alive_too() -> None:
    """Any change means that the node lives: the table does not interpret counters."""
    leases = table()
    leases.grant("a", 0.0)
    leases.observe({"a": 7}, 0.0, GAP_S, 0)
    leases.observe({"a": 3}, 1.0, GAP_S, 0)
    assert leases.ages(["a"], 1.0) == {"a": 0.0}


def test_a_node_missing_from_a_reading_is_judged_by_what_was_seen_before() -> None:
    leases = table()
    leases.grant("a", 0.0)
    assert look_often(leases, {}, 0.0, LEASE_S) == ["a"]


@pytest.mark.parametrize(
    ("late_s", "dies"),
    [
        pytest.param(0.0, True, id="on time"),
        pytest.param(BEAT_S, True, id="a beat late"),
        pytest.param(BEAT_S + 0.25, False, id="more than a beat late"),
        pytest.param(1000.0, False, id="suspended for long"),
    ],
)
def test_an_observer_that_was_paused_drops_no_node(late_s: float, dies: bool) -> None:
    leases = table()
    leases.grant("a", 0.0)
    leases.observe({"a": 1}, 0.0, GAP_S, 0)
    almost = LEASE_S - GAP_S
    for step in range(1, round(almost / GAP_S) + 1):
        leases.observe({"a": 1}, step * GAP_S, GAP_S, 0)
    now = almost + GAP_S + late_s
    leases.observe({"a": 1}, now, GAP_S, 0)
    assert leases.judge_leases(now) == (["a"] if dies else [])


def test_a_dead_node_dies_also_after_a_pause_only_later() -> None:
    leases = table()
    leases.grant("a", 0.0)
    leases.observe({"a": 1}, 0.0, GAP_S, 0)
    assert look_often(leases, {"a": 1}, 100.0, 100.0 + LEASE_S - GAP_S) == []
    assert look_often(leases, {"a": 1}, 100.0 + LEASE_S, 100.0 + LEASE_S) == ["a"]


def test_a_revoked_lease_is_judged_no_more() -> None:
    leases = table()
    leases.grant("a", 0.0)
    leases.revoke("a")
    leases.revoke("never granted")
    assert look_often(leases, {}, 0.0, 20.0) == []
    assert leases.first_expiry() is None
    assert leases.ages(["a"], 20.0) == {}


@given(
    looks=st.lists(st.tuples(short_ticks, ticks), min_size=1, max_size=60),
    beat_every=st.integers(min_value=1, max_value=64).map(lambda n: n / 64),
)
def test_a_node_that_keeps_beating_is_never_dropped_at_any_look_times(
    looks: list[tuple[float, float]], beat_every: float
) -> None:
    leases = table()
    leases.grant("a", 0.0)
    now = 0.0
    for gap_s, planned_s in looks:
        now += gap_s
        leases.observe({"a": 1 + int(now / beat_every)}, now, planned_s, 0)
        assert leases.judge_leases(now) == []


@given(before=st.lists(short_ticks, max_size=30), pause_s=ticks, planned_s=st.sampled_from([0.25, 1.0, 3.0]))
def test_an_observer_that_was_paused_longer_than_a_beat_drops_no_node_at_that_look(
    before: list[float], pause_s: float, planned_s: float
) -> None:
    leases = table()
    for name in "abc":
        leases.grant(name, 0.0)
    now = 0.0
    for gap_s in before:
        now += gap_s
        leases.observe({}, now, 2.0, 0)
    if leases.looked_at is None:
        leases.observe({}, now, planned_s, 0)
    now += planned_s + BEAT_S + 1 / 64 + pause_s
    leases.observe({}, now, planned_s, 0)
    assert leases.judge_leases(now) == []


# --- nodes that beat and do not hear ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("acts_after_s", "is_deaf"),
    [
        pytest.param(0.0, False, id="at once"),
        pytest.param(2 * LEASE_S - GAP_S, False, id="just in time"),
        pytest.param(1000.0, True, id="never"),
    ],
)
def test_a_node_that_beats_and_does_not_act_upon_an_event_is_deaf_after_two_leases(
    acts_after_s: float, is_deaf: bool
) -> None:
    leases = table()
    leases.grant("a", 0.0)
    deaf: list[str] = []
    for step in range(round(3 * LEASE_S / GAP_S)):
        now = step * GAP_S
        acted_upon = 4 if now >= acts_after_s else 3
        leases.observe({"a": (acted_upon << ACK_SHIFT) + step}, now, GAP_S, published=4)
        deaf = deaf or leases.judge_deaf(now)
        assert leases.judge_leases(now) == []
    assert deaf == (["a"] if is_deaf else [])


def test_an_observer_that_was_paused_calls_no_node_deaf() -> None:
    leases = table()
    leases.grant("a", 0.0)
    leases.observe({"a": 1}, 0.0, GAP_S, published=4)
    leases.observe({"a": 2}, 100.0, GAP_S, published=4)
    assert leases.judge_deaf(100.0) == []


def test_a_node_that_hears_is_never_deaf_however_fast_events_come() -> None:
    """If workers crash at once, a cycle opens and is sealed between any two looks. But a beat reports events only once
    per interval. So no look finds the node up to date, although it acts on every event in time."""
    leases = table()
    leases.grant("a", 0.0)
    acted_on = 0
    for step in range(round(10 * LEASE_S / GAP_S)):
        now, published = step * GAP_S, 2 * step
        if step % round(BEAT_S / GAP_S) == 0:
            acted_on = max(0, published - 2)  # All events that were published when it beat. Two more are published now.
        leases.observe({"a": (acted_on << ACK_SHIFT) + step}, now, GAP_S, published)
        assert leases.judge_deaf(now) == []


# --- which events may be deleted --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("acks", "floor", "expected"),
    [
        pytest.param([], 4, 4, id="no nodes: nothing new"),
        pytest.param([7, 9], 4, 7, id="the slowest counts"),
        pytest.param([7, None], 4, 4, id="a newcomer that was not seen yet holds everything"),
        pytest.param([2, 9], 4, 4, id="never back below the floor"),
    ],
)
def test_events_are_kept_until_the_slowest_live_node_has_them(
    acks: list[int | None], floor: int, expected: int
) -> None:
    leases = table()
    for number, ack in enumerate(acks):
        leases.grant(str(number), 0.0)
        if ack is not None:
            leases.observe({str(number): (ack << ACK_SHIFT) + 5}, 0.0, GAP_S, 0)
    assert leases.acknowledged_by_all(floor) == expected


@given(read=st.lists(st.integers(min_value=0, max_value=3), min_size=1, max_size=50))
def test_a_beat_counter_carries_the_newest_event_read_and_still_counts_beats(read: list[int]) -> None:
    pulse = Pulse(LEASE_S, alive_until=LEASE_S)
    no = 0
    for beats, more in enumerate(read, start=1):
        no += more
        counter = pulse.next_counter(no)
        pulse.take_reply(counter, counter, sent_at=0.0)
        assert acknowledged(counter) == no
        assert counter & ((1 << ACK_SHIFT) - 1) == beats
    assert not pulse.is_fenced


steps = st.none() | st.integers(0, 1 << 59)
ages = st.integers(0, 10**6)
told = st.builds(WorkersProgress, steps, ages, st.none() | st.integers(0, 10**7), st.none() | ages)


@given(st.lists(st.tuples(st.integers(0, 9), st.none() | told)))
def test_a_beat_counter_carries_progress_beside_all_else(beats: list[tuple[int, WorkersProgress | None]]) -> None:
    pulse, leases, no = Pulse(LEASE_S, alive_until=LEASE_S), LeaseTable(LEASE_S, BEAT_S), 0
    leases.grant("a", 0.0)
    assert leases.find_progress(["a", "b"]) == {}
    for number, (more, progress) in enumerate(beats, start=1):
        no += more
        counter = pulse.next_counter(no, progress)
        pulse.take_reply(counter, counter, sent_at=0.0)
        leases.observe({"a": counter}, 0.1 * number, GAP_S, published=no)
        assert acknowledged(counter) == no
        assert counter & ((1 << ACK_SHIFT) - 1) == number
        assert leases.find_progress(["a"]) == ({} if progress is None else {"a": progress})
        assert leases.acknowledged_by_all(0) == no


@pytest.mark.parametrize(
    ("told", "read"),
    [
        (WorkersProgress(-5, -1, -1, -1), WorkersProgress(0, 0, 0, 0)),
        (
            WorkersProgress(1 << 90, 1 << 40, 1 << 40, 1 << 40),
            WorkersProgress(MOST_STEPS, (1 << 20) - 1, (1 << 24) - 2, (1 << 20) - 2),
        ),
    ],
)
def test_progress_that_is_out_of_bounds_is_cut(told: WorkersProgress, read: WorkersProgress) -> None:
    pulse = Pulse(LEASE_S, alive_until=LEASE_S)
    counter = pulse.next_counter(3, told)
    assert progress_in(counter) == read
    assert acknowledged(counter) == 3


# --- the node's side --------------------------------------------------------------------------------


def test_trust_lasts_a_lease_from_when_the_acknowledged_beat_was_sent() -> None:
    pulse = Pulse(LEASE_S, alive_until=LEASE_S)
    pulse.take_reply(1, 1, sent_at=2.0)
    assert pulse.is_trusted(2.0 + LEASE_S - 0.001)
    assert not pulse.is_trusted(2.0 + LEASE_S)


@pytest.mark.parametrize("reply", [0, 1, 3, -1, 1 << ACK_SHIFT])
def test_any_other_reply_ends_an_incarnation_for_good(reply: int) -> None:
    pulse = Pulse(LEASE_S, alive_until=LEASE_S, counter=1)
    pulse.take_reply(2, reply, sent_at=1.0)
    assert not pulse.is_trusted(1.0)
    pulse.take_reply(2, 2, sent_at=2.0)
    assert not pulse.is_trusted(2.0)


@given(
    beats=st.lists(st.tuples(ticks, ticks, ticks), min_size=1, max_size=25),
    looks=st.lists(short_ticks, min_size=1, max_size=80),
)
def test_a_node_stops_trusting_its_place_no_later_than_the_coordinator_drops_it(
    beats: list[tuple[float, float, float]], looks: list[float]
) -> None:
    """For any delays of a beat: before it is sent, on its way to the store, and on its way back.

    Here a look and the fence that follows are one step. tests/scenarios/test_fencing.py tests the time between them.
    """
    # The first beat is in the store before the lease is granted.
    pulse = Pulse(LEASE_S, alive_until=LEASE_S)
    pulse.take_reply(1, 1, sent_at=0.0)
    steps: list[tuple[float, int, str, float]] = []
    now = 0.0
    for wait_s, there_s, back_s in beats:
        sent_at = now + wait_s
        steps.append((sent_at + there_s, 0, "perform", sent_at))
        now = sent_at + there_s + back_s
        steps.append((now, 2, "reply", sent_at))
    look_at = 0.0
    for gap_s in looks:
        look_at += gap_s
        steps.append((look_at, 1, "look", 0.0))

    leases = table()
    leases.grant("a", 0.0)
    counter, found, dropped_at = 1, 0, None
    for at, _, what, sent_at in sorted(steps):
        if what == "perform":
            # Compare and set: a counter that was taken away stays away, and the expectation is returned.
            counter = pulse.next_counter(0) if dropped_at is None else pulse.counter
            found = counter
        elif what == "reply":
            pulse.take_reply(pulse.next_counter(0), found, sent_at)
        elif dropped_at is None:
            leases.observe({"a": counter}, at, 2.0, 0)
            if leases.judge_leases(at):
                dropped_at = at
        if dropped_at is not None:
            assert not pulse.is_trusted(at)


def test_a_node_is_silent_when_half_its_lease_is_over() -> None:
    table = LeaseTable(lease_s=4.0, beat_s=1.0)
    table.grant("a", 10.0)
    table.grant("b", 11.5)
    assert table.judge_silent(11.9) == {}
    assert table.judge_silent(12.0) == {"a": 2.0}
    table.observe({"a": 1}, 12.5, 1.0, 0)
    assert table.judge_silent(13.5) == {"b": 2.0}
