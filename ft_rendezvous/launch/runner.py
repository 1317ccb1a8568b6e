"""Carries out a plan: starts its processes, forwards signals, waits for the end and returns how the run ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import IO

import msgspec

from ft_rendezvous.agent.signals import ENDING_SIGNALS, on_signals
from ft_rendezvous.config.addresses import parse_endpoint
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.host.verdict_file import VerdictReport
from ft_rendezvous.launch.plan import LaunchedRun, Plan, Process
from ft_rendezvous.launch.run_end import RunEnd
from ft_rendezvous.store.raw_client import Found, probe

FORWARDED_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2, *ENDING_SIGNALS)
STORE_EXIT_TIMEOUT_S = 30.0
"""How long a separate store may stay after the last node. It ends by itself when all nodes have left."""
NODE_EXIT_TIMEOUT_S = 120.0
"""How long nodes may take to end after the run: torch gives workers 30 s, and then kills them."""
POLL_INTERVAL_S = 0.2


def say(text: str) -> None:
    print(f"launcher: {text}", file=sys.stderr, flush=True)


class PlanRunner:
    """Runs the processes of a plan. Ends them all if it must itself end early."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.signals: list[int] = []
        self.nodes: list[subprocess.Popen[bytes]] = []
        self.store: subprocess.Popen[bytes] | None = None
        self._enders: list[subprocess.Popen[bytes]] = []

    def run(self) -> RunEnd:
        """Start everything and wait for its end."""
        self._make_log_dir()
        with on_signals(self._receive, FORWARDED_SIGNALS):
            try:
                if self.plan.store is not None:
                    self.store = start_process(self.plan.store)
                self._publish()
                for process in self.plan.nodes:
                    if self.signals:
                        break  # A signal came before all nodes were started.
                    self.nodes.append(start_process(process))
                for signum in tuple(self.signals):
                    self._forward(signum)  # It came while the last node was being started.
                self._await_nodes()
                codes = [self._exit_code(number) for number in range(len(self.nodes))]
                self._await_store()
            except BaseException:
                self._kill_all()
                raise
            finally:
                self._unpublish()
                self._stop_enders()
        has_begun = next(self.plan.run.log_dir.glob("node-*/cycle-*"), None) is not None
        return RunEnd(self._verdict(), codes, tuple(self.signals), has_begun)

    def _verdict(self) -> VerdictReport | None:
        return read_verdict(self.plan.run.verdict_path, self.plan.run.run_id)

    def _await_nodes(self) -> None:
        """Wait until all nodes have ended. A node that stays long after the run hangs, and holds the allocation."""
        over_at: float | None = None
        while any(node.poll() is None for node in self.nodes):
            time.sleep(POLL_INTERVAL_S)
            now = time.monotonic()
            if over_at is None and self._verdict() is not None:
                over_at = now
            if over_at is not None and now > over_at + NODE_EXIT_TIMEOUT_S:
                say(f"the run has been over for {NODE_EXIT_TIMEOUT_S:g} s, and a node has not ended: killing it")
                self._kill_all(signal.SIGKILL)
                return

    def _make_log_dir(self) -> None:
        run = self.plan.run
        try:
            run.log_dir.mkdir(parents=True, exist_ok=True)
            if self.plan.publishes is not None or self.plan.store is not None:
                run.verdict_path.unlink(missing_ok=True)  # It is from before the job was queued again.
        except OSError as error:
            raise ConfigError(
                f"the log directory {run.log_dir} cannot be used: {error}: pass another --log-dir"
            ) from error

    def _publish(self) -> None:
        """Write the file in one step: other tasks read it as soon as it exists."""
        path = self.plan.publishes
        if path is not None:
            draft = path.with_name(f".{path.name}-{os.getpid()}")
            draft.write_text(f"{self.plan.run.endpoint}\n")
            draft.replace(path)

    def _unpublish(self) -> None:
        if self.plan.publishes is not None:
            self.plan.publishes.unlink(missing_ok=True)

    def _exit_code(self, number: int) -> int:
        code = self.nodes[number].wait()
        if code != 0 and len(self.nodes) > 1:
            node = self.plan.nodes[number]
            say(f"{node.name} exited {code}, its log is {node.log}")
        return code

    def _await_store(self) -> None:
        if self.store is None:
            return
        try:
            self.store.wait(STORE_EXIT_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            say(f"all nodes have ended, but not the store within {STORE_EXIT_TIMEOUT_S:g} s: ending it")
            self.store.terminate()
            self.store.wait()

    def _receive(self, signum: int) -> None:
        self.signals.append(signum)
        self._forward(signum)

    def _forward(self, signum: int) -> None:
        """Send a signal to the nodes, not to the store: the store ends when the nodes have left."""
        command = self.plan.end_command
        if signum in ENDING_SIGNALS and command and self.nodes:
            with suppress(OSError):
                self._enders.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0))
            return
        for process in self.nodes:
            process.send_signal(signum)

    def _stop_enders(self) -> None:
        """Kill scancel: it tries again while SLURM requeues the job, and would end the nodes of the requeued job."""
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


def start_process(process: Process) -> subprocess.Popen[bytes]:
    """Start it in its own process group: Ctrl-C reaches only the launcher, which forwards it."""
    env = {name: value for name, value in os.environ.items() if name not in process.unset}
    with ExitStack() as files:
        log = None if process.log is None else files.enter_context(process.log.open("ab"))
        return _popen(process.command, {**env, **process.env}, log)


def _popen(command: Sequence[str], env: Mapping[str, str], log: IO[bytes] | None) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0)
    except FileNotFoundError as error:
        raise ConfigError(f"{command[0]!r} is not in PATH: activate the environment it is in") from error
    except PermissionError as error:
        # The file is not executable, or a directory of PATH cannot be read.
        raise ConfigError(f"this user may not run {command[0]!r}: check the file's mode and PATH") from error


def read_verdict(path: Path, run_id: str) -> VerdictReport | None:
    """How this run ended, if its host has written it. A verdict of another run does not count."""
    try:
        report = msgspec.json.decode(path.read_bytes(), type=VerdictReport)
    except (OSError, msgspec.DecodeError):
        return None
    return report if report.run_id == run_id else None


def is_over(run: LaunchedRun) -> bool:
    """Whether the run has ended for good. A run that may be tried again is not over: its tasks are queued again."""
    report = read_verdict(run.verdict_path, run.run_id)
    return report is not None and not report.is_retryable


def await_endpoint(path: Path, timeout_s: float, is_over: Callable[[], bool]) -> str | None:
    """The endpoint that the hosting task of a job array has published, once a store answers there.

    None if the run is over. A task that died may have left its file; the next hosting task replaces it. Raises
    ConfigError after the timeout.
    """
    deadline = time.monotonic() + timeout_s
    has_said = False
    while time.monotonic() < deadline:
        if is_over():
            return None
        with suppress(OSError):
            endpoint = path.read_text().strip()
            if endpoint and probe(*parse_endpoint(endpoint)) is Found.STORE:
                return endpoint
        if not has_said:
            say(f"waiting for the task that hosts the store to publish its endpoint in {path}")
            has_said = True
        time.sleep(POLL_INTERVAL_S)
    raise ConfigError(
        f"no store was found through {path} within {timeout_s:g} s: has the array's first task started? "
        "A longer join_timeout waits for longer"
    )
