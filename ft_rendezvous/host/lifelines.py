"""The host's end of the lifelines: the port, and the process that holds the connections.

Owns the port and the life of that process. The port is open as long as this object lives. If the process dies, another
one takes its place: its connections end with it, the nodes connect again, and no node is suspected for that.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ft_rendezvous.core.suspects import LifelineNews, LifelineSign
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.host.side_process import start_beside
from ft_rendezvous.store import net

log = logging.getLogger("ft_rendezvous")

HEALTHY_AFTER_S = 10.0
"""A process that ran for this long is replaced at once."""
LONGEST_RESTART_DELAY_S = 10.0
END_TIMEOUT_S = 5.0

_PROGRAM = Path(__file__).with_name("lifeline_main.py")
_SIGNS = {
    "+": LifelineSign.CONNECTED,
    "-": LifelineSign.HUNG_UP,
    "~": LifelineSign.GOODBYE,
    "!": LifelineSign.DEAD,
}


class Lifelines:
    """Listens from its start until it is closed, or until this process ends, in whatever way."""

    def __init__(self, epoch: str, port: int = 0) -> None:
        """Open the port and start the process. Raises ConfigError if the port cannot be opened, and OSError."""
        self._host_fd = os.pidfd_open(os.getpid())
        try:
            self._listener = net.listen(port)
        except OSError as error:
            os.close(self._host_fd)
            raise ConfigError(
                f"lifeline_port={port} cannot be opened: {error}: choose another one, or leave it out"
            ) from error
        self.port: int = self._listener.getsockname()[1]
        self.on_news: Callable[[], None] = lambda: None
        """Called by a thread of this object when there is news."""
        self._epoch = epoch
        self._news: deque[LifelineNews] = deque()
        self._lock = threading.Lock()
        """Guards the process and the closing, so that no process starts after the close."""
        self._process: subprocess.Popen[str] | None = None
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="ft-lifelines", daemon=True)
        self._thread.start()

    @property
    def pid(self) -> int | None:
        """The process that holds the connections now; None while there is none."""
        with self._lock:
            return self._process.pid if self._process is not None else None

    def take_news(self) -> list[LifelineNews]:
        """All news since the last call, in the order in which they came."""
        taken: list[LifelineNews] = []
        while self._news:
            taken.append(self._news.popleft())
        return taken

    def close(self) -> None:
        """End the process and close the port. A second call does nothing."""
        with self._lock:
            if not self._is_closing.is_set():
                self._is_closing.set()
                self._listener.close()
                os.close(self._host_fd)
            if self._process is not None:
                self._process.kill()
        self._thread.join(END_TIMEOUT_S)

    def _run(self) -> None:
        quick_ends = 0
        while not self._is_closing.is_set():
            began_at = time.monotonic()
            try:
                reason = self._serve_once()
            except OSError as error:
                reason = f"it cannot be started: {error}"
            if self._is_closing.is_set():
                return
            quick_ends = 0 if time.monotonic() - began_at > HEALTHY_AFTER_S else quick_ends + 1
            delay_s = min(LONGEST_RESTART_DELAY_S, float(max(0, quick_ends - 1)))
            log.warning("the process that holds the lifelines ended: %s; another one starts in %g s", reason, delay_s)
            self._is_closing.wait(delay_s)

    def _serve_once(self) -> str:
        """Start a process and take its news until it ends. Returns why it ended."""
        with self._lock:
            if self._is_closing.is_set():
                return ""
            self._process = process = self._start_process()
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                self._news.append(LifelineNews(line[1:].strip(), _SIGNS[line[0]]))
                self.on_news()
            code = process.wait()
        with self._lock:
            self._process = None
        return f"exit code {code}"

    def _start_process(self) -> subprocess.Popen[str]:
        fds = (self._listener.fileno(), self._host_fd)
        return start_beside(_PROGRAM, (*map(str, fds), self._epoch), fds, has_output=True)


def start_lifelines(epoch: str, port: int, max_nodes: int) -> Lifelines | None:
    """The lifelines of a run. None where the system cannot hold them: then leases alone find the dead."""
    allowed, wanted = net.most_files(), net.lifeline_files_wanted(max_nodes)
    if allowed < wanted:
        log.warning(
            "the process that holds the lifelines may open %d files, %d nodes need %d: the death of a node without a "
            "lifeline is noticed by its lease: raise the limit (ulimit -Hn)",
            allowed,
            max_nodes,
            wanted,
        )
    try:
        return Lifelines(epoch, port)
    except OSError as error:
        log.warning("no lifelines: %s; the death of a node is noticed by its lease", error)
        return None
