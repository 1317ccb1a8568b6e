"""What is asked of the launcher, and the one command that every node runs. Pure: nothing is looked up or started."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from ft_rendezvous.config.addresses import DEFAULT_PORT, parse_endpoint
from ft_rendezvous.config.schema import with_config_file
from ft_rendezvous.config.settings import parse_settings
from ft_rendezvous.errors import ConfigError

MAX_RESTARTS = 1_000_000
"""The run's budget is max_cycles; an agent's own must not come before it."""

FIRST_NODE, BATCH_HOST = "first-node", "batch-host"
VERDICT_NAME = "verdict.json"
STATE_NAME = "state"


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line, checked as far as it can be without a look at the machine."""

    script: tuple[str, ...]
    active: int | None = None
    nproc_per_node: tuple[str, ...] = ("1",)
    """One for all nodes, or one per part of a heterogeneous job."""
    conf: Mapping[str, str] = field(default_factory=dict)
    store: str = FIRST_NODE
    port: int | None = None
    log_dir: Path | None = None
    requeues: int = 0
    is_each_task: bool = False
    srun_args: tuple[str, ...] = ()
    torchrun: str = "torchrun"
    ftr: str = "ftr"
    state_token: str = field(default="", repr=False)
    """The nodes inherit it; it is never put into a command."""

    def __post_init__(self) -> None:
        if not self.script:
            raise ConfigError("there is no training script: end the command with -- train.py [arguments]")
        for each in self.nproc_per_node:
            if not re.fullmatch(r"[1-9]\d*|auto|gpu|cpu|xpu", each):
                raise ConfigError(f"--nproc-per-node: {each!r} is not a number of workers, nor gpu, cpu or auto")
        _check_script(self.script)
        if self.port is not None and self.store not in (FIRST_NODE, BATCH_HOST):
            raise ConfigError(f"--port {self.port} and --store {self.store} both name a port: leave out --port")
        if self.store not in (FIRST_NODE, BATCH_HOST) and not re.search(r":\d+$", self.store):
            raise ConfigError(f"--store {self.store} is neither {FIRST_NODE}, {BATCH_HOST} nor HOST:PORT")
        if self.store not in (FIRST_NODE, BATCH_HOST):
            parse_endpoint(self.store)
        if self.log_dir is not None and "," in str(self.log_dir):
            raise ConfigError(f"--log-dir {self.log_dir}: torchrun splits settings at commas, use a name without")

    @property
    def port_or_default(self) -> int:
        return DEFAULT_PORT if self.port is None else self.port

    @property
    def has_identical_workers(self) -> bool:
        """Whether all nodes have as many workers for certain; `gpu` may mean eight here and four there."""
        return len(set(self.nproc_per_node)) == 1 and self.nproc_per_node[0].isdecimal()


OWN = ("--nnodes", "--nproc-per-node", "--nproc_per_node", "--max-restarts", "--max_restarts", "--rdzv", "--log-dir")
"""What torchrun is told by the launcher; said twice, the second would win."""


def _check_script(script: Sequence[str]) -> None:
    """Raise ConfigError for what people bring along from a torchrun command of their own."""
    for word in takewhile(lambda word: word.startswith("-"), script):
        if word.startswith(OWN):
            raise ConfigError(f"{word} after -- is the launcher's own: leave it out, or see the launcher's options")
    if script[0] in ("python", "python3", "torchrun"):
        raise ConfigError(f"-- {script[0]}: the launcher starts torchrun, and that Python: -- train.py is enough")


@dataclass(frozen=True, kw_only=True)
class Run:
    """What all nodes of a run are told alike."""

    run_id: str
    min_nodes: int
    max_nodes: int
    endpoint: str
    log_dir: Path
    conf: Mapping[str, str]
    verdict_path: Path
    join_s: float
    """How long nodes wait for the store."""

    @property
    def nnodes(self) -> str:
        return f"{self.min_nodes}:{self.max_nodes}"


