"""What a demo worker tells the demo: one JSON line per step, appended to its node's own file."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """A worker has come this far. The first of a worker's reports comes before its first step."""

    node: str
    pid: int
    cycle_id: int
    rank: int
    step: int
    resumed_at: int
    """The step this worker's cycle began from: its checkpoint's, or 0."""
    at: float
    """On the machine's monotonic clock, which all processes of the demo share."""
    drift: float | None = None
    """After the last step, from rank 0: how far the weights are from those of an undisturbed run."""

    @property
    def is_step(self) -> bool:
        return self.step > self.resumed_at


def report_path(directory: Path, node: str) -> Path:
    return directory / "progress" / f"{node}.jsonl"


def append_report(directory: Path, report: Report) -> None:
    """Write the line in one call, so that a killed worker leaves a whole line or none."""
    file = os.open(report_path(directory, report.node), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, msgspec.json.encode(report) + b"\n")
    finally:
        os.close(file)


def decode_report(line: bytes) -> Report:
    return msgspec.json.decode(line, type=Report)


class Tail:
    """Gives the whole lines a growing file has got since the last look; a missing file has none yet."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read_new(self) -> list[bytes]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return whole.splitlines()


def last_lines(path: Path, count: int) -> list[str]:
    """The end of a file, for a person who looks for what went wrong."""
    try:
        return path.read_text(errors="replace").splitlines()[-count:]
    except FileNotFoundError:
        return []
