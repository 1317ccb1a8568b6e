"""The documentation is true: commands parse, snippets compile, links lead somewhere, tables are the code's own.

`FT_REWRITE=1` writes the settings table anew.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
import shlex
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner

from ft_rendezvous.cli.main import app
from ft_rendezvous.config.settings import settings_table
from tests.support.doc_commands import WrongCommand, check_command, check_settings, commands_in
from tests.support.doc_pages import (
    PACKAGE,
    PAGES,
    ROOT,
    Block,
    anchors_of,
    blocks_in,
    blocks_of,
    links_of,
    name_of,
    spans_of,
)
from tests.test_architecture import LAYERS

README = (ROOT / "README.md").read_text()
SETTINGS = ROOT / "docs" / "settings.md"
ARCHITECTURE = ROOT / "docs" / "architecture.md"
MOST_README_LINES = 150
PROGRAMS = ("ftr", "torchrun", "./launcher.sh", "launcher.sh", "sbatch", "srun", "salloc", "nox", "pytest", "python -m")

by_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


# --- commands ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", blocks_in("bash", "sh", "console"), ids=str)
def test_every_command_is_one_that_its_program_accepts(block: Block) -> None:
    for words in commands_in(block.text, is_console=block.language == "console"):
        check_command(words)


@by_page
def test_every_command_in_the_text_names_what_there_is(page: Path) -> None:
    for span in spans_of(page):
        if span.startswith(tuple(f"{program} " for program in PROGRAMS)):
            for words in commands_in(span):
                check_command(words, is_whole=False)


def test_the_commands_of_the_examples_are_accepted() -> None:
    indented = [block for block in blocks_in("text") if block.page == "examples/README.md"]
    assert indented
    for block in indented:
        for words in commands_in("\n".join(line.removeprefix("    ") for line in block.text.splitlines())):
            check_command(words)


@pytest.mark.parametrize("block", blocks_in("bash", "sh"), ids=str)
def test_every_script_is_one_that_bash_can_read(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "ftr statsu HOST:29400",
        "ftr status HOST:29400 --wacth",
        "ftr explain",
        "ftr serve --endpoint h:1 --rdzv-id a --nnodes 1:2 --rdzv-conf leese_timeout=3",
        "torchrun --nnode-s=8 train.py",
        "torchrun --rdzv-backend=ft --rdzv-conf=segmnt=8 train.py",
        "sbatch --nodez=3 launcher.sh --local 3+1 -- train.py",
        "srun --ntasks-per-node=1 ftr doctor --endpiont h:1",
        "./launcher.sh --locl 3+1 -- train.py",
        "python -m benchmarks --quik",
        "python -m bencmarks --quick",
        "python -m benchmarks report --ot DIR",
        "nox -s fsat",
        "pytest tests/nowhere",
        "pip install 'ft-rendezvous[nvidia]'",
        "pip install -r requirements-nowhere.txt",
        "frt demo",
    ],
)
def test_a_wrong_command_is_found(command: str) -> None:
    (words,) = commands_in(command)
    with pytest.raises(WrongCommand):
        check_command(words)


# --- snippets ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("block", blocks_in("python"), ids=str)
def test_every_python_snippet_compiles_and_its_imports_resolve(block: Block) -> None:
    tree = ast.parse(block.text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                importlib.import_module(alias.name)
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None
            module = importlib.import_module(node.module)
            missing = [alias.name for alias in node.names if not hasattr(module, alias.name)]
            for name in missing:
                importlib.import_module(f"{node.module}.{name}")


@pytest.mark.parametrize("block", blocks_in("toml"), ids=str)
def test_every_toml_snippet_has_settings_that_there_are(block: Block) -> None:
    check_settings(",".join(f"{key}={value}" for key, value in tomllib.loads(block.text).items()))


@pytest.mark.parametrize("block", blocks_in("json"), ids=str)
def test_every_json_snippet_can_be_read(block: Block) -> None:
    for line in [block.text] if block.text.startswith("{\n") else block.text.splitlines():
        json.loads(line)


@pytest.mark.parametrize("block", blocks_in("yaml"), ids=str)
def test_every_yaml_snippet_can_be_read(block: Block) -> None:
    assert yaml.safe_load(block.text)


def test_the_service_of_the_kubernetes_page_names_the_pods_of_its_job() -> None:
    service, job = (yaml.safe_load(block.text) for block in blocks_of(ROOT / "docs" / "kubernetes.md"))
    pod = job["spec"]["template"]
    assert (service["kind"], job["kind"], job["spec"]["completionMode"]) == ("Service", "Job", "Indexed")
    assert service["spec"]["clusterIP"] == "None", "the text, which makes the Service headless"
    assert service["spec"]["publishNotReadyAddresses"] is True
    assert service["spec"]["selector"].items() <= pod["metadata"]["labels"].items()
    assert pod["spec"]["subdomain"] == service["metadata"]["name"]
    (container,) = pod["spec"]["containers"]
    check_command(container["command"])
    options = dict(word.partition("=")[::2] for word in container["command"])
    assert options["--rdzv-endpoint"] == f"{job['metadata']['name']}-0.{service['metadata']['name']}:29400"
    _, _, most = options["--nnodes"].partition(":")
    assert job["spec"]["completions"] == job["spec"]["parallelism"] == int(most)
    assert {entry["name"] for entry in container["env"]} == {"FT_INFRA_RANK"}


def test_no_block_is_left_unchecked() -> None:
    """A language that no test above reads needs one. `js` is run by no test: the page has the same lines."""
    checked = {"bash", "sh", "console", "python", "toml", "json", "yaml", "mermaid", "text", "", "js"}
    unchecked = [f"{block}: {block.language}" for block in blocks_in(*_languages() - checked)]
    assert unchecked == []


def _languages() -> set[str]:
    return set(re.findall(r"^ *```(\w+)$", "\n".join(page.read_text() for page in PAGES), re.MULTILINE))


# --- links ------------------------------------------------------------------------------------------


@by_page
def test_every_link_and_image_leads_somewhere(page: Path) -> None:
    for link in links_of(page):
        if re.match(r"https?:|mailto:", link):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{link}: there is no {target}"
        assert not anchor or anchor in anchors_of(target), f"{link}: no such heading"


def test_the_map_has_every_page() -> None:
    maps = [ROOT / "docs" / "index.md", ROOT / "docs" / "decisions" / "index.md"]
    known = {*maps, *((page.parent / link).resolve() for page in maps for link in links_of(page))}
    assert [name_of(page) for page in PAGES if page not in known] == []


def test_every_page_that_the_package_cites_exists() -> None:
    pages = {str(page.relative_to(ROOT / "docs").with_suffix("")) for page in (ROOT / "docs").rglob("*.md")}
    for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.js"), *PACKAGE.rglob("*.md"), *PAGES]:
        text = path.read_text()
        cited = {*re.findall(r"`ftr docs ([a-z][\w/-]*)`", text), *re.findall(r"\bdocs/([\w/-]+)\.md", text)}
        assert cited - pages - {"protocol"} == set(), f"{name_of(path)} cites pages that there are not"


# --- what is generated, and what must be there ------------------------------------------------------


def test_the_settings_page_shows_the_generated_table() -> None:
    before, start, rest = SETTINGS.read_text().partition("<!-- settings -->\n")
    shown, end, after = rest.partition("\n<!-- /settings -->")
    assert start
    assert end
    if os.environ.get("FT_REWRITE"):
        SETTINGS.write_text(f"{before}{start}{settings_table()}{end}{after}")
    else:
        assert shown == settings_table(), "run FT_REWRITE=1 pytest tests/test_docs.py"


def test_the_readme_is_short() -> None:
    assert len(README.splitlines()) <= MOST_README_LINES


def test_the_readme_has_the_two_commands_ci_runs() -> None:
    for name in ("demo", "tests"):
        assert "```bash" in README.partition(f"<!-- ci: {name} -->")[2].partition("\n\n")[0]


def test_the_examples_of_placement_are_what_explain_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`FT_REWRITE=1` writes the output anew."""
    path = ROOT / "docs" / "placement.md"
    text = path.read_text()
    shown = re.findall(r"<!-- explain -->\n```console\n\$ cat (\S+)\n(.*?)\$ ftr ([^\n]*)\n(.*?)```", text, re.DOTALL)
    assert len(shown) == 2
    monkeypatch.chdir(tmp_path)
    for name, roster, command, output in shown:
        (tmp_path / name).write_text(roster)
        seen = CliRunner().invoke(app, shlex.split(command)).stdout
        if os.environ.get("FT_REWRITE"):
            path.write_text(path.read_text().replace(f"$ ftr {command}\n{output}", f"$ ftr {command}\n{seen}"))
        else:
            assert seen == output


