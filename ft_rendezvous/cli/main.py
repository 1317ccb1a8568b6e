"""The `ftr` command: what it offers and how it says no. Each command's work is in a module of its own."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ft_rendezvous import __version__
from ft_rendezvous.cli.exit_codes import FAILED, leave_at_once, telling_errors
from ft_rendezvous.cli.state_commands import add_state_commands
from ft_rendezvous.core.capacity import Policy, Ranks, Spread

app = typer.Typer(
    name="ftr",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Training itself is started with torchrun: "
    "`torchrun --nnodes=8:10 --max-restarts=1000 --rdzv-backend=ft --rdzv-endpoint=HOST:29400 --rdzv-id=JOB train.py`",
)


class LogLevel(StrEnum):
    DEBUG = "DEBUG"
    INFO = "INFO"
    WARNING = "WARNING"


def _print_version(is_asked: bool) -> None:
    if is_asked:
        print(f"ft-rendezvous {__version__}")
        raise typer.Exit


@app.callback()
def ftr(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """A fault-tolerant rendezvous for PyTorch: `torchrun --rdzv-backend=ft`.

    Active nodes train, spares wait. When a node dies, a spare takes its rank, the other ranks stay where they are,
    and training goes on from its checkpoint.
    """
    del version


@app.command()
def demo(  # noqa: PLR0917
    nodes: Annotated[int, typer.Option(min=1, metavar="N", help="Active nodes: those that train.")] = 3,
    spares: Annotated[int, typer.Option(min=0, metavar="N", help="Hot spares: those that wait for a rank.")] = 1,
    steps: Annotated[
        int, typer.Option(min=1, metavar="N", help="Training steps; a checkpoint is saved at every fifth.")
    ] = 40,
    lease: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="A node not heard of for this long is dead.")
    ] = 3.0,
    kill: Annotated[
        bool, typer.Option("--kill/--no-kill", help="Kill an active node on the way, or let all train in peace.")
    ] = True,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", file_okay=False, help="An empty or new directory for logs and checkpoint; it is kept."),
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep the temporary directory; after a failure it is always kept.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="End everything after this long; the demo has failed.")
    ] = 180.0,
) -> None:
    """Watch a killed node being replaced, on this machine, in under a minute.

    Starts real torchrun processes with a small DistributedDataParallel training on gloo. After some steps one active
    node is killed (SIGKILL, agent and workers). A hot spare takes its rank, training resumes from the checkpoint and
    finishes.

    Exit code: 0 if all of that happened, 1 if any of it did not, 2 for options that cannot work, 130 after Ctrl-C.
    """
    from ft_rendezvous.cli.demo.command import DemoOptions, run_demo  # noqa: PLC0415

    with telling_errors("every process of the demo has been ended"):
        options = DemoOptions(actives=nodes, spares=spares, steps=steps, lease_s=lease, kills=kill, timeout_s=timeout)
        is_kept = run_demo(options, directory, keep)
    raise typer.Exit(0 if is_kept else FAILED)


@app.command(context_settings={"allow_interspersed_args": False})
def launch(  # noqa: PLR0917
    script: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- SCRIPT [ARGS]...",
            help="What torchrun shall run: a script and its arguments, or -m module and its arguments.",
            show_default=False,
        ),
    ] = None,
    local: Annotated[
        str | None,
        typer.Option(metavar="ACTIVE+SPARES", help="Start all nodes on this machine: 3+1 is three and a spare."),
    ] = None,
    active: Annotated[
        int | None,
        typer.Option(metavar="N", help="SLURM: how many nodes train; the others are spares. Default: all."),
    ] = None,
    nproc_per_node: Annotated[
        str,
        typer.Option(
            metavar="N", help="Workers per node, as torchrun takes it; N,M for the parts of a heterogeneous SLURM job."
        ),
    ] = "1",
    rdzv_conf: Annotated[
        str, typer.Option("--rdzv-conf", metavar="K=V,...", help="Settings of the run; see **ftr settings**.")
    ] = "",
    store: Annotated[
        str,
        typer.Option(
            metavar="first-node|batch-host|HOST:PORT",
            help="Who hosts the store: the allocation's first node; an **ftr serve** beside this very process (under "
            "salloc on no compute node, whose loss would end the run; under sbatch on the first); or one elsewhere.",
        ),
    ] = "first-node",
    port: Annotated[
        int | None,
        typer.Option(min=1, max=65535, help="The store's port. Default: a free one with --local, else 29400."),
    ] = None,
    log_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Logs and verdict go here; all nodes must share it. Default: ft-logs/RUN_ID."),
    ] = None,
    requeue: Annotated[
        int,
        typer.Option(min=0, metavar="N", help="SLURM: queue the job again, at most N times, if that can help."),
    ] = 0,
    each_task: Annotated[
        bool,
        typer.Option("--each-task", help="SLURM job array: every task is a run of its own. Else the array is one run."),
    ] = False,
    srun_args: Annotated[str, typer.Option(metavar="ARGS", help="More arguments for srun, as one word.")] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print exactly what would be run, and run nothing.")
    ] = False,
) -> None:
    """Start one torchrun per node: on this machine, or on the nodes of a SLURM allocation. `launcher.sh` calls this.

    ACTIVE nodes train, the others wait as spares. When a node dies, a spare takes its rank.

    In the log directory: node-N.log is all that node N says (N counts the allocation's nodes),
    node-N/cycle-C/R/stdout.log what its worker R wrote in cycle C, verdict.json how the run ended.

    SLURM: one srun starts all nodes. Give the job --no-kill, or the loss of a node ends it (launcher.sh has that
    line). A requeued job is a new run and resumes from its checkpoint. Job array: one run, every task a unit of nodes
    that train together or not at all; the first task hosts the store. SIGUSR1 (--signal=USR1@120) drains.

    SIGTERM, SIGINT and SIGHUP end all nodes gently, SIGUSR1 and SIGUSR2 are passed on. The variables TORCHRUN and FTR
    name another torchrun or ftr than those in PATH.

    Exit code: 0 the run succeeded, 1 it failed or has no verdict, 3 it was cancelled, 2 no start, 128+N after signal N.

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
    )
    with telling_errors("nothing was started"):
        code = launch_run(request)
    raise typer.Exit(code)


