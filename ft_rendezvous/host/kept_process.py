"""Keeps a side process running: where one ends, another one takes its place, until the owner closes it.

Owns the life of that process, and nothing that it serves.
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Callable

log = logging.getLogger("ft_rendezvous")

HEALTHY_AFTER_S = 10.0
"""A process that ran for this long is replaced at once."""
LONGEST_RESTART_DELAY_S = 10.0
END_TIMEOUT_S = 5.0


class KeptProcess:
    """A process that is replaced when it ends."""

    def __init__(
        self,
        what: str,
        start: Callable[[], subprocess.Popen[str]],
        take_line: Callable[[str], None],
        describe_end: Callable[[int], str] = lambda code: f"exit code {code}",
    ) -> None:
        """Start it. `what` names it in the log.

        A thread of this object calls `take_line` with every line that it writes, and `describe_end` with its exit code.
        """
        self._what, self._start, self._take_line, self._describe_end = what, start, take_line, describe_end
        self._lock = threading.Lock()
        """Guards the process and the closing, so that no process starts after the close."""
        self._process: subprocess.Popen[str] | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ft-side-process", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The process that runs now; None while there is none."""
        with self._lock:
            return self._process.pid if self._process is not None else None

    def close(self) -> None:
        """End the process. Any thread may call it; a second call does nothing."""
        with self._lock:
            self._is_closing.set()
            if self._process is not None:
                self._process.kill()
        self._thread.join(END_TIMEOUT_S)

    def _run(self) -> None:
        quick_ends = 0
        while not self._is_closing.is_set():
            began_at = time.monotonic()
            try:
                reason = self._run_once()
            except OSError as error:
                reason = f"it cannot be started: {error}"
            if self._is_closing.is_set():
                return
            quick_ends = 0 if time.monotonic() - began_at > HEALTHY_AFTER_S else quick_ends + 1
            delay_s = min(LONGEST_RESTART_DELAY_S, float(max(0, quick_ends - 1)))
            log.warning("%s ended: %s; another one starts in %g s on the same port", self._what, reason, delay_s)
            self._is_closing.wait(delay_s)

    def _run_once(self) -> str:
        """Start the process and take its lines until it ends. Returns why it ended."""
        with self._lock:
            if self._is_closing.is_set():
                return ""
            self._process = process = self._start()
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                self._take_line(line)
            code = process.wait()
        with self._lock:
            self._process = None
        return self._describe_end(code)
