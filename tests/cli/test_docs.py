"""`ftr docs`: the pages are found in a clone and in a wheel, and every page that the package names exists."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from ft_rendezvous.cli.docs import PACKAGE, describe_page, find_pages, print_docs
from ft_rendezvous.cli.main import app

ROOT = Path(__file__).parent.parent.parent
SOURCES = sorted(PACKAGE.rglob("*.py"))


def ftr_docs(*arguments: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["docs", *arguments])
    return done.exit_code, done.output


def test_all_pages_are_listed_with_their_headings() -> None:
    code, listed = ftr_docs()
    assert code == 0
    assert re.search(r"^placement +Placement: which nodes train, with which rank$", listed, re.MULTILINE)
    assert re.search(r"^protocol +The protocol$", listed, re.MULTILINE)
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {line.split()[0] for line in listed.splitlines()}


@pytest.mark.parametrize("name", ["placement", "docs/placement.md", "Placement"])
def test_a_page_is_printed_as_it_is_where_there_is_no_terminal(name: str) -> None:
    assert ftr_docs(name) == (0, (ROOT / "docs" / "placement.md").read_text())


def test_a_page_is_formatted_on_a_terminal() -> None:
    console = Console(record=True, width=200, force_terminal=True)
    print_docs("placement", console, is_terminal=True)
    shown = console.export_text()
    assert "# Placement" not in shown
    assert "Placement: which nodes train, with which rank" in shown
    assert max(map(len, shown.splitlines())) <= 100


def test_the_list_is_a_table_on_a_terminal() -> None:
    console = Console(record=True, width=120, force_terminal=True)
    print_docs(None, console, is_terminal=True)
    shown = console.export_text()
    assert "ftr docs PAGE prints a page." in shown
    assert "slurm" in shown


def test_an_unknown_page_gives_the_name_of_the_closest() -> None:
    code, said = ftr_docs("placment")
    assert code == 2
    assert "there is no page 'placment', did you mean 'placement'?" in said


def test_every_page_has_a_heading() -> None:
    assert [name for name, path in find_pages().items() if not describe_page(path)] == []


def test_every_page_that_the_package_names_exists() -> None:
    named = {name for path in SOURCES for name in re.findall(r"ftr docs ([a-z][a-z0-9/-]+)", path.read_text())}
    assert {"placement", "state", "doctor"} <= named
    assert named <= find_pages().keys()


def test_no_text_of_the_package_names_a_file_that_the_wheel_has_elsewhere() -> None:
    assert [path.name for path in SOURCES if re.search(r"\bdocs/[a-z-]+\.md", path.read_text())] == []


def test_the_pages_are_in_the_wheel(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    for name in ("docs", "ft_rendezvous"):
        shutil.copytree(ROOT / name, clone / name, ignore=shutil.ignore_patterns("__pycache__"))
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, cwd=clone, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    package = tmp_path / "installed" / "ft_rendezvous"
    pages = find_pages(package)
    assert pages.keys() == find_pages().keys()
    assert all(path.is_relative_to(package) and path.is_file() for path in pages.values())
    # The installed command, without the clone in sight.
    code = "from ft_rendezvous.cli.main import app; app(['docs', 'placement'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(package.parent)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == (ROOT / "docs" / "placement.md").read_text()
