"""Runs a health check that does not end, until a SIGTERM comes. Then reports that it was interrupted.

usage: interrupted.py COMMAND, or interrupted.py --gpu READY_FILE
"""

from __future__ import annotations

import signal
import sys
import threading
import types
from pathlib import Path
from typing import NoReturn

from ft_rendezvous.agent import health

FOREVER_S = 3600.0


class SignalException(Exception):
    """Like torch's: an Exception that a signal handler raises in the main thread."""


class HangingCheck:
    """A check whose driver does not answer, and that treats every exception as a broken GPU."""

    def __call__(self) -> bool:
        try:
            Path(sys.argv[2]).touch()
            threading.Event().wait()
        except Exception:
            return False
        return True


def raise_it(*_: object) -> NoReturn:
    raise SignalException


def main() -> None:
    command: str | None = sys.argv[1]
    if command == "--gpu":
        command = None
        stand_in = types.ModuleType("nvidia_resiliency_ext.shared_utils.health_check")
        stand_in.__dict__["GPUHealthCheck"] = HangingCheck
        sys.modules[stand_in.__name__] = stand_in
        health._GPU_DEVICE = Path("/dev/null")
    signal.signal(signal.SIGTERM, raise_it)
    try:
        print(health.check_health(command, FOREVER_S, gpu=True))
    except SignalException:
        print("interrupted")


if __name__ == "__main__":
    main()
