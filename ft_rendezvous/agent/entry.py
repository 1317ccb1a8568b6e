"""The `torchrun.handlers` entry point.

Imports nothing of torch's agent: torch loads entry points while its own modules may be half imported. It would turn our
ImportError into a warning, and the backend would be missing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def get_creator() -> Callable[[Any], Any]:
    """The creator of handlers. Torch calls this function without arguments and registers what it returns."""
    return _create_handler


def _create_handler(params: Any) -> Any:
    from ft_rendezvous.agent.torch_parts import check_torch  # noqa: PLC0415

    check_torch()  # Before the import of the handler, which fails with a bare ImportError if torch has moved a name.
    from ft_rendezvous.agent.handler import create_handler  # noqa: PLC0415

    return create_handler(params)