def make_run(
    options: Options, *, run_id: str, sizes: tuple[int, int], endpoint: str, log_dir: Path, extra: Mapping[str, str]
) -> Run:
    """What all nodes are told. Raises ConfigError if they could not work with it.

    The user's settings, also those of a file, win over the launcher's own.
    """
    ours = {"verdict_file": str(log_dir / VERDICT_NAME), "state_dir": str(log_dir / STATE_NAME), **extra}
    if options.has_identical_workers:
        ours["identical_workers"] = "true"
    given = with_config_file(options.conf)
    conf = {**{key: value for key, value in ours.items() if key not in given}, **options.conf}
    env = {"FT_STATE_TOKEN": options.state_token}
    settings = parse_settings(
        endpoint=endpoint, run_id=run_id, min_nodes=sizes[0], max_nodes=sizes[1], conf={**ours, **given}, env=env
    )
    assert settings.node.verdict_file is not None
    return Run(
        run_id=run_id,
        min_nodes=sizes[0],
        max_nodes=sizes[1],
        endpoint=endpoint,
        log_dir=log_dir,
        conf=conf,
        verdict_path=Path(settings.node.verdict_file),
        join_s=settings.run.join_s,
    )


def conf_text(conf: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in conf.items())


def torchrun_command(options: Options, run: Run, nproc: str) -> list[str]:
    """What every node runs. Workers' logs are kept per node and cycle, and shown in the node's own log too."""
    # A node on the store's machine must not host it before `ftr serve` does.
    own = {} if options.store == FIRST_NODE or "is_host" in run.conf else {"is_host": "false"}
    return [
        options.torchrun,
        f"--nnodes={run.nnodes}",
        f"--nproc-per-node={nproc}",
        f"--max-restarts={MAX_RESTARTS}",
        "--rdzv-backend=ft",
        f"--rdzv-endpoint={run.endpoint}",
        f"--rdzv-id={run.run_id}",
        f"--rdzv-conf={conf_text({**run.conf, **own})}",
        "--logs-specs=ft",
        f"--log-dir={run.log_dir}",
        "--tee=3",
        *options.script,
    ]


def serve_command(options: Options, run: Run) -> list[str]:
    """The store and coordinator by themselves."""
    return [
        options.ftr,
        "serve",
        f"--endpoint={run.endpoint}",
        f"--rdzv-id={run.run_id}",
        f"--nnodes={run.nnodes}",
        f"--rdzv-conf={conf_text(run.conf)}",
    ]


@dataclass(frozen=True, kw_only=True)
class Process:
    """A process to start."""

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    """In addition to the launcher's own."""
    unset: tuple[str, ...] = ()
    log: Path | None = None
    """Where its output goes; None: to the launcher's own."""

    def __str__(self) -> str:
        """As one would type it in a shell."""
        words = list(self.command)
        if self.env or self.unset:
            without = [word for name in self.unset for word in ("-u", name)]
            words = ["env", *without, *(f"{name}={value}" for name, value in self.env.items()), *words]
        where = "" if self.log is None else f" >{shlex.quote(str(self.log))} 2>&1"
        return f"{shlex.join(words)}{where} </dev/null &"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that would be done, and nothing done yet."""

    run: Run
    nodes: tuple[Process, ...]
    store: Process | None = None
    publishes: Path | None = None
    """Where the other tasks of a job array look for the endpoint."""
    end_command: tuple[str, ...] = ()
    """What tells the nodes to end, if a signal to the processes above would not do so gently."""
    serve_elsewhere: tuple[str, ...] = ()
    """What somebody has to run on the machine that was named for the store."""
    logs: str = ""
    """Which files hold the nodes' output, for people."""

    def lines(self) -> list[str]:
        """The plan as a shell script."""
        made = [shlex.join(["mkdir", "-p", str(self.run.log_dir)])]
        if self.publishes is not None:
            made.append(f"echo {shlex.quote(self.run.endpoint)} >{shlex.quote(str(self.publishes))}")
        made += [f"# on that host: {shlex.join(self.serve_elsewhere)}"] if self.serve_elsewhere else []
        return [*made, *(str(process) for process in (self.store, *self.nodes) if process is not None), "wait"]
