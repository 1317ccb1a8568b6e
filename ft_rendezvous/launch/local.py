"""A plan for a run whose nodes are all on this machine. Starts nothing."""

from __future__ import annotations

import re
import socket
from pathlib import Path

from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.options import BATCH_HOST, FIRST_NODE, Options
from ft_rendezvous.launch.plan import Plan, Process, make_run, serve_command, torchrun_command

OUTER_JOB_VARIABLES = ("SLURM_NNODES", "SLURM_JOB_NUM_NODES", "SLURM_PROCID", "SLURM_NODEID")
"""Inside an allocation of several machines, these variables say that localhost cannot be the endpoint."""


def parse_local(text: str) -> tuple[int, int]:
    """Active nodes and spares of `3+1` or `3`."""
    match = re.fullmatch(r"(\d+)(?:\+(\d+))?", text, re.ASCII)
    if match is None:
        raise ConfigError(f"--local {text} is not ACTIVE+SPARES, for example 3+1")
    actives, spares = int(match[1]), int(match[2] or 0)
    if actives == 0:
        raise ConfigError(f"--local {text} has no active node")
    return actives, spares


def free_port() -> int:
    """A port that no process has now."""
    with socket.socket() as free:
        free.bind(("", 0))
        port: int = free.getsockname()[1]
        return port


def plan_local(options: Options, local: str, run_id: str, default_port: int) -> Plan:
    """Plan one torchrun per node, each with its own log."""
    actives, spares = parse_local(local)
    if options.active is not None:
        raise ConfigError(f"--active is for SLURM: --local {local} already says how many train")
    if len(options.nproc_per_node) != 1:
        raise ConfigError("--nproc-per-node has several values, which are for the parts of a heterogeneous SLURM job")
    if options.store not in (FIRST_NODE, BATCH_HOST):
        raise ConfigError(f"--store {options.store} is for SLURM: with --local the store is on this machine")
    log_dir = options.log_dir or Path("ft-logs") / run_id
    run = make_run(
        options,
        run_id=run_id,
        sizes=(actives, actives + spares),
        endpoint=f"localhost:{options.port or default_port}",
        log_dir=log_dir,
        extra={},
    )
    command = tuple(torchrun_command(options, run, options.nproc_per_node[0]))
    nodes = tuple(
        Process(
            name=f"node {rank}",
            command=command,
            env={"FT_INFRA_RANK": str(rank)},
            unset=OUTER_JOB_VARIABLES,
            log=log_dir / f"node-{rank}.log",
        )
        for rank in range(run.node_count)
    )
    store = None
    if options.store == BATCH_HOST:
        store = Process(
            name="store",
            command=tuple(serve_command(options, run)),
            unset=OUTER_JOB_VARIABLES,
            log=log_dir / "store.log",
        )
    return Plan(run=run, nodes=nodes, store=store, logs=str(log_dir / "node-*.log"))
