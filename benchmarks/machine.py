"""Where and on what a run was made: without this, numbers of two runs cannot be compared."""

from __future__ import annotations

import contextlib
import os
import platform
import socket
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parent.parent
SLOW_LOOKUP_S = 0.1


def describe() -> dict[str, Any]:
    """Commit, versions, cores, load, and how long a reverse lookup of a client's address takes."""
    return {
        "commit": _git("rev-parse", "HEAD"),
        "has_local_changes": bool(_git("status", "--porcelain", "--", "ft_rendezvous")),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load_1min": os.getloadavg()[0],
        "resolver_options": os.environ.get("RES_OPTIONS"),
        "reverse_dns_s": {address: time_lookup(address) for address in ("127.0.0.1", "::ffff:127.0.0.1")},
    }


def time_lookup(address: str) -> float:
    """Seconds a reverse lookup takes. TCPStore makes one for every client, on its only thread."""
    started = time.perf_counter()
    with contextlib.suppress(OSError):  # No name is an answer too.
        socket.getnameinfo((address, 0), 0)
    return time.perf_counter() - started


def _git(*arguments: str) -> str | None:
    """What git says, read-only; None outside of a repository."""
    command = ["git", "--no-optional-locks", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
