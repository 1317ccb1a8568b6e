"""`python -m benchmarks.scenarios_c10d [--only NAME]... [--backend ft|c10d|both] [--json PATH] [--markdown PATH]`"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from benchmarks import machine
from benchmarks.scenarios_c10d import report
from benchmarks.scenarios_c10d.observe import Story, describe
from benchmarks.scenarios_c10d.scenarios import SCENARIOS
from benchmarks.scenarios_c10d.stage import CONTENDERS, LIMIT_S, play

JSON = machine.ROOT / "benchmarks" / "results" / "scenarios.json"
MARKDOWN = machine.ROOT / "docs" / "c10d-comparison.md"


def main(arguments: Sequence[str] | None = None) -> int:
    options = parse(arguments)
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    if options.render:
        facts, stories = report.read_json(options.render)
    else:
        date = datetime.now(UTC).strftime("%Y-%m-%d")
        facts = {**machine.describe(), "date": date, "limit_s": options.limit_s, "note": options.note}
        stories = _play_all(options, console)
    console.print(report.table_of(stories))
    if options.json:
        report.write_json(options.json, facts, stories)
    if options.markdown:
        options.markdown.write_text(report.page_of(facts, stories))
    for path in filter(None, (options.json, options.markdown)):
        console.print(f"written to {path}", soft_wrap=True)
    return 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """All options. A part of the scenarios, or one backend, replaces no results unless an option names the file."""
    parser = argparse.ArgumentParser(prog=report.COMMAND, description="Ten things that happen to a job: ft and c10d.")
    parser.add_argument("--only", action="append", choices=list(SCENARIOS), help="this scenario; may be repeated")
    parser.add_argument("--backend", choices=("ft", "c10d", "both"), default="both")
    parser.add_argument("--limit-s", type=float, default=LIMIT_S, help="what a scenario may take")
    parser.add_argument("--json", type=Path, help="where to write the results")
    parser.add_argument("--markdown", type=Path, help="where to write the page for the docs")
    parser.add_argument("--logs", type=Path, help="a directory for the logs of all nodes; else a temporary one")
    parser.add_argument("--render", type=Path, metavar="JSON", help="run nothing: show the results of an earlier run")
    parser.add_argument("--note", default="", help="what a reader of the page must know about this run")
    options = parser.parse_args(arguments)
    options.contenders = {
        name: contender for name, contender in CONTENDERS.items() if options.backend in (contender.backend, "both")
    }
    if options.only is None and options.backend == "both" and options.render is None:
        options.json = options.json or JSON
        options.markdown = options.markdown or MARKDOWN
    options.only = options.only or list(SCENARIOS)
    return options


def _play_all(options: argparse.Namespace, console: Console) -> dict[str, dict[str, Story]]:
    logs = options.logs or Path(tempfile.mkdtemp(prefix="ft-scenarios-"))
    console.print(f"logs: {logs}", soft_wrap=True)
    stories: dict[str, dict[str, Story]] = {name: {} for name in options.only}
    for name, by_contender in stories.items():
        for number, (label, contender) in enumerate(options.contenders.items()):
            story = play(SCENARIOS[name], contender, options.limit_s, logs / name / f"{number}-{contender.backend}")
            by_contender[label] = story
            console.print(
                f"{name}, {label}: {story.outcome} in {story.took_s:.0f} s: {describe(story)}", soft_wrap=True
            )
    return stories


if __name__ == "__main__":
    sys.exit(main())
