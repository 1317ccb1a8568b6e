"""A function that is called with variables of the environment: what workers of a forkserver need.

Such a worker is a fork of a process that was started before the cycle began. It has the environment of that process,
and what torch gives it. What the handler exports for a cycle comes with the function.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any


class CalledWith:
    """Sets the variables, then calls the function. It can be pickled if the function can."""

    def __init__(self, function: Callable[..., Any], variables: Mapping[str, str]) -> None:
        self._function = function
        self._variables = dict(variables)
        # Torch logs these.
        self.__name__ = getattr(function, "__name__", type(function).__name__)
        self.__qualname__ = getattr(function, "__qualname__", self.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        os.environ.update(self._variables)
        return self._function(*args, **kwargs)
