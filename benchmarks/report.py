"""What came out of a run: a table for the terminal, and a file to compare with later."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.baselines import nvrx, ray_train, torchft
from benchmarks.machine import explain_pauses
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


def shown_name(contender: str, machine: Mapping[str, Any]) -> str:
    """What people read. Files keep the plain name, so that results of all versions can be read and compared."""
    packages = {each.CONTENDER: each.PACKAGE for each in (nvrx, torchft, ray_train)}
    version = machine.get(packages[contender]) if contender in packages else None
    return f"{contender} {version}" if version else contender


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
        table.add_row(
            *(group if group != seen else ("", "")), shown_name(row.contender, machine), *_numbers(row), style=style
        )
        seen = group
    return table


def findings_table_of(findings: Iterable[Finding]) -> Table:
    table = Table(title="counted, not contested")
    for heading in ("benchmark", "case", "what"):
        table.add_column(heading, no_wrap=heading == "benchmark")
    for heading in ("value", "target"):
        table.add_column(heading, justify="right", no_wrap=True)
    for found in findings:
        mark = {True: " met", False: " MISSED", None: ""}[found.is_met]
        table.add_row(
            found.benchmark, found.case, found.what, f"{digits(found.value)} {found.unit}".strip(), found.target + mark
        )
    return table


def _numbers(row: Row) -> tuple[str, str, str]:
    if row.median_s is None:
        ratio = "" if row.ratio is None else f"> {row.ratio:.0f}"
        return "did not finish", f"> {row.limit_s:g} s", ratio
    spread = f"{min(row.seconds) * 1e3:.2f}..{max(row.seconds) * 1e3:.2f}"
    return f"{row.median_s * 1e3:.2f}", spread, "" if row.ratio is None else f"{row.ratio:.2f}"


def digits(value: float) -> str:
    """Three significant digits, without an exponent: 1,295 and 0.0451."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if decimals and float(value).is_integer() else text


def warnings_of(machine: Mapping[str, Any], rows: Iterable[Row] = ()) -> list[str]:
    """Facts of this machine that make the numbers less reliable."""
    found: list[str] = []
    load = max(look.get("load_1min", 0.0) for look in (machine, machine.get("after", {})))
    if load > machine["cores"]:
        found.append(f"the machine is busy (load {load:.1f}): trust ratios only")
    if machine.get(nvrx.PACKAGE, "") is None:
        found.append(f"{nvrx.PACKAGE} is not installed: {nvrx.CONTENDER} does not take part")
    if machine.get(torchft.PACKAGE, "") is None:
        found.append(f"{torchft.PACKAGE} is not installed: no replica groups were trained")
    if machine.get(ray_train.PACKAGE, "") is None:
        found.append(
            f"{ray_train.PACKAGE} is not installed: {ray_train.CONTENDER} does not take part ({ray_train.INSTALL})"
        )
    pauses = explain_pauses(machine, [(f"{row.contender} ({row.benchmark}, {row.case})", row.seconds) for row in rows])
    return [*found, pauses] if pauses else found


def write_json(
    path: Path,
    machine: Mapping[str, Any],
    is_quick: bool,
    rows: Iterable[Row],
    findings: Iterable[Finding] = (),
    *,
    only: Sequence[str] = (),
) -> None:
    """Write all results. `only` names the benchmarks that ran, if some did not."""
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        "machine": machine,
        "is_quick": is_quick,
        "only": list(only),
        "rows": [row.as_dict() for row in rows],
        "findings": [asdict(found) for found in findings],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")
