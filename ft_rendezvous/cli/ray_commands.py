"""`ftr ray`: starts a run on a Ray cluster, shows it, ends it. Its options and help texts, and little work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.console import Console
from rich.table import Table
from typer.core import TyperGroup

from ft_rendezvous.cli.exit_codes import FAILED, MISUSED, leave_at_once, telling_errors
from ft_rendezvous.cli.serve import parse_conf
from ft_rendezvous.errors import HeadLost
from ft_rendezvous.launch.options import MAX_RESTARTS

Answer = TypeVar("Answer")
AddressOption = Annotated[
    str,
    typer.Option(metavar="HOST:PORT", help="The address of the cluster. Default: RAY_ADDRESS, or the cluster here."),
]


class DefaultRunGroup(TyperGroup):
    """`ftr ray --nnodes 2 -- train.py` means `ftr ray run --nnodes 2 -- train.py`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in (*self.commands, "-h", "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


def ftr_ray() -> None:
    """Run torchrun on a Ray cluster: `ftr ray --nnodes 2:4 --spares 1 -- train.py`.

    Without a subcommand it is **ftr ray run**, whose options `ftr ray run --help` lists.
    """


def ftr_ray_run(  # noqa: PLR0917
    script: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- SCRIPT [ARGS]...",
            help="The training: a script and its arguments, or -m module and its arguments.",
            show_default=False,
        ),
    ] = None,
    nnodes: Annotated[
        str, typer.Option(metavar="MIN:MAX", help="At least MIN and at most MAX nodes train. N: exactly N.")
    ] = "1",
    spares: Annotated[int, typer.Option(min=0, metavar="N", help="Nodes that wait for the rank of a lost one.")] = 0,
    nproc_per_node: Annotated[str, typer.Option(metavar="N", help="Workers per node, as for torchrun.")] = "1",
    max_restarts: Annotated[
        int, typer.Option(min=0, metavar="N", help="Restarts of one node's torchrun. max_cycles limits the run.")
    ] = MAX_RESTARTS,
    cpus_per_node: Annotated[float, typer.Option(min=0, metavar="N", help="CPUs that Ray reserves for a node.")] = 1.0,
    gpus_per_node: Annotated[float, typer.Option(min=0, metavar="N", help="GPUs that Ray reserves for a node.")] = 0.0,
    resources: Annotated[
        str, typer.Option(metavar="K=V,...", help="More of Ray's resources for a node, also as JSON.")
    ] = "",
    strategy: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Ray's placement strategy. Default: STRICT_SPREAD, or SPREAD if there are fewer machines than nodes.",
        ),
    ] = "",
    store: Annotated[
        str,
        typer.Option(
            metavar="head|first-node|HOST:PORT",
            help="Where the store is: in an actor on Ray's head, in one on the first node's machine, or elsewhere.",
        ),
    ] = "head",
    port: Annotated[int | None, typer.Option(min=1, max=65535, help="The store's port. Default: a free one.")] = None,
    address: AddressOption = "",
    runtime_env: Annotated[
        str, typer.Option(metavar="JSON", help='Ray\'s runtime environment for all actors: {"working_dir": "."}')
    ] = "",
    rdzv_conf: Annotated[
        str, typer.Option("--rdzv-conf", metavar="K=V,...", help="Settings of the run; see **ftr settings**.")
    ] = "",
    log_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="For logs and verdict, on every machine. Default: ft-logs/RUN_ID."),
    ] = None,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="The run's name. The same command with the same name goes on with it.")
    ] = "",
    pending_timeout: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            metavar="SECONDS",
            help="How long MIN nodes may wait for resources, also for some that the cluster does not have yet. "
            "Default: for ever, if the cluster could hold them.",
        ),
    ] = None,
    warm: Annotated[
        bool,
        typer.Option("--warm", help="Fork workers from a process with warm imports; see **ftr docs warm-workers**."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would be started, and start nothing.")] = False,
) -> None:
    """Start one torchrun per node, each in an actor of Ray, and wait for the end.

    MIN nodes start as soon as Ray has room for all of them. Further nodes and spares join when there is room. When a
    machine is lost, a spare takes its rank at once, and the node starts anew where Ray finds room.

    The first Ctrl-C drains the nodes, the second one stops them. If this command dies, training goes on: the same
    command with the same --name goes on with the run.

    Exit code: 0 the run succeeded, 1 it failed or has no verdict, also because the head was lost, 3 it was cancelled,
    2 it was not started, 128+N after signal N.

    On a remote cluster: `ray job submit --working-dir . -- ftr ray ... -- train.py`. That needs `ray[default]` where
    you submit.
    """
    from ft_rendezvous.launch.ray.request import RayRequest  # noqa: PLC0415
    from ft_rendezvous.launch.run_end import launcher_exit_code  # noqa: PLC0415

    with telling_errors("nothing was started"):
        request = RayRequest(
            script=tuple(script or ()),
            nnodes=nnodes,
            spares=spares,
            nproc_per_node=nproc_per_node,
            max_restarts=max_restarts,
            cpus_per_node=cpus_per_node,
            gpus_per_node=gpus_per_node,
            resources=resources,
            strategy=strategy,
            store=store,
            port=port,
            address=address,
            runtime_env=runtime_env,
            rdzv_conf=parse_conf(rdzv_conf),
            log_dir=log_dir,
            name=name,
            pending_timeout_s=pending_timeout,
            is_warm=warm,
        )
        if dry_run:
            from ft_rendezvous.launch.ray.commands import dry_run as describe  # noqa: PLC0415

            print("\n".join(describe(request)))
            raise typer.Exit(0)
        from ft_rendezvous.launch.ray.driver import drive  # noqa: PLC0415

        try:
            code = launcher_exit_code(drive(request))
        except HeadLost as error:
            print(f"ftr: {error}", file=sys.stderr)
            leave_at_once(FAILED)  # Threads wait inside Ray.
    leave_at_once(code)  # The interpreter would wait until Ray has left the cluster.


def ftr_ray_status(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="The run. Without it, all runs of the cluster.")] = "",
    address: AddressOption = "",
) -> None:
    """Show the runs of a Ray cluster: their nodes, machines and stores.

    Exit code: 0, or 2 if there is no such run or no cluster.
    """
    with telling_errors("nothing was changed"):
        from ft_rendezvous.launch.ray.operate import describe_runs  # noqa: PLC0415

        table = Table("run", "store", "node", "start", "state", "machine", box=None)
        for row in _asked(lambda: describe_runs(name, address)):
            table.add_row(*row)
        Console(width=None if Console().is_terminal else 160).print(table)


def ftr_ray_stop(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The run.")],
    address: AddressOption = "",
) -> None:
    """End a run on a Ray cluster: its nodes stop, and actors and placement groups are removed.

    Exit code: 0, or 2 if there is no such run or no cluster.
    """
    with telling_errors("the run may not have ended: repeat the command"):
        from ft_rendezvous.launch.ray.operate import stop_run  # noqa: PLC0415

        _asked(lambda: stop_run(name, address))


def _asked(question: Callable[[], Answer]) -> Answer:
    """What a cluster answers. If its head is lost meanwhile, this ends the process: threads wait inside Ray."""
    try:
        return question()
    except HeadLost as error:
        print(f"ftr: {error}", file=sys.stderr)
        leave_at_once(MISUSED)


def add_ray_commands(app: typer.Typer) -> None:
    ray = typer.Typer(cls=DefaultRunGroup, no_args_is_help=True, rich_markup_mode="markdown")
    ray.callback()(ftr_ray)
    ray.command("run", context_settings={"allow_interspersed_args": False})(ftr_ray_run)
    ray.command("status")(ftr_ray_status)
    ray.command("stop")(ftr_ray_stop)
    app.add_typer(ray, name="ray")
