"""Commands run as a user runs them, and every process they leave behind found."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

FTR = Path(sys.executable).parent / "ftr"
MARK_NAME = "CLI_TEST_MARK"
GONE_PATIENCE_S = 5.0


class Shell:
    """Starts commands without a terminal, in an environment that no outer job has touched."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.mark = secrets.token_hex(8)
        outer = ("SLURM_", "FT_", "FTR_", "PET_", "TORCHELASTIC_")
        self.env = {name: value for name, value in os.environ.items() if not name.startswith(outer)}
        self.env |= {
            MARK_NAME: self.mark,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TERMINAL_WIDTH": "160",
            "NO_COLOR": "1",
        }

    def start(self, *command: str | Path, **env: str) -> subprocess.Popen[str]:
        # A suite in the background of a shell has SIGINT ignored, and no shell can trap what it inherits so.
        return subprocess.Popen(
            ["env", "--default-signal=INT,TERM", *(str(part) for part in command)],
            cwd=self.place,
            env={**self.env, **env},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *command: str | Path, timeout_s: float = 30.0, **env: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*command, **env)
        try:
            out, err = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def ftr(self, *arguments: str | Path, timeout_s: float = 30.0, **env: str) -> subprocess.CompletedProcess[str]:
        return self.run(FTR, *arguments, timeout_s=timeout_s, **env)

    def start_ftr(self, *arguments: str | Path) -> subprocess.Popen[str]:
        return self.start(FTR, *arguments)

    def left(self) -> list[int]:
        """Live processes that this shell's commands started."""
        wanted = f"{MARK_NAME}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if wanted in (entry / "environ").read_bytes().split(b"\0"):
                        found.append(int(entry.name))
        return found

    def left_after_a_moment(self) -> list[int]:
        deadline = time.monotonic() + GONE_PATIENCE_S
        while (left := self.left()) and time.monotonic() < deadline:
            time.sleep(0.05)
        return left

    def close(self) -> None:
        while left := self.left():
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.02)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.close()
