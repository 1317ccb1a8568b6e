"""The export log on disks that are well, full, read-only and slow."""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from ft_rendezvous.state.model.events import StateTold, decode_line, encode_state, take_event
from ft_rendezvous.state.model.run_state import RunState
from ft_rendezvous.state.record.export_log import ExportLog
from ft_rendezvous.state.record.folders import list_files, run_folder
from ft_rendezvous.state.record.stream import Stream
from tests.state.recording import Recording, record_seed

LONG_S = 20.0


def log_files(folder: Path) -> list[Path]:
    """A run's files, oldest first."""
    return [path for _, path in list_files(folder)] if folder.is_dir() else []


def put_all(log: ExportLog, recording: Recording) -> None:
    for event, line in zip(recording.events, recording.lines, strict=True):
        log.put(event, line)


def state_of(paths: list[Path]) -> RunState:
    """Read strictly: every line is whole, and the state is told wherever something is missing."""
    state = RunState()
    for path in paths:
        assert path.read_bytes().endswith(b"\n")
        for line in path.read_bytes().splitlines():
            state = take_event(state, decode_line(line))
    return state


def is_written(line: bytes, folder: Path) -> bool:
    return any(line in path.read_bytes() for path in log_files(folder))


def test_what_is_told_is_written_and_replayed(tmp_path: Path) -> None:
    recording = record_seed(3)
    log = ExportLog(tmp_path / "run")
    put_all(log, recording)
    assert log.close(LONG_S)
    (path,) = log_files(tmp_path / "run")
    assert path.name == "events-000001.jsonl"
    assert path.read_bytes() == b"".join(recording.lines)
    assert encode_state(state_of([path])) == encode_state(recording.state)


def test_files_are_rotated_and_each_can_be_read_alone(tmp_path: Path) -> None:
    recording = record_seed(3)
    log = ExportLog(tmp_path, log_bytes=3_000)
    for event, line in zip(recording.events, recording.lines, strict=True):
        log.put(event, line)
        wait_for(partial(is_written, line, tmp_path))
    assert log.close(LONG_S)
    paths = log_files(tmp_path)
    assert len(paths) > 1, [path.stat().st_size for path in paths]
    for path in paths[1:]:
        assert isinstance(decode_line(path.read_bytes().splitlines()[0]).event, StateTold)
    for first in range(len(paths)):
        assert encode_state(state_of(paths[first:])) == encode_state(recording.state)


def test_a_state_larger_than_a_file_is_not_told_after_every_event(tmp_path: Path) -> None:
    recording = record_seed(3)
    log = ExportLog(tmp_path, log_bytes=1)
    for event, line in zip(recording.events, recording.lines, strict=True):
        log.put(event, line)
        wait_for(partial(is_written, line, tmp_path))
    assert log.close(LONG_S)
    paths = log_files(tmp_path)
    assert 1 < len(paths) < len(recording.lines) / 3
    assert sum(path.stat().st_size for path in paths) < 3 * sum(map(len, recording.lines)) + 10_000
    assert encode_state(state_of(paths)) == encode_state(recording.state)


def test_a_log_that_is_opened_again_goes_on_in_a_new_file(tmp_path: Path) -> None:
    recording = record_seed(4)
    for _ in range(2):
        log = ExportLog(tmp_path)
        put_all(log, recording)
        assert log.close(LONG_S)
    assert [path.name for path in log_files(tmp_path)] == ["events-000001.jsonl", "events-000002.jsonl"]


class Disk:
    """Writes as `os.write` does, or not at all, or only when it is let."""

    def __init__(self) -> None:
        self.error: int | None = None
        self.takes_half = False
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.refusals = 0

    def write(self, fd: int, data: memoryview) -> int:
        self.may_go_on.wait(LONG_S)
        error = self.error  # Another thread clears it.
        if error is None:
            return os.write(fd, data)
        self.refusals += 1
        if self.takes_half and len(data) > 1:
            os.write(fd, bytes(data)[: len(data) // 2])
        raise OSError(error, os.strerror(error))


def wait_for(is_true: Callable[[], bool]) -> None:
    pause = threading.Event()
    for _ in range(int(LONG_S / 0.002)):
        if is_true():
            return
        pause.wait(0.002)
    raise AssertionError("it did not happen")


@pytest.mark.parametrize("takes_half", [False, True], ids=["at once", "in the middle of a line"])
def test_a_full_disk_costs_events_one_warning_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, takes_half: bool
) -> None:
    recording, disk = record_seed(3), Disk()
    log = ExportLog(tmp_path, retry_s=0.01, write=disk.write)
    third = len(recording.lines) // 3
    with caplog.at_level(logging.INFO, "ft_rendezvous"):
        for number, (event, line) in enumerate(zip(recording.events, recording.lines, strict=True)):
            if number == third:
                disk.error, disk.takes_half = errno.ENOSPC, takes_half
            if number == 2 * third:
                wait_for(lambda: disk.refusals > 3)
                disk.error = None
            log.put(event, line)
        wait_for(lambda: "is written to" in caplog.text)
        assert log.close(LONG_S)
    warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(warnings) == 1
    assert "No space left on device" in warnings[0].getMessage()
    assert encode_state(state_of(log_files(tmp_path))) == encode_state(recording.state)


def test_a_directory_that_cannot_be_written_is_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").write_text("not a directory")
    recording = record_seed(4)
    log = ExportLog(tmp_path / "file" / "run", retry_s=0.01)
    put_all(log, recording)
    wait_for(lambda: bool(caplog.records))
    assert log.close(LONG_S)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "training goes on" in caplog.text


def test_a_slow_disk_holds_nobody_up_and_memory_does_not_grow() -> None:
    """What waits is bounded; what does not fit is told again as one state."""
    recording = record_seed(3)
    stream = Stream(most_bytes=2_000)
    for event, line in zip(recording.events, recording.lines, strict=True):
        stream.put(event, line)
        assert stream._waiting_bytes <= 2_000
    assert stream.dropped > 0
    told = stream.take()
    assert told is not None
    assert encode_state(take_event(RunState(), decode_line(told))) == encode_state(recording.state)
    stream.close()
    assert stream.take() is None


def test_a_slow_disk_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ft_rendezvous.state.record.stream.Stream.__init__.__defaults__", (None, 2_000))
    recording, disk = record_seed(3), Disk()
    disk.may_go_on.clear()
    log = ExportLog(tmp_path, write=disk.write)
    put_all(log, recording)
    assert ["is too slow" in record.getMessage() for record in caplog.records] == [True]
    disk.may_go_on.set()
    assert log.close(LONG_S)
    assert encode_state(state_of(log_files(tmp_path))) == encode_state(recording.state)


def test_a_disk_that_hangs_does_not_hold_the_end_up(tmp_path: Path) -> None:
    disk = Disk()
    disk.may_go_on.clear()
    log = ExportLog(tmp_path, write=disk.write)
    put_all(log, record_seed(4))
    assert not log.close(0.05)
    disk.may_go_on.set()
    assert log.close(LONG_S)


@pytest.mark.parametrize(
    ("run_id", "name"),
    [
        ("job-1", "job-1"),
        ("../../etc", "_.._etc"),
        ("a/b c", "a_b_c"),
        ("", "run"),
        ("..", "run"),
        ("ü" * 200, "_" * 100),
    ],
)
def test_a_folder_is_named_for_the_run_and_stays_where_it_belongs(run_id: str, name: str) -> None:
    assert run_folder(Path("/state"), run_id, "0123") == Path(f"/state/{name}-0123")
