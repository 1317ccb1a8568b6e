"""Several of the doctor's processes at once, as srun starts them."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cli.conftest import FTR, Shell

ENDPOINT_TIMEOUT_S = 120.0


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.close()


@dataclass
class Srun:
    """One step: a task per entry, each with what SLURM would put into its environment."""

    shell: Shell
    tasks: int
    hosts: str = "localhost"
    job: str = field(default_factory=lambda: str(secrets.randbelow(10**9)))
    prefixes: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """What a task's command begins with: a network namespace of its own, for example."""

    def start(self, task: int, *arguments: str, **env: str) -> subprocess.Popen[str]:
        return self.shell.start(
            *self.prefixes.get(task, ()),
            FTR,
            "doctor",
            *arguments,
            **{
                "SLURM_JOB_ID": self.job,
                "SLURM_STEP_ID": "0",
                "SLURM_STEP_NUM_TASKS": str(self.tasks),
                "SLURM_STEP_NODELIST": self.hosts,
                "SLURM_PROCID": str(task),
                "SLURMD_NODENAME": f"n{task + 1}",
                **env,
            },
        )

    def run(
        self, *arguments: str, only: Sequence[int] | None = None, env: Mapping[int, Mapping[str, str]] | None = None
    ) -> dict[int, subprocess.CompletedProcess[str]]:
        """All tasks, or only some of them, until each has ended."""
        tasks = range(self.tasks) if only is None else only
        started = {task: self.start(task, *arguments, **(env or {}).get(task, {})) for task in tasks}
        done = {}
        for task, process in started.items():
            out, err = process.communicate(timeout=ENDPOINT_TIMEOUT_S)
            done[task] = subprocess.CompletedProcess(process.args, process.returncode, out, err)
        return done


def lines_of(done: subprocess.CompletedProcess[str], check: str) -> list[str]:
    """The finding of a check, without its remedy."""
    return [line for line in done.stdout.splitlines() if line.split()[1:2] == [check]]


def wait_until(what: str, is_so: Callable[[], bool]) -> None:
    deadline = time.monotonic() + ENDPOINT_TIMEOUT_S
    while not is_so():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)
