"""`python -m benchmarks report [FILE]... [--out DIR]`: earlier results as a page with plots."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks import pages, plots, runs
from benchmarks.machine import ROOT

DOCS = ROOT / "docs"


def main(arguments: Sequence[str]) -> int:
    options = _parse(arguments)
    found = [runs.read(path) for path in options.files] or runs.find_shown()
    try:
        written = write(found, options.out or DOCS)
    except plots.CannotDraw as error:
        print(error, file=sys.stderr)
        return 1
    for path in written:
        print(f"written: {path}")
    return 0


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks report", description="Write results as a page with plots."
    )
    parser.add_argument(
        "files",
        nargs="*",
        type=Path,
        metavar="FILE",
        help="results; of two files the later one wins. "
        "Default: the newest whole run, and newer ones of what it lacks or of newer code",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="where to write the page and its images. Default: docs/"
    )
    return parser.parse_args(arguments)


def write(found: Sequence[runs.Run], directory: Path) -> list[Path]:
    """Write the plots and then the page, so that no page shows a plot that could not be drawn."""
    found = [runs.with_shown_names(run) for run in found]
    images = [
        plots.draw(name, run, directory / "images")
        for name, run in runs.latest_of(found).items()
        if plots.can_draw(name, run)
    ]
    page = directory / "benchmarks.md"
    page.write_text(pages.page_of(found))
    return [page, *images]
