"""`ftr warm learn`: runs a script once, and says which installed packages its workers should find preloaded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ft_rendezvous.config.load import own_environment

LEAST_S = 0.02
"""What costs less is not worth a name."""
CHECK_TIMEOUT_S = 300.0
ALWAYS_TOP = "torch"
"""Every nursery has it."""
ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
"""What a script finds that runs alone. A free port is added."""


@dataclass(frozen=True, slots=True)
class LearnedModule:
    """An installed module that the script imports."""

    name: str
    seconds: float
    """What its first import took, with all that it imports."""
    unfit: str
    """Why a nursery must not preload it. Empty if it may."""


@dataclass(frozen=True, slots=True)
class Learned:
    """What a run of the script has shown."""

    modules: tuple[LearnedModule, ...]
    exit_code: int | None
    """None: the script was ended after the time that it had."""

    @property
    def preload(self) -> str:
        """The value for FT_PRELOAD."""
        return ",".join(module.name for module in self.modules if not module.unfit)


def choose_modules(lines: Iterable[str]) -> dict[str, float]:
    """Names and seconds of the modules worth a preload, the most expensive first. Torch is preloaded anyway."""
    costs: dict[str, float] = {}
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:  # The script was ended in the middle of a line.
            continue
        name, seconds = str(found["name"]), float(found["seconds"])
        if name.partition(".")[0] not in (ALWAYS_TOP, "ft_rendezvous"):
            costs[name] = costs.get(name, 0.0) + seconds
    chosen = {name: seconds for name, seconds in costs.items() if seconds >= LEAST_S}
    return dict(sorted(chosen.items(), key=lambda item: -item[1]))


def learn(script: Sequence[str], seconds: float, port: int) -> Learned:
    """Run the script, for at most so long, and try each module that it imports."""
    given = own_environment()
    environment = {**ALONE, "MASTER_PORT": str(port), "OPENBLAS_NUM_THREADS": "1", **given}
    with tempfile.TemporaryDirectory(prefix="ftr-learn-") as folder:
        lines = Path(folder) / "imports"
        lines.touch()
        exit_code = _run(script, seconds, lines, environment)
        costs = choose_modules(lines.read_text().splitlines())
    modules = (LearnedModule(name, cost, _try(name, environment)) for name, cost in costs.items())
    return Learned(tuple(modules), exit_code)


def _run(script: Sequence[str], seconds: float, lines: Path, environment: Mapping[str, str]) -> int | None:
    program = Path(__file__).with_name("learn_main.py")
    process = subprocess.Popen(
        [sys.executable, "-u", str(program), str(lines), *script], env=dict(environment), start_new_session=True
    )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _try(name: str, environment: Mapping[str, str]) -> str:
    program = Path(__file__).with_name("check_main.py")
    try:
        done = subprocess.run(
            [sys.executable, str(program), name],
            env=dict(environment),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            timeout=CHECK_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"its import takes more than {CHECK_TIMEOUT_S:.0f} s"
    return done.stdout if done.returncode == 0 else f"its import ended Python with exit code {done.returncode}"
