"""A plan for a run in a SLURM allocation, made from what SLURM says. Starts nothing; `ask` runs scontrol for it.

A job is a run, or a job array is one run whose tasks are allocation units. Every task counts its own restarts, so the
run of an array is named by the array alone.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ft_rendezvous.config.addresses import format_endpoint
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.options import BATCH_HOST, FIRST_NODE, Options
from ft_rendezvous.launch.plan import LaunchedRun, Plan, Process, make_run, serve_command, torchrun_command

AskScontrol = Callable[[str], str]
"""Runs `scontrol <arguments>` and returns its output."""
Resolves = Callable[[str], bool]
"""Whether this machine can resolve a name."""

ENDPOINT_NAME = "endpoint"


@dataclass(frozen=True, kw_only=True)
class Array:
    """A job array that is one run, and this job's place in it."""

    job_id: str
    task_id: int
    task_count: int
    is_hosting: bool
    """Whether the store is on the first node, or the batch host, of this task."""


@dataclass(frozen=True, kw_only=True)
class Allocation:
    """What SLURM has allocated."""

    job_id: str
    """The id of this job for scancel and scontrol. The last task of an array has the job number of the whole array."""
    restarts: int
    node_counts: tuple[int, ...]
    """One number for each part of a heterogeneous job; otherwise one number."""
    first_host: str
    """A name of the first node's machine that the other nodes can resolve."""
    batch_host: str
    has_topology: bool
    batch_node: str | None = None
    """The node on which SLURM runs the launcher as the batch script. None if SLURM does not, as under salloc."""
    cpus_per_task: tuple[str | None, ...] = (None,)
    """One value for each part."""
    array: Array | None = None

    @property
    def nodes(self) -> int:
        return sum(self.node_counts)

    @property
    def is_hetero(self) -> bool:
        return len(self.node_counts) > 1


# --- what SLURM says --------------------------------------------------------------------------------


def find_allocation(
    env: Mapping[str, str], ask: AskScontrol, resolves: Resolves, is_each_task: bool, here: str
) -> Allocation:
    """The allocation of this process, which runs on the host `here`. Raises ConfigError if there is none."""
    job_id = env.get("SLURM_JOB_ID")
    if not job_id:
        raise ConfigError(
            "this is not a SLURM allocation: pass --local 3+1 to start all nodes here, or submit the job with sbatch"
        )
    parts = int(env.get("SLURM_HET_SIZE") or 1)
    suffixes = [f"_HET_GROUP_{part}" for part in range(parts)] if parts > 1 else [""]
    counts = tuple(_node_count(env, suffix) for suffix in suffixes)
    node_list = env.get(f"SLURM_JOB_NODELIST{suffixes[0]}", "")
    return Allocation(
        job_id=_own_id(job_id, env),
        restarts=int(env.get("SLURM_RESTART_COUNT") or 0),
        node_counts=counts,
        first_host=_host_of(ask(f"show hostnames {node_list}").split()[:1], ask, resolves),
        batch_host=here,
        has_topology=_has_topology(ask("show config")),
        batch_node=env.get("SLURMD_NODENAME"),
        cpus_per_task=tuple(env.get(f"SLURM_CPUS_PER_TASK{suffix}") for suffix in suffixes),
        array=None if is_each_task else _find_array(env),
    )


def _own_id(job_id: str, env: Mapping[str, str]) -> str:
    array_id, task_id = env.get("SLURM_ARRAY_JOB_ID"), env.get("SLURM_ARRAY_TASK_ID")
    return f"{array_id}_{task_id}" if array_id and task_id else job_id


def _node_count(env: Mapping[str, str], suffix: str) -> int:
    text = env.get(f"SLURM_JOB_NUM_NODES{suffix}") or env.get(f"SLURM_NNODES{suffix}") or ""
    if not text.isdecimal():
        raise ConfigError(
            f"SLURM_JOB_ID is set but SLURM_JOB_NUM_NODES{suffix} is not: run this in a batch script or under salloc"
        )
    return int(text)


def _host_of(names: list[str], ask: AskScontrol, resolves: Resolves) -> str:
    """A name of a node's machine that resolves. The name that SLURM uses for a node may not be a host name."""
    if not names:
        raise ConfigError("scontrol does not name the allocation's nodes: is it in PATH, and is slurmctld up?")
    facts = dict(word.partition("=")[::2] for word in ask(f"show node {names[0]} --oneliner").split())
    known = [facts[key] for key in ("NodeHostName", "NodeAddr") if facts.get(key)]
    return next(filter(resolves, [*known, names[0]]), names[0])


def _has_topology(config: str) -> bool:
    for line in config.splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "TopologyPlugin":
            return value.strip() in ("topology/tree", "topology/block")
    return False


def _find_array(env: Mapping[str, str]) -> Array | None:
    job_id = env.get("SLURM_ARRAY_JOB_ID")
    if not job_id:
        return None
    task_id = int(env["SLURM_ARRAY_TASK_ID"])
    return Array(
        job_id=job_id,
        task_id=task_id,
        task_count=int(env["SLURM_ARRAY_TASK_COUNT"]),
        is_hosting=task_id == int(env["SLURM_ARRAY_TASK_MIN"]),
    )


# --- the plan ---------------------------------------------------------------------------


def log_dir_of(options: Options, allocation: Allocation) -> Path:
    return options.log_dir or Path("ft-logs") / run_id_of(allocation)


def run_id_of(allocation: Allocation) -> str:
    if allocation.array is not None:
        return allocation.array.job_id
    return f"{allocation.job_id}.{allocation.restarts}"


def awaited_endpoint(options: Options, allocation: Allocation) -> Path | None:
    """The file in which another task of the array publishes the endpoint; None if this job knows the endpoint."""
    array = allocation.array
    if array is None or array.is_hosting or options.store not in (FIRST_NODE, BATCH_HOST):
        return None
    return log_dir_of(options, allocation) / ENDPOINT_NAME


