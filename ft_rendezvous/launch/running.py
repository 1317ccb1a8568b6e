"""Carries out a plan: starts its processes, passes signals on, waits for the end and tells what it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

import msgspec

from ft_rendezvous.config.addresses import parse_endpoint
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.host.verdict_file import VerdictReport
from ft_rendezvous.launch.ending import ENDING, Ended
from ft_rendezvous.launch.options import Plan, Process, Run
from ft_rendezvous.store.raw_client import Found, probe

CAUGHT = (signal.SIGUSR1, signal.SIGUSR2, *ENDING)
STORE_PATIENCE_S = 30.0
"""How long a store of its own may stay after the last node; it goes by itself once all have said goodbye."""
AFTERWARDS_S = 120.0
"""How long nodes may take to end once the run has: torch gives workers 30 s, and then kills them."""
GLANCE_S = 0.2


def say(text: str) -> None:
    print(f"launcher: {text}", file=sys.stderr, flush=True)


class Running:
    """The processes of a plan. Ends them all if it must itself end early."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.signals: list[int] = []
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.store: subprocess.Popen[bytes] | None = None
        self._enders: list[subprocess.Popen[bytes]] = []

    def run(self) -> Ended:
        """Start everything and wait for its end."""
        self._make_place()
        with self._passing_signals_on():
            try:
                if self.plan.store is not None:
                    self.store = _start(self.plan.store)
                self._publish()
                for process in self.plan.nodes:
                    if self.signals:
                        break  # Told to go before all nodes were there.
                    self.nodes.append(_start(process))
                for signum in tuple(self.signals):
                    self._pass_on(signum)  # It came while the last of them was being started.
                self._await_nodes()
                codes = [self._end_of(number) for number in range(len(self.nodes))]
                self._await_store()
            except BaseException:
                self._kill_all()
                raise
            finally:
                self._unpublish()
                self._stop_enders()
        has_begun = next(self.plan.run.log_dir.glob("node-*/cycle-*"), None) is not None
        return Ended(self._verdict(), codes, tuple(self.signals), has_begun)

    def _verdict(self) -> VerdictReport | None:
        return read_verdict(self.plan.run.verdict_path, self.plan.run.run_id)

    def _await_nodes(self) -> None:
        """Until all have ended. Whoever is still there long after the run is over hangs, and would hold all nodes."""
        over_at: float | None = None
        while any(node.poll() is None for node in self.nodes):
            time.sleep(GLANCE_S)
            now = time.monotonic()
            if over_at is None and self._verdict() is not None:
                over_at = now
            if over_at is not None and now > over_at + AFTERWARDS_S:
                say(f"the run has been over for {AFTERWARDS_S:g} s, and a node has not ended: going on without it")
                self._kill_all(signal.SIGKILL)
                return

    def _make_place(self) -> None:
        run = self.plan.run
        try:
            run.log_dir.mkdir(parents=True, exist_ok=True)
            if self.plan.publishes is not None or self.plan.store is not None:
                run.verdict_path.unlink(missing_ok=True)  # Of a life of this run before the job was queued again.
        except OSError as error:
            raise ConfigError(
                f"the log directory {run.log_dir} cannot be used: {error}: pass another --log-dir"
            ) from error

    def _publish(self) -> None:
        """Whole or not at all: other tasks read this file as soon as it is there."""
        path = self.plan.publishes
        if path is not None:
            draft = path.with_name(f".{path.name}-{os.getpid()}")
            draft.write_text(f"{self.plan.run.endpoint}\n")
            draft.replace(path)

    def _unpublish(self) -> None:
        if self.plan.publishes is not None:
            self.plan.publishes.unlink(missing_ok=True)

    def _end_of(self, number: int) -> int:
        code = self.nodes[number].wait()
        if code != 0 and len(self.nodes) > 1:
            node = self.plan.nodes[number]
            say(f"{node.name} exited {code}, its log is {node.log}")
        return code

    def _await_store(self) -> None:
        if self.store is None:
            return
        try:
            self.store.wait(STORE_PATIENCE_S)
        except subprocess.TimeoutExpired:
            say(f"all nodes have ended, and the store has not within {STORE_PATIENCE_S:g} s: ending it")
            self.store.terminate()
            self.store.wait()

    @contextmanager
    def _passing_signals_on(self) -> Iterator[None]:
        """To the nodes, not to the store: it ends when they have gone."""

        def answer(signum: int, _frame: FrameType | None) -> None:
            self.signals.append(signum)
            self._pass_on(signum)

        before = {signum: signal.signal(signum, answer) for signum in CAUGHT}
        try:
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)

    def _pass_on(self, signum: int) -> None:
        command = self.plan.end_command
        if signum in ENDING and command and self.nodes:
            with suppress(OSError):
                self._enders.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0))
            return
        for process in self.nodes:
            process.send_signal(signum)

    def _stop_enders(self) -> None:
        """scancel tries again while SLURM requeues a job: left alone, it would end the nodes of the job's next life."""
        for process in self._enders:
            process.kill()
            process.wait()

    def _kill_all(self, signum: int = signal.SIGTERM) -> None:
        started = [*self.nodes, *([] if self.store is None else [self.store])]
        for process in started:
            if process.poll() is None:
                os.killpg(process.pid, signum)
        for process in started:
            process.wait()


def _start(process: Process) -> subprocess.Popen[bytes]:
    """In a process group of its own, so that Ctrl-C reaches it once, through us."""
    env = {name: value for name, value in os.environ.items() if name not in process.unset}
    try:
        if process.log is None:
            return subprocess.Popen(
                process.command, env={**env, **process.env}, stdin=subprocess.DEVNULL, process_group=0
            )
        with process.log.open("ab") as log:
            return subprocess.Popen(
                process.command,
                env={**env, **process.env},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
    except FileNotFoundError as error:
        raise ConfigError(f"{process.command[0]!r} is not in PATH: activate the environment it is in") from error


def read_verdict(path: Path, run_id: str) -> VerdictReport | None:
    """How this run ended, if its host got to write it; a verdict of another run is none."""
    try:
        report = msgspec.json.decode(path.read_bytes(), type=VerdictReport)
    except (OSError, msgspec.DecodeError):
        return None
    return report if report.run_id == run_id else None


def is_over(run: Run) -> bool:
    """Whether the run has ended for good; where it can help, its tasks are queued again and the run lives once more."""
    report = read_verdict(run.verdict_path, run.run_id)
    return report is not None and not report.is_retryable


def await_endpoint(path: Path, patience_s: float, is_over: Callable[[], bool]) -> str | None:
    """What the hosting task of a job array has published, once a store answers there; None if the run is over.

    A file may be left from a task that died; whoever hosts next replaces it. Raises ConfigError after the patience.
    """
    deadline = time.monotonic() + patience_s
    told = False
    while time.monotonic() < deadline:
        if is_over():
            return None
        with suppress(OSError):
            endpoint = path.read_text().strip()
            if endpoint and probe(*parse_endpoint(endpoint)) is Found.STORE:
                return endpoint
        if not told:
            say(f"waiting for the task that hosts the store to publish its endpoint in {path}")
            told = True
        time.sleep(GLANCE_S)
    raise ConfigError(
        f"no store was found through {path} within {patience_s:g} s: has the array's first task started? "
        "A longer join_timeout waits for longer"
    )
