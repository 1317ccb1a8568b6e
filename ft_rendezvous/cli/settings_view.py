"""`ftr settings`: prints the table of settings, formatted on a terminal, as markdown elsewhere."""

from __future__ import annotations

from rich import box
from rich.console import Console
from rich.table import Table

from ft_rendezvous.config.settings import settings_table


def print_settings(console: Console, is_terminal: bool) -> None:
    markdown = settings_table()
    if not is_terminal:
        print(markdown)
        return
    headings, _, *rows = (_cells(line) for line in markdown.splitlines())
    table = Table(*headings, box=box.SIMPLE_HEAD)
    table.columns[0].style = "bold cyan"
    table.columns[0].no_wrap = True
    for row in rows:
        table.add_row(*row)
    console.print(table)
    console.print(" scope run: the same on all nodes; scope node: may differ from node to node.", style="dim")


def _cells(line: str) -> list[str]:
    return [cell.strip().replace("`", "") for cell in line.strip().strip("|").split("|")]
