"""The modules of examples/rl_weight_sync. They are scripts' modules: they are found in the folder of the script."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "examples" / "rl_weight_sync"


def load(name: str) -> Any:
    """A module of the example, as its script imports it."""
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    return import_module(name)
