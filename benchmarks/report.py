"""What came out: a table to read, a file to compare."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.machine import SLOW_LOOKUP_S
from benchmarks.measure import OURS, Case, Finding, Times, ratio_to_ours


@dataclass(frozen=True, slots=True)
class Row:
    """One contender in one case."""

    benchmark: str
    case: str
    contender: str
    seconds: tuple[float, ...]
    median_s: float | None
    limit_s: float | None
    ratio: float | None
    """How many times as long as ours; with a limit, at least so many."""

    def as_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def rows_of(case: Case, times: Mapping[str, Times]) -> list[Row]:
    return [
        Row(
            case.benchmark,
            case.name,
            name,
            tuple(taken.seconds),
            taken.median_s,
            taken.limit_s,
            ratio_to_ours(times, name),
        )
        for name, taken in times.items()
    ]


def table_of(rows: Iterable[Row], machine: Mapping[str, Any]) -> Table:
    cores, torch = machine["cores"], machine["torch"]
    table = Table(
        title=f"ft_rendezvous, {cores} cores, torch {torch}, load {machine['load_1min']:.1f}",
        caption="ratio: time relative to ours in the same round, median over rounds",
    )
    for heading in ("benchmark", "case", "contender"):
        table.add_column(heading, no_wrap=True)
    for heading in ("median ms", "min..max ms", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    seen: tuple[str, str] | None = None
    for row in rows:
        group = (row.benchmark, row.case)
        if seen not in (None, group):
            table.add_section()
        style = "bold" if row.contender == OURS else None
        table.add_row(*(group if group != seen else ("", "")), row.contender, *_numbers(row), style=style)
        seen = group
    return table


def findings_table_of(findings: Iterable[Finding]) -> Table:
    table = Table(title="counted, not contested")
    for heading in ("benchmark", "case", "what"):
        table.add_column(heading, no_wrap=True)
    for heading in ("value", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    for found in findings:
        mark = {True: " met", False: " MISSED", None: ""}[found.is_met]
        table.add_row(
            found.benchmark, found.case, found.what, f"{found.value:,.4g} {found.unit}".strip(), found.target + mark
        )
    return table


def _numbers(row: Row) -> tuple[str, str, str]:
    if row.median_s is None:
        ratio = "" if row.ratio is None else f"> {row.ratio:.0f}"
        return "did not finish", f"> {row.limit_s:g} s", ratio
    spread = f"{min(row.seconds) * 1e3:.2f}..{max(row.seconds) * 1e3:.2f}"
    return f"{row.median_s * 1e3:.2f}", spread, "" if row.ratio is None else f"{row.ratio:.2f}"


def warnings_of(machine: Mapping[str, Any]) -> list[str]:
    """What on this machine spoils the numbers."""
    found = [
        f"a reverse lookup of {address} takes {seconds:.2f} s here: connecting to a TCPStore is as slow"
        for address, seconds in machine["reverse_dns_s"].items()
        if seconds > SLOW_LOOKUP_S
    ]
    if machine["load_1min"] > machine["cores"]:
        found.append(f"the machine is busy (load {machine['load_1min']:.1f}): trust ratios only")
    return found


def write_json(
    path: Path, machine: Mapping[str, Any], is_quick: bool, rows: Iterable[Row], findings: Iterable[Finding] = ()
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "machine": machine,
        "is_quick": is_quick,
        "rows": [row.as_dict() for row in rows],
        "findings": [asdict(found) for found in findings],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
