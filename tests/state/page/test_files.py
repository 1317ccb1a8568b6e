"""The page's files, without a browser: nothing from elsewhere, nothing but text, and a sentence for every event."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from ft_rendezvous.core.effects import FenceCause
from ft_rendezvous.core.model import AnyWhy
from ft_rendezvous.protocol import journal
from ft_rendezvous.state import web
from ft_rendezvous.state.model.records import CycleStatus, NodeRole, RunStatus

PAGE = Path(web.__file__).parent / "page"
FILES = sorted(PAGE.iterdir())
WORDS = (PAGE / "words.js").read_text()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_nothing_comes_from_elsewhere(path: Path) -> None:
    """But the name of SVG, which is an address that nobody asks."""
    text = path.read_text().replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"https?://|url\(|@import|import\(", text)


@pytest.mark.parametrize("path", [path for path in FILES if path.suffix == ".js"], ids=lambda path: path.name)
def test_what_a_run_says_can_only_become_text(path: Path) -> None:
    dangerous = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|DOMParser|srcdoc"
    assert not re.search(dangerous, path.read_text())


def test_the_document_has_no_script_and_no_style_inside() -> None:
    text = (PAGE / "index.html").read_text()
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", text)
    assert re.findall(r"<script[^>]*>[^<]", text) == []


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_are_not_long(path: Path) -> None:
    most = 1200 if path.suffix == ".css" else 400
    assert len(path.read_text().splitlines()) <= most


def test_every_event_has_a_sentence() -> None:
    kinds = {entry.__name__ for entry in get_args(journal.Entry)}
    assert kinds <= set(re.findall(r"^  (\w+): \(", WORDS, re.MULTILINE))


def test_every_reason_cause_role_and_status_has_its_words() -> None:
    for why in get_args(AnyWhy):
        tag = why.__struct_config__.tag
        assert f'case "{tag}":' in WORDS
        assert re.search(rf"\b{tag}: \"", WORDS)
    for cause in FenceCause:
        assert re.search(rf"\b{cause}: \"", WORDS)
    for role in NodeRole:
        assert re.search(rf"^  \"?{role}\"?: \{{ letter", WORDS, re.MULTILINE), role
    for status in (*RunStatus, *CycleStatus):
        assert re.search(rf"\b{status}: \"", WORDS)
