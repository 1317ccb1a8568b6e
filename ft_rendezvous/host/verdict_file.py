"""How a run ended, as a file for whoever watches jobs: written whole or not at all."""

from __future__ import annotations

import errno
import os
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from ft_rendezvous.core.model import VerdictKind


class FirstFailureReport(msgspec.Struct, frozen=True, kw_only=True):
    """The failure that everything after it followed from."""

    node: str
    rank: int | None
    exit_code: int | None
    """As subprocess has it, negative for a signal; None if nobody saw it, as with a node that was lost."""
    cycle: int
    reason: str


class VerdictReport(msgspec.Struct, frozen=True, kw_only=True):
    """The whole of the file, by its own names."""

    run_id: str
    verdict: VerdictKind
    reason: str
    is_retryable: bool = False
    """Whether the same job may do better if it is started again."""
    cycle: int
    first_failure: FirstFailureReport | None = None
    written_at: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        assert self.written_at.utcoffset() == timedelta(0), "times in files are UTC, and say so"


def write_verdict(path: Path, report: VerdictReport) -> None:
    """Put the report in the place of whatever file is at `path`. Once this returns, it survives a power cut.

    Raises OSError, and leaves what was there, and nothing else.
    """
    if path.exists() and not path.is_file():
        # A rename would put a file in the place of /dev/null, for everybody.
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
    """A rename is on the disk only when the directory is."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
