"""Reads what py-spy and faulthandler write about a process: the stack of its main thread. Pure."""

from __future__ import annotations

import json
import re
from typing import Any

from ft_rendezvous.core.stacks import Frame, Stack

_LIBRARY = re.compile(r".*/(?:site-packages|dist-packages|lib/python3[^/]*)/")
_FAULTHANDLER_FRAME = re.compile(r'^  File "(?P<file>.*)", line (?P<line>\d+|\?\?\?) in (?P<function>.*)$')
_FAULTHANDLER_THREAD = re.compile(r"^(?:Current thread|Thread) 0x")
_THREADS_LEFT_OUT = "..."
"""Frames that are left out have the same line, indented."""


def make_frame(function: str, path: str, line: int) -> Frame:
    """A frame as both tools tell it. A library's file is named from its package on, any other by its last part."""
    name = function.rpartition(".")[2] or function
    library = _LIBRARY.match(path)
    if library is not None:
        return Frame(name, path[library.end() :], line, True)
    return Frame(name, path.rpartition("/")[2], line, path.startswith("<frozen"))


def parse_py_spy(text: str) -> Stack:
    """The stack of the main thread, from `py-spy dump --json`. Empty if the text is none."""
    try:
        threads: list[dict[str, Any]] = json.loads(text)
        main = next((each for each in threads if each["os_thread_id"] == each["pid"]), threads[-1])
        return tuple(
            make_frame(str(each["name"]), str(each["filename"]), int(each.get("line") or 0)) for each in main["frames"]
        )
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        return ()


def parse_faulthandler(text: str) -> Stack:
    """The stack of the main thread, which faulthandler writes last. Empty if the text is none.

    Of more than a hundred threads it leaves out the last ones, so the main thread. The stack of another thread would
    say that this rank is elsewhere than all others.
    """
    frames: list[Frame] = []
    for line in text.splitlines():
        if line == _THREADS_LEFT_OUT:
            return ()
        if _FAULTHANDLER_THREAD.match(line):
            frames = []
        elif (found := _FAULTHANDLER_FRAME.match(line)) is not None:
            number = int(found["line"]) if found["line"].isdecimal() else 0
            frames.append(make_frame(found["function"], found["file"], number))
    return tuple(frames)
