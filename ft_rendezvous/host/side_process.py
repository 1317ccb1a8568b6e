"""Starts a small program of this package in an isolated interpreter, beside the process that it serves.

Such a program runs by its path: to import the package would take longer than all else it does. It survives the signals
that SLURM and terminals send to every process of a job. It ends when the process that it serves ends; how it notices
that is its own matter.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from ft_rendezvous.env_names import MARKER_VARIABLE

SURVIVED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)


def start_beside(
    program: Path,
    words: Iterable[str],
    pass_fds: Iterable[int],
    *,
    has_output: bool = False,
    environment: Mapping[str, str] | None = None,
) -> subprocess.Popen[str]:
    """Start a program. It gets these descriptors and no others, and writes to a pipe if `has_output`."""
    # `env` removes the marker and keeps the rest: a reaper must not take the program for a worker, and the interpreter
    # may need LD_LIBRARY_PATH.
    variables = [f"{name}={value}" for name, value in (environment or {}).items()]
    # A child inherits the blocked signals, so it survives them from its first instruction on.
    former_mask = signal.pthread_sigmask(signal.SIG_BLOCK, SURVIVED_SIGNALS)
    try:
        return subprocess.Popen(
            ("env", "-u", MARKER_VARIABLE, *variables, sys.executable, "-I", "-S", str(program), *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if has_output else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            pass_fds=tuple(pass_fds),
            cwd="/",
            start_new_session=True,
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, former_mask)
