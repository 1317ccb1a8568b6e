"""The `torchrun.handlers` entry point.

Imports nothing of torch's agent: torch loads entry points while its own modules may be half imported, and would
turn our ImportError into a warning and a missing backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def get_creator() -> Callable[[Any], Any]:
    """What torch calls without arguments and registers the result of."""
    return _create_handler


def _create_handler(params: Any) -> Any:
    from ft_rendezvous.agent.handler import create_handler  # noqa: PLC0415

    return create_handler(params)
