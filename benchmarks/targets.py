"""The targets in contests, and whether a run met them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from benchmarks.measure import OURS, Finding
from benchmarks.report import Row

Rows = Mapping[tuple[str, str, str], Row]
"""By benchmark, case and contender."""


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio of two times in one case: theirs to ours if they should take longer, else ours to theirs."""

    benchmark: str
    case: str
    contender: str
    at_least: float | None = None
    at_most: float | None = None

    def judge(self, rows: Rows) -> Finding | None:
        """Whether the target is met; it is missed if ours did not finish. None if this was not measured."""
        row = rows.get((self.benchmark, self.case, self.contender))
        if row is None:
            return None
        if self.at_least is not None:
            value, what, aim = row.ratio or 0.0, f"{self.contender} / ours", f"at least {self.at_least:g}"
            return Finding(self.benchmark, self.case, what, value, "×", aim, value >= self.at_least)
        assert self.at_most is not None
        value, what = 1 / row.ratio if row.ratio else 0.0, f"ours / {self.contender}"
        is_met = row.ratio is not None and value <= self.at_most
        return Finding(self.benchmark, self.case, what, value, "×", f"at most {self.at_most:g}", is_met)


@dataclass(frozen=True, slots=True)
class Limit:
    """How long ours may take, by the clock, where users wait for it."""

    benchmark: str
    case: str
    at_most_s: float

    def judge(self, rows: Rows) -> Finding | None:
        row = rows.get((self.benchmark, self.case, OURS))
        if row is None:
            return None
        value, is_met = row.median_s or 0.0, row.median_s is not None and row.median_s <= self.at_most_s
        aim = f"at most {self.at_most_s * 1e3:g}"
        return Finding(self.benchmark, self.case, "ours, median", value * 1e3, "ms", aim, is_met)


TARGETS = (
    Target("read", "10,000 nodes, first read", "slots, JSON", at_least=30),
    Target("read", "10,000 nodes, re-read", "raw get", at_most=2),
    Target("form", "8 nodes", "c10d", at_least=50),
    Target("form", "64 nodes", "c10d", at_least=100),
    Target("form", "1,024 nodes", "raw operations", at_most=3),
    Target("form", "10,000 nodes, generated", "raw operations", at_most=3),
    Target("recovery", "8 + 1 torchruns, one killed: trained", "c10d, unshared", at_least=10),
    Target("recovery", "8 + 1 torchruns, one killed, noticed after 3 s: trained", "c10d, unshared", at_least=6),
    Target("recovery", "8 torchruns, a worker killed: trained", "ours, cold", at_least=5),
    Target("groups", "3 groups + 1 spare, a node is killed: longest gap", "torchft", at_least=3),
    Target("groups", "3 groups + 1 spare, a node is stopped: longest gap", "torchft", at_least=5),
    Target("ray", "2 + 1 machines, one is killed: trained", "Ray Train", at_least=2),
    Target("ray", "2 + 1 machines, one falls silent: trained", "Ray Train", at_least=8),
    Target("updates", "4 steps, 64 parties, calls of 5 ms", "bare gather", at_most=1.2),
)

LIMITS = (
    Limit("failing", "10,000 nodes, with infra ranks", 1.0),
    Limit("failing", "10,000 nodes, without infra ranks", 1.0),
    Limit("groups", "3 groups + 1 spare, a node is killed: longest gap", 2.0),
    Limit("groups", "3 groups + 1 spare, a node is stopped: longest gap", 6.0),
    Limit("placement", "10,000 nodes, sticky after a loss", 0.03),
    Limit("placement", "100,000 nodes, sticky after a loss", 0.5),
    Limit("recovery", "8 + 1 torchruns, one killed: trained", 1.5),
    Limit("state", "10,000 nodes, /runs", 0.1),
    Limit("state", "10,000 nodes, /runs/ID/nodes", 0.1),
)


def judge(rows: Iterable[Row]) -> list[Finding]:
    """Every target that a run has the rows for."""
    by_name = {(row.benchmark, row.case, row.contender): row for row in rows}
    judged = (target.judge(by_name) for target in (*TARGETS, *LIMITS))
    return [found for found in judged if found is not None]
