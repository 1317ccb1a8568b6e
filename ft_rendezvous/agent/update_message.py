"""A worker's report of an update, as one datagram can carry it: names and reasons are cut to fit, numbers stay.

Training scripts import this module: it needs nothing beyond the standard library.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ft_rendezvous.text import MAX_REASON_CHARS, one_line

MOST_STEPS, MOST_NAMES, MAX_NAME_CHARS = 16, 8, 64
MAX_SECONDS = 1e9
MAX_COUNT = 1 << 53
OUTCOMES = ("completed", "failed")
ROOM_BYTES = 4000
"""For the fields of a report. A datagram also has the name of its kind."""
SHORTER_CHARS = (MAX_NAME_CHARS, 32, 16, 8)
"""To how many characters names are cut, one after the other, until the message is short enough. JSON may need twelve
bytes for a character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateMessage:
    """A worker says how an update went. `worker.UpdateReport` explains the fields."""

    cycle_id: int
    local_rank: int
    version: int
    outcome: str
    attempts: int
    parties: int
    updated: int
    failed_count: int
    failed: tuple[str, ...]
    """The first few names."""
    steps: tuple[tuple[str, float], ...]
    duration_s: float
    lost_s: float
    reason: str


def cut_to_fit(message: UpdateMessage) -> UpdateMessage:
    """The same report within all limits. Of many steps, the last ones are one: the sum of their times."""
    steps = list(message.steps)
    if len(steps) > MOST_STEPS:
        rest = steps[MOST_STEPS - 1 :]
        steps[MOST_STEPS - 1 :] = [(f"{len(rest)} more steps", sum(seconds for _, seconds in rest))]
    short = replace(
        message,
        version=min(max(int(message.version), -(1 << 63)), (1 << 63) - 1),
        outcome=message.outcome if message.outcome in OUTCOMES else OUTCOMES[1],
        attempts=_count(message.attempts),
        parties=_count(message.parties),
        updated=_count(message.updated),
        failed_count=_count(message.failed_count),
        duration_s=_seconds(message.duration_s),
        lost_s=_seconds(message.lost_s),
    )
    for chars in SHORTER_CHARS:
        short = replace(
            short,
            failed=tuple(_cut(name, chars) for name in message.failed[:MOST_NAMES]),
            steps=tuple((_cut(name, chars), _seconds(seconds)) for name, seconds in steps),
            reason=_cut(message.reason, MAX_REASON_CHARS * chars // MAX_NAME_CHARS),
        )
        if len(json.dumps(asdict(short))) <= ROOM_BYTES:
            break
    return short


def _cut(text: str, chars: int) -> str:
    return one_line(text)[:chars].strip()


def _count(number: int) -> int:
    return min(max(int(number), 0), MAX_COUNT)


def _seconds(seconds: float) -> float:
    """To the microsecond, so that a number is short. What is no time at all is none."""
    return 0.0 if math.isnan(seconds) else round(min(max(float(seconds), 0.0), MAX_SECONDS), 6)


# --- strict decoding --------------------------------------------------------------------------------


def _is_int(value: Any, least: int, most: int) -> bool:
    return type(value) is int and least <= value <= most  # In Python a bool is an int. Here it is not a number.


def _is_count(value: Any) -> bool:
    return _is_int(value, 0, MAX_COUNT)


def _is_time(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= MAX_SECONDS


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_NAME_CHARS


def _is_list_of(value: Any, most: int, is_item: Callable[[Any], bool]) -> bool:
    return isinstance(value, list) and len(value) <= most and all(is_item(item) for item in value)


def _is_step(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and _is_name(value[0]) and _is_time(value[1])


UPDATE_FIELDS: dict[str, Callable[[Any], bool]] = {
    "version": lambda value: _is_int(value, -(1 << 63), (1 << 63) - 1),
    "outcome": lambda value: value in OUTCOMES,
    "attempts": _is_count,
    "parties": _is_count,
    "updated": _is_count,
    "failed_count": _is_count,
    "failed": lambda value: _is_list_of(value, MOST_NAMES, _is_name),
    "steps": lambda value: _is_list_of(value, MOST_STEPS, _is_step),
    "duration_s": _is_time,
    "lost_s": _is_time,
}
"""Whether the value of each field is one that `cut_to_fit` may have left."""


def clean_names(names: Sequence[str]) -> tuple[str, ...]:
    """Names as they came from any process: each one clean line."""
    return tuple(one_line(name) for name in names)


def clean_steps(steps: Sequence[Sequence[Any]]) -> tuple[tuple[str, float], ...]:
    return tuple((one_line(name), float(seconds)) for name, seconds in steps)
