"""Step reports: after every step, a worker of the demo appends one line of JSON to a file that all workers share."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec


class StepReport(msgspec.Struct, frozen=True, kw_only=True):
    """A worker has come this far. The first report of a worker comes before its first step."""

    node: str
    cycle_id: int
    rank: int
    step: int
    resumed_at: int
    """The step from which this worker's cycle began: that of its checkpoint, or 0."""
    time_ns: int
    drift: float | None = None
    """From rank 0 after the last step: how far the weights are from those of an undisturbed run."""


def append_report(path: Path, report: StepReport) -> None:
    """Write the line in one call: lines of two workers do not mix, and a killed worker leaves a whole line or none."""
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, msgspec.json.encode(report) + b"\n")
    finally:
        os.close(file)


class ReportReader:
    """Reads the step reports that were written since the last call."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read_new(self) -> list[StepReport]:
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                text = file.read()
        except FileNotFoundError:
            return []  # No worker has started yet.
        whole = text[: text.rfind(b"\n") + 1]
        self._offset += len(whole)
        return msgspec.json.Decoder(StepReport).decode_lines(whole)
