"""What a nursery imports, and what it knows of it afterwards. Never imports the script's own files."""

from __future__ import annotations

import importlib
import importlib.util
import os
import random
import site
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from ft_rendezvous.warm.rules import is_installed

MAIN_NAMES = ("__main__", "__mp_main__")
GENERATED = "_remote_module_"
"""How modules begin that torch before 2.13 writes to a temporary folder when it is imported, and imports."""
Stamp = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Preloaded:
    """What was imported."""

    failures: tuple[str, ...] = ()
    stamps: dict[str, tuple[str, Stamp]] = field(default_factory=dict)
    """The file of each installed package, and its state when it was imported."""
    infos: dict[str, str] = field(default_factory=dict)
    """The folder with the metadata of each package, whose name has the version."""
    generators: tuple[random.Random, ...] = ()
    """Those that took their seed from the system: in a cold worker, each has a seed of its own."""

    def find_changed(self) -> tuple[str, ...]:
        """Packages whose files are not any more those that were imported."""
        changed = [name for name, (path, stamp) in self.stamps.items() if _stamp(path) != stamp]
        changed += [name for name, path in self.infos.items() if not os.path.isdir(path)]
        return tuple(sorted(set(changed)))


def preload(names: list[str]) -> Preloaded:
    """Import these modules. An error of one of them is a failure with its reason, and ends the import."""
    with _generators_noted() as generators:
        for name in names:
            failure = _import(name)
            if failure:
                return Preloaded((failure,))
    foreign = sorted(
        f"{name} ({path})" for name, path in _loaded_files().items() if not is_preloadable(path) and not _is_ours(name)
    )
    if foreign:
        return Preloaded((f"the preloaded modules import {foreign[0]}, which is not an installed package",))
    tops = {name: path for name, path in _loaded_files().items() if "." not in name and not _is_standard(path)}
    stamps = {name: (path, stamp) for name, path in tops.items() if (stamp := _stamp(path)) is not None}
    return Preloaded((), stamps, _find_infos(tops), tuple(generators.values()))


@contextmanager
def _generators_noted() -> Iterator[dict[int, random.Random]]:
    """Note the generators of `random` that are made meanwhile and get no seed, by their ids."""
    noted: dict[int, random.Random] = {}
    seed = random.Random.seed

    def seed_and_note(generator: random.Random, a: Any = None, *args: Any, **kwargs: Any) -> None:
        seed(generator, a, *args, **kwargs)
        if a is None:
            noted[id(generator)] = generator
        else:
            noted.pop(id(generator), None)

    random.Random.seed = seed_and_note  # type: ignore[assignment,method-assign]
    try:
        yield noted
    finally:
        random.Random.seed = seed  # type: ignore[method-assign]


def _import(name: str) -> str:
    top = name.partition(".")[0]
    try:
        spec = importlib.util.find_spec(top)
        if spec is None:
            return f"FT_PRELOAD names {name}, and there is no such module"
        if spec.origin and spec.has_location and not is_preloadable(spec.origin):
            return f"FT_PRELOAD names {name}, which is not an installed package ({spec.origin}): leave it out"
        importlib.import_module(name)
    except (KeyboardInterrupt, SystemExit) as error:
        return f"the import of {name} ended with {type(error).__name__}"
    except Exception as error:  # Whatever an import raises, the workers start cold, and say why.
        return f"the import of {name} failed with {type(error).__name__}: {error}"
    return ""


def _loaded_files() -> dict[str, str]:
    found = {}
    for name, module in list(sys.modules.items()):
        path = getattr(module, "__file__", None)
        if name.startswith(GENERATED):
            continue
        if isinstance(path, str) and os.path.isabs(path) and name not in MAIN_NAMES:
            found[name] = path
    return found


def installations() -> list[str]:
    """The folders of installed packages."""
    folders = [*site.getsitepackages(), site.getusersitepackages()]
    folders += [sysconfig.get_path(name) for name in ("purelib", "platlib")]
    return [folder + os.sep for folder in folders]


def standard_library() -> list[str]:
    """The folders of Python's own modules."""
    return [sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")]


def is_preloadable(path: str) -> bool:
    """Whether a module with this file belongs to an installed package or to Python."""
    return is_installed(path, installations(), standard_library()) or is_installed(
        os.path.realpath(path), installations(), standard_library()
    )


def _is_standard(path: str) -> bool:
    return not is_installed(path, installations(), ()) and is_installed(path, (), standard_library())


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] == "ft_rendezvous"


def _stamp(path: str) -> Stamp | None:
    try:
        state = os.stat(path)
    except OSError:
        return None
    return state.st_mtime_ns, state.st_size, state.st_ino


def _find_infos(tops: dict[str, str]) -> dict[str, str]:
    infos: dict[str, str] = {}
    for folder in {os.path.dirname(path.removesuffix(f"{os.sep}__init__.py")) for path in tops.values()}:
        try:
            entries = os.listdir(folder)
        except OSError:
            continue
        for entry in entries:
            project = entry.removesuffix(".dist-info").rpartition("-")[0].lower().replace("-", "_")
            if entry.endswith(".dist-info") and project in tops:
                infos[project] = os.path.join(folder, entry)
    return infos
