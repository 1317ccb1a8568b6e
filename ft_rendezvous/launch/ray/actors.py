"""What runs on the machines of a Ray cluster: an actor for each node, and one for the run itself.

An actor starts processes, passes on signals and answers questions. It decides nothing. This module imports no Ray.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ft_rendezvous.agent.processes import open_pidfd
from ft_rendezvous.config.addresses import parse_endpoint
from ft_rendezvous.launch.local import free_port
from ft_rendezvous.launch.ray.guard import MAX_MESSAGE_BYTES
from ft_rendezvous.launch.runner import read_verdict
from ft_rendezvous.store.raw_client import Found, probe

PYTHON = "python"
"""Stands for this interpreter at the beginning of a command: Ray's processes have no PATH of ours."""
GUARD = "ft_rendezvous.launch.ray.guard"
START_TIMEOUT_S = 60.0
"""How long a guard may take to start torchrun: its imports may come from a slow file system."""
DRIVER_LEASE_S = 15.0
"""A driver that has not been heard of for so long is gone, and another may go on with the run."""
STOPPED = "stopped"
"""The answer to a driver whose run an operator has stopped."""
WAIT_S = 20.0
"""How long one question for the end of a process waits."""
LISTEN_TIMEOUT_S = 90.0
"""How long a store may take to listen. It imports torch."""
LISTEN_POLL_S = 0.1
TAIL_LINES = 5
TAIL_BYTES = 65536


@dataclass(frozen=True, kw_only=True)
class ProcessSpec:
    """A process for a guard to start."""

    command: list[str]
    log: str
    cwd: str = ""
    env: dict[str, str] = field(default_factory=dict)
    unset: list[str] = field(default_factory=list)


class GuardedProcess:
    """A process under a guard. It ends when this object's process does, whatever ends that."""

    def __init__(self, spec: ProcessSpec) -> None:
        """Raises OSError if it cannot be started."""
        self.pid = 0
        self.code: int | None = None
        self._ended = threading.Event()
        self._control, guards_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        actor_fd = open_pidfd(os.getpid())
        try:
            self._start(spec, actor_fd, guards_end)
        except BaseException:
            self._control.close()
            raise
        finally:
            guards_end.close()
            os.close(actor_fd)
        threading.Thread(target=self._listen, name="ft-guard", daemon=True).start()

    def _start(self, spec: ProcessSpec, actor_fd: int, guards_end: socket.socket) -> None:
        fds = (actor_fd, guards_end.fileno())
        command = [sys.executable if word == PYTHON else word for word in spec.command[:3]] + spec.command[3:]
        words = {**vars(spec), "command": command, "marker": secrets.token_hex(8)}
        Path(spec.log).parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [sys.executable, "-m", GUARD, *map(str, fds)],
            input=json.dumps(words).encode(),
            pass_fds=fds,
            start_new_session=True,
            check=True,
            timeout=START_TIMEOUT_S,
        )
        self._control.settimeout(START_TIMEOUT_S)
        answer = self._receive()
        if "started" not in answer:
            raise OSError(answer.get("failed", "the guard ended at once"))
        self._control.settimeout(None)
        self.pid = answer["started"]

    def wait(self, timeout_s: float | None = None) -> int | None:
        """How the process ended, once it has. None after the timeout."""
        return self.code if self._ended.wait(timeout_s) else None

    def send_signal(self, signum: int) -> None:
        """Send a signal, if the process lives."""
        if not self._ended.is_set():
            with suppress(ConnectionError):  # The guard has just ended, and so has the process.
                self._control.send(json.dumps({"signal": signum}).encode())

    def _listen(self) -> None:
        # A guard that is gone without a word was killed, and torchrun was told to end with it.
        self.code = int(self._receive().get("exited", -signal.SIGKILL))
        self._ended.set()

    def _receive(self) -> dict[str, Any]:
        try:
            data = self._control.recv(MAX_MESSAGE_BYTES)
        except ConnectionError:
            return {}
        answer: dict[str, Any] = json.loads(data) if data else {}
        return answer


