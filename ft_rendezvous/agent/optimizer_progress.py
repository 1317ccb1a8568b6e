"""Progress by torch's hook that is called after every step of any optimizer. A worker imports this module, no agent."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

from torch.optim.optimizer import register_optimizer_step_post_hook


def watch_steps(on_step: Callable[[int], Any]) -> Callable[[], None]:
    """Call `on_step` with 1, 2, ... after each step of any optimizer of this process. Returns how to end that."""
    steps = count(1)

    def after_step(_optimizer: object, _args: object, _kwargs: object) -> None:
        on_step(next(steps))

    handle = register_optimizer_step_post_hook(after_step)
    remove: Callable[[], None] = handle.remove
    return remove