@app.command(hidden=True)
def abandoned(
    job_id: Annotated[str, typer.Argument(metavar="JOB")],
    batch_node: Annotated[str, typer.Argument(metavar="NODE", help="Where its batch script ran.")],
    requeue: Annotated[bool, typer.Option("--requeue", help="Queue it again rather than cancel it.")] = False,
) -> None:
    """End a SLURM job that has lost its batch script, if it has. Called by nodes that have lost the store."""
    from ft_rendezvous.cli.launch import end_if_abandoned  # noqa: PLC0415

    with telling_errors("the job was left as it is"):
        end_if_abandoned(job_id, batch_node, requeue)


@app.command()
def serve(
    endpoint: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where nodes find the store: their --rdzv-endpoint.")
    ],
    rdzv_id: Annotated[str, typer.Option("--rdzv-id", metavar="ID", help="The run's name: the nodes' --rdzv-id.")],
    nnodes: Annotated[
        str, typer.Option(metavar="MIN:MAX", help="How many nodes train, and how many may come: the nodes' --nnodes.")
    ],
    rdzv_conf: Annotated[
        str, typer.Option("--rdzv-conf", metavar="K=V,...", help="The nodes' --rdzv-conf; see **ftr settings**.")
    ] = "",
    log_level: Annotated[
        LogLevel, typer.Option(envvar="FT_LOGLEVEL", case_sensitive=False, help="DEBUG shows every node's coming.")
    ] = LogLevel.INFO,
) -> None:
    """Host a run's store and coordinator, apart from the nodes.

    The first node on the endpoint's machine does this by itself. A store of its own outlives every compute node. It
    stays until the run is closed and all nodes have gone. Start order does not matter.

    Exit code: 0 the run succeeded, 1 it failed, 3 it was cancelled, 2 it could not be served; 130 or 143 after
    SIGINT or SIGTERM, which end the run for all its nodes.
    """
    from ft_rendezvous.cli.serve import parse_serve, run_serve  # noqa: PLC0415

    try:
        with telling_errors(f"the store of run {rdzv_id!r} ends here, and with it the run for all its nodes"):
            code = run_serve(parse_serve(endpoint, rdzv_id, nnodes, rdzv_conf), log_level)
    except typer.Exit as stopped:
        code = stopped.exit_code
    leave_at_once(code)


@app.command()
def doctor(  # noqa: PLR0917
    endpoint: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="Where the run's store is to be: the nodes' --rdzv-endpoint.")
    ],
    nnodes: Annotated[
        str | None,
        typer.Option(metavar="MIN:MAX", help="The nodes' --nnodes. [default: all nodes of the step train]"),
    ] = None,
    rdzv_conf: Annotated[
        str, typer.Option("--rdzv-conf", metavar="K=V,...", help="The nodes' --rdzv-conf; see **ftr settings**.")
    ] = "",
    rdzv_id: Annotated[
        str,
        typer.Option("--rdzv-id", metavar="ID", help="The run's name: one that is at the endpoint may be this one."),
    ] = "",
    timeout: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="How long to wait for the nodes of the step to report.")
    ] = 60.0,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print findings and facts as JSON; field names are stable.")
    ] = False,
) -> None:
    """Look for what would keep a run from starting, or from surviving a lost node, before it is started.

    Alone it examines this machine. As `srun --ntasks-per-node=1 ftr doctor --endpoint HOST:PORT` it examines every node
    of the allocation, and the first task prints one table: pass, warn or fail, and the remedy. A run that lives at the
    endpoint is named and left alone. `ftr docs doctor` says what each finding means.

    Exit code, the same on all nodes: 0 nothing failed (there may be warnings), 1 something did, 2 for options that
    cannot be read.
    """
    from ft_rendezvous.cli.doctor import run_doctor  # noqa: PLC0415

    try:
        with telling_errors("nothing was changed"):
            code = run_doctor(endpoint, rdzv_id, nnodes, rdzv_conf, timeout, is_json)
    except typer.Exit as stopped:
        code = stopped.exit_code
    # A resolver that is still waiting for an answer must not hold us.
    leave_at_once(code)


