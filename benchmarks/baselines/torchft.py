"""torchft 0.2.0 as its README starts it: a lighthouse, and one torchrun for each replica group.

The lighthouse gets the options of the README; all other timeouts are the defaults, so a group is dead after 5 s without
a heartbeat. Each group's torchrun has torch's own rendezvous (c10d) and runs in a shell loop, which starts it again on
the same machine as soon as it ends. A spare machine is not needed: this is the best case.

The package is optional (the extra `torchft`).
"""

from __future__ import annotations

import importlib.metadata
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

CONTENDER = "torchft"
"""Its name in result files; people read it with the version."""
PACKAGE = "torchft"
_README_OPTIONS = ("--min_replicas", "1", "--quorum_tick_ms", "100", "--join_timeout_ms", "10000")


def installed_version() -> str | None:
    try:
        return importlib.metadata.version(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return None


def lighthouse_command(port: int) -> list[str]:
    """The console script beside this interpreter."""
    return [str(Path(sys.executable).parent / "torchft_lighthouse"), *_README_OPTIONS, "--bind", f"[::]:{port}"]


def loop_command(torchrun: Sequence[str], worker: Sequence[str]) -> list[str]:
    """A shell that starts one group's torchrun again until it ends well."""
    one_node = ("--nnodes=1", "--nproc-per-node=1", "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0")
    return ["bash", "-c", f"while ! {shlex.join([*torchrun, *one_node, *worker])}; do :; done"]
