"""The table of docs/warm-workers.md names tests that there are."""

from __future__ import annotations

import re

import pytest

from tests.support.doc_pages import ROOT

TABLE = (ROOT / "docs" / "warm-workers.md").read_text().partition("<!-- rows -->")[2].partition("\n\n")[0]
ROWS = TABLE.strip().splitlines()[2:]
TESTS = [ROOT / "tests" / "integration" / "test_warm.py", *sorted((ROOT / "tests" / "warm").glob("test_*.py"))]
NAMES = {name for path in TESTS for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)}


def test_there_are_rows() -> None:
    assert len(ROWS) > 20


@pytest.mark.parametrize("row", ROWS)
def test_each_row_names_its_tests(row: str) -> None:
    named = re.findall(r"`(test_\w+)`", row.split("|")[2])
    assert named, row
    assert [name for name in named if name not in NAMES] == []
