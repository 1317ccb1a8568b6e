"""Plans of a run: the settings and the commands of all its nodes, before anything is started.

Reads the settings file that `--rdzv-conf config=FILE` names, and nothing else. Starts nothing.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ft_rendezvous.config.schema import is_digits, with_config_file
from ft_rendezvous.config.settings import parse_settings
from ft_rendezvous.launch.options import FIRST_NODE, Options

WARM_PREFIX = ("env", "PYTHON_EXEC=ftr-python")
"""With this variable, torchrun's workers are clients of the node's nursery."""
VERDICT_NAME = "verdict.json"
STATE_NAME = "state"


@dataclass(frozen=True, kw_only=True)
class LaunchedRun:
    """What is the same for all nodes of a run."""

    run_id: str
    min_nodes: int
    node_count: int
    """How many nodes are started."""
    max_nodes: int
    """MAX of the run. With replica groups it is a multiple of their size, and may be more than is started."""
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
) -> LaunchedRun:
    """Work out the run's settings. Raises ConfigError if nodes could not work with them.

    The user's settings, also those of a file, win over the launcher's own.
    """
    ours = {"verdict_file": str(log_dir / VERDICT_NAME), "state_dir": str(log_dir / STATE_NAME), **extra}
    if options.has_identical_workers:
        ours["identical_workers"] = "true"
    given = with_config_file(options.conf)
    max_nodes = _whole_groups(sizes[1], str(given.get("group_size", "")))
    conf = {**{key: value for key, value in ours.items() if key not in given}, **options.conf}
    env = {"FT_STATE_TOKEN": options.state_token}
    settings = parse_settings(
        endpoint=endpoint, run_id=run_id, min_nodes=sizes[0], max_nodes=max_nodes, conf={**ours, **given}, env=env
    )
    assert settings.node.verdict_file is not None
    return LaunchedRun(
        run_id=run_id,
        min_nodes=sizes[0],
        node_count=sizes[1],
        max_nodes=max_nodes,
        endpoint=endpoint,
        log_dir=log_dir,
        conf=conf,
        verdict_path=Path(settings.node.verdict_file),
        join_s=settings.run.join_s,
    )


def _whole_groups(node_count: int, group_size: str) -> int:
    """MAX for so many nodes. Any number of spares may wait for replica groups, and MAX is a multiple of their size."""
    size = int(group_size) if is_digits(group_size) else 0
    return -(-node_count // size) * size if size else node_count


def conf_text(conf: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in conf.items())


def torchrun_command(options: Options, run: LaunchedRun, nproc: str) -> list[str]:
    """The command of every node. Logs of workers are kept by node and cycle, and are in the node's own log too."""
    # A node on the machine of the store must not host the store before `ftr serve` does.
    own = {} if options.store == FIRST_NODE or "is_host" in run.conf else {"is_host": "false"}
    return [
        *(WARM_PREFIX if options.is_warm else ()),
        *options.torchrun,
        f"--nnodes={run.nnodes}",
        f"--nproc-per-node={nproc}",
        f"--max-restarts={options.max_restarts}",
        "--rdzv-backend=ft",
        f"--rdzv-endpoint={run.endpoint}",
        f"--rdzv-id={run.run_id}",
        f"--rdzv-conf={conf_text({**run.conf, **own})}",
        "--logs-specs=ft",
        f"--log-dir={run.log_dir}",
        "--tee=3",
        *options.script,
    ]


def serve_command(options: Options, run: LaunchedRun) -> list[str]:
    """The command of a process that hosts store and coordinator apart from the nodes."""
    return [
        *options.ftr,
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
    """Variables in addition to those of the launcher."""
    unset: tuple[str, ...] = ()
    """Variables of the launcher that the process must not see."""
    log: Path | None = None
    """The file for its output. None: it writes to the output of the launcher."""

    def __str__(self) -> str:
        """The process as a person would type it in a shell."""
        words = list(self.command)
        if self.env or self.unset:
            without = [word for name in self.unset for word in ("-u", name)]
            words = ["env", *without, *(f"{name}={value}" for name, value in self.env.items()), *words]
        where = "" if self.log is None else f" >{shlex.quote(str(self.log))} 2>&1"
        return f"{shlex.join(words)}{where} </dev/null &"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Everything that the launcher would do. Nothing is done yet."""

    run: LaunchedRun
    nodes: tuple[Process, ...]
    store: Process | None = None
    publishes: Path | None = None
    """The file in which the other tasks of a job array look for the endpoint."""
    end_command: tuple[str, ...] = ()
    """The command that ends the nodes gently, if a signal to the processes above would not."""
    serve_elsewhere: tuple[str, ...] = ()
    """The command that the user has to run on the machine of the store."""
    logs: str = ""
    """The files with the output of the nodes, for people."""

    def lines(self) -> list[str]:
        """The plan as a shell script."""
        made = [shlex.join(["mkdir", "-p", str(self.run.log_dir)])]
        if self.publishes is not None:
            made.append(f"echo {shlex.quote(self.run.endpoint)} >{shlex.quote(str(self.publishes))}")
        made += [f"# on that host: {shlex.join(self.serve_elsewhere)}"] if self.serve_elsewhere else []
        return [*made, *(str(process) for process in (self.store, *self.nodes) if process is not None), "wait"]
