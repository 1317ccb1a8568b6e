"""The verdict file is complete or absent, and an old one stays until a new one is complete."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.model import VerdictKind
from ft_rendezvous.host import verdict_file
from ft_rendezvous.host.serve import serve
from ft_rendezvous.host.verdict_file import FirstFailureReport, VerdictReport, write_verdict, write_verdict_in_time
from tests.support.waiting import wait_until
from tests.worker.inbox_rig import open_fds

NOBODY = 65534
FAILED = VerdictReport(
    run_id="job",
    verdict=VerdictKind.FAILED,
    reason="worker rank 5 exited with -9",
    cycle=3,
    first_failure=FirstFailureReport(node="10.0.0.4 pid 12", rank=5, exit_code=-9, cycle=2, reason="ünkillbar"),
)
SUCCEEDED = VerdictReport(run_id="job", verdict=VerdictKind.SUCCEEDED, reason="", cycle=3)
WRITER = """
import sys
from pathlib import Path
from ft_rendezvous.host.verdict_file import VerdictReport, VerdictKind, write_verdict
for cycle in range(1_000_000):
    report = VerdictReport(run_id="j" * 100_000, verdict=VerdictKind.FAILED, reason="", cycle=cycle)
    write_verdict(Path(sys.argv[1]), report)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "verdict.json"


@pytest.fixture
def _is_nobody(tmp_path: Path) -> Iterator[None]:
    """A directory's permissions do not stop root."""
    uid = os.geteuid()
    tmp_path.chmod(0o555)
    if uid == 0:
        os.seteuid(NOBODY)
    yield
    if uid == 0:
        os.seteuid(uid)
    tmp_path.chmod(0o755)


def raise_error(*_: object) -> NoReturn:
    raise OSError("no space left")


# --- what it holds ----------------------------------------------------------------------------------


def test_a_failure_has_the_documented_names(path: Path) -> None:
    write_verdict(path, FAILED)
    content = json.loads(path.read_text())
    written_at = datetime.fromisoformat(content.pop("written_at"))
    assert written_at.utcoffset() == timedelta(0)
    assert written_at == FAILED.written_at <= datetime.now(UTC)
    assert content == {
        "run_id": "job",
        "verdict": "failed",
        "reason": "worker rank 5 exited with -9",
        "is_retryable": False,
        "cycle": 3,
        "first_failure": {
            "node": "10.0.0.4 pid 12",
            "rank": 5,
            "exit_code": -9,
            "cycle": 2,
            "reason": "ünkillbar",
        },
    }


def test_without_a_failure_there_is_null(path: Path) -> None:
    write_verdict(path, SUCCEEDED)
    assert json.loads(path.read_text())["first_failure"] is None


def test_a_report_reads_back_as_it_was(path: Path) -> None:
    write_verdict(path, FAILED)
    assert msgspec.json.decode(path.read_bytes(), type=VerdictReport) == FAILED


@pytest.mark.parametrize("zone", [None, timezone(timedelta(hours=2))])
def test_a_time_that_is_not_utc_is_our_mistake(zone: timezone | None) -> None:
    with pytest.raises(AssertionError):
        VerdictReport(
            run_id="job",
            verdict=VerdictKind.CANCELLED,
            reason="",
            cycle=1,
            written_at=datetime(2026, 1, 1, tzinfo=zone),
        )


# --- how it is written ------------------------------------------------------------------------------


def test_parents_are_made_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "jobs" / "17" / "verdict.json"
    before = open_fds()
    write_verdict(path, FAILED)
    write_verdict(path, SUCCEEDED)
    assert json.loads(path.read_text())["verdict"] == "succeeded"
    assert list(path.parent.iterdir()) == [path]
    assert open_fds() == before


