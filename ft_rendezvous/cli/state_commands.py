"""`ftr status`, `ftr events`, `ftr report`: their options. They only read a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ft_rendezvous.cli.exit_codes import telling_errors

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="SOURCE",
        help="Where to look: the run's state_dir, its HTTP address http://HOST:PORT, or its store HOST:PORT.",
    ),
]
RunOption = Annotated[
    str | None,
    typer.Option("--run", metavar="NAME", help="Which run, by its --rdzv-id or its id. Default: the newest."),
]


def status(
    source: SourceArgument,
    watch: Annotated[bool, typer.Option("--watch", "-w", help="Go on until the run ends.")] = False,
    is_json: Annotated[
        bool, typer.Option("--json", help="Print run, cycles and nodes as JSON; field names are stable.")
    ] = False,
    nodes: Annotated[bool, typer.Option("--nodes", help="List every node, also the dead ones.")] = False,
    run: RunOption = None,
) -> None:
    """Show how a run is: which nodes train, which are missing, why it restarted, what that cost.

    A state_dir also holds runs that have ended. A run whose coordinator vanished is ABORTED, and is shown as it was
    last known. With --watch, the picture is drawn again in place; without a terminal, a line is printed for every
    change.

    A state API with a token: set FT_STATE_TOKEN.

    Exit code: 0, or 2 if there is no such run; with --watch 0 if the run succeeded, 1 if it failed, 3 if it was
    cancelled or vanished, 2 if it cannot be seen any more.
    """
    from ft_rendezvous.cli.state_watch import run_status  # noqa: PLC0415

    with telling_errors("the run goes on"):
        code = run_status(source, run, watch, is_json, nodes)
    raise typer.Exit(code)


def events(  # noqa: PLR0917
    source: SourceArgument,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the run ends.")] = False,
    is_json: Annotated[bool, typer.Option("--json", help="Print the events as they were recorded.")] = False,
    after: Annotated[int, typer.Option(min=0, metavar="N", help="Only events after the one with this number.")] = 0,
    is_all: Annotated[
        bool, typer.Option("--all", help="Also what is routine: looks at the leases, and plain updates.")
    ] = False,
    run: RunOption = None,
) -> None:
    """Show what happened in a run, one sentence per event, in local time.

    The store of a live run keeps only the newest events; its state_dir has them all.

    A state API with a token: set FT_STATE_TOKEN.

    Exit code: 0, or 2 if there is no such run, or it cannot be seen any more.
    """
    from ft_rendezvous.cli.state_watch import run_events  # noqa: PLC0415

    with telling_errors("the run goes on"):
        code = run_events(source, run, after, follow, is_json, is_all)
    raise typer.Exit(code)


def report(
    state_dir: Annotated[Path, typer.Argument(metavar="STATE_DIR", help="The run's state_dir.", show_default=False)],
    run: RunOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            file_okay=False, metavar="DIR", help="Write report.md and timeline.png there, instead of printing."
        ),
    ] = None,
) -> None:
    """Write what happened to a run as markdown: time lost by cause, slow and flapping nodes, failures.

    With --out also a plot of its time: training, waiting, lost. Plots need matplotlib
    (`pip install 'ft-rendezvous[plots]'`).

    Exit code: 0, or 2 if there is no such run.
    """
    from ft_rendezvous.cli.report import run_report  # noqa: PLC0415

    with telling_errors("the report is not complete"):
        code = run_report(state_dir, run, out)
    raise typer.Exit(code)


def add_state_commands(app: typer.Typer) -> None:
    for command in (status, events, report):
        app.command()(command)