Endpoint = Annotated[str, typer.Argument(metavar="HOST:PORT", help="The run's --rdzv-endpoint.")]
Reason = Annotated[str, typer.Option(metavar="TEXT", help="Why; it is logged, and told to the nodes.")]


@app.command()
def drain(
    endpoint: Endpoint,
    node: Annotated[str, typer.Option(metavar="NODE", help="An infra rank, an address, or address:pid.")],
    reason: Reason = "an operator asked for it",
) -> None:
    """Ask a node to give up its place, and to go once a spare has it.

    Its workers get SIGUSR1, if they catch it. The next cycle opens when a worker calls `at_checkpoint()`, or after
    `drain_grace_s`. The drained node exits 0. Where too few nodes would remain, nothing is opened, and the run ends as
    cancelled when its workers do.

    Exit code: 0 the node was asked, 1 there is no such node, 2 there is no such run.
    """
    _operate("drain", endpoint, node, reason)


@app.command()
def restart(endpoint: Endpoint, reason: Reason = "") -> None:
    """Restart all workers into a new cycle, without blaming or losing a node.

    Exit code: 0 the next cycle is open, 1 nothing was trained that could be restarted, 2 there is no such run.
    """
    _operate("restart", endpoint, "", reason)


@app.command()
def close(endpoint: Endpoint, reason: Reason = "") -> None:
    """End the run for good: every node stops its workers and leaves. The verdict is `cancelled`.

    Exit code: 0 the run is closed, 2 there is no such run, or it is closed already.
    """
    _operate("close", endpoint, "", reason)


@app.command()
def explain(  # noqa: PLR0917
    source: Annotated[str, typer.Argument(metavar="ROSTER|HOST:PORT", help="A roster file, or a live run's endpoint.")],
    nnodes: Annotated[
        str | None, typer.Option(metavar="MIN:MAX", help="As torchrun's; a live run has its own.")
    ] = None,
    segment: Annotated[int | None, typer.Option(metavar="N", help="Blocks of N ranks within one domain.")] = None,
    unit_size: Annotated[int | None, typer.Option(metavar="N", help="N nodes of one unit train, or none.")] = None,
    ranks: Annotated[Ranks | None, typer.Option(help="Whether survivors keep their ranks.")] = None,
    spread: Annotated[Spread | None, typer.Option(help="Where spares are left.")] = None,
    policy: Annotated[Policy | None, typer.Option(help="MIN nodes train, or as many as there are up to MAX.")] = None,
    lose: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help="What if this were lost: an infra rank, an address, domain:NAME or unit:NAME; several joined by "
            "commas are lost together. Can be given more than once.",
        ),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(dir_okay=False, metavar="FILE", help="Keep the roster, to be explained later.")
    ] = None,
) -> None:
    """Who would train with which rank, and why; and what would happen if a node or a domain were lost.

    Of a live run it tells what the next cycle would be, if it were sealed now. Nothing is changed. Options
    override the settings of the run or the file. `ftr docs placement` shows such a file.

    *spares cover any 2 nodes*: whichever two are lost together, the run goes on without waiting for a replacement.

    Exit code: 0 it is explained, also if the run would wait; 2 there is no such roster or run.
    """
    from ft_rendezvous.cli.explain import Question, explain_placement  # noqa: PLC0415

    given = {"nnodes": nnodes, "segment": segment, "unit_size": unit_size}
    given |= {"ranks": ranks, "spread": spread, "policy": policy}
    rules = {key: str(value) for key, value in given.items() if value is not None}
    with telling_errors("nothing was changed"):
        for line in explain_placement(Question(source, rules, lose or [], save)):
            print(line)


def _operate(kind: str, endpoint: str, target: str, reason: str) -> None:
    from ft_rendezvous.cli.operate import operate  # noqa: PLC0415
    from ft_rendezvous.core.model import RequestKind  # noqa: PLC0415

    with telling_errors("nothing more is asked of the run"):
        code = operate(endpoint, RequestKind(kind), target, reason)
    raise typer.Exit(code)


@app.command()
def settings() -> None:
    """List what --rdzv-conf can say: keys, defaults, meaning.

    A table on a terminal, markdown elsewhere.
    """
    from ft_rendezvous.cli.settings_view import print_settings  # noqa: PLC0415

    print_settings(Console(), sys.stdout.isatty())


@app.command()
def docs(
    page: Annotated[str | None, typer.Argument(metavar="[PAGE]", help="The page, for example placement.")] = None,
) -> None:
    """List the pages of the documentation, or print one.

    On a terminal a page is formatted, elsewhere it is printed as markdown text.

    Exit code: 0, or 2 if there is no such page.
    """
    from ft_rendezvous.cli.docs import print_docs  # noqa: PLC0415

    with telling_errors("nothing was changed"):
        print_docs(page, Console(), sys.stdout.isatty())


add_state_commands(app)

if __name__ == "__main__":
    app()
