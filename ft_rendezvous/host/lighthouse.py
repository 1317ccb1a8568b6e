"""The host's lighthouse: torchft's server, in a process of its own, so that it cannot disturb the coordinator.

Owns the public port and the life of that process. The port is open as long as this object lives: while a lighthouse
that died is replaced, connections wait instead of being refused. Knows nothing of groups: torchft's managers report to
the lighthouse by themselves.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import importlib.util
import json
import logging
import os
import socket
import subprocess
import threading
from pathlib import Path

from ft_rendezvous.errors import ConfigError
from ft_rendezvous.host.kept_process import KeptProcess
from ft_rendezvous.host.lighthouse_rules import LighthouseRules
from ft_rendezvous.host.side_process import start_beside

log = logging.getLogger("ft_rendezvous")

QUORUM_ID_MARGIN = 200
"""More than the quorums that can form between two looks at the id: no id of a former lighthouse is used again."""
_PROGRAM = Path(__file__).with_name("lighthouse_main.py")


class Lighthouse:
    """Serves from its start until it is closed, or until this process ends, even by SIGKILL."""

    def __init__(self, rules: LighthouseRules, advertised_addr: str, listener: socket.socket, extension: str) -> None:
        """Use `start`. Takes over the listener."""
        self._rules, self._extension, self._listener = rules, extension, listener
        host = f"[{advertised_addr}]" if ":" in advertised_addr else advertised_addr
        self.address = f"http://{host}:{listener.getsockname()[1]}"
        """What workers need as TORCHFT_LIGHTHOUSE. It does not change."""
        self._is_ready = threading.Event()
        self._known_quorum_id = 0
        self._failure = ""
        """What the process has said of its failure."""
        self._kept = KeptProcess("the lighthouse", self._start_process, self._take_line, self._describe_end)

    @classmethod
    def start(cls, rules: LighthouseRules, advertised_addr: str, port: int = 0) -> Lighthouse:
        """Open the port and start the lighthouse. Does not wait for it. `advertised_addr`: how nodes reach this one.

        Raises ConfigError if torchft is not installed or the port cannot be opened.
        """
        extension = find_extension()
        try:
            listener = _listen(port)
        except OSError as error:
            raise ConfigError(f"the lighthouse cannot listen on port {port}: {error}; choose another port") from error
        return cls(rules, advertised_addr, listener, extension)

    @property
    def pid(self) -> int | None:
        """The process that serves now; None while there is none."""
        return self._kept.pid

    def wait_until_ready(self, timeout_s: float) -> bool:
        """Whether the lighthouse serves within this time."""
        return self._is_ready.wait(timeout_s)

    def close(self) -> None:
        """End the lighthouse and close its port. Any thread may call it; a second call does nothing."""
        self._kept.close()
        self._listener.close()

    def _take_line(self, line: str) -> None:
        word, _, rest = line.strip().partition(" ")
        if word == "ready":
            self._is_ready.set()
        elif word == "quorum" and rest.isdecimal():
            self._known_quorum_id = max(self._known_quorum_id, int(rest))
        elif word == "failed":
            self._failure = rest

    def _describe_end(self, code: int) -> str:
        self._is_ready.clear()
        failure, self._failure = self._failure, ""
        return failure or f"exit code {code}"

    def _start_process(self) -> subprocess.Popen[str]:
        first_quorum_id = self._known_quorum_id + QUORUM_ID_MARGIN if self._known_quorum_id else 1
        # It may die before it reports an id, and has used up to this one.
        self._known_quorum_id = first_quorum_id
        rules = self._rules
        config = {
            "extension": self._extension,
            "listen_fd": self._listener.fileno(),
            "host_pid": os.getpid(),
            "first_quorum_id": first_quorum_id,
            "min_replicas": rules.min_replicas,
            "heartbeat_timeout_ms": round(1000 * rules.heartbeat_timeout_s),
            "join_timeout_ms": round(1000 * rules.join_timeout_s),
            "tick_ms": round(1000 * rules.tick_s),
            "silence_timeout_s": rules.silence_timeout_s,
        }
        # Torchft's server logs a line per quorum, and more: turn it off.
        quiet = {"RUST_LOG": "off"}
        fds = (self._listener.fileno(),)
        return start_beside(_PROGRAM, (json.dumps(config),), fds, has_output=True, environment=quiet)


def find_extension() -> str:
    """The file of torchft's extension module. Imports nothing. Raises ConfigError if torchft is not installed."""
    spec = importlib.util.find_spec("torchft")
    folders = (spec.submodule_search_locations or []) if spec is not None else []
    for folder in folders:
        for suffix in importlib.machinery.EXTENSION_SUFFIXES:
            path = Path(folder) / f"_torchft{suffix}"
            if path.exists():
                return str(path)
    raise ConfigError("lighthouse=yes needs torchft, which is not installed: pip install 'ft-rendezvous[torchft]'")


def _listen(port: int) -> socket.socket:
    """A listening socket for IPv6 and IPv4, or for IPv4 alone where there is no IPv6."""
    with contextlib.suppress(OSError):
        if socket.has_dualstack_ipv6():
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=4096)
    return socket.create_server(("", port), backlog=4096)
