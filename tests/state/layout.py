"""Export logs on disk as a run leaves them, from simulated runs: folders, numbered files, told states."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from ft_rendezvous.state.model.events import Event, decode_line, encode_line, encode_state_line, take_event
from ft_rendezvous.state.model.run_state import RunState


def lay_out(state_dir: Path, lines: Sequence[bytes], *, per_file: int = 1_000_000, name: str = "") -> Path:
    """Write a run's log, `per_file` events in each file. Returns the run's folder."""
    began = decode_line(lines[0]).event
    folder = state_dir / (name or f"{began.run_id}-{began.epoch}")  # type: ignore[union-attr]
    folder.mkdir(parents=True)
    for number, content in enumerate(split(lines, per_file), start=1):
        path_of(folder, number).write_bytes(b"".join(content))
    return folder


def path_of(folder: Path, number: int) -> Path:
    return folder / f"events-{number:06d}.jsonl"


def split(lines: Sequence[bytes], per_file: int) -> list[list[bytes]]:
    """The files' lines: every one but the first begins with the state so far."""
    state, files = RunState(), []
    for start in range(0, len(lines), per_file):
        part = lines[start : start + per_file]
        files.append([encode_state_line(state), *part] if start else list(part))
        state = fold_all(state, part)
    return files


def fold_all(state: RunState, lines: Iterable[bytes]) -> RunState:
    for line in lines:
        state = take_event(state, decode_line(line))
    return state


def move_in_time(lines: Iterable[bytes], begin_ns: int) -> list[bytes]:
    """The same run, begun at another time."""
    moved: list[bytes] = []
    by_ns: int | None = None
    for line in lines:
        event: Event = decode_line(line)
        by_ns = begin_ns - event.timestamp_ns if by_ns is None else by_ns
        moved.append(encode_line(msgspec.structs.replace(event, timestamp_ns=event.timestamp_ns + by_ns)))
    return moved
