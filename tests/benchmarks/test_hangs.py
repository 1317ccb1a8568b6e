"""The benchmark of hangs: what it says of the times that it has measured. To hang really is slow."""

from __future__ import annotations

from benchmarks import hangs
from benchmarks.hangs import HANG_TIMEOUT_S, TARGET_S


def test_a_quick_run_does_not_hang() -> None:
    assert hangs.cases(is_quick=True) == []
    assert hangs.findings(is_quick=True) == []


def test_the_time_after_the_timeout_is_judged() -> None:
    found = hangs.judge_hangs([HANG_TIMEOUT_S + each for each in (1.0, 2.0, 9.0)])
    assert [(finding.value, finding.is_met) for finding in found] == [(2.0, True), (9.0, None)]
    (late, _) = hangs.judge_hangs([HANG_TIMEOUT_S + TARGET_S])
    assert late.is_met is False
