"""Commands for an operator: `ftr doctor`, `ftr drain`, `ftr restart`, `ftr close` and `ftr explain`.

Their options and help texts, no work.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ft_rendezvous.cli.exit_codes import leave_at_once, telling_errors
from ft_rendezvous.core.capacity import Policy, Ranks, Spread

EndpointArgument = Annotated[str, typer.Argument(metavar="HOST:PORT", help="The run's --rdzv-endpoint.")]
ReasonOption = Annotated[str, typer.Option(metavar="TEXT", help="The reason. The log and the nodes show it.")]


def ftr_doctor(  # noqa: PLR0917
    endpoint: Annotated[
        str, typer.Option(metavar="HOST:PORT", help="The address of the run's store: the nodes' --rdzv-endpoint.")
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
        typer.Option(
            "--rdzv-id", metavar="ID", help="The name of the run. A run with this name may be at the endpoint."
        ),
    ] = "",
    timeout: Annotated[
        float,
        typer.Option(min=1.0, metavar="SECONDS", help="How long to wait for the reports of all nodes of the step."),
    ] = 60.0,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print findings and facts as JSON. Field names are stable.")
    ] = False,
) -> None:
    """Look for problems before a run: those that keep it from starting, or from surviving a lost node.

    Alone, it examines this machine. As `srun --ntasks-per-node=1 ftr doctor --endpoint HOST:PORT` it examines every
    node of the allocation, and the first task prints one table: pass, warn or fail, and the remedy. It names a run that
    is at the endpoint, and does not disturb it. `ftr docs doctor` explains every finding.

    Exit code, the same on all nodes: 0 nothing failed (there may be warnings), 1 something failed, 2 for options that
    cannot be read.
    """
    from ft_rendezvous.cli.doctor import run_doctor  # noqa: PLC0415

    try:
        with telling_errors("nothing was changed"):
            code = run_doctor(endpoint, rdzv_id, nnodes, rdzv_conf, timeout, is_json)
    except typer.Exit as stopped:
        code = stopped.exit_code
    # A resolver without an answer must not delay the end of this process.
    leave_at_once(code)


def ftr_drain(
    endpoint: EndpointArgument,
    node: Annotated[str, typer.Option(metavar="NODE", help="An infra rank, an address, or address:pid.")],
    reason: ReasonOption = "an operator asked for it",
) -> None:
    """Ask a node to give up its place. It leaves once a spare has the place.

    Its workers get SIGUSR1, if they catch it. The next cycle opens when a worker calls `at_checkpoint()`, or after
    `drain_grace_s`. The drained node exits 0. If too few nodes would remain, no cycle opens, and the run ends as
    cancelled when its workers end.

    Exit code: 0 the node will leave, 1 there is no such node, 2 there is no such run.
    """
    _operate("drain", endpoint, node, reason)


def ftr_restart(
    endpoint: EndpointArgument,
    group: Annotated[
        int | None,
        typer.Option(min=0, metavar="N", help="Only replica group N. The others train on. [default: all workers]"),
    ] = None,
    reason: ReasonOption = "",
) -> None:
    """Restart all workers in a new cycle, or those of one replica group. No node is lost, and no failure is counted.

    Exit code: 0 the next cycle is open, 1 no workers were training or there is no such group, 2 there is no such run.
    """
    _operate("restart", endpoint, "" if group is None else str(group), reason)


def ftr_close(endpoint: EndpointArgument, reason: ReasonOption = "") -> None:
    """End the run for good: every node stops its workers and leaves. The verdict is `cancelled`.

    Exit code: 0 the run is closed, 2 there is no such run, or it is closed already.
    """
    _operate("close", endpoint, "", reason)


def ftr_explain(  # noqa: PLR0917
    source: Annotated[str, typer.Argument(metavar="ROSTER|HOST:PORT", help="A roster file, or a live run's endpoint.")],
    nnodes: Annotated[
        str | None, typer.Option(metavar="MIN:MAX", help="As for torchrun. A live run has its own.")
    ] = None,
    segment: Annotated[int | None, typer.Option(metavar="N", help="Blocks of N ranks within one domain.")] = None,
    unit_size: Annotated[
        int | None, typer.Option(metavar="N", help="N nodes of one unit train, or none of them.")
    ] = None,
    group_size: Annotated[int | None, typer.Option(metavar="N", help="Replica groups of N nodes.")] = None,
    ranks: Annotated[Ranks | None, typer.Option(help="Whether survivors keep their ranks.")] = None,
    spread: Annotated[Spread | None, typer.Option(help="Which domains keep spares.")] = None,
    policy: Annotated[Policy | None, typer.Option(help="MIN nodes train, or as many as there are, up to MAX.")] = None,
    lose: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help="Show the effect of this loss: an infra rank, an address, domain:NAME or unit:NAME. Several, joined "
            "by commas, are lost together. Can be given more than once.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        typer.Option(dir_okay=False, metavar="FILE", help="Save the roster to this file, for a later ftr explain."),
    ] = None,
) -> None:
    """Show which node would train with which rank, and why; and the effect of losing a node or a domain.

    For a live run, it shows the next cycle as if it were sealed now. It changes nothing. Options override the settings
    of the run or the file. `ftr docs placement` shows such a file.

    *spares cover any 2 nodes*: if any two nodes are lost together, the run goes on without waiting for a replacement.
    In a run with replica groups, it shows instead what the loss of a node of each group would cost.

    Exit code: 0 also if the run would wait; 2 there is no such roster or run.
    """
    from ft_rendezvous.cli.explain import Question, explain_placement  # noqa: PLC0415

    given = {"nnodes": nnodes, "segment": segment, "unit_size": unit_size}
    given |= {"group_size": group_size, "ranks": ranks, "spread": spread, "policy": policy}
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


def add_operator_commands(app: typer.Typer) -> None:
    app.command("doctor")(ftr_doctor)
    app.command("drain")(ftr_drain)
    app.command("restart")(ftr_restart)
    app.command("close")(ftr_close)
    app.command("explain")(ftr_explain)
