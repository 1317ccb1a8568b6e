"""`python -m benchmarks [--quick] [--only NAME]... [--json PATH]`, and `python -m benchmarks report`: see publish."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks import machine, pages, publish, report, targets
from benchmarks.children import end_server, prepare_environment
from benchmarks.measure import Case, run_case
from benchmarks.registry import BENCHMARKS, FINDERS

RESULTS = Path(__file__).parent / "results"


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["report"]:
        return publish.main(given[1:])
    options = _parse(given)
    prepare_environment()
    facts = machine.describe()
    names = options.only or list(BENCHMARKS)
    try:
        rows = _run([case for name in names for case in BENCHMARKS[name](options.quick)])
        findings = targets.judge(rows)
        findings += [found for name in names if name in FINDERS for found in FINDERS[name](options.quick)]
    finally:
        end_server()
    facts["after"] = machine.describe_now()
    console = Console(width=None if sys.stdout.isatty() else 120)
    console.print(report.table_of(rows, facts))
    if findings:
        console.print(report.findings_table_of(findings))
    for error in pages.errors_of(rows, findings):
        console.print(f"model, {error}")
    console.print(f"note: {machine.explain_lookups(facts)}")
    for warning in report.warnings_of(facts, rows):
        console.print(f"note: {warning}", style="yellow")
    report.write_json(options.json, facts, options.quick, rows, findings, only=options.only or ())
    console.print(f"written to {options.json}", soft_wrap=True)
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Compare ft_rendezvous with the field; `report` renders what was found.",
    )
    parser.add_argument("--quick", action="store_true", help="a smoke run of under a minute: small cases, few rounds")
    parser.add_argument("--only", action="append", choices=list(BENCHMARKS), help="this benchmark; may be repeated")
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    parser.add_argument("--json", type=Path, default=RESULTS / f"{stamp}.json", help="where to write the results")
    return parser.parse_args(arguments)


def _run(cases: Sequence[Case]) -> list[report.Row]:
    rows: list[report.Row] = []
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        turns = sum(case.turns for case in cases)
        task = progress.add_task("", total=turns)
        done = 0
        for case in cases:

            def tell(turn: int, contender: str, case: Case = case, done: int = done) -> None:
                label = f"{case.benchmark}, {case.name}: {contender}"
                progress.update(task, description=label, completed=done + turn)

            rows.extend(report.rows_of(case, run_case(case, tell)))
            done += case.turns
            if not progress.console.is_terminal:
                progress.console.print(f"{done} of {turns} turns done: {case.benchmark}, {case.name}")
    return rows


if __name__ == "__main__":
    sys.exit(main())
