"""`ftr warm`: what helps to use warm workers. Its options and help texts, and little work."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from ft_rendezvous.cli.exit_codes import FAILED, telling_errors
from ft_rendezvous.errors import ConfigError


def ftr_warm() -> None:
    """Warm workers: forked from a process that has imported torch. See `ftr docs warm-workers`."""


def ftr_warm_learn(
    script: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="-- SCRIPT [ARGS]...",
            help="The training: a script and its arguments, or -m module and its arguments.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=1.0, metavar="SECONDS", help="End the script after this time: imports come first.")
    ] = 60.0,
) -> None:
    """Run a script alone, and print which installed packages its workers should find preloaded.

    For each package: what its import takes, and whether a nursery may preload it. The last line is the value for
    FT_PRELOAD. Imports count where the script's own files make them. The script finds RANK=0 and WORLD_SIZE=1.

    Exit code: 0, 1 if the script failed, 2 if there is none.
    """
    with telling_errors("nothing was learned"):
        if not script:
            raise ConfigError("there is no script: end the command with -- train.py [arguments]")
        from ft_rendezvous.launch.local import free_port  # noqa: PLC0415
        from ft_rendezvous.warm.learn import learn  # noqa: PLC0415

        learned = learn(script, seconds, free_port())
    table = Table("module", "import", "in a nursery", box=None)
    for module in learned.modules:
        table.add_row(module.name, f"{module.seconds:.2f} s", module.unfit or "fit")
    Console(width=None if Console().is_terminal else 160, highlight=False).print(table)
    print(f"FT_PRELOAD={learned.preload}")
    if learned.exit_code:
        print(f"the script ended with exit code {learned.exit_code}: what it would have imported later is not known")
        raise typer.Exit(FAILED)


def add_warm_commands(app: typer.Typer) -> None:
    warm = typer.Typer(no_args_is_help=True, rich_markup_mode="markdown")
    warm.callback()(ftr_warm)
    warm.command("learn", context_settings={"allow_interspersed_args": False})(ftr_warm_learn)
    app.add_typer(warm, name="warm")
