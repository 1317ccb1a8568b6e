"""The host's end of the lifelines: the port, and the process that holds the connections.

Owns the port and the life of that process. The port is open as long as this object lives. If the process dies, another
one takes its place: its connections end with it, the nodes connect again, and no node is suspected for that.
"""

from __future__ import annotations

import errno
import logging
import os
import subprocess
from collections import deque
from collections.abc import Callable
from pathlib import Path

from ft_rendezvous.core.suspects import LifelineNews, LifelineSign
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.host.kept_process import KeptProcess
from ft_rendezvous.host.side_process import start_beside
from ft_rendezvous.store import net

log = logging.getLogger("ft_rendezvous")

_PROGRAM = Path(__file__).with_name("lifeline_main.py")
_SIGNS = {
    "+": LifelineSign.CONNECTED,
    "-": LifelineSign.HUNG_UP,
    "~": LifelineSign.GOODBYE,
    "!": LifelineSign.DEAD,
}


class Lifelines:
    """Listens from its start until it is closed, or until this process ends, even by SIGKILL."""

    def __init__(self, epoch: str, port: int = 0) -> None:
        """Open the port and start the process. Raises ConfigError if the port cannot be opened, and OSError."""
        if not hasattr(os, "pidfd_open"):
            raise OSError(errno.ENOSYS, "this system or this Python has no pidfd_open")
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
        self._is_closed = False
        self._kept = KeptProcess("the process that holds the lifelines", self._start_process, self._take_line)

    @property
    def pid(self) -> int | None:
        """The process that holds the connections now; None while there is none."""
        return self._kept.pid

    def take_news(self) -> list[LifelineNews]:
        """All news since the last call, in the order in which they came."""
        taken: list[LifelineNews] = []
        while self._news:
            taken.append(self._news.popleft())
        return taken

    def close(self) -> None:
        """End the process and close the port. A second call does nothing."""
        self._kept.close()
        if not self._is_closed:
            self._is_closed = True
            self._listener.close()
            os.close(self._host_fd)

    def _take_line(self, line: str) -> None:
        self._news.append(LifelineNews(line[1:].strip(), _SIGNS[line[0]]))
        self.on_news()

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
