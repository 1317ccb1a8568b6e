"""The `ftr` command and its list of subcommands. Every subcommand does its work in another module."""

from __future__ import annotations

import sys
from typing import Annotated

import typer
from rich.console import Console

from ft_rendezvous import __version__
from ft_rendezvous.cli.exit_codes import telling_errors
from ft_rendezvous.cli.operator_commands import add_operator_commands
from ft_rendezvous.cli.ray_commands import add_ray_commands
from ft_rendezvous.cli.start_commands import add_start_commands
from ft_rendezvous.cli.state_commands import add_state_commands
from ft_rendezvous.cli.warm_commands import add_warm_commands

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


def ftr_settings() -> None:
    """List all settings of --rdzv-conf: keys, defaults, meaning.

    On a terminal it is a table, elsewhere it is markdown.
    """
    from ft_rendezvous.cli.settings_view import print_settings  # noqa: PLC0415

    print_settings(Console(), sys.stdout.isatty())


def ftr_docs(
    page: Annotated[str | None, typer.Argument(metavar="[PAGE]", help="The page, for example placement.")] = None,
) -> None:
    """List the pages of the documentation, or print one.

    On a terminal a page is formatted, elsewhere it is printed as markdown text.

    Exit code: 0, or 2 if there is no such page.
    """
    from ft_rendezvous.cli.docs import print_docs  # noqa: PLC0415

    with telling_errors("nothing was changed"):
        print_docs(page, Console(), sys.stdout.isatty())


add_start_commands(app)
add_ray_commands(app)
add_warm_commands(app)
add_operator_commands(app)
app.command("settings")(ftr_settings)
app.command("docs")(ftr_docs)
add_state_commands(app)

if __name__ == "__main__":
    app()
