"""The process of `ftr warm learn` that runs the script: writes a line for each import of an installed package.

Counted are imports by the script's own files, each with all that it imports in turn. Started by its path, with the name
of the file for the lines, and then the words of the script.
"""

from __future__ import annotations

import builtins
import json
import os
import runpy
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any


class ImportClock:
    """Replaces `__import__`, and writes down what the imports of the script's own files cost."""

    def __init__(self, output: int, is_own: Callable[[str], bool]) -> None:
        self._output, self._is_own = output, is_own
        self._import = builtins.__import__

    def __call__(
        self,
        name: str,
        globals: Mapping[str, Any] | None = None,
        locals: Mapping[str, Any] | None = None,
        fromlist: tuple[str, ...] = (),
        level: int = 0,
    ) -> Any:
        caller = (globals or {}).get("__file__") or ""
        if level or not caller or not self._is_own(caller):
            return self._import(name, globals, locals, fromlist, level)
        known, began_at = len(sys.modules), time.perf_counter()
        try:
            return self._import(name, globals, locals, fromlist, level)
        finally:
            path = getattr(sys.modules.get(name), "__file__", None)
            if len(sys.modules) > known and path and not self._is_own(path):
                line = {"name": name, "path": path, "seconds": time.perf_counter() - began_at}
                os.write(self._output, json.dumps(line).encode() + b"\n")


def main() -> None:
    output, words = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC), sys.argv[2:]
    from ft_rendezvous.warm.preloading import is_preloadable  # noqa: PLC0415

    is_module = words[0] == "-m"
    sys.argv[:] = words[1:] if is_module else words
    if not sys.flags.safe_path:
        sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.realpath(words[0]))
    clock: Any = ImportClock(output, lambda path: not is_preloadable(path))
    builtins.__import__ = clock
    if is_module:
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    else:
        runpy.run_path(words[0], run_name="__main__")


if __name__ == "__main__":
    main()
