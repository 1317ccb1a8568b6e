"""The options of the launcher, and the checks that need only the options. Pure: reads no file, starts nothing."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from ft_rendezvous.config.addresses import DEFAULT_PORT, parse_endpoint
from ft_rendezvous.errors import ConfigError

FIRST_NODE, BATCH_HOST = "first-node", "batch-host"

MAX_RESTARTS = 1_000_000
"""The run limits its cycles by max_cycles. The limit of a single agent must not come first."""


def parse_nnodes(text: str) -> tuple[int, int]:
    """MIN and MAX of `MIN:MAX` or `N`, as torchrun reads it."""
    least, _, most = text.partition(":")
    if not least.isdecimal() or not (most or least).isdecimal():
        raise ConfigError(f"--nnodes={text} is not MIN:MAX, for example --nnodes=8:10")
    return int(least), int(most or least)


@dataclass(frozen=True, kw_only=True)
class Options:
    """The command line, checked as far as that is possible without a look at the machine."""

    script: tuple[str, ...]
    active: int | None = None
    nproc_per_node: tuple[str, ...] = ("1",)
    """One value for all nodes, or one for each part of a heterogeneous job."""
    max_restarts: int = MAX_RESTARTS
    conf: Mapping[str, str] = field(default_factory=dict)
    store: str = FIRST_NODE
    port: int | None = None
    log_dir: Path | None = None
    requeues: int = 0
    is_each_task: bool = False
    is_warm: bool = False
    """Workers are forked from a nursery on each node."""
    srun_args: tuple[str, ...] = ()
    torchrun: tuple[str, ...] = ("torchrun",)
    """The command that starts torchrun."""
    ftr: tuple[str, ...] = ("ftr",)
    """The command that starts ftr."""
    state_token: str = field(default="", repr=False)
    """The nodes inherit it from the environment. It never stands in a command."""

    def __post_init__(self) -> None:
        if not self.script:
            raise ConfigError("there is no training script: end the command with -- train.py [arguments]")
        for each in self.nproc_per_node:
            if not re.fullmatch(r"[1-9]\d*|auto|gpu|cpu|xpu", each):
                raise ConfigError(f"--nproc-per-node: {each!r} is not a number of workers, and not gpu, cpu or auto")
        _check_script(self.script)
        if self.port is not None and self.store not in (FIRST_NODE, BATCH_HOST):
            raise ConfigError(f"--port {self.port} and --store {self.store} both name a port: leave out --port")
        if self.store not in (FIRST_NODE, BATCH_HOST) and not re.search(r":\d+$", self.store):
            raise ConfigError(f"--store {self.store} is neither {FIRST_NODE}, {BATCH_HOST} nor HOST:PORT")
        if self.store not in (FIRST_NODE, BATCH_HOST):
            parse_endpoint(self.store)
        if self.log_dir is not None and "," in str(self.log_dir):
            raise ConfigError(f"--log-dir {self.log_dir}: torchrun splits settings at commas, use a name without one")

    @property
    def port_or_default(self) -> int:
        return DEFAULT_PORT if self.port is None else self.port

    @property
    def has_identical_workers(self) -> bool:
        """Whether all nodes surely have the same number of workers. `gpu` may mean 8 on one node and 4 on another."""
        return len(set(self.nproc_per_node)) == 1 and self.nproc_per_node[0].isdecimal()


LAUNCHER_OPTIONS = (
    "--nnodes",
    "--nproc-per-node",
    "--nproc_per_node",
    "--max-restarts",
    "--max_restarts",
    "--rdzv",
    "--log-dir",
)
"""Options that the launcher itself gives to torchrun. Given twice, the second would win."""


def _check_script(script: Sequence[str]) -> None:
    """Raise ConfigError for words that people copy from their own torchrun command."""
    for word in takewhile(lambda word: word.startswith("-"), script):
        if word.startswith(LAUNCHER_OPTIONS):
            raise ConfigError(f"{word} after -- is set by the launcher: leave it out, or use the launcher's own option")
    if script[0] in ("python", "python3", "torchrun"):
        raise ConfigError(f"-- {script[0]}: the launcher starts torchrun, and that Python: write -- train.py")
