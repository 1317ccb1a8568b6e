"""When a nursery may fork a worker, and when the worker must start cold. Pure: facts in, a reason out.

An empty reason means yes. Every reason is the second half of a sentence that begins with "this worker starts cold".
"""

from __future__ import annotations

import os.path
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

GPU_DEVICES = ("/dev/nvidia", "/dev/dri/", "/dev/kfd", "/dev/infiniband/", "/dev/accel")
"""A process that has one of these open holds state of a driver, which does not survive a fork."""

GIVEN_TO_WORKERS = (
    "FT_",
    "TORCHELASTIC_",
    "TORCHFT_",
    "LOCAL_",
    "GROUP_",
    "ROLE_",
    "TORCH_NCCL_",
)
"""How variables begin that an agent sets for its workers. No package reads them while it is imported."""
GIVEN_NAMES = frozenset(
    {
        "RANK",
        "WORLD_SIZE",
        "MASTER_ADDR",
        "MASTER_PORT",
        "NCCL_ASYNC_ERROR_HANDLING",
        "TORCH_ELASTIC_WORKER_IDENTICAL",
        "REPLICA_GROUP_ID",
        "NUM_REPLICA_GROUPS",
        "CUDA_VISIBLE_DEVICES",
        "SPT_NOENV",
        "PWD",
        "OLDPWD",
        "SHLVL",
        "_",
    }
)
"""The same, by name; and what a shell sets that starts the worker. CUDA reads its variable when it is initialized."""

INSTALLATION_FOLDERS = ("site-packages", "dist-packages")


@dataclass(frozen=True, slots=True)
class NurseryFacts:
    """What the nursery sees of itself just before a fork."""

    thread_count: int = 1
    child_count: int = 0
    """Processes that a preloaded module has started."""
    open_files: tuple[str, ...] = ()
    """Where its descriptors lead."""
    has_gpu_context: bool = False
    failed_preloads: tuple[str, ...] = ()
    """One sentence for each."""
    changed_packages: tuple[str, ...] = ()
    """Packages that were imported and are not any more what is installed."""


def decide_fork(facts: NurseryFacts) -> str:
    """Why a fork of this nursery would not be safe. Empty if it is."""
    if facts.failed_preloads:
        return facts.failed_preloads[0]
    if facts.thread_count > 1:
        return f"a preloaded module has started a thread: the nursery has {facts.thread_count}, see FT_PRELOAD"
    if facts.child_count:
        return f"a preloaded module has started {facts.child_count} processes, see FT_PRELOAD"
    devices = [path for path in facts.open_files if path.startswith(GPU_DEVICES)]
    if devices:
        return f"a preloaded module has opened {devices[0]}, see FT_PRELOAD"
    if facts.has_gpu_context:
        return "a preloaded module has initialized CUDA, see FT_PRELOAD"
    if facts.changed_packages:
        return f"{facts.changed_packages[0]} has changed on disk since the nursery imported it"
    return ""


@dataclass(frozen=True, slots=True)
class NurseryBirth:
    """What the nursery was started with."""

    executable: str
    environment: Mapping[bytes, bytes]
    affinity: tuple[int, ...]
    process: Mapping[str, object]
    """What `client.describe_process` says of it."""
    loaded: frozenset[str] = field(default_factory=frozenset)
    """Top-level modules that it has imported, and that a bare interpreter has not."""


@dataclass(frozen=True, slots=True)
class ForkWish:
    """A request, as far as it decides whether it can be served."""

    executable: str
    environment: Mapping[bytes, bytes]
    affinity: tuple[int, ...]
    process: Mapping[str, object]
    fds: tuple[int, ...]
    fd_count: int
    """How many descriptors have come with it."""
    is_leader: bool


def decide_serve(wish: ForkWish, birth: NurseryBirth) -> str:
    """Why this worker cannot be forked from this nursery. Empty if it can."""
    if not _is_same_program(wish.executable, birth.executable):
        return f"it needs {wish.executable}, and the nursery runs {birth.executable}"
    if not {0, 1, 2} <= set(wish.fds) or wish.fd_count != len(wish.fds) + 1:
        return "it lacks a standard stream, or has too many open files"
    if not wish.is_leader:
        return "it does not lead a session, as torchrun's workers do: let the wrapper `exec` ftr-python"
    for name, value in birth.process.items():
        if wish.process.get(name) != value:
            return f"its {name} is not that of the agent"
    varied = find_varied(wish.environment, birth.environment)
    if varied:
        names = ", ".join(varied[:3])
        return f"its environment differs from the agent's in {names}: set that before torchrun starts"
    if wish.affinity != birth.affinity and b"OMP_NUM_THREADS" not in wish.environment:
        return "it has CPUs of its own, which decide its number of threads: set OMP_NUM_THREADS"
    return ""


def _is_same_program(one: str, other: str) -> bool:
    return one == other or (
        os.path.realpath(one) == os.path.realpath(other)
        and os.path.realpath(os.path.dirname(one)) == os.path.realpath(os.path.dirname(other))
    )


def find_varied(wanted: Mapping[bytes, bytes], had: Mapping[bytes, bytes]) -> list[str]:
    """Variables with another value than when packages were imported, which may have read them. Not the agent's own."""
    names = {name for name in wanted.keys() | had.keys() if wanted.get(name) != had.get(name)}
    varied = sorted(os.fsdecode(name) for name in names)
    return [name for name in varied if name not in GIVEN_NAMES and not name.startswith(GIVEN_TO_WORKERS)]


def find_shadowing(entries: Iterable[str], packages: Collection[str], loaded: Collection[str]) -> str:
    """A file beside the script that `import` would find before an installed module. Empty if there is none.

    `entries` are the files of the script's folder, `packages` those that are folders with an `__init__.py`.
    """
    for entry in sorted(entries):
        name, _, kind = entry.partition(".")
        is_module = kind in ("py", "pyc") or kind.endswith("so") or (not kind and entry in packages)
        if is_module and name in loaded:
            return f"{entry} beside its script hides a module that the nursery has imported: rename it"
    return ""


def is_installed(path: str, installations: Iterable[str], standard: Iterable[str]) -> bool:
    """Whether a module's file belongs to an installed package or to Python: those do not change while a run trains."""
    folders = path.split(os.sep)
    return any(name in folders for name in INSTALLATION_FOLDERS) or path.startswith((*installations, *standard))


def parse_preload(text: str) -> list[str]:
    """The modules that FT_PRELOAD names, separated by commas or blanks; each once."""
    return list(dict.fromkeys(text.replace(",", " ").split()))


def count_blas_threads(environment: Mapping[str, str], processor_count: int) -> int:
    """How many threads OpenBLAS would have used had it been loaded with this environment."""
    for name in ("OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS", "OMP_NUM_THREADS"):
        value = environment.get(name, "")
        if value.isdecimal() and int(value) > 0:
            return min(int(value), processor_count)
    return processor_count


def choose_path_entry(script: str, cwd: str, is_module: bool, is_safe_path: bool) -> str | None:
    """What Python puts in front of `sys.path`. None: nothing."""
    if is_safe_path:
        return None
    return cwd if is_module else os.path.dirname(os.path.realpath(os.path.join(cwd, script)))
