"""Real processes of one test. All that a test starts, and all that these start, is found by a variable and ended."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.torchrun_cluster import find_processes, is_alive, send
from tests.support.waiting import wait_until

AGENT = Path(__file__).with_name("agent_process.py")
ROOT = AGENT.parent.parent.parent


class ProcessStage:
    """Its name is in the environment of the test, so that what the code under test starts is found, too."""

    def __init__(self) -> None:
        self.name = f"processes-{secrets.token_hex(8)}"
        self._started: list[subprocess.Popen[bytes]] = []

    def start(self, command: Sequence[str], environ: Mapping[str, str] | None = None) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, **(environ or {})},
            start_new_session=True,
        )
        self._started.append(process)
        return process

    def start_agent(self, marker: str, *worker_command: str, environ: Mapping[str, str] | None = None) -> Agent:
        process = self.start((sys.executable, str(AGENT), marker, *worker_command), environ)
        agent = Agent(process)
        agent.hear()
        return agent

    def close(self) -> None:
        def nothing_lives() -> bool:
            living = find_processes(self.name)
            for process in living:
                send(process.pid, signal.SIGKILL)
            return not living

        wait_until("the stage is empty", nothing_lives)
        for process in self._started:
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with suppress(OSError):
                        stream.close()
            process.wait()


@dataclass
class Agent:
    """A process that has started a reaper and workers, and obeys the test."""

    process: subprocess.Popen[bytes]
    reaper: int = 0
    workers: tuple[int, ...] = ()

    def hear(self) -> None:
        assert self.process.stdout is not None
        pids: dict[str, Any] = json.loads(self.process.stdout.readline())
        self.reaper, self.workers = pids["reaper"], tuple(pids["workers"])

    def tell(self, word: str) -> None:
        """Have it do something, and wait until it is done."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(word.encode() + b"\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().decode().strip() == word

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def wait_for_end(*pids: int) -> None:
    wait_until(f"{pids} are gone", lambda: not any(map(is_alive, pids)))


def wait_for_zombie(process: subprocess.Popen[bytes]) -> None:
    """Until the process has ended; it is still there to be reaped."""
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)


def open_fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))
