"""A cluster on one machine: real torchrun processes, one log each, and every process accounted for.

A `Cluster` belongs to one test and owns everything the test starts. A `Job` is one run: run id, endpoint, settings. A
`Node` is one agent with its workers. Tests wait for what they need (a line in a log, an exit) and never for time to
pass; whatever does not come in time fails with the tails of all logs.

Every process started here, and everything such a process starts, carries a marker variable in its environment. That is
how workers are found after their agent was killed, and how `close()` knows that nothing is left.

The backend is an argument: the same scenarios run against torch's c10d, to compare.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.support.waiting import POLL_S, WAIT_S, wait_until

HERE = Path(__file__).parent.parent / "integration"
TRAIN = HERE / "workers" / "train.py"
TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
FTR = Path(sys.executable).parent / "ftr"

MARKER = "FT_TEST_NODE"

QUICK = {"lease_timeout": 3, "beat_interval": 0.5}
"""Settings under which a death is noticed in seconds, yet a loaded machine's pauses are not taken for deaths."""

ACCIDENT = (
    r"Fatal Python error|terminate called|Exception in thread|the coordinator failed|leaving run .* failed"
    r"|nothing more is recorded of this run"
)
"""What no log may ever hold, whatever a test did to its nodes."""

_FOREIGN = re.compile(r"(SLURM_|FT_|TORCH|MASTER_|OMP_|GLOO_|(RANK|WORLD_SIZE|LOCAL_RANK|GROUP_RANK)$)")

Report = dict[str, str]


def free_port(host: str = "127.0.0.1") -> int:
    """A port that the system gives and nobody holds."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as sock:
        sock.bind((host, 0))
        return int(sock.getsockname()[1])


# --- processes --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Process:
    """A live process that carries the marker."""

    pid: int
    marker: str
    is_worker: bool
    command: str


def find_processes(prefix: str) -> list[Process]:
    """Every live process whose marker begins with `prefix`; zombies and vanished ones are not live."""
    found: list[Process] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            variables = (entry / "environ").read_bytes().decode(errors="replace").split("\0")
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:
            continue
        environ = dict(item.partition("=")[::2] for item in variables)
        marker = environ.get(MARKER, "")
        if marker.startswith(prefix) and command:
            found.append(Process(int(entry.name), marker, "TORCHELASTIC_RUN_ID" in environ, command))
    return found


def state_of(pid: int) -> str:
    """The kernel's letter for a process: T is stopped, Z and X are dead, as is one that is not there."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def is_alive(pid: int) -> bool:
    return state_of(pid) not in "ZX"


def send(pid: int, sig: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sig)


# --- a node -----------------------------------------------------------------------------------------