class NodeActor:
    """One node of a run: one torchrun under a guard. Ray calls each method in a thread of its own."""

    def __init__(self) -> None:
        self._process: GuardedProcess | None = None
        self._log = ""

    def start(self, spec: ProcessSpec, script: str) -> dict[str, str]:
        """Start torchrun. Returns where it runs, or why this machine cannot run it, as `refusal`."""
        where = f"{socket.gethostname()} pid {os.getpid()}"
        cwd = Path(spec.cwd or ".").resolve()
        if not cwd.is_dir():
            return {"refusal": f"the directory {cwd} does not exist on {where}: share it, or give a working_dir"}
        if script and not (cwd / script).exists():
            return {
                "refusal": f"the script {script} does not exist in {cwd} on {where}: share the directory, or give "
                '--runtime-env \'{"working_dir": "."}\''
            }
        self._log = spec.log
        try:
            self._process = GuardedProcess(spec)
        except OSError as error:
            return {"refusal": f"torchrun could not be started on {where}: {error}"}
        return {"where": where, "pid": str(self._process.pid)}

    def wait(self) -> int | None:
        """The exit code of torchrun. None if it has not ended within a while: then the driver asks again.

        A call takes one of the actor's few threads, and a driver that has died cannot end its calls.
        """
        assert self._process is not None
        return self._process.wait(WAIT_S)

    def send_signal(self, signum: int) -> None:
        if self._process is not None:
            self._process.send_signal(signum)

    def ping(self) -> bool:
        return True

    def state(self) -> str:
        """In a word, for people."""
        if self._process is None:
            return "starting"
        code = self._process.wait(0)
        return "running" if code is None else f"exited {code}"

    def last_words(self, lines: int) -> tuple[str, list[str]]:
        """A log of this node and its last lines: of the worker that failed, or else of torchrun."""
        path = find_failure(Path(self._log))
        return str(path), tail(path, lines)


def find_failure(log: Path) -> Path:
    """The log in which the newest failure of a worker is; this log itself if there is none."""
    cycles = sorted(log.with_suffix("").glob("cycle-*"), key=lambda path: path.stat().st_mtime)
    workers = sorted(cycles[-1].glob("*/error.json")) or sorted(cycles[-1].glob("*/stderr.log")) if cycles else []
    for worker in workers:
        for path in (worker.with_name("stderr.log"), worker.with_name("stdout.log")):
            if path.exists() and path.stat().st_size:
                return path
    return log


def tail(path: Path, lines: int) -> list[str]:
    """The last lines of a file; none if there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL_BYTES))
            return file.read().decode(errors="replace").splitlines()[-lines:]
    except OSError:
        return []


class RunActor:
    """The run itself: what was asked for, who drives it, and its store, if that is on this machine."""

    def __init__(self, manifest: Mapping[str, Any], driver: str) -> None:
        """It is this driver's from its first moment on."""
        self._manifest = dict(manifest)
        self._store: GuardedProcess | None = None
        self._lock = threading.Lock()
        self._driver, self._heard_at = driver, time.monotonic()
        self._is_stopped = False

    def manifest(self) -> dict[str, Any]:
        return self._manifest

    def drive(self, driver: str) -> str:
        """Let this driver go on if no other one does. Returns the one that drives, or that the run was stopped."""
        with self._lock:
            if self._is_stopped:
                return STOPPED
            now = time.monotonic()
            if driver != self._driver and self._driver and now - self._heard_at < DRIVER_LEASE_S:
                return self._driver
            self._driver, self._heard_at = driver, now
            return driver

    def stop(self) -> bool:
        """No driver starts nodes any more. Returns whether one drives now, and so ends the run."""
        with self._lock:
            self._is_stopped = True
            return bool(self._driver) and time.monotonic() - self._heard_at < DRIVER_LEASE_S

    def release(self, driver: str) -> None:
        """This driver leaves."""
        with self._lock:
            if self._driver == driver:
                self._driver = ""

    def choose_port(self) -> int:
        """A port of this machine that no process has now."""
        return free_port()

    def serve(self, spec: ProcessSpec, addr: str, port: int) -> str:
        """Host the run's store, and wait until it listens. Returns why that cannot be, or nothing."""
        try:
            self._store = GuardedProcess(spec)
        except OSError as error:
            return f"the store could not be started: {error}: can its machine write to --log-dir?"
        deadline = time.monotonic() + LISTEN_TIMEOUT_S
        while time.monotonic() < deadline:
            if self._store.wait(LISTEN_POLL_S) is not None:
                last = "; ".join(tail(Path(spec.log), TAIL_LINES))
                return f"the store has ended at its start, with exit code {self._store.code}: {last}"
            if probe(addr, port) is Found.STORE:
                return ""
        return f"the store does not listen at {addr}:{port} after {LISTEN_TIMEOUT_S:g} s: see {spec.log}"

    def put(self, facts: Mapping[str, Any]) -> None:
        """Note what a later driver must know."""
        self._manifest.update(facts)

    def wait_end(self) -> int | None:
        """The exit code of the store. None if it has not ended within a while: then the driver asks again."""
        assert self._store is not None
        return self._store.wait(WAIT_S)

    def stop_store(self) -> None:
        if self._store is not None:
            self._store.send_signal(signal.SIGTERM)

    def is_over(self) -> bool:
        """Whether the run has a verdict, or a store of another machine does not listen any more."""
        if self.verdict():
            return True
        if self._store is not None or "endpoint" not in self._manifest:
            return False
        return probe(*parse_endpoint(self._manifest["endpoint"])) is not Found.STORE

    def verdict(self) -> str:
        """The verdict of the run as JSON; empty if there is none."""
        path = Path(self._manifest["verdict_path"])
        report = read_verdict(path, self._manifest["run_id"])
        return path.read_text() if report is not None else ""
