"""The pipe to the keeper, a process that writes the export log and serves HTTP, so that neither can delay a decision.

The keeper ends when the pipe does. If it dies before, it is started again a few times and gets the whole state.
"""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import msgspec

from ft_rendezvous.state.record.stream import Stream, write_all

log = logging.getLogger("ft_rendezvous")

RESTARTS = 3
RESTART_DELAY_S = 5.0
"""Before the first restart; before the second twice as long, and so on."""
HEALTHY_AFTER_S = 600.0
"""A keeper that ran for this long was healthy: its end does not count as a failed start."""
END_TIMEOUT_S = 5.0
"""How long the keeper may take to write the last events before its host ends."""


class KeeperConfig(msgspec.Struct, frozen=True, kw_only=True):
    """The keeper's first line."""

    folder: str | None
    """Where to write the export log."""
    log_bytes: int
    addr: str
    port: int | None
    """Where to serve HTTP."""
    token: str | None


class KeeperPipe:
    """Starts the keeper, and writes the lines of a stream to it."""

    def __init__(
        self, stream: Stream, config: KeeperConfig, unset: Sequence[str] = (), restart_s: float = RESTART_DELAY_S
    ) -> None:
        """`unset`: variables that the keeper must not inherit."""
        self._stream, self._config, self._unset, self._restart_s = stream, config, unset, restart_s
        self._is_closing = threading.Event()
        self._is_given_up = False
        self._thread = threading.Thread(target=self._run, name="ft-keeper-pipe", daemon=True)
        self.process: subprocess.Popen[bytes] | None = None
        self._thread.start()

    def close(self) -> None:
        """Write the lines that are left, and wait a short time for the keeper to end. The stream is closed already."""
        self._is_closing.set()
        self._thread.join(END_TIMEOUT_S)
        self._is_given_up = True
        process = self.process
        if process is None:
            return
        try:
            process.wait(0.0 if self._thread.is_alive() else END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            log.warning("the keeper of the state did not end in time: the last events may be missing")
            process.kill()

    def _run(self) -> None:
        tries = 0
        while not self._is_given_up:
            began = time.monotonic()
            try:
                self.process = process = self._start()
            except OSError as error:
                log.warning("the state is not kept: its process cannot be started: %s; training goes on", error)
                break
            code = self._pass_on(process)
            if code is None or self._is_given_up:
                return
            tries = 1 if time.monotonic() - began > HEALTHY_AFTER_S else tries + 1
            is_last = tries > RESTARTS
            text = "the keeper of the state ended (exit code %d); training goes on, %s"
            log.warning(text, code, "and nothing more is recorded" if is_last else "and another one is started")
            if is_last:
                break
            # At the end of the run without a delay: the log must say how the run ended.
            self._is_closing.wait(self._restart_s * tries)
        while self._stream.take() is not None:
            pass  # There is no keeper any more, and memory must not grow.

    def _pass_on(self, process: subprocess.Popen[bytes]) -> int | None:
        """Pass everything on. Returns the exit code of a keeper that ended before the stream, None at its end."""
        assert process.stdin is not None
        pipe = process.stdin.fileno()
        lines: bytes | None = msgspec.json.encode(self._config) + b"\n"
        try:
            while lines is not None:
                write_all(pipe, lines)
                lines = self._stream.take()
        except BrokenPipeError:
            self._stream.lose(lines or b"")
            process.stdin.close()
            return process.wait()
        process.stdin.close()
        code = process.wait()
        if code == 0:
            return None
        self._stream.lose(b"")  # It died before it had read all lines.
        return code

    def _start(self) -> subprocess.Popen[bytes]:
        # It must not be taken for a worker, nor get the signals of a terminal, nor import a `logging.py` in
        # the folder of the training script (-P).
        unset = [part for name in self._unset for part in ("-u", name)]
        words = ["env", *unset, sys.executable, "-P", "-m", "ft_rendezvous.state.record.keeper"]
        return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True)
