"""`ftr docs`: the pages of the documentation, from the wheel or from a clone."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markdown import Markdown
from rich.table import Table

import ft_rendezvous
from ft_rendezvous.errors import ConfigError

PACKAGE = Path(ft_rendezvous.__file__).parent
PROTOCOL_PAGE = Path("protocol", "PROTOCOL.md")
MAX_PAGE_WIDTH = 100
"""In characters. Longer lines are hard to read."""


def find_pages(package: Path = PACKAGE) -> dict[str, Path]:
    """Every page by its name: `placement`, `decisions/keeper`, `protocol`.

    A wheel has the pages inside the package. In a clone, and in an editable install, they are beside it.
    """
    installed = package / "docs"
    folder = installed if installed.is_dir() else package.parent / "docs"
    pages = {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted([*folder.glob("*.md"), *folder.glob("decisions/*.md")])
    }
    if not pages:
        raise ConfigError(f"there are no pages in {folder}: install ft-rendezvous again")
    return {**pages, "protocol": package / PROTOCOL_PAGE}


def describe_page(path: Path) -> str:
    """The heading of a page, as plain text."""
    heading = next((line for line in path.read_text().splitlines() if line.startswith("# ")), "")
    return heading.removeprefix("# ").replace("`", "")


def read_docs_page(name: str, pages: Mapping[str, Path]) -> str:
    """The text of a page. Raises ConfigError for an unknown name, and names the closest page."""
    wanted = name.strip().removeprefix("docs/").removesuffix(".md").lower()
    if wanted not in pages:
        (closest,) = difflib.get_close_matches(wanted, sorted(pages), n=1, cutoff=0.0)
        raise ConfigError(f"there is no page {name!r}, did you mean {closest!r}? `ftr docs` lists all pages")
    return pages[wanted].read_text()


def print_docs(name: str | None, console: Console, is_terminal: bool) -> None:
    """Print the list of pages, or one page."""
    pages = find_pages()
    if name is not None:
        text = read_docs_page(name, pages)
        if is_terminal:
            console.print(Markdown(text), width=min(console.width, MAX_PAGE_WIDTH))
        else:
            print(text, end="")
        return
    descriptions = {page: describe_page(path) for page, path in pages.items()}
    if not is_terminal:
        width = max(map(len, descriptions))
        for page, description in descriptions.items():
            print(f"{page:{width}}  {description}")
        return
    table = Table("page", "about", box=box.SIMPLE_HEAD)
    table.columns[0].style = "bold cyan"
    for page, description in descriptions.items():
        table.add_row(page, description)
    console.print(table)
    console.print(" ftr docs PAGE prints a page.", style="dim")
