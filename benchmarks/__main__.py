"""`python -m benchmarks [--quick] [--only NAME]... [--json PATH]`, and `python -m benchmarks report`: see publish."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import machine, pages, publish, report, targets
from benchmarks.children import end_server, prepare_environment
from benchmarks.measure import Finding, run_case
from benchmarks.registry import BENCHMARKS, FINDERS

RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["report"]:
        return publish.main(given[1:])
    options = _parse(given)
    prepare_environment()
    facts = machine.describe()
    rows: list[report.Row] = []
    findings: list[Finding] = []
    try:
        _run(options.only or list(BENCHMARKS), options.quick, rows, findings)
    except BaseException:
        if rows:
            finished = list(dict.fromkeys(row.benchmark for row in rows))
            report.write_json(options.json, facts, options.quick, rows, findings, only=finished)
            print(f"the results so far are in {options.json}", file=sys.stderr)
        raise
    finally:
        end_server()
    facts["after"] = machine.describe_now()
    report.write_json(options.json, facts, options.quick, rows, findings, only=options.only or ())
    _show(facts, rows, findings)
    for name in left_out(options.only or list(BENCHMARKS), rows, findings):
        print(f"note: {name} was left out: it has no small cases, or what it needs is not installed")
    print(f"written to {options.json}")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Compare ft_rendezvous with other rendezvous; `report` writes the results as a page.",
    )
    parser.add_argument("--quick", action="store_true", help="small cases and few rounds, in about a minute")
    parser.add_argument(
        "--only", action="append", choices=list(BENCHMARKS), help="run this benchmark only; may be repeated"
    )
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    parser.add_argument("--json", type=Path, default=RESULTS / f"{stamp}.json", help="where to write the results")
    return parser.parse_args(arguments)


def _run(names: Sequence[str], is_quick: bool, rows: list[report.Row], findings: list[Finding]) -> None:
    """Run benchmarks. Rows and findings are added as soon as they are known, so that an early end keeps them."""
    cases = [case for name in names for case in BENCHMARKS[name](is_quick)]
    finders = {name: FINDERS[name] for name in names if name in FINDERS}
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        turns = sum(case.turns for case in cases) + len(finders)
        task = progress.add_task("", total=turns)
        done = 0

        def show(label: str, turn: int, contender: str) -> None:
            progress.update(task, description=f"{label}: {contender}", completed=done + turn)

        def show_done(label: str) -> None:
            if not progress.console.is_terminal:
                progress.console.print(f"{done} of {turns} turns done: {label}")

        for case in cases:
            label = f"{case.benchmark}, {case.name}"
            rows.extend(report.rows_of(case, run_case(case, partial(show, label))))
            done += case.turns
            show_done(label)
        findings.extend(targets.judge(rows))
        for name, find in finders.items():
            show(name, 0, "no contest")
            findings.extend(find(is_quick))
            done += 1
            show_done(f"{name}: no contest")


def left_out(names: Sequence[str], rows: Sequence[report.Row], findings: Sequence[Finding]) -> list[str]:
    """Benchmarks that were asked for and have no result."""
    found = {row.benchmark for row in rows} | {finding.benchmark for finding in findings}
    return [name for name in names if name not in found]


def _show(facts: Mapping[str, Any], rows: Sequence[report.Row], findings: Sequence[Finding]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(report.table_of(rows, facts))
    if findings:
        console.print(report.findings_table_of(findings))
    for error in pages.errors_of(rows, findings):
        console.print(f"model, {error}")
    console.print(f"note: {machine.explain_lookups(facts)}")
    for warning in report.warnings_of(facts, rows):
        console.print(f"note: {warning}", style="yellow", markup=False)


if __name__ == "__main__":
    sys.exit(main())
