"""Trains as examples/train_torchft.py does. The test says what the last step is, and on which nodes workers crash.

usage: train_torchft.py LAST_STEP_FILE OPTIONS_OF_THE_EXAMPLE...

There is no last step until the file is there; it holds the number. With TEST_CRASH_WHILE, a worker fails at its start
while the file of that name is there.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[3] / "examples" / "train_torchft.py"
NO_LAST_STEP = 10**9


class Options:
    """The options of the example, but the number of steps is read each time."""

    def __init__(self, given: argparse.Namespace, last_step_file: Path) -> None:
        self._given, self._last_step_file = given, last_step_file

    @property
    def steps(self) -> int:
        return int(self._last_step_file.read_text()) if self._last_step_file.exists() else NO_LAST_STEP

    def __getattr__(self, name: str) -> Any:
        return getattr(self._given, name)


def main() -> None:
    crash_while = os.environ.get("TEST_CRASH_WHILE")
    if crash_while and Path(crash_while).exists():
        sys.exit(1)
    last_step_file = Path(sys.argv.pop(1))
    spec = importlib.util.spec_from_file_location("example", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    options = Options(example.parse_options(), last_step_file)
    example.parse_options = lambda: options
    example.main()


if __name__ == "__main__":
    main()
