"""How a run ended, as a file for batch scripts and monitoring. The file is complete or absent."""

from __future__ import annotations

import errno
import os
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from ft_rendezvous.core.model import VerdictKind
from ft_rendezvous.host.side_call import SideCall

VERDICT_FILE_TIMEOUT_S = 5.0
"""How long the end of a run waits for its verdict file."""


class FirstFailureReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The failure that caused all others."""

    node: str
    rank: int | None
    exit_code: int | None
    """As in subprocess: negative for a signal. None if it is unknown, as for a lost node."""
    cycle: int
    reason: str
    last_words: str = ""
    """The last line of the worker's standard error, if there is one. Of a worker that hangs: its step and its stack."""


class VerdictReport(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file, with the names of its fields."""

    run_id: str
    verdict: VerdictKind
    reason: str
    is_retryable: bool = False
    """Whether the same job may succeed if it is started again."""
    cycle: int
    first_failure: FirstFailureReport | None = None
    written_at: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        assert self.written_at.utcoffset() == timedelta(0), "times in files are UTC, and say so"


def write_verdict_in_time(path: Path, report: VerdictReport) -> None:
    """Write the report in a thread of its own. The coordinator calls this, and must not hang with the file system.

    Raises what `write_verdict` raises, RuntimeError if no thread is free, and TimeoutError if the write has not ended
    in time. It may still end later.
    """
    call = SideCall(lambda: write_verdict(path, report), "ft-verdict-file")
    call.start()
    if not call.wait(VERDICT_FILE_TIMEOUT_S):
        raise TimeoutError(f"its file system has not answered within {VERDICT_FILE_TIMEOUT_S:g} s")
    if call.error is not None:
        raise call.error


def write_verdict(path: Path, report: VerdictReport) -> None:
    """Write the report to `path`, in place of a file that is there. Once this returns, it survives a power cut.

    Raises OSError. Then the former file is still there, and no other file is left.
    """
    if path.exists() and not path.is_file():
        # A rename would replace /dev/null by a file, for all users of the machine.
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".verdict-{secrets.token_hex(8)}")
    try:
        with draft.open("xb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    _sync_directory(path.parent)


def _sync_directory(path: Path) -> None:
    """A rename is on the disk only after the directory is."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
