"""How much of the package a simulated run executes: the lines inside functions, module by module.

Lines at the level of a module or a class run when it is imported, so they say nothing about a run.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import ft_rendezvous

PACKAGE = Path(ft_rendezvous.__file__).parent
ROOMS = ("core", "protocol", "node", "agent", "host")


class Coverage:
    """The lines of some packages that were executed while it watched."""

    def __init__(self, rooms: tuple[str, ...] = ROOMS) -> None:
        self.paths = sorted(path for room in rooms for path in (PACKAGE / room).glob("**/*.py"))
        self._seen: dict[str, set[int]] = {str(path): set() for path in self.paths}

    @contextmanager
    def watching(self) -> Iterator[None]:
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, _event: str, _argument: Any) -> Callable[..., Any] | None:
        seen = self._seen.get(frame.f_code.co_filename)
        if seen is None:
            return None

        def note(frame: FrameType, event: str, _argument: Any) -> Any:
            if event == "line":
                seen.add(frame.f_lineno)
            return note

        return note

    def table(self) -> list[str]:
        """A line per module and one per package: how many of its lines ran."""
        rows: list[str] = []
        totals: dict[str, list[int]] = {}
        for path in self.paths:
            lines = function_lines(path)
            ran, room = len(lines & self._seen[str(path)]), path.relative_to(PACKAGE).parts[0]
            if lines:
                rows.append(_row(str(path.relative_to(PACKAGE)), ran, len(lines)))
            total = totals.setdefault(room, [0, 0])
            total[0], total[1] = total[0] + ran, total[1] + len(lines)
        return rows + [_row(f"{room}/", *total) for room, total in totals.items()]


def _row(name: str, ran: int, of: int) -> str:
    return f"{name:<32} {ran:>5} of {of:>5} lines {ran / max(of, 1):>6.0%}"


def function_lines(path: Path) -> set[int]:
    """The lines of a file that are inside functions."""
    return _lines_within(compile(path.read_text(), str(path), "exec"))


def _lines_within(code: CodeType) -> set[int]:
    lines: set[int] = set()
    if code.co_flags & inspect.CO_OPTIMIZED:
        # A function's first line is its `def`, which runs where the function is defined.
        lines |= {line for _, _, line in code.co_lines() if line is not None and line != code.co_firstlineno}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            lines |= _lines_within(constant)
    return lines
