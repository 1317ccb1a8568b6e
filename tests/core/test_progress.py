"""Late ranks: judged by changes that are seen, in time in which the agent itself ran."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.core.leases import WorkersProgress
from ft_rendezvous.core.progress import (
    AUTO_LEARNED_STEPS,
    AUTO_LEAST_S,
    AUTO_MULTIPLE,
    AUTO_UNLEARNED_S,
    LOOK_INTERVAL_S,
    MOST_LOOKS,
    HangRules,
    LateRank,
    LateTable,
    StepTimes,
    WorkerReading,
)

TIMEOUT_S = 10.0


def at(count: int, pause: str = "", has_ended: bool = False, step: int | None = None) -> WorkerReading:
    return WorkerReading((count,), count if step is None else step, pause, has_ended)


SILENT = WorkerReading()


def wait(table: LateTable, seconds: float, **readings: WorkerReading) -> list[LateRank]:
    """Look often, for so long. What was late, in the order of looks."""
    by_rank = {int(name[1:]): reading for name, reading in readings.items()}
    found: list[LateRank] = []
    for _ in range(round(seconds / LOOK_INTERVAL_S)):
        found += table.look(by_rank, LOOK_INTERVAL_S)
    return found


def table_of(hang_s: float | None = TIMEOUT_S, startup_s: float | None = None, is_auto: bool = False) -> LateTable:
    return LateTable(HangRules(None if is_auto else hang_s, is_auto, startup_s))


def test_a_rank_that_stands_still_is_late_after_the_timeout_and_not_before() -> None:
    table = table_of()
    wait(table, 1.0, r0=at(1))
    assert wait(table, TIMEOUT_S - 1.25, r0=at(1)) == []
    (late,) = wait(table, 0.5, r0=at(1))
    assert late == LateRank(0, 1, TIMEOUT_S, TIMEOUT_S, is_starting=False)


def test_a_rank_that_moves_is_never_late() -> None:
    table = table_of()
    for step in range(100):
        assert wait(table, TIMEOUT_S - 1, r0=at(step), r1=at(step)) == []


def test_only_the_rank_that_stands_still_is_late() -> None:
    table = table_of()
    found = [late for step in range(12) for late in wait(table, 1.0, r0=at(step), r1=at(0))]
    assert [late.rank for late in found] == [1]


def test_a_rank_is_reported_once_per_timeout_with_its_whole_age() -> None:
    table = table_of()
    found = wait(table, 3.5 * TIMEOUT_S, r0=at(1))
    assert [late.late_s for late in found] == [TIMEOUT_S, 2 * TIMEOUT_S, 3 * TIMEOUT_S]


def test_a_rank_that_never_made_progress_is_not_late_without_a_startup_timeout() -> None:
    assert wait(table_of(), 50 * TIMEOUT_S, r0=SILENT, r1=SILENT) == []


def test_a_start_without_progress_is_late_after_the_startup_timeout() -> None:
    table = table_of(hang_s=None, startup_s=20.0)
    assert wait(table, 19.5, r0=SILENT, r1=SILENT) == []
    found = wait(table, 0.5, r0=SILENT, r1=SILENT)
    assert [(late.rank, late.step, late.is_starting) for late in found] == [(0, None, True), (1, None, True)]


def test_a_rank_that_never_speaks_is_not_late_where_another_rank_of_its_node_does() -> None:
    table = table_of(startup_s=20.0)
    for step in range(10):
        assert wait(table, 5.0, r0=at(step), r1=SILENT) == []


def test_without_a_hang_timeout_nothing_is_late_after_the_start() -> None:
    table = table_of(hang_s=None, startup_s=20.0)
    assert wait(table, 500.0, r0=at(1)) == []


def test_a_paused_rank_is_not_late_and_begins_anew() -> None:
    table = table_of()
    wait(table, TIMEOUT_S - 1, r0=at(1))
    assert wait(table, 3 * TIMEOUT_S, r0=at(1, pause="checkpoint")) == []
    assert wait(table, TIMEOUT_S - 0.5, r0=at(1)) == []
    assert wait(table, 1.0, r0=at(1)) != []


def test_ranks_that_wait_for_a_paused_rank_of_their_node_are_not_late() -> None:
    table = table_of()
    assert wait(table, 3 * TIMEOUT_S, r0=at(1), r1=at(1, pause="checkpoint")) == []
    assert wait(table, TIMEOUT_S - 0.5, r0=at(1), r1=at(1)) == []
    assert [late.rank for late in wait(table, 1.0, r0=at(1), r1=at(1))] == [0, 1]


def test_a_pause_is_no_step() -> None:
    table = table_of(is_auto=True)
    for step in range(10):
        wait(table, 1.0, r0=at(step))
    wait(table, 500.0, r0=at(9, pause="evaluation"))
    wait(table, 1.0, r0=at(10))
    assert table.times.slowest_s == 1.0


def test_a_rank_moves_for_half_of_its_timeout() -> None:
    table = table_of(startup_s=20.0)
    wait(table, 15.0, r0=SILENT, r1=SILENT)
    assert table.find_moving() == []
    wait(table, 4.0, r0=at(1), r1=SILENT)
    assert table.find_moving() == [0]
    wait(table, 2.0, r0=at(1), r1=at(1))
    assert table.find_moving() == [1]


def test_the_slowest_rank_is_the_one_that_waits_for_longest() -> None:
    table = table_of()
    assert table.find_slowest({}) is None
    wait(table, 5.0, r0=at(1), r1=at(1))
    readings = {0: at(9, step=9), 1: at(1, step=12)}
    wait(table, 3.0, r0=readings[0], r1=readings[1])
    found = table.find_slowest(readings)
    assert found == WorkersProgress(12, 7, 1, round(TIMEOUT_S)), "another rank may count from elsewhere"


def test_of_ranks_that_wait_for_about_as_long_the_slowest_has_the_lowest_step() -> None:
    table = table_of()
    wait(table, 1.0, r0=at(1), r1=at(1), r2=at(1))
    readings = {0: at(2, step=101), 1: at(2, step=100), 2: WorkerReading((2,))}
    wait(table, LOOK_INTERVAL_S, r0=at(1), r1=readings[1], r2=at(1))
    wait(table, 6.0, r0=readings[0], r1=readings[1], r2=readings[2])
    found = table.find_slowest(readings)
    assert found is not None
    assert (found.rank, found.step) == (1, 100)


def test_a_rank_that_never_spoke_or_has_ended_is_not_the_slowest() -> None:
    """It is not judged either, and would seem to wait for ever."""
    table = table_of()
    readings = {0: SILENT, 1: at(1, step=1, has_ended=True), 2: at(1, step=5)}
    wait(table, 1.0, r0=SILENT, r1=at(1, step=1), r2=readings[2])
    wait(table, 4.0, r0=SILENT, r1=readings[1], r2=readings[2])
    found = table.find_slowest(readings)
    assert found is not None
    assert (found.rank, found.step) == (2, 5)
    wait(table, 1.0, r0=SILENT)
    assert table.find_slowest({0: SILENT}) is None


def test_what_auto_has_learned_is_told_with_the_slowest_rank() -> None:
    table = table_of(is_auto=True)
    wait(table, 1.0, r0=at(0))
    unlearned = table.find_slowest({0: at(0)})
    assert unlearned is not None
    assert unlearned.late_after_s == AUTO_UNLEARNED_S
    for step in range(1, 6):
        wait(table, 9.0, r0=at(step))
    learned = table.find_slowest({0: at(5)})
    assert learned is not None
    assert learned.late_after_s == 90


def test_a_rank_that_has_ended_is_not_late() -> None:
    table = table_of()
    assert wait(table, 5 * TIMEOUT_S, r0=at(1, has_ended=True)) == []
    assert wait(table, 5 * TIMEOUT_S, r0=at(1, pause="save", has_ended=True), r1=at(1))[0].rank == 1


@given(st.lists(st.floats(0.0, 1e6), max_size=60))
def test_time_in_which_the_agent_stood_still_does_not_count(stalls: list[float]) -> None:
    """Each look counts for two intervals at most, however late it comes."""
    table = table_of(hang_s=60 * MOST_LOOKS * LOOK_INTERVAL_S + 0.01)
    for stall_s in stalls:
        assert table.look({0: at(1)}, stall_s) == []


def test_a_stalled_agent_with_short_looks_is_still_in_time() -> None:
    """A busy machine looks less often than planned: that must not double the time until a hang is found."""
    table = table_of()
    table.look({0: at(1)}, 0.0)
    looks = 0
    while not table.look({0: at(1)}, 1.5 * LOOK_INTERVAL_S):
        looks += 1
    assert looks * 1.5 * LOOK_INTERVAL_S < TIMEOUT_S + 1


def test_a_new_place_begins_anew_and_keeps_what_was_learned() -> None:
    table = table_of(is_auto=True)
    for step in range(50):
        wait(table, 5.0, r0=at(step))
    assert table.timeout_s == 50.0
    wait(table, 49.0, r0=at(49))
    table.begin()
    assert table.timeout_s == 50.0
    assert wait(table, 49.0, r0=at(49)) == []


def test_auto_is_a_multiple_of_the_slowest_recent_step() -> None:
    times = StepTimes()
    assert times.timeout_s == AUTO_UNLEARNED_S
    for _ in range(AUTO_LEARNED_STEPS):
        times.note(1.0)
    assert times.timeout_s == AUTO_LEAST_S
    times.note(12.0)
    assert times.timeout_s == AUTO_MULTIPLE * 12.0
    for _ in range(5000):
        times.note(4.0)
    assert times.timeout_s == AUTO_MULTIPLE * 4.0, "a slow step of long ago is forgotten"


@given(st.lists(st.floats(0.01, 1e4), min_size=1, max_size=9000))
def test_auto_is_never_below_its_floor_nor_below_the_last_steps(steps: list[float]) -> None:
    times = StepTimes()
    for step_s in steps:
        times.note(step_s)
    assert times.timeout_s >= AUTO_LEAST_S
    if len(steps) >= AUTO_LEARNED_STEPS:
        recent = steps[-4000:]
        assert times.timeout_s >= AUTO_MULTIPLE * max(recent)
        assert times.slowest_s <= max(steps)


readings = st.builds(
    lambda count, pause, ended: WorkerReading(
        None if count is None else (count,), count, "pause" if pause else "", ended
    ),
    st.none() | st.integers(0, 3),
    st.booleans(),
    st.booleans(),
)


@given(st.lists(st.tuples(st.dictionaries(st.integers(0, 3), readings, max_size=4), st.floats(0.0, 30.0)), max_size=60))
def test_whatever_is_read_only_live_ranks_that_stood_still_for_the_timeout_are_late(
    looks: list[tuple[dict[int, WorkerReading], float]],
) -> None:
    """An account of its own: seconds since each rank's token changed, or a pause, or its last report."""
    table, timeout_s = table_of(hang_s=2.0, startup_s=3.0), 2.0
    idle: dict[int, float] = {}
    tokens: dict[int, tuple[int, ...] | None] = {}
    for seen, elapsed_s in looks:
        found = {late.rank: late for late in table.look(seen, elapsed_s)}
        live = {rank for rank, reading in seen.items() if not reading.has_ended}
        for rank in live:
            is_same = rank in tokens and tokens[rank] == seen[rank].token
            idle[rank] = idle.get(rank, 0.0) + min(elapsed_s, 0.5) if is_same or seen[rank].token is None else 0.0
        is_paused = any(seen[rank].pause for rank in live)
        assert found.keys() <= live
        assert not (is_paused and found)
        for rank, late in found.items():
            assert idle[rank] >= (3.0 if late.is_starting else timeout_s) - 1e-6
            idle[rank] = 0.0
        if is_paused:
            idle = dict.fromkeys(idle, 0.0)
        tokens = {rank: seen[rank].token for rank in live}
        idle = {rank: age for rank, age in idle.items() if rank in live}


