"""The benchmark of warm workers measures what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import warm
from benchmarks.measure import OURS, WrongResult, run_case
from benchmarks.warm_plot import draw, parts_in
from ft_rendezvous.warm.nursery import Nursery


def test_a_small_contest() -> None:
    (case,) = warm.cases(is_quick=True)
    times = run_case(case, lambda *_: None)
    assert times.keys() == {OURS, warm.COLD}
    assert all(each.seconds and each.limit_s is None for each in times.values())
    assert warm.findings(is_quick=True) == []


def test_workers_that_start_cold_do_not_count_as_warm() -> None:
    nursery = Nursery("a-marker", ("no_such_module",))
    try:
        with pytest.raises(WrongResult, match="no_such_module"):
            warm.start_workers(1, (), nursery)
    finally:
        nursery.end()


def test_parts_are_drawn(tmp_path: Path) -> None:
    findings = [
        {"benchmark": "warm", "case": case, "what": f"{part}, the last worker", "value": 1.0}
        for case in ("8 workers, cold", "8 workers, warm")
        for part in warm.PARTS
    ]
    findings.append({"benchmark": "warm", "case": "8 workers, warm", "what": "memory of all (PSS)", "value": 9.0})
    parts = parts_in(findings)
    assert [sum(each.values()) for each in parts.values()] == [4.0, 4.0]
    draw(parts, tmp_path / "picture.png")
    assert (tmp_path / "picture.png").stat().st_size > 1000
