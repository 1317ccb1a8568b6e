"""Blocks as lines for a pipe, or drawn for a terminal. Decides nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ft_rendezvous.cli.state_blocks import STYLES, Bar, Block, Grid, TextLine

GAP = "  "


def render_lines(blocks: Iterable[Block]) -> Iterator[str]:
    """Plain text: columns aligned by spaces, nothing that a terminal would obey."""
    for block in blocks:
        match block:
            case TextLine():
                yield f"{block.word}{GAP if block.word else ''}{block.text}"
            case Bar():
                yield block.label
            case Grid():
                yield ""
                yield block.title
                yield from (f"{GAP}{row}" for row in _aligned(block))
                if block.tail:
                    yield f"{GAP}{block.tail}"


def render_drawing(blocks: Iterable[Block]) -> RenderableType:
    return Group(*(_draw(block) for block in blocks))


def _aligned(grid: Grid) -> Iterator[str]:
    headings = [heading.removeprefix(">") for heading in grid.headings]
    is_number = [heading.startswith(">") for heading in grid.headings]
    rows = [tuple(headings), *grid.rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(headings))]
    for row in rows:
        cells = zip(row, widths, is_number, strict=True)
        yield GAP.join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells).rstrip()


def _draw(block: Block) -> RenderableType:
    match block:
        case TextLine():
            if not block.word:
                return Text(block.text, style="dim")
            return Text.assemble((block.word, STYLES.get(block.word, "bold yellow")), GAP, block.text)
        case Bar():
            grid = Table.grid(padding=(0, 2), expand=True)
            grid.add_column(no_wrap=True)
            grid.add_column(ratio=1)
            grid.add_row(Text(block.label), ProgressBar(total=max(1, block.whole), completed=block.done))
            return grid
        case Grid():
            return _draw_grid(block)


def _draw_grid(grid: Grid) -> Table:
    table = Table(
        title=Text(grid.title, style="bold"),
        title_justify="left",
        caption=Text(grid.tail) if grid.tail else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    last = len(grid.headings) - 1
    for place, heading in enumerate(grid.headings):
        # The last column is prose and may be folded, but not cut: it says what is wrong.
        is_prose = place == last and not heading.startswith(">")
        name, justify = heading.removeprefix(">"), "right" if heading.startswith(">") else "left"
        table.add_column(name, justify=justify, no_wrap=not is_prose, overflow="fold" if is_prose else "ellipsis")  # type: ignore[arg-type]
    for row in grid.rows:
        table.add_row(*(Text(cell, style=STYLES.get(cell, "")) for cell in row))
    return table