# --- the architecture -------------------------------------------------------------------------------


def test_the_architecture_lists_the_packages_in_their_order() -> None:
    table = ARCHITECTURE.read_text().partition("| package |")[2].partition("\n\n")[0]
    listed = [name for row in re.findall(r"^\| (`.+?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)", row)]
    assert listed == list(LAYERS)


def test_the_picture_shows_imports_that_there_are() -> None:
    (picture,) = (block for block in blocks_of(ARCHITECTURE) if block.language == "mermaid")
    edges = [edge for edge in re.findall(r"^ +(\w+) --> (\w+)$", picture.text, re.MULTILINE) if edge[0] in LAYERS]
    assert edges
    for importer, imported in edges:
        paths = (PACKAGE / importer).rglob("*.py")
        assert any(f"ft_rendezvous.{imported}" in path.read_text() for path in paths), f"{importer} --> {imported}"
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert packages == {name for edge in edges for name in edge} & packages


@pytest.mark.parametrize("page", [ARCHITECTURE, *sorted((ROOT / "docs" / "decisions").glob("*.md"))], ids=name_of)
def test_modules_and_functions_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text()
    for path, name in re.findall(r"`([\w/]+\.py)`(?:,? \(?`(\w+)(?:\.\w+)?(?:\(\))?`)?", text):
        found = [root / path for root in (PACKAGE, ROOT) if (root / path).exists()]
        assert found, f"there is no {path}"
        assert not name or re.search(rf"\b(def|class) {name}\b", found[0].read_text()), f"{path} has no {name}"
    for name in re.findall(r"`(tests/[\w/]+)`", text):
        assert (ROOT / name).exists(), f"there is no {name}"
