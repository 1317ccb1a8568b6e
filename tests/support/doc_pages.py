"""The documentation as data: its pages, and the code blocks, code spans and links in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "ft_rendezvous"
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
        *(ROOT / "examples").rglob("*.md"),
        PACKAGE / "protocol" / "PROTOCOL.md",
        *(ROOT / "docs").rglob("*.md"),
    ]
)

_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_INDENTED = re.compile(r"(?<=\n\n)((?:    [^\n]*\n)+)")
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@dataclass(frozen=True, slots=True)
class Block:
    """A code block."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks_of(path: Path) -> list[Block]:
    """Fenced blocks with their language, and indented blocks as `text`."""
    text = path.read_text()
    found = [(match.start(), match[2], match[3]) for match in _FENCED.finditer(text)]
    bare = _FENCED.sub(lambda match: "\n" * match[0].count("\n"), text)
    found += [(-1, "text", match[1]) for match in _INDENTED.finditer(bare)]
    return [
        Block(name_of(path), text.count("\n", 0, start) + 1 if start >= 0 else 0, language, content)
        for start, language, content in found
    ]


def blocks_in(*languages: str) -> list[Block]:
    return [block for path in PAGES for block in blocks_of(path) if block.language in languages]


def prose_of(path: Path) -> str:
    """A page without its fenced blocks and without generated comments."""
    return _FENCED.sub("", path.read_text())


def spans_of(path: Path) -> Iterator[str]:
    """What stands in backticks, as one line each."""
    for span in _SPAN.findall(prose_of(path)):
        yield " ".join(span.split())


def links_of(path: Path) -> list[str]:
    return _LINK.findall(_SPAN.sub("", prose_of(path)))


def anchors_of(path: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose_of(path), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
