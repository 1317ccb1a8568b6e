"""The shape of the code, as far as a machine can see it."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent / "ft_rendezvous"
MODULES = sorted(ROOT.rglob("*.py"))
CORE = sorted((ROOT / "core").glob("*.py"))
DOCTOR = sorted((ROOT / "doctor").rglob("*.py"))
STATE = sorted((ROOT / "state").rglob("*.py"))
JUDGING = [*sorted((ROOT / "doctor" / "checks").glob("*.py"))]
JUDGING += [ROOT / "doctor" / f"{name}.py" for name in ("facts", "findings", "node_names", "judging")]
FOLDING = [
    ROOT / "state" / "model" / f"{name}.py"
    for name in ("records", "run_state", "fold", "update_fold", "events", "view", "version_one")
]
UPDATE_RULES = [ROOT / "updates" / f"{name}.py" for name in ("states", "rules")]
FOLDING += [ROOT / "state" / "report" / f"{name}.py" for name in ("run_report", "markdown")]
LAYERS = (
    "errors",
    "text",
    "env_names",
    "core",
    "config",
    "protocol",
    "store",
    "state",
    "host",
    "node",
    "warm",
    "agent",
    "worker",
    "torchft",
    "updates",
    "launch",
    "doctor",
    "cli",
)
"""Every package and every module of the top level; each imports only those above it, and itself."""
STATE_LAYERS = ("model", "record", "read", "report", "web")
"""The same within `state/`, but for the keeper, which starts the web server when it is asked to."""
TORCHLESS = [path for name in ("core", "config", "protocol") for path in sorted((ROOT / name).rglob("*.py"))]
TORCHLESS += [
    ROOT / "errors.py",
    ROOT / "text.py",
    ROOT / "env_names.py",
    ROOT / "worker.py",
    ROOT / "store" / "net.py",
]
TORCHLESS += [ROOT / "store" / "raw_client.py", ROOT / "store" / "names.py"]
REACHES_INTO_TORCH = ("agent/torch_patches.py", "agent/agent_store.py")
IN_WORKERS = ("worker.py", "warm/called_with.py", "warm/client.py", "warm/nursery_main.py", "warm/becoming.py")
CATCHERS: tuple[str, ...] = ("agent/handler.py", "agent/worker_inbox.py", "agent/nvidia_health.py", "host/host.py")
CATCHERS += (
    "errors.py",
    "host/lighthouse_main.py",
    "host/logs.py",
    "host/side_call.py",
    "launch/ray/head_watch.py",
    "node/threads.py",
    "protocol/node_loop.py",
    "state/record/recorder.py",
    "state/web/live_run.py",
    "updates/calls.py",
    "updates/fleet.py",
    "updates/threads.py",
    "updates/update_run.py",
    "warm/becoming.py",
    "warm/preloading.py",
    "worker.py",
)


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
            or module.startswith(("ft_rendezvous.core", "ft_rendezvous.errors", "ft_rendezvous.text"))
        ), f"core/{path.name} imports {module}"


@pytest.mark.parametrize("path", [*CORE, *JUDGING, *FOLDING, *UPDATE_RULES], ids=name_of)
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
    allowed = ("ft_rendezvous.core.", "ft_rendezvous.text", "ft_rendezvous.doctor.checks", *judging)
    assert [module for module in ours if not module.startswith(allowed)] == []


@by_doctor_module
def test_the_doctor_runs_where_torch_is_broken(path: Path) -> None:
    """What imports torch is a process of its own."""
    if path.name == "torch_probe.py":
        return
    needs_torch = ("torch", *(f"ft_rendezvous.{name}" for name in ("store.client", "store.worker_store", "host")))
    needs_torch += ("ft_rendezvous.node", "ft_rendezvous.agent")
    assert not [name for name in imports_of(path) if name.startswith(needs_torch)]


@pytest.mark.parametrize("path", STATE, ids=name_of)
def test_the_state_is_known_and_told_without_torch(path: Path) -> None:
    """Whoever keeps it is a process that starts at once; and what serves it stays out of what is pure."""
    imported = imports_of(path)
    assert not any(name.split(".")[0] == "torch" for name in imported)
    if path.parent.name != "web":
        assert not {name.split(".")[0] for name in imported} & {"starlette", "uvicorn", "h11", "prometheus_client"}


@pytest.mark.parametrize("path", TORCHLESS, ids=name_of)
def test_the_protocol_needs_no_torch(path: Path) -> None:
    """So that thousands of nodes can be simulated, and tests of it start at once."""
    assert not any(name.split(".")[0] == "torch" for name in imports_of(path))


@pytest.mark.parametrize("path", sorted((ROOT / "updates").glob("*.py")), ids=name_of)
def test_updates_need_the_standard_library_and_only_their_ray_module_knows_ray(path: Path) -> None:
    foreign = {name.split(".")[0] for name in imports_of(path)} - sys.stdlib_module_names - {"ft_rendezvous"}
    assert foreign == ({"ray"} if path.name == "ray_actors.py" else set())
    ours = {name.split(".")[1] for name in imports_of(path) if name.startswith("ft_rendezvous.")}
    assert ours <= {"errors", "text", "worker", "updates"}


def test_the_keeper_starts_without_torch() -> None:
    """It is a process of its own beside every store host, and must be there at once."""
    code = "import sys, ft_rendezvous.state.record.keeper; assert not {'torch', 'starlette'} & sys.modules.keys()"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("path", sorted((ROOT / "state").rglob("*.py")), ids=name_of)
def test_what_is_known_of_a_run_is_told_without_torch(path: Path) -> None:
    """`ftr status` must answer at once, and torch takes seconds to import."""
    needs_torch = ("torch", "ft_rendezvous.store.client", "ft_rendezvous.store.worker_store", "ft_rendezvous.host")
    assert not [name for name in imports_of(path) if name.startswith(needs_torch)]


@pytest.mark.parametrize("name", ["records", "run_state", "fold", "update_fold", "events", "view", "version_one"])
def test_what_is_known_of_a_run_knows_no_clock_and_no_file(name: str) -> None:
    forbidden = {"time", "datetime", "logging", "random", "os", "socket", "threading", "asyncio", "pathlib"}
    assert not {module.split(".")[0] for module in imports_of(ROOT / "state" / "model" / f"{name}.py")} & forbidden


def test_the_entry_point_imports_nothing_when_it_is_loaded() -> None:
    """Torch loads it while its own modules may be half imported; what it needs it imports when it is called."""
    tree = ast.parse((ROOT / "agent" / "entry.py").read_text())
    at_import = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    for node in at_import:
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        assert all(module.split(".")[0] in sys.stdlib_module_names for module in modules)
    assert not [module for module in imports_of(ROOT / "__init__.py") if module.split(".")[0] == "torch"]


@by_module
def test_torchs_internals_are_reached_into_by_two_modules_only(path: Path) -> None:
    if name_of(path) in REACHES_INTO_TORCH:
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
    if name_of(path) == "config/load.py" or top_of(path) in ("launch", "cli"):
        return
    tree = ast.parse(path.read_text())
    uses = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr in ("environ", "getenv")]
    if name_of(path) == "agent/handler.py":
        assert [ast.unparse(node) for node in uses] == ["os.environ"]
        assert "os.environ.update(outputs)" in path.read_text()
    elif name_of(path) not in IN_WORKERS:  # These run in the worker, whose environment is the agent's word.
        assert not uses


@by_module
def test_every_module_says_what_it_is_for(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring
    assert docstring.rstrip().endswith((".", "`", ")", '"')) or "\n" in docstring


def test_no_class_name_stands_for_two_things() -> None:
    """A reader who knows a class from one package must not meet another class of that name."""
    homes: defaultdict[str, list[str]] = defaultdict(list)
    for path in MODULES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                homes[node.name].append(f"{name_of(path)}:{node.lineno}")
    assert {name: places for name, places in homes.items() if len(places) > 1} == {}


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


def top_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def test_every_package_and_module_has_its_layer() -> None:
    """What is not in the list is not covered by the next test."""
    tops = {top_of(path) for path in MODULES} - {"__init__"}
    assert tops == set(LAYERS)
    inside = {path.relative_to(ROOT / "state").parts[0] for path in STATE} - {"__init__.py"}
    assert inside == set(STATE_LAYERS)


def test_the_top_level_is_small() -> None:
    """Everything else lives in a package."""
    files = {path.name for path in ROOT.iterdir() if path.is_file()}
    assert files == {"__init__.py", "errors.py", "worker.py", "torchft.py", "py.typed", "text.py", "env_names.py"}


@pytest.mark.parametrize("package", sorted(path.parent for path in ROOT.rglob("__init__.py")), ids=name_of)
def test_every_package_says_what_it_owns_and_what_it_must_not_do(package: Path) -> None:
    if package == ROOT:
        return
    docstring = ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""
    assert len(re.findall(r"\.(\s|$)", docstring)) >= 2


@by_module
def test_dependencies_point_one_way(path: Path) -> None:
    """From the border inwards: nothing inside knows the handler, the session or the command line."""
    if top_of(path) in ("__init__", "errors"):  # The errors name a verdict, for the type checker only.
        return
    own = LAYERS.index(top_of(path))
    imported = {module.split(".")[1] for module in imports_of(path) if module.startswith("ft_rendezvous.")}
    assert sorted(name for name in imported if name in LAYERS and LAYERS.index(name) > own) == []


@pytest.mark.parametrize("path", STATE, ids=name_of)
def test_the_rooms_of_the_state_point_one_way(path: Path) -> None:
    room = path.relative_to(ROOT / "state").parts[0]
    if room == "__init__.py" or path.name == "keeper.py":
        return
    own = STATE_LAYERS.index(room)
    rooms = {module.split(".")[2] for module in imports_of(path) if module.startswith("ft_rendezvous.state.")}
    assert sorted(name for name in rooms if name in STATE_LAYERS and STATE_LAYERS.index(name) > own) == []
