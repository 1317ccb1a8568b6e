"""Where the state of a run can be read from outside: a state_dir, the HTTP API, or the run's own store.

All three give the same: a picture of the run as it is now, and its events as lines.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import msgspec

from ft_rendezvous.errors import StateUnavailable, StoreUnavailable
from ft_rendezvous.state.model.events import decode_line, encode_state_line
from ft_rendezvous.state.model.records import END_OF_RUN, Cycle, Node, Run
from ft_rendezvous.state.model.run_state import RunState
from ft_rendezvous.state.model.view import end_last, view_cycles, view_nodes, view_run, view_vanished
from ft_rendezvous.state.read.log_reader import LOG_POLL_S, EventLogReader, Missing, describe_missing, follow_log
from ft_rendezvous.state.read.store_query import QueryAnswer, QueryClient
from ft_rendezvous.state.record.folders import choose_run


class Picture(msgspec.Struct, frozen=True, kw_only=True):
    """A run at one moment, as `ftr status --json` prints it. Field names are stable."""

    run: Run
    cycles: list[Cycle]
    """Oldest first."""
    nodes: list[Node]
    missing: Missing | None = None
    """What could not be read of the log; None if a live run answered, which knows all of it."""


class RunSource(Protocol):
    """A place to read one run from."""

    def look(self) -> Picture:
        """The run as it is now. Raises StateUnavailable."""

    def lines(self, after: int, is_followed: bool) -> Iterator[bytes]:
        """Events with a higher id than this, those that are there or until the run ends. Raises StateUnavailable."""


class FolderSource:
    """A run in a state_dir: alive, ended, or vanished."""

    def __init__(self, state_dir: Path, name: str | None, clock_ns: Callable[[], int]) -> None:
        self.folder = choose_run(state_dir, name)
        self.missing = Missing()
        """Of the lines that were read last, if they were not followed."""
        self._clock_ns = clock_ns
        self._reader = EventLogReader(self.folder.path, after=None)

    def look(self) -> Picture:
        for _ in self._reader.read():
            pass
        return picture_log(self._reader, self._clock_ns())

    def lines(self, after: int, is_followed: bool) -> Iterator[bytes]:
        if is_followed:
            for logged in follow_log(self.folder.path, after=after, clock_ns=self._clock_ns):
                yield logged.line
            return
        reader = EventLogReader(self.folder.path, after=after)
        try:
            for logged in reader.read():
                if logged.event.event_id > after:
                    yield logged.line
        finally:
            self.missing = reader.missing
            reader.close()


class StoreSource:
    """A live run, through its store."""

    def __init__(
        self, client: QueryClient, clock_ns: Callable[[], int], sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._client = client
        self._clock_ns = clock_ns
        self._sleep = sleep
        self._newest = 0

    def look(self) -> Picture:
        # Only the state is wanted: no event is newer than the newest.
        state = self._query(self._newest).state
        self._newest = state.event_id
        return picture_state(state, self._clock_ns())

    def lines(self, after: int, is_followed: bool) -> Iterator[bytes]:
        while True:
            answer = self._query(after)
            if after and _first_id(answer.lines) > after + 1:
                # The events between are not kept any more: the reader goes on from the state.
                after = answer.state.event_id
                yield encode_state_line(answer.state)
                continue
            for line in answer.lines:
                after = max(after, decode_line(line).event_id)
                yield line
            if not is_followed or (answer.state.status.is_terminal() and not answer.lines):
                return
            self._sleep(LOG_POLL_S)

    def _query(self, after: int) -> QueryAnswer:
        try:
            return self._client.look(after)
        except StoreUnavailable as error:
            raise StateUnavailable(
                f"{error}: the run has ended, or its host is lost; its state_dir and verdict_file say which"
            ) from error


def _first_id(lines: list[bytes]) -> int:
    return decode_line(lines[0]).event_id if lines else 0


def picture_state(state: RunState, now_ns: int) -> Picture:
    run = view_run(state, now_ns)
    if run is None:
        raise StateUnavailable("nothing is known of this run yet: try again in a moment")
    return Picture(run=run, cycles=view_cycles(state, now_ns), nodes=view_nodes(state))


def picture_log(reader: EventLogReader, now_ns: int) -> Picture:
    """The run as its log says; it also knows how a run ended whose log is damaged or whose coordinator vanished."""
    missing = reader.missing
    if reader.state.began is None:
        if missing.is_empty():
            raise StateUnavailable("nothing is recorded of this run yet: try again in a moment")
        raise StateUnavailable(
            f"nothing of this log can be read: {describe_missing(missing)}. No file of it begins with a whole state"
        )
    is_gone = reader.has_vanished(now_ns)
    seen_ns = reader.heard_ns or reader.state.time_ns
    picture = picture_state(reader.state, seen_ns if is_gone else now_ns)
    run = picture.run
    if is_gone:
        run = view_vanished(run, seen_ns)
    elif reader.verdict is not None and not run.is_terminal():
        run = msgspec.structs.replace(
            run,
            status=END_OF_RUN[reader.verdict.kind],
            status_detail=reader.verdict.reason,
            verdict=reader.verdict,
            end_time_ns=seen_ns,
        )
    cycles = end_last(picture.cycles, seen_ns) if is_gone else picture.cycles
    return msgspec.structs.replace(picture, run=run, cycles=cycles, missing=missing)
