"""The shape of the code, as far as a machine can see it."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "ft_rendezvous"
MODULES = sorted(ROOT.rglob("*.py"))
CORE = sorted((ROOT / "core").glob("*.py"))
DOCTOR = sorted((ROOT / "doctor").rglob("*.py"))
STATE = sorted((ROOT / "state").rglob("*.py"))
JUDGING = [*sorted((ROOT / "doctor" / "checks").glob("*.py"))]
JUDGING += [ROOT / "doctor" / f"{name}.py" for name in ("facts", "findings", "wording", "judging")]
FOLDING = [
    ROOT / "state" / f"{name}.py" for name in ("records", "known", "fold", "events", "view", "report", "report_page")
]
TOO_LONG = 400
TORCHLESS = ("wire", "board", "ports", "coordinator", "registry", "participant", "journal", "settings", "errors", "net")
CATCHERS = ("handler.py", "host.py", "line.py", "link.py", "door.py", "nvidia_health.py")
CATCHERS += ("state/recorder.py", "state/web/hub.py")


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports_of(path: Path) -> set[str]:
    """Every module that a file imports, wherever in it."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name_of(path)} imports relatively"
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def attributes_of(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, owner and name of every attribute that is read, where the owner is a plain name."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.lineno, node.value.id, node.attr


def torch_names_in(path: Path) -> set[str]:
    """Names in a file that stand for something of torch."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names if "torch" in alias.name)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            names.update(alias.asname or alias.name for alias in node.names)
    return names


by_module = pytest.mark.parametrize("path", MODULES, ids=name_of)
by_doctor_module = pytest.mark.parametrize("path", DOCTOR, ids=name_of)
by_judging_module = pytest.mark.parametrize("path", JUDGING, ids=name_of)
by_core_module = pytest.mark.parametrize("path", CORE, ids=name_of)


@by_core_module
def test_the_core_imports_the_standard_library_msgspec_and_itself(path: Path) -> None:
    for module in imports_of(path):
        top = module.split(".")[0]
        assert (
            top in sys.stdlib_module_names
            or top == "msgspec"
            or module.startswith(("ft_rendezvous.core", "ft_rendezvous.errors"))
        ), f"core/{path.name} imports {module}"


@pytest.mark.parametrize("path", [*CORE, *JUDGING, *FOLDING], ids=name_of)
def test_decisions_know_no_clock_no_log_no_chance_and_no_input_or_output(path: Path) -> None:
    forbidden = {"time", "datetime", "logging", "random", "secrets", "os", "socket", "threading", "asyncio", "pathlib"}
    assert not {module.split(".")[0] for module in imports_of(path)} & forbidden
    calls = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    assert not [
        call for call in calls if isinstance(call.func, ast.Name) and call.func.id in ("print", "open", "input")
    ]


@by_core_module
def test_core_and_protocol_run_without_torch(path: Path) -> None:
    assert not any("torch" in module for module in imports_of(path))


@by_judging_module
def test_the_doctor_judges_with_the_core_and_nothing_else(path: Path) -> None:
    ours = {module for module in imports_of(path) if module.startswith("ft_rendezvous.")}
    judging = {".".join(("ft_rendezvous", *each.relative_to(ROOT).with_suffix("").parts)) for each in JUDGING}
    allowed = ("ft_rendezvous.core.", "ft_rendezvous.doctor.checks", *judging)
    assert [module for module in ours if not module.startswith(allowed)] == []


@by_doctor_module
def test_the_doctor_runs_where_torch_is_broken(path: Path) -> None:
    """What imports torch is a process of its own."""
    if path.name == "torch_probe.py":
        return
    needs_torch = {"torch", "tcp_store", "bootstrap", "host", "link", "session", "operator", "torch_seams", "handler"}
    assert not {part for module in imports_of(path) for part in module.split(".")[:2]} & needs_torch


@pytest.mark.parametrize("path", STATE, ids=name_of)
def test_the_state_is_known_and_told_without_torch(path: Path) -> None:
    """Whoever keeps it is a process that starts at once; and what serves it stays out of what is pure."""
    imported = imports_of(path)
    assert not any(name.split(".")[0] == "torch" for name in imported)
    if path.parent.name != "web":
        assert not {name.split(".")[0] for name in imported} & {"starlette", "uvicorn", "h11", "prometheus_client"}


@pytest.mark.parametrize("module", TORCHLESS)
def test_the_protocol_needs_no_torch(module: str) -> None:
    """So that thousands of nodes can be simulated, and tests of it start at once."""
    assert not any(name.split(".")[0] == "torch" for name in imports_of(ROOT / f"{module}.py"))


def test_the_keeper_starts_without_torch() -> None:
    """It is a process of its own beside every store host, and must be there at once."""
    code = (
        "import sys, ft_rendezvous.state.keeper; assert 'torch' not in sys.modules and 'starlette' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("path", sorted((ROOT / "state").rglob("*.py")), ids=name_of)
def test_what_is_known_of_a_run_is_told_without_torch(path: Path) -> None:
    """`ftr status` must answer at once, and torch takes seconds to import."""
    assert not {part for module in imports_of(path) for part in module.split(".")[:2]} & {"torch", "tcp_store", "host"}


@pytest.mark.parametrize("name", ["records", "known", "fold", "events", "view"])
def test_what_is_known_of_a_run_knows_no_clock_and_no_file(name: str) -> None:
    forbidden = {"time", "datetime", "logging", "random", "os", "socket", "threading", "asyncio", "pathlib"}
    assert not {module.split(".")[0] for module in imports_of(ROOT / "state" / f"{name}.py")} & forbidden


def test_the_entry_point_imports_nothing_when_it_is_loaded() -> None:
    """Torch loads it while its own modules may be half imported; what it needs it imports when it is called."""
    tree = ast.parse((ROOT / "entry.py").read_text())
    at_import = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in at_import:
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        assert all(module.split(".")[0] in sys.stdlib_module_names for module in modules)
    assert not [module for module in imports_of(ROOT / "__init__.py") if module.split(".")[0] == "torch"]


@by_module
def test_torchs_internals_are_reached_into_by_two_modules_only(path: Path) -> None:
    if name_of(path) in ("torch_seams.py", "agent_store.py"):
        return
    names = torch_names_in(path)
    reached = [
        f"{name_of(path)}:{line} {owner}.{attribute}"
        for line, owner, attribute in attributes_of(path)
        if owner in names and attribute.startswith("_") and not attribute.startswith("__")
    ]
    assert not reached
    assert not [name for name in names if name.startswith("_")]


@by_module
def test_the_environment_is_read_in_one_place(path: Path) -> None:
    """`handler.py` writes to it: workers inherit the cycle from there. The demo starts processes and trains."""
    if name_of(path) == "settings.py" or path.parent.name in ("launch", "cli"):
        return
    tree = ast.parse(path.read_text())
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")]
    if name_of(path) == "handler.py":
        assert [ast.unparse(node) for node in uses] == ["os.environ"]
        assert "os.environ.update(outputs)" in path.read_text()
    elif name_of(path) != "worker.py":  # It runs in the worker, whose environment is the agent's word.
        assert not uses


@by_module
def test_no_module_has_grown_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= TOO_LONG


@by_module
def test_every_module_says_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring
    assert docstring.rstrip().endswith((".", "`", ")", '"')) or "\n" in docstring


def handlers_of_everything(path: Path) -> list[ast.ExceptHandler]:
    tree = ast.parse(path.read_text())
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler)
        and (node.type is None or ast.unparse(node.type) in ("Exception", "BaseException"))
    ]


@by_module
def test_only_the_ends_of_threads_and_the_border_to_torch_catch_everything(path: Path) -> None:
    """A cleanup that raises again catches nothing."""
    if name_of(path) in CATCHERS:
        return
    swallowing = [
        handler.lineno
        for handler in handlers_of_everything(path)
        if not (isinstance(handler.body[-1], ast.Raise) and handler.body[-1].exc is None)
    ]
    assert not swallowing


@pytest.mark.parametrize("name", CATCHERS)
def test_whoever_catches_everything_says_why_or_logs_it(name: str) -> None:
    lines = (ROOT / name).read_text().splitlines()
    for handler in handlers_of_everything(ROOT / name):
        if isinstance(handler.body[-1], ast.Raise):
            continue
        body = "\n".join(lines[handler.lineno - 1 : handler.body[-1].end_lineno])
        assert "#" in body or "log.exception" in body


@by_module
def test_dependencies_point_one_way(path: Path) -> None:
    """From the border inwards: nothing inside knows the handler, the session or the command line."""
    layers = {
        "core": 0,
        "errors": 0,
        "addresses": 1,
        "state_settings": 1,
        "ports": 1,
        "settings": 1,
        "wire": 1,
        "remarks": 2,
        "journal": 2,
        "board": 2,
        "net": 2,
        "registry": 3,
        "coordinator": 3,
        "messages": 3,
        "processes": 3,
        "verdict_file": 3,
        "worker_watch": 4,
        "reaper": 4,
        "door": 4,
        "health": 4,
        "participant": 4,
        "line": 5,
        "store_socket": 4,
        "tcp_store": 4,
        "bootstrap": 5,
        "state": 5,
        "host": 6,
        "link": 6,
        "operator": 6,
        "workers": 7,
        "session": 7,
        "agent_store": 7,
        "torch_events": 8,
        "torch_seams": 8,
        "handler": 9,
        "entry": 10,
        "doctor": 10,
        "cli": 11,
        "launch": 11,
    }
    parts = path.relative_to(ROOT).with_suffix("").parts
    own = layers.get(parts[0])
    if own is None or parts[0] == "__init__":
        return
    imported = {module.split(".")[1] for module in imports_of(path) if module.startswith("ft_rendezvous.")}
    known = {name: layers[name] for name in imported if name in layers and name != parts[0]}
    too_high = sorted(name for name, layer in known.items() if layer > own)
    if name_of(path) == "torch_seams.py":
        too_high.remove("handler")  # For the type checker only.
    if name_of(path) == "errors.py":
        too_high = []
    assert not too_high