def test_the_umask_says_which_users_may_read_it(path: Path) -> None:
    mask = os.umask(0o027)
    try:
        write_verdict(path, SUCCEEDED)
    finally:
        os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_write_that_fails_leaves_what_was_there(call: str, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_verdict(path, FAILED)
    before = path.read_bytes()
    monkeypatch.setattr(os, call, raise_error)
    with pytest.raises(OSError, match="no space left"):
        write_verdict(path, SUCCEEDED)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


def test_a_reader_during_a_write_finds_all_or_nothing(path: Path) -> None:
    is_over = threading.Event()
    read: list[bytes] = []

    def look() -> None:
        while not is_over.is_set():
            if path.exists():
                read.append(path.read_bytes())

    reader = threading.Thread(target=look)
    reader.start()
    try:
        for cycle in range(100):
            write_verdict(path, msgspec.structs.replace(FAILED, cycle=cycle, reason="x" * 10_000))
    finally:
        is_over.set()
        reader.join()
    cycles = [msgspec.json.decode(data, type=VerdictReport).cycle for data in read]
    assert cycles == sorted(cycles)


def test_a_writer_that_is_killed_leaves_a_complete_file(path: Path) -> None:
    with subprocess.Popen((sys.executable, "-c", WRITER, str(path))) as writer:
        try:
            wait_until("there is a file", path.exists)
        finally:
            writer.send_signal(signal.SIGKILL)
    assert msgspec.json.decode(path.read_bytes(), type=VerdictReport).run_id == "j" * 100_000


# --- where it cannot be written ---------------------------------------------------------------------


@pytest.mark.usefixtures("_is_nobody")
@pytest.mark.parametrize("name", ["verdict.json", "jobs/verdict.json"])
def test_a_directory_that_may_not_be_written_raises(name: str, tmp_path: Path) -> None:
    with pytest.raises(PermissionError):
        write_verdict(tmp_path / name, FAILED)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda path: path.mkdir(), id="directory"),
        pytest.param(os.mkfifo, id="pipe"),
        pytest.param(lambda path: path.symlink_to("/dev/null"), id="device"),
    ],
)
def test_what_is_no_file_is_not_replaced(make: Callable[[Path], None], path: Path) -> None:
    make(path)
    kind = stat.S_IFMT(path.lstat().st_mode)
    with pytest.raises(OSError, match="not a regular file"):
        write_verdict(path, FAILED)
    assert stat.S_IFMT(path.lstat().st_mode) == kind
    assert list(path.parent.iterdir()) == [path]


def test_a_parent_that_is_a_file_raises(path: Path) -> None:
    path.touch()
    with pytest.raises(OSError):
        write_verdict(path / "verdict.json", FAILED)


# --- a file system that hangs -----------------------------------------------------------------------


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Every write of a verdict hangs until the event is set."""
    goes_on = threading.Event()
    write = verdict_file.write_verdict

    def hang(path: Path, report: VerdictReport) -> None:
        goes_on.wait()
        write(path, report)

    monkeypatch.setattr(verdict_file, "write_verdict", hang)
    monkeypatch.setattr(verdict_file, "VERDICT_FILE_TIMEOUT_S", 0.1)
    yield goes_on
    goes_on.set()
    wait_until(
        "the writer has ended", lambda: not any(each.name == "ft-verdict-file" for each in threading.enumerate())
    )


def test_a_write_in_time_is_a_write(path: Path) -> None:
    write_verdict_in_time(path, FAILED)
    assert msgspec.json.decode(path.read_bytes(), type=VerdictReport) == FAILED


def test_the_error_of_a_write_in_time_is_raised(path: Path) -> None:
    path.mkdir()
    with pytest.raises(OSError, match="not a regular file"):
        write_verdict_in_time(path, FAILED)


def test_a_write_that_hangs_is_given_up_and_may_end_later(path: Path, hanging: threading.Event) -> None:
    with pytest.raises(TimeoutError, match=r"has not answered within 0\.1 s"):
        write_verdict_in_time(path, FAILED)
    assert not path.exists()
    hanging.set()
    wait_until("the file is there", path.exists)


@pytest.mark.usefixtures("hanging")
def test_a_run_is_closed_although_its_verdict_file_hangs(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    settings = RunSettings(run_id="job", min_nodes=1, max_nodes=1, store_grace_s=0.1)
    host = serve(settings, 0, verdict_path=path)
    try:
        host._close_after(RuntimeError("no more ideas"))
        assert host.verdict is not None
    finally:
        host.stop()
    assert f"{path} is not written yet" in caplog.text
