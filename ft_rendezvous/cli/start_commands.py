"""Commands that start something: `ftr demo`, `ftr launch` and `ftr serve`. Their options and help texts, no work."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ft_rendezvous.cli.exit_codes import FAILED, leave_at_once, telling_errors


class LogLevel(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"


def ftr_demo(  # noqa: PLR0917
    nodes: Annotated[int, typer.Option(min=1, metavar="N", help="Active nodes: those that train.")] = 3,
    spares: Annotated[int, typer.Option(min=0, metavar="N", help="Hot spares: those that wait for a rank.")] = 1,
    steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="Training steps; a checkpoint is saved at every fifth.")
    ] = 40,
    lease: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="A node without a beat for this long is dead.")
    ] = 3.0,
    kill: Annotated[
        bool, typer.Option("--kill/--no-kill", help="Kill an active node during training, or kill none.")
    ] = True,
    warm: Annotated[
        bool,
        typer.Option("--warm/--no-warm", help="Fork workers from a process with warm imports, or start them cold."),
    ] = True,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", file_okay=False, help="An empty or new directory for logs and checkpoint. It is kept."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the temporary directory. After a failure it is always kept.")
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            min=1.0, metavar="SECONDS", help="After this time the demo has failed, and ends all its processes."
        ),
    ] = 180.0,
) -> None:
    """Watch how a spare replaces a killed node, on this machine, in about a minute.

    Starts a store and real torchrun processes with a small DistributedDataParallel training on gloo. After some steps
    it kills one active node (SIGKILL, agent and workers). A hot spare takes its rank, training resumes from the
    checkpoint and finishes.

    Exit code: 0 if all of that happened, 1 if any of it did not, 2 for options that cannot work, 130 after Ctrl-C.
    """
    from ft_rendezvous.cli.demo.command import DemoOptions, run_demo  # noqa: PLC0415

    with telling_errors("every process of the demo has been ended"):
        options = DemoOptions(
            actives=nodes, spares=spares, steps=steps, lease_s=lease, kills=kill, timeout_s=timeout, is_warm=warm
        )
        is_kept = run_demo(options, directory, keep)
    raise typer.Exit(0 if is_kept else FAILED)


def ftr_launch(  # noqa: PLR0917
    script: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- SCRIPT [ARGS]...",
            help="The training: a script and its arguments, or -m module and its arguments.",
            show_default=False,
        ),
    ] = None,
    local: Annotated[
        str | None,
        typer.Option(
            metavar="ACTIVE+SPARES", help="Start all nodes on this machine: 3+1 is three active nodes and one spare."
        ),
    ] = None,
    active: Annotated[
        int | None,
        typer.Option(metavar="N", help="SLURM: how many nodes train. The others are spares. Default: all."),
    ] = None,
    nproc_per_node: Annotated[
        str,
        typer.Option(
            metavar="N",
            help="Workers per node, as for torchrun. N,M: one value for each part of a heterogeneous SLURM job.",
        ),
    ] = "1",
    rdzv_conf: Annotated[
        str, typer.Option("--rdzv-conf", metavar="K=V,...", help="Settings of the run; see **ftr settings**.")
    ] = "",
    store: Annotated[
        str,
        typer.Option(
            metavar="first-node|batch-host|HOST:PORT",
            help="Where the store is: on the allocation's first node; in an **ftr serve** on the machine of this "
            "command (under salloc that is no compute node, so no lost node ends the run); or at another endpoint.",
        ),
    ] = "first-node",
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The store's port. Default: a free one with --local, else 29400."),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="For logs and verdict. All nodes must share it. Default: ft-logs/RUN_ID."),
    ] = None,
    requeue: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="SLURM: queue the job again, at most N times, if that can help."),
    ] = 0,
    each_task: Annotated[
        bool,
        typer.Option(
            "--each-task", help="SLURM job array: every task is its own run. Without it, the array is one run."
        ),
    ] = False,
    srun_args: Annotated[str, typer.Option(metavar="ARGS", help="More arguments for srun, as one word.")] = "",
    warm: Annotated[
        bool,
        typer.Option("--warm", help="Fork workers from a process with warm imports; see **ftr docs warm-workers**."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the exact commands, and run nothing.")] = False,
) -> None:
    """Start one torchrun per node: on this machine, or on the nodes of a SLURM allocation. `launcher.sh` calls this.

    ACTIVE nodes train, the others wait as spares. When a node dies, a spare takes its rank.

    In the log directory: node-N.log has all output of node N (N counts the allocation's nodes),
    node-N/cycle-C/R/stdout.log the output of its worker R in cycle C, verdict.json the end of the run.

    SLURM: one srun starts all nodes. Submit the job with --no-kill (launcher.sh does), or the loss of a node ends it.
    A requeued job is a new run and resumes from its checkpoint. A job array is one run: every task is a unit of nodes
    that train together or not at all, and the first task hosts the store. SIGUSR1 (--signal=USR1@120) drains the nodes.

    SIGTERM, SIGINT and SIGHUP end all nodes gently. SIGUSR1 and SIGUSR2 go to all nodes. The variables TORCHRUN and FTR
    name another torchrun or ftr than those in PATH.

    Exit code: 0 the run succeeded, 1 it failed or has no verdict, 3 it was cancelled, 2 it was not started, 128+N after
    signal N.

    Examples: `ftr launch --local 3+1 -- train.py`, or
    `sbatch -N 10 launcher.sh --active 8 --nproc-per-node 8 -- train.py`
    """
    from ft_rendezvous.cli.launch import LaunchRequest, launch_run  # noqa: PLC0415

    request = LaunchRequest(
        script=tuple(script or ()),
        local=local,
        active=active,
        nproc_per_node=nproc_per_node,
        rdzv_conf=rdzv_conf,
        store=store,
        port=port,
        log_dir=log_dir,
        requeues=requeue,
        is_each_task=each_task,
        srun_args=srun_args,
        is_dry_run=dry_run,
        is_warm=warm,
    )
    with telling_errors("nothing was started"):
        code = launch_run(request)
    raise typer.Exit(code)


def ftr_abandoned(
    job_id: Annotated[str, typer.Argument(metavar="JOB")],
    batch_node: Annotated[str, typer.Argument(metavar="NODE", help="The node of its batch script.")],
    requeue: Annotated[bool, typer.Option("--requeue", help="Queue the job again instead of cancelling it.")] = False,
) -> None:
    """End a SLURM job if it has lost its batch script. Nodes that have lost the store call this."""
    from ft_rendezvous.cli.launch import end_if_abandoned  # noqa: PLC0415

    with telling_errors("the job was left as it is"):
        end_if_abandoned(job_id, batch_node, requeue)


def ftr_serve(
    endpoint: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where nodes find the store: their --rdzv-endpoint.")
    ],
    rdzv_id: Annotated[str, typer.Option("--rdzv-id", metavar="ID", help="The run's name: the nodes' --rdzv-id.")],
    nnodes: Annotated[
        str, typer.Option(metavar="MIN:MAX", help="How many nodes train, and how many may join: the nodes' --nnodes.")
    ],
    rdzv_conf: Annotated[
        str, typer.Option("--rdzv-conf", metavar="K=V,...", help="The nodes' --rdzv-conf; see **ftr settings**.")
    ] = "",
    log_level: Annotated[
        LogLevel, typer.Option(envvar="FT_LOGLEVEL", case_sensitive=False, help="DEBUG shows every node that joins.")
    ] = LogLevel.INFO,
) -> None:
    """Host a run's store and coordinator, apart from the nodes.

    Without this command, the first node on the endpoint's machine hosts the run. A separate store outlives every
    compute node. It stays until the run is closed and all nodes have left. Nodes on other machines may start first. A
    node on the endpoint's own machine must not host: give it --rdzv-conf is_host=false.

    Exit code: 0 the run succeeded, 1 it failed, 3 it was cancelled, 2 it could not be hosted; 130 or 143 after
    SIGINT or SIGTERM, which end the run for all its nodes.
    """
    from ft_rendezvous.cli.serve import parse_serve, run_serve  # noqa: PLC0415

    try:
        with telling_errors(f"the store of run {rdzv_id!r} ends here, and with it the run for all its nodes"):
            code = run_serve(parse_serve(endpoint, rdzv_id, nnodes, rdzv_conf), log_level)
    except typer.Exit as stopped:
        code = stopped.exit_code
    leave_at_once(code)


def add_start_commands(app: typer.Typer) -> None:
    app.command("demo")(ftr_demo)
    app.command("launch", context_settings={"allow_interspersed_args": False})(ftr_launch)
    app.command("abandoned", hidden=True)(ftr_abandoned)
    app.command("serve")(ftr_serve)
