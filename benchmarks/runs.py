"""Results of earlier runs: which files there are, and what is in them.

This module does not judge and does not draw. A file may lack something, because it is older or only a part of a run;
then that is left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.machine import ROOT
from benchmarks.measure import Finding
from benchmarks.report import Row, shown_name

DIRECTORY = ROOT / "benchmarks" / "results"
_stamped = re.compile(r"\d{8}T\d{6}Z\.json")
_case = re.compile(r"([\d,]+) nodes?\b[\s,;:]*(.*)")


@dataclass(frozen=True, slots=True)
class Run:
    """One run."""

    name: str
    """The file, from the project's root where it is below it."""
    machine: Mapping[str, Any]
    is_quick: bool
    is_part: bool
    """Some benchmarks were left out."""
    rows: Sequence[Row]
    findings: Sequence[Finding]

    @property
    def benchmarks(self) -> list[str]:
        """The benchmarks that the run has results of, in the order they ran."""
        found = [row.benchmark for row in self.rows] + [finding.benchmark for finding in self.findings]
        return list(dict.fromkeys(found))

    def rows_of(self, benchmark: str) -> list[Row]:
        return [row for row in self.rows if row.benchmark == benchmark]

    def findings_of(self, benchmark: str) -> list[Finding]:
        return [finding for finding in self.findings if finding.benchmark == benchmark]


@dataclass(frozen=True, slots=True)
class NodeCase:
    """A case whose name begins with a number of nodes."""

    nodes: int
    rest: str


def read(path: Path) -> Run:
    content = json.loads(path.read_text())
    if "rows" not in content:
        raise ValueError(f"{path} holds no results of `python -m benchmarks`")
    absolute = path.resolve()
    return Run(
        name=str(absolute.relative_to(ROOT)) if absolute.is_relative_to(ROOT) else path.name,
        machine=content["machine"],
        is_quick=content["is_quick"],
        is_part=bool(content.get("only")),
        rows=[Row(**{**_known(Row, row), "seconds": tuple(row["seconds"])}) for row in content["rows"]],
        findings=[Finding(**_known(Finding, found)) for found in content.get("findings", [])],
    )


def with_shown_names(run: Run) -> Run:
    """The same run with the names of contenders that people read."""
    return replace(run, rows=[replace(row, contender=shown_name(row.contender, run.machine)) for row in run.rows])


def find_shown(directory: Path = DIRECTORY) -> list[Run]:
    """The newest whole run, and newer runs of benchmarks that it does not have, or of newer code. No smoke runs.

    A part that repeats a benchmark of the whole run on the same code is left out: a result is not replaced by a luckier
    one.
    """
    parts: list[Run] = []
    for path in sorted(directory.glob("*.json"), reverse=True):
        run = read(path) if _stamped.fullmatch(path.name) else None
        if run is None or run.is_quick:
            continue
        if not run.is_part:
            added = [part for part in reversed(parts) if _adds_to(run, part)]
            used = {used.name for used in latest_of(added).values()}
            return [run, *(part for part in added if part.name in used)]
        parts.append(run)
    raise FileNotFoundError(f"no whole run in {directory}: run `python -m benchmarks`")


def _adds_to(whole: Run, part: Run) -> bool:
    is_newer_code = part.machine.get("commit") != whole.machine.get("commit")
    return is_newer_code or not set(part.benchmarks) & set(whole.benchmarks)


def latest_of(runs: Sequence[Run]) -> dict[str, Run]:
    """Every benchmark, and the last of the runs that has it."""
    return {benchmark: run for run in runs for benchmark in run.benchmarks}


def parse_case(name: str) -> NodeCase | None:
    """`1,024 nodes, first read` is 1024 nodes and `first read`."""
    found = _case.match(name)
    return NodeCase(int(found[1].replace(",", "")), found[2]) if found and found[1].strip(",") else None


def _known(kind: type, values: Mapping[str, Any]) -> dict[str, Any]:
    names: Iterable[str] = kind.__dataclass_fields__  # type: ignore[attr-defined]
    return {name: values[name] for name in names if name in values}
