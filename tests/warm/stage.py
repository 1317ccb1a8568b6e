"""A stage for warm workers without torchrun: a nursery of this process, and clients that start like workers."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from ft_rendezvous.env_names import MARKER_VARIABLE, NURSERY_VARIABLE
from ft_rendezvous.warm.nursery import ALWAYS, CLIENT, Nursery
from tests.support.torchrun_cluster import is_alive
from tests.support.waiting import wait_until

SCRIPTS = Path(__file__).parent / "scripts"
CLIENT_COMMAND = (sys.executable, "-I", "-S", str(CLIENT))
COLD_COMMAND = (sys.executable,)
MARK = "report: "
COLD_WARNING = "this worker starts cold"


@dataclass
class Started:
    """A client or a cold worker, and where it writes."""

    process: subprocess.Popen[bytes]
    output: Path
    errors: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    def wait(self, timeout_s: float = 120) -> int:
        return self.process.wait(timeout_s)

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace")

    @property
    def error_text(self) -> str:
        return self.errors.read_text(errors="replace")

    def wait_for(self, text: str) -> str:
        """All of its output, once this text is in it."""

        def look() -> bool:
            has_ended = self.process.poll() is not None
            if text not in self.text and has_ended:
                raise AssertionError(f"ended {self.process.poll()} without {text!r}: {self.text}\n{self.error_text}")
            return text in self.text

        wait_until(f"{text!r} in the output", look, 120, lambda: f"{self.text}\n{self.error_text}")
        return self.text

    def report(self) -> dict[str, Any]:
        """What the script says of itself, after it has ended well."""
        assert self.wait() == 0, f"{self.text}\n{self.error_text}"
        line = next(line for line in self.text.splitlines() if line.startswith(MARK))
        found: dict[str, Any] = json.loads(line.removeprefix(MARK))
        return found


@dataclass
class Stage:
    """Starts workers of one nursery, and finds what they leave."""

    folder: Path
    environment: dict[str, str]
    marker: str
    nursery: Nursery
    started: list[Started] = field(default_factory=list)

    def start(
        self,
        *words: object,
        is_cold: bool = False,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        command: Sequence[str] | None = None,
        **options: Any,
    ) -> Started:
        serial = len(self.started)
        output, errors = self.folder / f"{serial}.out", self.folder / f"{serial}.err"
        start = command or (COLD_COMMAND if is_cold else CLIENT_COMMAND)
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                [*start, *map(str, words)],
                env={**self.environment, NURSERY_VARIABLE: self.nursery.address, **(env or {})},
                cwd=cwd or self.folder,
                stdin=subprocess.DEVNULL,
                stdout=options.pop("stdout", out),
                stderr=options.pop("stderr", err),
                start_new_session=options.pop("start_new_session", True),
                **options,
            )
        self.started.append(Started(process, output, errors))
        return self.started[-1]

    def script(self, text: str, name: str = "script.py") -> Path:
        path = self.folder / name
        path.write_text(text)
        return path

    def run(self, text: str, *words: object, **options: Any) -> Started:
        """Run this text as a script, to its end."""
        started = self.start("-u", self.script(text, f"script_{len(self.started)}.py"), *words, **options)
        started.wait()
        return started

    def left_processes(self) -> list[int]:
        """Living processes of this stage, but for the nursery."""
        entry = f"{MARKER_VARIABLE}={self.marker}".encode()
        found = []
        for path in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if path.name.isdigit() and entry in (path / "environ").read_bytes().split(b"\0"):
                    found.append(int(path.name))
        return [pid for pid in found if pid != self.nursery.pid and is_alive(pid)]

    def assert_nothing_left(self) -> None:
        wait_until(
            "no process is left", lambda: not self.left_processes(), 30, lambda: self.describe(self.left_processes())
        )

    @staticmethod
    def describe(pids: Sequence[int]) -> str:
        lines = []
        for pid in pids:
            with contextlib.suppress(OSError):
                lines.append(f"{pid}: {Path(f'/proc/{pid}/cmdline').read_bytes()!r}")
        return "\n".join(lines)


@contextlib.contextmanager
def open_stage(folder: Path, env: Mapping[str, str] | None = None, modules: Sequence[str] = ALWAYS) -> Iterator[Stage]:
    """A stage with a nursery of its own, which imports `modules` and what FT_PRELOAD of `env` names."""
    marker = secrets.token_hex(8)
    variables = {"OMP_NUM_THREADS": "1", MARKER_VARIABLE: marker, **(env or {})}
    with pytest.MonkeyPatch.context() as patch:
        for name in list(os.environ):
            if name.startswith(("PYTEST_", "COV_", "FT_", "PYTHONUNBUFFERED")):
                patch.delenv(name)
        for name, value in variables.items():
            patch.setenv(name, value) if value else patch.delenv(name, raising=False)
        environment = dict(os.environ)
        nursery = Nursery(marker, modules)
    stage = Stage(folder, environment, marker, nursery)
    try:
        yield stage
    finally:
        nursery.end()
        for started in stage.started:
            started.process.kill()
            started.process.wait()
        for pid in stage.left_processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
