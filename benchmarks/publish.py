"""`python -m benchmarks report [FILE]... [--out DIR]`: earlier results as a page, plots and a table for the README."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import pages, plots, runs
from benchmarks.machine import ROOT

DOCS = ROOT / "docs"
README = ROOT / "README.md"
START, END = "<!-- benchmarks -->", "<!-- /benchmarks -->"


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    found = [runs.read(path) for path in options.files or [runs.find_newest()]]
    try:
        written = write(found, options.out or DOCS)
    except plots.CannotDraw as error:
        print(error, file=sys.stderr)
        return 1
    if options.out is None:
        README.write_text(replace_section(README.read_text(), pages.readme_of(found)))
        written.append(README)
    for path in written:
        print(f"written: {path}")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks report", description="Render results as a page with plots, and the README's table."
    )
    parser.add_argument(
        "files", nargs="*", type=Path, metavar="FILE", help="results, later ones win; else the newest whole run"
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write the page and its images there, leave the README alone"
    )
    return parser.parse_args(arguments)


def write(found: Sequence[runs.Run], directory: Path) -> list[Path]:
    """Write the page and its plots; plots first, so that no page shows one that could not be drawn."""
    images = [
        plots.draw(name, run, directory / "images")
        for name, run in runs.latest_of(found).items()
        if plots.can_draw(name, run)
    ]
    page = directory / "benchmarks.md"
    page.write_text(pages.page_of(found))
    return [page, *images]


def replace_section(text: str, section: str) -> str:
    """The README with another section between its markers."""
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"the README has no section between {START} and {END}")
    return f"{before}{START}\n{section}\n{END}{after}"