@dataclass
class Node:
    """One started command with its log; for a torchrun command, an agent and its workers."""

    name: str
    marker: str
    log_path: Path
    process: subprocess.Popen[bytes]
    started_at: float = field(default_factory=time.monotonic)

    @property
    def pid(self) -> int:
        return self.process.pid

    # --- its log ------------------------------------------------------------------------------------

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def tail(self, lines: int = 40) -> str:
        text = "\n".join(self.log.splitlines()[-lines:])
        return f"--- {self.name} (pid {self.pid}, exit {self.process.poll()}) ---\n{text}"

    def lines(self, pattern: str) -> list[str]:
        """Lines of the log in which the pattern is found."""
        found = re.compile(pattern)
        return [line for line in self.log.splitlines() if found.search(line)]

    def wait_for(self, pattern: str, timeout_s: float = WAIT_S) -> re.Match[str]:
        """The first match in the log, once there is one. Fails at once if the process ends without it."""
        compiled = re.compile(pattern, re.MULTILINE)

        def look() -> re.Match[str] | None:
            has_ended = self.process.poll() is not None
            match = compiled.search(self.log)
            if match is None and has_ended:
                raise AssertionError(f"{self.name} ended without {pattern!r}\n{self.tail()}")
            return match

        return wait_until(f"{pattern!r} in the log of {self.name}", look, timeout_s, self.tail)

    def logged_at(self, pattern: str) -> float:
        """When the backend logged the first line with the pattern, in seconds of its own clock; finer than a poll."""
        line = self.lines(rf"^\[ft .*{pattern}")[0]
        stamp = re.match(r"\[ft (\S+ \S+) ", line)
        assert stamp is not None, line
        return datetime.strptime(stamp[1], "%Y-%m-%d %H:%M:%S,%f").timestamp()

    def reports(self, kind: str = "step", **wanted: object) -> list[Report]:
        """The workers' lines of one kind whose fields have the wanted values, oldest first."""
        found: list[Report] = []
        # A worker's line may follow an unfinished line of another writer.
        for text in re.findall(rf"ft-test {kind} (.*)$", self.log, re.MULTILINE):
            report = dict(item.partition("=")[::2] for item in text.split())
            if all(report.get(key) == str(value) for key, value in wanted.items()):
                found.append(report)
        return found

    def wait_report(self, kind: str = "step", timeout_s: float = WAIT_S, **wanted: object) -> Report:
        """The first report of one kind with the wanted fields, once there is one."""

        def look() -> Report | None:
            has_ended = self.process.poll() is not None
            found = self.reports(kind, **wanted)
            if not found and has_ended:
                raise AssertionError(f"{self.name} ended without a {kind} report {wanted}\n{self.tail()}")
            return found[0] if found else None

        return wait_until(f"a {kind} report {wanted} from {self.name}", look, timeout_s, self.tail)

    # --- its processes ------------------------------------------------------------------------------

    def workers(self) -> list[int]:
        """Pids of the workers of this node that are alive, whether or not the agent is."""
        return [process.pid for process in find_processes(self.marker) if process.is_worker]

    def signal(self, sig: signal.Signals) -> None:
        """Send a signal to the agent alone."""
        send(self.pid, sig)

    def _pids(self, with_workers: bool) -> Iterator[int]:
        # The agent first: it must not see its workers go and act on it.
        yield self.pid
        if with_workers:
            yield from (process.pid for process in find_processes(self.marker) if process.pid != self.pid)

    def kill(self, with_workers: bool = True) -> None:
        """SIGKILL the agent, as a crash of the machine (with its workers) or of the agent alone."""
        # Stopped first: else the workers of a dying agent have a moment to live on their own.
        self.pause(with_workers)
        for pid in list(self._pids(with_workers)):
            send(pid, signal.SIGKILL)
        self.process.wait()

    def pause(self, with_workers: bool = True) -> None:
        """SIGSTOP, as a machine that hangs. Nothing of it runs any more when this returns."""
        pids = list(self._pids(with_workers))
        for pid in pids:
            send(pid, signal.SIGSTOP)
        wait_until("stopped", lambda: all(state_of(pid) in "TZX" for pid in pids) or None, explain=self.tail)

    def resume(self, with_workers: bool = True) -> None:
        for pid in self._pids(with_workers):
            send(pid, signal.SIGCONT)

    def wait_exit(self, timeout_s: float = WAIT_S) -> int:
        """The exit code; negative for a signal."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} has not ended within {timeout_s:g} s\n{self.tail()}") from None

    def assert_fails(self, timeout_s: float = WAIT_S) -> None:
        """It ends as torchrun ends after an error: with exit code 1, neither 0 nor a signal."""
        code = self.wait_exit(timeout_s)
        assert code == 1, f"{self.name} exited with {code}\n{self.tail()}"

    @property
    def has_exited(self) -> bool:
        return self.process.poll() is not None


# --- a run ------------------------------------------------------------------------------------------


@dataclass
class Job:
    """One run id at one endpoint, and how its nodes are started."""

    cluster: Cluster
    nnodes: str
    worker: Sequence[object] = ()
    script: Path = TRAIN
    conf: Mapping[str, object] = field(default_factory=dict)
    max_restarts: int = 100
    nproc: int = 1
    env: Mapping[str, str] = field(default_factory=dict)
    host: str = "127.0.0.1"
    port: int = 0
    run_id: str = ""
    nodes: list[Node] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.port = self.port or free_port(self.host)
        self.run_id = self.run_id or f"it-{secrets.token_hex(4)}"

    @property
    def endpoint(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def serve(self) -> Node:
        """Host the store in a process of its own, so that every node can be lost. It is no node of the run."""
        conf = ",".join(f"{key}={value}" for key, value in self.conf.items())
        given = ("--endpoint", self.endpoint, "--rdzv-id", self.run_id, "--nnodes", self.nnodes, "--rdzv-conf", conf)
        host = self.cluster.spawn("host", (str(FTR), "serve", *given), self.env)
        host.wait_for("serving run")
        return host

    def start(
        self,
        name: str,
        *,
        is_host: bool | None = None,
        infra_rank: int | None = None,
        nproc: int | None = None,
        max_restarts: int | None = None,
        endpoint: str | None = None,
        conf: Mapping[str, object] | None = None,
        env: Mapping[str, str] | None = None,
        launcher: Sequence[str] = TORCHRUN,
    ) -> Node:
        """Start one node. `is_host` is given where the test must know who hosts; else the first to come does."""
        settings = {**self.conf, **(conf or {})}
        if is_host is not None:
            settings["is_host"] = str(is_host).lower()
        variables = {**self.env, **(env or {})}
        if infra_rank is not None:
            variables["FT_INFRA_RANK"] = str(infra_rank)
        command = [
            *launcher,
            f"--nnodes={self.nnodes}",
            f"--nproc-per-node={nproc or self.nproc}",
            f"--max-restarts={self.max_restarts if max_restarts is None else max_restarts}",
            f"--rdzv-backend={self.cluster.backend}",
            f"--rdzv-endpoint={endpoint or self.endpoint}",
            f"--rdzv-id={self.run_id}",
            *([f"--rdzv-conf={','.join(f'{key}={value}' for key, value in settings.items())}"] if settings else []),
            str(self.script),
            *map(str, self.worker),
        ]
        node = self.cluster.spawn(name, command, variables)
        self.nodes.append(node)
        return node

    def start_all(self, count: int, **options: object) -> list[Node]:
        """Nodes n0, n1, ... with infra ranks 0, 1, ...; n0 hosts the store."""
        return [
            self.start(f"n{index}", is_host=index == 0, infra_rank=index, **options)  # type: ignore[arg-type]
            for index in range(count)
        ]

    def start_pair(self) -> tuple[Node, Node]:
        """Two nodes that train: n0 hosts the store, n1 can be lost."""
        first, second = self.start_all(2)
        for node in (first, second):
            node.wait_report("step")
        return first, second

    def wait_all(self, timeout_s: float = WAIT_S) -> dict[str, int]:
        """Exit codes of all nodes by name."""
        deadline = time.monotonic() + timeout_s
        return {node.name: node.wait_exit(max(0.1, deadline - time.monotonic())) for node in self.nodes}

    def assert_succeeds(self, but: Sequence[Node] = ()) -> None:
        """All nodes (but those the test has ended) exit 0."""
        self.nodes = [node for node in self.nodes if node not in but]
        codes = self.wait_all()
        assert set(codes.values()) == {0}, f"{codes}\n{self.cluster.tails()}"

    def ranks_and_sums(self, cycle: int) -> list[tuple[int, int]]:
        """(rank, sum) of all that the workers of a cycle reported, by rank and without repeats."""
        return sorted(
            {(int(r["rank"]), int(r["sum"])) for node in self.nodes for r in node.reports("step", cycle=cycle)}
        )


def assert_quiet(*nodes: Node) -> None:
    """Nothing in the logs looks like an accident."""
    for node in nodes:
        assert "Traceback" not in node.log, node.tail()


def read_verdict(path: Path) -> dict[str, Any]:
    """A verdict file, by its own names."""
    verdict: dict[str, Any] = json.loads(path.read_text())
    return verdict


def ranks_of(node: Node, cycle: int) -> list[int]:
    """Ranks of the workers this node started in a cycle."""
    return [int(report["rank"]) for report in node.reports("begin", cycle=cycle)]


def wait_further(node: Node, steps: int = 5) -> None:
    """Its worker does so many more steps."""
    last = node.reports("step")[-1]
    node.wait_report("step", cycle=last["cycle"], step=int(last["step"]) + steps)


@dataclass(frozen=True)
class Gate:
    """A health check that nodes pass together: all are there before the first of them joins."""

    here: Path
    go: Path

    @property
    def conf(self) -> dict[str, object]:
        check = f"echo here >> {self.here}; until test -e {self.go}; do sleep 0.02; done"
        return {"health_check": check, "health_check_timeout": WAIT_S}

    def open_for(self, nodes: Sequence[Node]) -> None:
        """Let them in once all of them are here. Whoever comes later finds it open."""

        def tails() -> str:
            return "\n".join(node.tail() for node in nodes)

        def are_here() -> bool:
            return self.here.exists() and self.here.read_text().count("here") == len(nodes)

        wait_until(f"{len(nodes)} nodes are here", are_here, explain=tails)
        self.go.touch()


# --- all of a test ----------------------------------------------------------------------------------


class Cluster:
    """Everything one test starts."""

    def __init__(self, directory: Path, backend: str = "ft") -> None:
        self.directory = directory
        self.backend = backend
        self.nodes: list[Node] = []
        self._id = secrets.token_hex(6)

    def job(self, nnodes: str, **options: object) -> Job:
        """A run of its own: new run id, new port, unless they are given."""
        return Job(self, nnodes, **options)  # type: ignore[arg-type]

    def path(self, name: str) -> Path:
        """A file in the test's directory, for workers to wait for."""
        return self.directory / name

    def gate(self) -> Gate:
        """Where nodes wait for each other before they join."""
        return Gate(self.path("here"), self.path("go"))

    def spawn(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> Node:
        """Start a command in a session of its own, with a log of its own and an environment without surprises."""
        serial = len(self.nodes)
        marker = f"{self._id}/{serial}/"
        log_path = self.directory / f"{serial:02}-{name}.log"
        inherited = {key: value for key, value in os.environ.items() if not _FOREIGN.match(key)}
        variables = {
            **inherited,
            "RES_OPTIONS": "timeout:1 attempts:1",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
            "TMPDIR": str(self.directory),
            MARKER: marker,
            **(env or {}),
        }
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                list(command),
                env=variables,
                cwd=self.directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        node = Node(name, marker, log_path, process)
        self.nodes.append(node)
        return node

    def tails(self) -> str:
        return "\n".join(node.tail() for node in self.nodes)

    def accidents(self) -> list[str]:
        """Lines that tell of a bug of the backend, by node."""
        return [f"{node.name}: {line}" for node in self.nodes for line in node.lines(ACCIDENT)]

    def close(self) -> list[str]:
        """End every process this cluster started. Returns those that should not have been there.

        After a test, every agent has ended and so has every worker, also of an agent that was killed. A process that is
        on its way out gets a moment.
        """
        deadline = time.monotonic() + 5.0
        while (left := find_processes(f"{self._id}/")) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        named = {node.marker: node.name for node in self.nodes}
        described = [f"{named[process.marker]}: pid {process.pid}: {process.command}" for process in left]

        while remaining := find_processes(f"{self._id}/"):
            for process in remaining:
                send(process.pid, signal.SIGKILL)
            time.sleep(POLL_S)
        for node in self.nodes:
            node.process.wait()
        return described
