"""Reads the export log of a run, while it is being written or years later, damaged or not.

The state holds only events that were read without a gap. After a damaged or missing line, events do not count until the
log holds the whole state again, at the beginning of its next file. Skipped events are counted. One line is in memory
at a time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO, NamedTuple

import msgspec

from ft_rendezvous.core.model import Verdict
from ft_rendezvous.errors import ProtocolBug, StateUnavailable
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.events import Event, StateTold, decode_line, take_event, version_of
from ft_rendezvous.state.model.records import SCHEMA_VERSION
from ft_rendezvous.state.model.run_state import RunState
from ft_rendezvous.state.model.view import has_vanished, view_cycles, view_nodes, view_run
from ft_rendezvous.state.record.folders import list_files
from ft_rendezvous.text import count

LOG_POLL_S = 0.25
"""How often a log that is followed is looked at."""
MAX_EVENT_BYTES = 256 * 1024 * 1024
"""A line without an end by then is no event: a crash may leave a file full of zeros."""
GAPS_KEPT = 100

_UNFOLDABLE = (LookupError, AssertionError, AttributeError, ArithmeticError, ValueError, TypeError, ProtocolBug)
"""Errors from an event that was changed on the disk and is still JSON."""


class Gap(msgspec.Struct, frozen=True):
    """Events that are not there, by their ids."""

    first: int
    last: int


class Missing(msgspec.Struct, kw_only=True):
    """Parts of a log that could not be read."""

    events: int = 0
    """Missing in the log, or not counted."""
    damaged_lines: int = 0
    torn: bool = False
    """The last line has no end: it was being written, or its writer was killed."""
    gaps: list[Gap] = []
    """The first few."""
    at_end: bool = False
    """The newest events are among the missing: the state is an old one."""

    def is_empty(self) -> bool:
        return not (self.events or self.damaged_lines or self.torn)


class LoggedEvent(NamedTuple):
    """An event and its line."""

    event: Event
    line: bytes


class EventLogReader:
    """Reads one run's files once, from the beginning or from a later file that begins with the whole state.

    Every call of `read` goes on where the last one ended.
    """

    def __init__(self, run_dir: Path, *, after: int | None = 0) -> None:
        """Begin so that all events after this one are read; None: only the state of now is wanted."""
        self.state = RunState()
        self.heard_ns = 0
        """The newest time in any line, also in those that could not be counted."""
        self.verdict: Verdict | None = None
        """How the run ended, if a line says so; after a gap the state may not know it."""
        self._run_dir = run_dir
        self._missing = Missing()
        self._skipped_to: int | None = None
        """The last event that could not be counted because one before it is missing; None: there is no gap."""
        self._newer: int | None = None
        self._file: BinaryIO | None = None
        self._number = 0
        self._offset = 0
        """Where the first line begins that was not read to its end."""
        self._rest = b""
        """The part of that line that is there."""
        self._start(after)

    @property
    def missing(self) -> Missing:
        counted = self._missing
        before, until, gaps = self.state.event_id, self._skipped_to, list(counted.gaps)
        if until is not None and len(gaps) < GAPS_KEPT:
            gaps.append(Gap(before + 1, until))
        return msgspec.structs.replace(
            counted,
            events=counted.events + (0 if until is None else until - before),
            torn=bool(self._rest),
            gaps=gaps,
            at_end=until is not None,
        )

    def has_vanished(self, now_ns: int) -> bool:
        """Whether the coordinator is gone without a verdict, by its lease."""
        uncounted_ns = max(0, self.heard_ns - self.state.time_ns)
        return self.verdict is None and has_vanished(self.state, now_ns - uncounted_ns)

    def read(self) -> Iterator[LoggedEvent]:
        """The events since the last call; each is folded into `state` before it is given."""
        while True:
            # Looked up first: once a file has a successor, nothing is appended to it any more.
            later = next((each for each in self._files() if each[0] > self._number), None)
            for line in self._lines():
                if (event := self._take(line)) is not None:
                    yield LoggedEvent(event, line)
            # A line that is a whole object lacks its newline and nothing else.
            if self._rest.endswith(b"}") and (event := self._try(self._rest)) is not None:
                line, self._rest = self._rest + b"\n", b""
                if self._accept(event):
                    yield LoggedEvent(event, line)
            if later is None:
                break
            if self._rest:
                self._refuse()
            self._open(later)
        if self._newer is not None and self.state.event_id == 0:
            self._refuse_newer(self._newer)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # --- files ------------------------------------------------------------------------------------------

    def _files(self) -> list[tuple[int, Path]]:
        try:
            return list_files(self._run_dir)
        except OSError as error:
            raise StateUnavailable(f"{self._run_dir} cannot be read: {error.strerror}") from error

    def _start(self, after: int | None) -> None:
        """Skip files that a later one makes unnecessary, because it begins with a state that is old enough."""
        if after == 0:
            return
        for number, path in reversed(self._files()[1:]):
            event = self._peek(path)
            if event is None or not isinstance(event.event, StateTold) or not _is_sound(event.event.state):
                continue
            if after is None or event.event_id <= after:
                self.state = event.event.state
                self._number = number - 1
                return

    def _peek(self, path: Path) -> Event | None:
        try:
            with path.open("rb") as file:
                return decode_line(file.readline(MAX_EVENT_BYTES))
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def _open(self, numbered: tuple[int, Path]) -> None:
        self.close()
        self._offset, self._rest = 0, b""
        self._number, path = numbered
        try:
            self._file = path.open("rb")
        except FileNotFoundError:
            self._file = None  # An operator deleted it; the next file begins with the state.
        except OSError as error:
            raise StateUnavailable(f"{path} cannot be read: {error.strerror}") from error

    def _lines(self) -> Iterator[bytes]:
        self._rest = b""
        try:
            if self._file is not None:
                # A line without an end is read anew: a writer whose disk was full takes back what it wrote of it.
                self._file.seek(self._offset)
            while self._file is not None and (line := self._file.readline(MAX_EVENT_BYTES)):
                if line.endswith(b"\n"):
                    self._offset += len(line)
                    yield line
                elif len(line) < MAX_EVENT_BYTES:
                    self._rest = line
                    return
                else:
                    self._offset += len(line)
                    self._refuse()
        except OSError as error:
            raise StateUnavailable(f"{self._run_dir} cannot be read any further: {error.strerror}") from error

    # --- lines ------------------------------------------------------------------------------------------

    def _take(self, line: bytes) -> Event | None:
        """The event of a line, if it counts."""
        if line == b"\n":
            return None
        event = self._try(line)
        if event is None:
            self._refuse()
            return None
        return event if self._accept(event) else None

    def _try(self, line: bytes) -> Event | None:
        try:
            event = decode_line(line)
            version = event.schema_version
        except (msgspec.MsgspecError, UnicodeDecodeError):
            event, version = None, _version_of(line)
        if version <= SCHEMA_VERSION:
            return event
        # One such line may be a flipped bit. Two are another program's.
        if self._newer is not None and self.state.event_id == 0:
            self._refuse_newer(version)
        self._newer = version
        return None

    def _accept(self, event: Event) -> bool:
        self.heard_ns = max(self.heard_ns, event.timestamp_ns)
        if isinstance(event.event, journal.RunEnded | journal.HostLeft):
            self.verdict = event.event.verdict
        before = self.state.event_id
        if isinstance(event.event, StateTold):
            return self._accept_state(event, event.event.state)
        if event.event_id <= before:
            return False  # It is in the state already.
        if self._skipped_to is not None or event.event_id != before + 1:
            self._skipped_to = event.event_id
            return False
        try:
            self.state = take_event(self.state, event)
            if isinstance(event.event, journal.RunBegan):
                view_run(self.state, event.timestamp_ns)
        except _UNFOLDABLE:
            self.state = self._fold_until(before)
            self._refuse()
            self._skipped_to = event.event_id
            return False
        return True

    def _accept_state(self, event: Event, state: RunState) -> bool:
        if not _is_sound(state) or state.event_id != event.event_id:
            self._refuse()
            return False
        before = self.state.event_id
        if event.event_id < before or (event.event_id == before and self._skipped_to is None):
            return False
        if event.event_id > before:
            self._missing.events += event.event_id - before
            if len(self._missing.gaps) < GAPS_KEPT:
                self._missing.gaps.append(Gap(before + 1, event.event_id))
        self.state, self._skipped_to = state, None
        return event.event_id > before

    def _refuse(self) -> None:
        self._missing.damaged_lines += 1

    def _fold_until(self, event_id: int) -> RunState:
        """The state as of this event, read again: the one in memory holds half of the bad event."""
        again = EventLogReader(self._run_dir, after=event_id)
        try:
            if again.state.event_id != event_id:
                for logged in again.read():
                    if logged.event.event_id == event_id:
                        break
        finally:
            again.close()
        return again.state

    def _refuse_newer(self, version: int) -> None:
        raise StateUnavailable(
            f"{self._run_dir} was written with schema version {version}, and this ft-rendezvous reads up to "
            f"{SCHEMA_VERSION}: read it with the version that wrote it, or a newer one"
        )


def read_events(run_dir: Path) -> Iterator[Event]:
    """All events of a run that can be read, oldest first; a `StateTold` where some are missing."""
    reader = EventLogReader(run_dir)
    try:
        for logged in reader.read():
            yield logged.event
    finally:
        reader.close()


def load(run_dir: Path) -> tuple[RunState, Missing]:
    """The newest state that can be read, and what was missing before it."""
    reader = EventLogReader(run_dir, after=None)
    try:
        for _ in reader.read():
            pass
    finally:
        reader.close()
    return reader.state, reader.missing


def follow_log(
    run_dir: Path,
    *,
    after: int = 0,
    poll_s: float = LOG_POLL_S,
    clock_ns: Callable[[], int] = time.time_ns,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[LoggedEvent]:
    """All events after this one, and further ones as they are written, until the run has ended or vanished."""
    reader = EventLogReader(run_dir, after=after)
    try:
        while True:
            was_quiet = True
            for logged in reader.read():
                if logged.event.event_id > after:
                    was_quiet = False
                    yield logged
            # Nodes still leave after the verdict.
            if was_quiet and (reader.verdict or reader.state.status.is_terminal() or reader.has_vanished(clock_ns())):
                return
            sleep(poll_s)
    finally:
        reader.close()


def _version_of(line: bytes) -> int:
    try:
        return version_of(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return 0


def _is_sound(state: RunState) -> bool:
    """Whether a state can be shown. With one flipped bit, a state may contradict itself."""
    try:
        view_run(state, state.time_ns)
        view_cycles(state, state.time_ns)
        view_nodes(state)
    except _UNFOLDABLE:
        return False
    return True


def describe_missing(missing: Missing) -> str:
    """The missing parts in words; empty if there are none."""
    parts = []
    if missing.events:
        parts.append(f"{count(missing.events, 'event')} {'is' if missing.events == 1 else 'are'} missing")
    if missing.damaged_lines:
        parts.append(f"{count(missing.damaged_lines, 'line')} {'is' if missing.damaged_lines == 1 else 'are'} damaged")
    if missing.torn:
        parts.append("the last line is torn")
    tail = "; what happened last is not known" if missing.at_end else ""
    return ", ".join(parts) + tail
