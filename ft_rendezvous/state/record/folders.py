"""Where runs are recorded: the folders of a `state_dir`, and the files of one run in their order.

    <state_dir>/<run>-<epoch>/events-000001.jsonl, events-000002.jsonl, ...

Reads names and first lines, nothing else.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ft_rendezvous.errors import StateUnavailable

FILE_NAME = re.compile(r"events-(\d+)\.jsonl")
PEEKED_BYTES = 64 * 1024
"""Enough for the first event of a run; a told state is longer, and is not decoded to find its run."""


@dataclass(frozen=True, slots=True)
class RunFolder:
    """One run's folder."""

    path: Path
    run_id: str
    """The store's epoch."""
    name: str
    """The run's --rdzv-id, or what the folder's name has kept of it."""
    began_ns: int
    """When its oldest file begins."""


class _Began(msgspec.Struct):
    run_id: str = ""
    epoch: str = ""


class _Opening(msgspec.Struct):
    timestamp_ns: int
    event: _Began


def find_runs(state_dir: Path) -> list[RunFolder]:
    """All runs recorded there, newest first; the folder of one run is a state_dir with one run."""
    try:
        folders = [state_dir] if list_files(state_dir) else [each for each in state_dir.iterdir() if each.is_dir()]
        runs = [_look_into(folder) for folder in folders if list_files(folder)]
    except OSError as error:
        raise StateUnavailable(f"{state_dir} cannot be read: {error.strerror}") from error
    return sorted(runs, key=lambda run: (run.began_ns, run.path.name), reverse=True)


def choose_run(state_dir: Path, name: str | None) -> RunFolder:
    """The newest run, or the newest that is called so by its name, its id or its folder."""
    runs = find_runs(state_dir)
    if not runs:
        raise StateUnavailable(f"no run is recorded in {state_dir}: is this the state_dir of its --rdzv-conf?")
    if name is None:
        return runs[0]
    for run in runs:
        if name in (run.name, run.run_id, run.path.name):
            return run
    known = ", ".join(dict.fromkeys(run.path.name for run in runs[:8]))
    raise StateUnavailable(f"no run {name!r} is recorded in {state_dir}: there are {known}")


def run_folder(state_dir: Path, run_id: str, epoch: str) -> Path:
    """Where a run's files are: named for people, made unique for programs."""
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", run_id)[:100].lstrip(".") or "run"
    return state_dir / f"{safe}-{epoch}"


def file_name(number: int) -> str:
    return f"events-{number:06d}.jsonl"


def list_files(folder: Path) -> list[tuple[int, Path]]:
    """The files of a run by their number; some may be missing, the first ones too."""
    numbered = ((FILE_NAME.fullmatch(path.name), path) for path in folder.iterdir())
    return sorted((int(match[1]), path) for match, path in numbered if match is not None)


def _look_into(folder: Path) -> RunFolder:
    files = list_files(folder)
    name, _, run_id = folder.name.rpartition("-")
    began_ns = _dated(files)
    try:
        opening = msgspec.json.decode(_first_line(files[0][1]), type=_Opening)
        name, run_id = opening.event.run_id or name, opening.event.epoch or run_id
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass  # It is called by its folder.
    return RunFolder(folder, run_id, name or folder.name, began_ns)


def _dated(files: Sequence[tuple[int, Path]]) -> int:
    """When the first file begins; if that cannot be read, when it was last written."""
    path = files[0][1]
    match = re.match(rb'{"event_id":\d+,"timestamp_ns":(\d{1,19}),', _first_line(path))
    return int(match[1]) if match is not None else path.stat().st_mtime_ns


def _first_line(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.readline(PEEKED_BYTES)
