"""`ftr report`: reads a run's whole log once, and reports what happened."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from ft_rendezvous.errors import ConfigError, StateUnavailable
from ft_rendezvous.state.read.log_reader import EventLogReader
from ft_rendezvous.state.read.sources import Picture, picture_log
from ft_rendezvous.state.record.folders import choose_run
from ft_rendezvous.state.report.markdown import write_page
from ft_rendezvous.state.report.plots import CannotDraw, draw_timeline
from ft_rendezvous.state.report.run_report import RunReport

PAGE = "report.md"
PLOT = "timeline.png"


def run_report(state_dir: Path, run: str | None, out: Path | None) -> int:
    """Print the report, or write it with its plot. Returns the exit code."""
    try:
        picture, report = read_report(choose_run(state_dir, run).path, time.time_ns())
    except StateUnavailable as error:
        raise ConfigError(str(error)) from error
    if out is None:
        sys.stdout.write(write_page(picture, report))
        return 0
    try:
        out.mkdir(parents=True, exist_ok=True)
        plot = _draw(picture, report, out / PLOT)
        (out / PAGE).write_text(write_page(picture, report, PLOT if plot else None))
    except OSError as error:
        raise ConfigError(f"the report cannot be written to {out}: {error.strerror}") from error
    print(out / PAGE)
    if plot:
        print(out / PLOT)
    return 0


def read_report(run_dir: Path, now_ns: int) -> tuple[Picture, RunReport]:
    """All of a run's log, folded. Raises StateUnavailable."""
    reader, report = EventLogReader(run_dir), RunReport()
    try:
        for logged in reader.read():
            report.take(logged.event, reader.state)
    finally:
        reader.close()
    picture = picture_log(reader, now_ns)
    report.finish(picture.run.end_time_ns or now_ns)
    return picture, report


def _draw(picture: Picture, report: RunReport, path: Path) -> bool:
    try:
        draw_timeline(picture.run, report, path)
    except CannotDraw as error:
        print(f"ftr: {error}", file=sys.stderr)
        return False
    return True
