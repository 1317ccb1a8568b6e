"""What a node passes on of updates: when, merged how, and within which bounds."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.core.model import UpdateNews
from ft_rendezvous.core.update_notes import (
    MAX_SUM,
    MAX_SUM_S,
    MOST_FAILED_NAMES,
    MOST_UPDATE_STEPS,
    StepTime,
    UpdateNote,
    UpdateOutcome,
    UpdateSums,
)
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.update_queue import MOST_CYCLES, MOST_WAITING, UpdateQueue

BEAT_S, LEASE_S = 1.0, 5.0
NAME = "0" * 16


def note(version: int, attempts: int = 1, *, is_failed: bool = False, chars: int = 4) -> UpdateNote:
    return UpdateNote(
        version=version,
        outcome=UpdateOutcome.FAILED if is_failed else UpdateOutcome.COMPLETED,
        attempts=attempts,
        parties=4,
        updated=0 if is_failed else 4,
        failed_count=int(is_failed),
        failed=("x" * chars,) * MOST_FAILED_NAMES if is_failed else (),
        steps=(StepTime("y" * chars, 0.5),) * MOST_UPDATE_STEPS if is_failed else (),
        duration_s=2.0,
        lost_s=1.0 if is_failed or attempts > 1 else 0.0,
        reason="",
    )


def take(queue: UpdateQueue, now: float = 0.0, cycle_id: int = 9) -> UpdateNews:
    news = queue.take(now, cycle_id, NAME)
    assert news is not None
    assert len(codec.encode_record(news)) <= codec.MAX_RECORD_BYTES + 2
    return news


def versions(news: UpdateNews) -> list[int]:
    return [each.version for each in news.notes]


def test_an_empty_queue_has_nothing_to_pass_on() -> None:
    queue = UpdateQueue()
    assert not queue
    assert not queue.is_due(1e9, BEAT_S, LEASE_S)
    assert queue.take(1e9, 9, NAME) is None


def test_plain_updates_are_merged_and_the_newest_is_told() -> None:
    queue = UpdateQueue()
    for version in range(1, 101):
        queue.add(3, note(version))
    news = take(queue)
    assert (versions(news), news.merged) == ([100], UpdateSums(99, 0, 0, 198.0, 0.0))
    assert news.sums == UpdateSums(100, 0, 0, 200.0, 0.0)
    assert (news.number, news.worker_cycle_id, news.cycle_id, news.incarnation) == (1, 3, 9, NAME)
    assert not queue


def test_failed_and_retried_ones_are_told_singly_and_in_order() -> None:
    queue = UpdateQueue()
    for each in (note(1), note(2, is_failed=True), note(3), note(4, attempts=2), note(5), note(6, 2, is_failed=True)):
        queue.add(3, each)
    news = take(queue)
    assert (versions(news), news.merged.updates) == ([2, 4, 6, 5], 2)
    assert news.sums == UpdateSums(6, 2, 2, 12.0, 3.0)


def test_what_does_not_fit_into_a_record_waits_for_the_next_one() -> None:
    queue = UpdateQueue()
    for version in range(10):
        queue.add(3, note(version, is_failed=True, chars=64))
    queue.add(3, note(10))
    told: list[list[int]] = []
    while queue:
        told.append(versions(take(queue)))
    assert [version for part in told for version in part] == list(range(11))
    assert len(told) > 3


def test_an_update_that_fits_into_no_record_is_told_without_its_names() -> None:
    """No worker can report such a one: its datagram would be too long."""
    queue = UpdateQueue()
    snakes = "\U0001f40d" * 64
    long = UpdateNote(
        version=1,
        outcome=UpdateOutcome.FAILED,
        attempts=1,
        parties=1,
        updated=0,
        failed_count=8,
        failed=(snakes,) * MOST_FAILED_NAMES,
        steps=(StepTime(snakes, 1.0),) * MOST_UPDATE_STEPS,
        duration_s=1.0,
        lost_s=1.0,
        reason=snakes,
    )
    queue.add(3, long)
    (told,) = take(queue).notes
    assert (told.version, told.failed_count, told.failed, told.steps) == (1, 8, (), ())


def test_too_many_failures_are_counted() -> None:
    queue = UpdateQueue()
    for version in range(1000):
        queue.add(3, note(version, is_failed=True))
    news = take(queue)
    assert news.merged == UpdateSums(1000 - MOST_WAITING, 1000 - MOST_WAITING, 0, 2.0 * (1000 - MOST_WAITING), 968.0)
    told = versions(news)
    while queue:
        more = take(queue)
        assert more.merged == UpdateSums()
        told += versions(more)
    assert told == list(range(MOST_WAITING)), "the first ones tell most about the cause"


def test_each_cycle_is_told_for_itself_the_oldest_first() -> None:
    queue = UpdateQueue()
    for cycle_id in (5, 3, 4):
        queue.add(cycle_id, note(cycle_id, is_failed=True))
    assert [take(queue).worker_cycle_id for _ in range(3)] == [3, 4, 5]


def test_of_many_cycles_the_oldest_are_not_heard() -> None:
    queue = UpdateQueue()
    for cycle_id in (*range(10, 30), 1):
        queue.add(cycle_id, note(cycle_id))
    assert [take(queue).worker_cycle_id for _ in range(MOST_CYCLES)] == [26, 27, 28, 29]
    assert not queue


@pytest.mark.parametrize(("is_failed", "attempts", "interval_s"), [(False, 1, 5.0), (True, 1, 1.0), (False, 2, 1.0)])
def test_trouble_is_passed_on_once_per_beat_and_plain_ones_once_per_lease(
    is_failed: bool, attempts: int, interval_s: float
) -> None:
    queue = UpdateQueue()
    queue.add(3, note(1))
    assert queue.is_due(100.0, BEAT_S, LEASE_S), "the first one at once"
    take(queue, 100.0)
    queue.add(3, note(2, attempts, is_failed=is_failed))
    assert not queue.is_due(100.0 + interval_s - 0.01, BEAT_S, LEASE_S)
    assert queue.is_due(100.0 + interval_s, BEAT_S, LEASE_S)


def test_sums_stay_within_what_a_record_may_hold() -> None:
    sums = UpdateSums(MAX_SUM, MAX_SUM, MAX_SUM, MAX_SUM_S, MAX_SUM_S)
    assert sums.plus(note(1, 2, is_failed=True)) == sums


steps = st.lists(
    st.tuples(st.sampled_from(["plain", "failed", "retried", "tick"]), st.integers(1, 3)), min_size=1, max_size=200
)


@given(steps=steps)
def test_nothing_is_lost_or_told_twice_whatever_the_order(steps: list[tuple[str, int]]) -> None:
    """Against a naive account: all counts arrive, and every troubled update of which few waited arrives singly."""
    queue, now, passed_at = UpdateQueue(), 0.0, float("-inf")
    expected: Counter[int] = Counter()
    troubled: list[int] = []
    heard: Counter[int] = Counter()
    told: list[int] = []
    for version, (kind, cycle_id) in enumerate(steps):
        if kind != "tick":
            each = note(version, 2 if kind == "retried" else 1, is_failed=kind == "failed")
            queue.add(cycle_id, each)
            expected[cycle_id] += 1
            troubled += [] if each.is_plain else [version]
            continue
        now += BEAT_S / 4
        if queue.is_due(now, BEAT_S, LEASE_S):
            assert now - passed_at >= BEAT_S
            news, passed_at = take(queue, now), now
            heard[news.worker_cycle_id] += news.sums.updates
            told += [one.version for one in news.notes if not one.is_plain]
    while queue:
        news = take(queue, now)
        heard[news.worker_cycle_id] += news.sums.updates
        told += [one.version for one in news.notes if not one.is_plain]
    assert heard == expected
    assert len(told) == len(set(told))
    assert set(told) <= set(troubled)
    if len(troubled) <= MOST_WAITING:
        assert sorted(told) == troubled