def plan_slurm(options: Options, allocation: Allocation, published: str | None = None) -> Plan:
    """One srun that starts one torchrun per node. `published` is the content of the awaited file."""
    array = allocation.array
    tasks = 1 if array is None else array.task_count
    most = allocation.nodes * tasks
    least = most if options.active is None else options.active
    if not 1 <= least <= most:
        limit = f"the allocation's {most} nodes" if array is None else f"the {most} nodes of the array's {tasks} tasks"
        raise ConfigError(f"--active {least} is not between 1 and {limit}")
    log_dir = log_dir_of(options, allocation)
    run = make_run(
        options,
        run_id=run_id_of(allocation),
        sizes=(least, most),
        endpoint=published or _endpoint(options, allocation),
        log_dir=log_dir,
        extra={**_placement_conf(options, allocation), **_exit_conf(options, allocation)},
    )
    hosts_store = options.store == BATCH_HOST and published is None
    is_shared = array is not None and _has_store(options, allocation)
    return Plan(
        run=run,
        nodes=(_srun(options, allocation, run),),
        store=Process(name="store", command=tuple(serve_command(options, run)), log=log_dir / "store.log")
        if hosts_store
        else None,
        publishes=log_dir / ENDPOINT_NAME if is_shared else None,
        serve_elsewhere=() if options.store in (FIRST_NODE, BATCH_HOST) else tuple(serve_command(options, run)),
        # On SIGTERM, srun kills all its tasks at once. scancel sends them only the signal that it is given.
        end_command=("scancel", "--signal=TERM", allocation.job_id),
        logs=str(_node_log(allocation, log_dir, "*")).replace("%t", "*").replace("%n", "*"),
    )


def _endpoint(options: Options, allocation: Allocation) -> str:
    if options.store not in (FIRST_NODE, BATCH_HOST):
        return options.store
    host = allocation.batch_host if options.store == BATCH_HOST else allocation.first_host
    return format_endpoint(host, options.port_or_default)


def _placement_conf(options: Options, allocation: Allocation) -> dict[str, str]:
    """Settings for what SLURM knows about the place of nodes."""
    conf: dict[str, str] = {}
    if allocation.has_topology and not {"domain", "domain_from"} & options.conf.keys():
        conf["domain_from"] = "slurm-topology"
    if allocation.array is not None:
        conf["unit_from"] = "env:SLURM_ARRAY_TASK_ID"
        is_whole = options.active is None or options.active % allocation.nodes == 0
        if is_whole and allocation.nodes > 1:
            conf["unit_size"] = str(allocation.nodes)
    return conf


def _exit_conf(options: Options, allocation: Allocation) -> dict[str, str]:
    """A job with --no-kill outlives the machine of its batch script. Then its last nodes must end it."""
    if allocation.batch_node is None:
        return {}
    again = " --requeue" if allocation.restarts < options.requeues else ""
    look = f"{shlex.join(options.ftr)} abandoned {allocation.job_id} {allocation.batch_node}{again}"
    # If that machine also has the store, a node that got a verdict knows that the machine is up. It need not look for
    # srun, and srun logs an error at every look.
    return {"exit_command": f"[ $FT_VERDICT != unknown ] || {look}" if _has_store(options, allocation) else look}


def _has_store(options: Options, allocation: Allocation) -> bool:
    """Whether this job hosts the store on the machine of its batch script."""
    is_hosting = allocation.array is None or allocation.array.is_hosting
    return is_hosting and options.store in (FIRST_NODE, BATCH_HOST)


def _node_log(allocation: Allocation, log_dir: Path, part: int | str) -> Path:
    """The log file of a node. In later parts of a heterogeneous job, srun counts tasks wrongly, so %n is used."""
    if allocation.is_hetero:
        return log_dir / f"part-{part}-node-%n.log"
    array = allocation.array
    return log_dir / ("node-%t.log" if array is None else f"task-{array.task_id}-node-%t.log")


def _srun(options: Options, allocation: Allocation, run: LaunchedRun) -> Process:
    """One srun for all nodes. The loss or end of one node must not end the others."""
    nprocs = options.nproc_per_node
    if len(nprocs) > 1 and not allocation.is_hetero:
        raise ConfigError(f"--nproc-per-node {','.join(nprocs)}: this is not a heterogeneous job, give one value")
    if len(nprocs) not in (1, len(allocation.node_counts)):
        raise ConfigError(
            f"--nproc-per-node {','.join(nprocs)} has {len(nprocs)} values, and the job has "
            f"{len(allocation.node_counts)} parts: give one for all, or one for each"
        )
    common = [
        "--no-kill",
        "--kill-on-bad-exit=0",
        # srun must not end the other nodes after the first one has ended.
        "--wait=0",
        "--open-mode=append",
        *options.srun_args,
    ]
    words: list[str] = ["srun"]
    for part, count in enumerate(allocation.node_counts):
        nproc, cpus = nprocs[part % len(nprocs)], allocation.cpus_per_task[part]
        words += [":"] if part else []
        words += [f"--het-group={part}"] if allocation.is_hetero else []
        words += [*common, f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1"]
        words += [f"--output={_node_log(allocation, run.log_dir, part)}"]
        words += [f"--cpus-per-task={cpus}"] if cpus else []
        words += torchrun_command(options, run, nproc)
    env = {}
    if allocation.array is not None:
        env["FT_INFRA_RANK_BASE"] = str(allocation.array.task_id * allocation.nodes)
    return Process(name="srun", command=tuple(words), env=env)


def parse_srun_args(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise ConfigError(f"--srun-args {text!r}: {error}") from error
