"""Contenders take turns, a wrong or late one does not count, and ratios pair times of the same round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest

from benchmarks.measure import (
    OURS,
    Case,
    DidNotFinish,
    Sample,
    Times,
    WrongResult,
    in_a_row,
    ratio_to_ours,
    require,
    run_case,
)
from benchmarks.report import rows_of


def case_of(contenders: Mapping[str, Sample], rounds: int = 3, warm_ups: int = 0) -> Case:
    @contextmanager
    def prepare() -> Iterator[Mapping[str, Sample]]:
        yield contenders

    return Case("test", "case", rounds, prepare, warm_ups)


def sample_returning(*seconds: float) -> Callable[[], float]:
    return iter(seconds).__next__


def test_contenders_take_turns_in_changing_order() -> None:
    told: list[tuple[int, str]] = []
    contenders = {OURS: lambda: 1.0, "second": lambda: 2.0, "third": lambda: 3.0}
    run_case(case_of(contenders, rounds=9), lambda turn, contender: told.append((turn, contender)))
    orders = [tuple(name for turn, name in told if turn == round_) for round_ in range(9)]
    assert all(sorted(order) == sorted(contenders) for order in orders)
    assert len(set(orders)) > 3


def test_warm_ups_do_not_count() -> None:
    times = run_case(case_of({OURS: sample_returning(9.0, 1.0, 1.0)}, rounds=2, warm_ups=1))
    assert times[OURS].seconds == [1.0, 1.0]


def test_samples_in_a_row_are_one_and_the_first_does_not_count() -> None:
    assert in_a_row(sample_returning(9.0, 1.0, 2.0, 3.0, 9.0), 3)() == 2.0
    assert in_a_row(sample_returning(4.0, 9.0), 0)() == 4.0


def test_ratio_is_the_median_over_rounds() -> None:
    times = {OURS: Times([1.0, 10.0, 100.0]), "other": Times([2.0, 30.0, 200.0])}
    assert ratio_to_ours(times, "other") == 2.0
    assert ratio_to_ours(times, OURS) == 1.0


def test_who_does_not_finish_is_out_and_has_a_lower_bound() -> None:
    tries: list[str] = []

    def late() -> float:
        tries.append("late")
        raise DidNotFinish(60.0)

    case = case_of({OURS: lambda: 0.5, "late": late})
    times = run_case(case)
    assert tries == ["late"]
    row = rows_of(case, times)[1]
    assert (row.median_s, row.limit_s, row.ratio) == (None, 60.0, 120.0)


def test_a_wrong_result_ends_the_run() -> None:
    def wrong() -> float:
        require(False, "two nodes have rank 3")
        return 0.0

    with pytest.raises(WrongResult, match="rank 3"):
        run_case(case_of({OURS: wrong}))
