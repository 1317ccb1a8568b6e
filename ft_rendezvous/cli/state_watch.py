"""`ftr status` and `ftr events`: look at a run from outside, once or until it ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from rich.console import Console
from rich.live import Live

from ft_rendezvous.cli.exit_codes import CANCELLED, FAILED
from ft_rendezvous.cli.state_blocks import blocks_of, gathering, headline
from ft_rendezvous.cli.state_draw import render_drawing, render_lines
from ft_rendezvous.errors import ConfigError, StateUnavailable
from ft_rendezvous.protocol.journal import Looked, UpdatesReported
from ft_rendezvous.state.model.events import AnyEntry, StateTold, decode_line
from ft_rendezvous.state.model.records import RunStatus
from ft_rendezvous.state.model.run_state import NS
from ft_rendezvous.state.model.wording import describe, local_time, names_in
from ft_rendezvous.state.read.log_reader import describe_missing
from ft_rendezvous.state.read.sources import FolderSource, Picture, RunSource, StoreSource
from ft_rendezvous.state.read.store_query import QueryClient

LOOK_INTERVAL_S = 0.5
MAX_LOOK_INTERVAL_S = 10.0
LOOK_COST_FACTOR = 10
"""The time between two looks is at least this many times the time of a look."""
EXIT_CODES = {RunStatus.FINISHED: 0, RunStatus.ERRORED: FAILED, RunStatus.ABORTED: CANCELLED}


def now_ns() -> int:
    return time.time_ns()


def find_source(text: str, run: str | None) -> RunSource:
    """The source that an operator names: a directory, a URL or an endpoint. Raises StateUnavailable or ConfigError."""
    if text.startswith(("http://", "https://")):
        from ft_rendezvous.state.read.http_source import HttpSource  # noqa: PLC0415

        return HttpSource(text, run, os.environ.get("FT_STATE_TOKEN"))
    if Path(text).is_dir():
        return FolderSource(Path(text), run, now_ns)
    host, _, port = text.rpartition(":")
    if not (host and port.isdecimal()) or "/" in text:
        raise StateUnavailable(
            f"there is no directory {text!r}: give a run's state_dir, its HTTP address http://HOST:PORT, "
            "or its store HOST:PORT"
        )
    return StoreSource(QueryClient(text), now_ns)


def run_status(text: str, run: str | None, is_watched: bool, is_json: bool, is_every_node: bool) -> int:
    """Show the run once, or until it ends. Returns the exit code."""
    with _refusing():
        source = find_source(text, run)
        if not is_watched:
            _print_picture(source.look(), is_json, is_every_node)
            return 0
        if is_json:
            last = _watch_as_json(source)
        elif sys.stdout.isatty():
            last = _watch_drawn(source, is_every_node)
        else:
            last = _watch_in_lines(source, is_every_node)
        return EXIT_CODES[last.run.status]


def run_events(  # noqa: PLR0917
    text: str, run: str | None, after: int, is_followed: bool, is_json: bool, is_all: bool
) -> int:
    """Print what happened, and go on if the run is followed. Returns the exit code."""
    with _refusing():
        source = find_source(text, run)
        lines = source.lines(after, is_followed)
        for line in lines if is_json else _sentences(lines, after, is_all):
            text_line = line if isinstance(line, str) else line.decode(errors="replace").rstrip("\n")
            # With --follow each line is shown at once; else the system buffers, which is ten times faster.
            print(text_line, flush=is_followed)
        if isinstance(source, FolderSource) and not source.missing.is_empty():
            print(f"ftr: of its log, {describe_missing(source.missing)}", file=sys.stderr)
    return 0


# --- status -----------------------------------------------------------------------------------------


def _print_picture(picture: Picture, is_json: bool, is_every_node: bool) -> None:
    blocks = blocks_of(picture, now_ns(), is_every_node)
    if is_json:
        _say(msgspec.json.encode(picture).decode())
    elif sys.stdout.isatty():
        Console().print(render_drawing(blocks))
    else:
        _say("\n".join(render_lines(blocks)))


def _pictures(source: RunSource) -> Iterator[Picture]:
    """The run again and again, the last time when it has ended."""
    while True:
        began_s = time.monotonic()
        picture = source.look()
        took_s = time.monotonic() - began_s
        yield picture
        if picture.run.is_terminal():
            return
        # With ten thousand nodes, a look costs the store host a lot.
        time.sleep(min(MAX_LOOK_INTERVAL_S, max(LOOK_INTERVAL_S, LOOK_COST_FACTOR * took_s)))


def _watch_drawn(source: RunSource, is_every_node: bool) -> Picture:
    console = Console()
    # While it is watched, the picture is cut to the screen; at the end it is shown whole.
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis", transient=True) as live:
        for picture in _pictures(source):
            last = picture
            live.update(render_drawing(blocks_of(picture, now_ns(), is_every_node)), refresh=True)
    console.print(render_drawing(blocks_of(last, now_ns(), is_every_node)))
    return last


def _watch_in_lines(source: RunSource, is_every_node: bool) -> Picture:
    """A line when something has changed that matters, and all there is to see at the end."""
    before: tuple[object, ...] = ()
    for picture in _pictures(source):
        last, run = picture, picture.run
        now = (run.status, run.cycle_id, run.live, gathering(picture))
        if now != before and not run.is_terminal():
            _say(f"{local_time(now_ns())}  {headline(picture)}")
        before = now
    _print_picture(last, False, is_every_node)
    return last


def _watch_as_json(source: RunSource) -> Picture:
    """A line of JSON for everything that happened."""
    before = -1
    for picture in _pictures(source):
        last = picture
        if picture.run.event_id != before or picture.run.is_terminal():
            _say(msgspec.json.encode(picture).decode())
        before = picture.run.event_id
    return last


# --- events -----------------------------------------------------------------------------------------


def _sentences(lines: Iterator[bytes], after: int, is_all: bool) -> Iterator[str]:
    names: dict[str, str] = {}
    second, at_second = 0, ""
    for line in lines:
        event = decode_line(line)
        names.update(names_in(event))
        if after and event.event_id > after + 1 and not isinstance(event.event, StateTold):
            yield f"{'':23}  {event.event_id - after - 1:,} events before this are not kept here"
        after = event.event_id
        if is_all or not _is_routine(event.event):
            if event.timestamp_ns // NS != second or not at_second:
                second, at_second = event.timestamp_ns // NS, local_time(event.timestamp_ns)
            yield f"{at_second}.{event.timestamp_ns // 1_000_000 % 1_000:03d}  {describe(event, names)}"


def _is_routine(entry: AnyEntry) -> bool:
    """What comes again and again as long as all is well."""
    return isinstance(entry, Looked) or (isinstance(entry, UpdatesReported) and entry.is_plain)


# --- the command line -------------------------------------------------------------------------------


def _say(text: str) -> None:
    print(text, flush=True)


@contextmanager
def _refusing() -> Iterator[None]:
    """A run that is not there is one line of error. A closed pipe is no error."""
    try:
        yield
    except StateUnavailable as error:
        raise ConfigError(str(error)) from error
    except BrokenPipeError:
        # The interpreter flushes once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