@pytest.mark.parametrize("is_auto", [False, True])
def test_a_thousand_cycles_of_random_steps_without_a_false_alarm(is_auto: bool) -> None:
    """Steps of all lengths below the timeout, pauses, stalls of the agent, ranks that start one after the other."""
    rng, table = Random(19), table_of(hang_s=30.0, is_auto=is_auto)
    for _ in range(1000):
        table.begin()
        typical_s = rng.choice((0.05, 0.3, 1.0, 2.5))
        counts, left_s = [0] * 4, [rng.uniform(0.0, 20.0) for _ in range(4)]
        pauses = [0.0] * 4
        for _ in range(rng.choice((20, 100, 300))):
            elapsed_s = LOOK_INTERVAL_S * (
                rng.choice((1.0, 1.0, 1.3)) if rng.random() < 0.99 else rng.choice((20, 4000))
            )
            ran_s = elapsed_s if elapsed_s < 1.0 else LOOK_INTERVAL_S  # A stall stops the workers, too.
            for rank in range(4):
                if pauses[rank] > 0:
                    pauses[rank] -= ran_s
                    continue
                left_s[rank] -= ran_s
                if left_s[rank] <= 0:
                    counts[rank] += 1
                    left_s[rank] = min(rng.lognormvariate(0.0, 0.6) * typical_s, 8 * typical_s, 25.0)
                    if rng.random() < 0.01:
                        pauses[rank] = rng.uniform(0.0, 3 * 30.0)
            seen = {
                rank: WorkerReading(
                    (counts[rank],) if counts[rank] else None, counts[rank], "save" if pauses[rank] > 0 else ""
                )
                for rank in range(4)
            }
            assert table.look(seen, elapsed_s) == []
