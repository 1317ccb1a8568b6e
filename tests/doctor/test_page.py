"""docs/doctor.md tells of every check that there is, and of no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "doctor.md").read_text()


def test_the_page_has_every_check() -> None:
    sources = (ROOT / "ft_rendezvous" / "doctor" / "checks").glob("*.py")
    checks = {name for path in sources for name in re.findall(r'check="([a-z-]+)"', path.read_text())}
    assert set(re.findall(r"^\| `([a-z-]+)`", PAGE, re.MULTILINE)) == checks


def test_the_page_and_the_readme_know_each_other() -> None:
    assert "docs/doctor.md" in (ROOT / "README.md").read_text()
