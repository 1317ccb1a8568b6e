"""What we set out to reach in contests, and whether a run did."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.measure import OURS, Finding
from benchmarks.report import Row


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio of two times in one case: theirs to ours if they should take longer, else ours to theirs."""

    benchmark: str
    case: str
    contender: str
    at_least: float | None = None
    at_most: float | None = None

    def judge(self, row: Row) -> Finding | None:
        """How this row fares; None if it has no ratio."""
        if row.ratio is None:
            return None
        if self.at_least is not None:
            what, value, aim, is_met = f"{self.contender} / ours", row.ratio, "at least", row.ratio >= self.at_least
            return Finding(self.benchmark, self.case, what, value, "×", f"{aim} {self.at_least:g}", is_met)
        assert self.at_most is not None
        value = 1 / row.ratio
        what = f"ours / {self.contender}"
        return Finding(self.benchmark, self.case, what, value, "×", f"at most {self.at_most:g}", value <= self.at_most)


@dataclass(frozen=True, slots=True)
class Growth:
    """Our time per node in a large case, to that in a smaller one: 1 where time grows with the number of nodes."""

    benchmark: str
    what: str
    few: int
    many: int
    at_most: float

    def judge(self, rows: Mapping[tuple[str, str, str], Row]) -> Finding | None:
        """How our rows of both cases fare; None if one is missing."""
        few, many = (
            rows.get((self.benchmark, f"{nodes:,} nodes, {self.what}", OURS)) for nodes in (self.few, self.many)
        )
        if few is None or many is None or few.median_s is None or many.median_s is None:
            return None
        value = (many.median_s / self.many) / (few.median_s / self.few)
        return Finding(
            self.benchmark,
            f"{self.few:,} to {self.many:,} nodes, {self.what}",
            "ours: time per node, growth",
            value,
            "×",
            f"at most {self.at_most:g}",
            value <= self.at_most,
        )


TARGETS = (
    Target("read", "10,000 nodes, first read", "slots, JSON", at_least=30),
    Target("read", "10,000 nodes, re-read", "raw get", at_most=2),
    Target("form", "8 nodes", "c10d", at_least=50),
    Target("form", "64 nodes", "c10d", at_least=100),
    Target("form", "1,024 nodes", "raw operations", at_most=3),
    Target("form", "10,000 nodes, generated", "raw operations", at_most=3),
)

GROWTHS = (
    Growth("read", "first read", 10_000, 100_000, at_most=1.5),
    Growth("read", "re-read", 10_000, 100_000, at_most=1.5),
)


def judge(rows: Iterable[Row]) -> list[Finding]:
    """Every target that a run has the rows for."""
    by_name = {(row.benchmark, row.case, row.contender): row for row in rows}
    rows_found = ((target, by_name.get((target.benchmark, target.case, target.contender))) for target in TARGETS)
    ratios = (target.judge(row) for target, row in rows_found if row is not None)
    growths = (growth.judge(by_name) for growth in GROWTHS)
    return [found for found in (*ratios, *growths) if found is not None]
