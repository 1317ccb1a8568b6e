"""Logs of workers by node and cycle: `torchrun --logs-specs=ft --log-dir=DIR`.

Torch names a directory by the agent's own restart count, which does not change when a node is replaced. Torch deletes
what it finds in that directory, so only the logs of the last cycle would survive.
"""

from __future__ import annotations

import dataclasses
import os
import socket
from itertools import count
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, Std, to_map

CONSOLE = ""


class CycleLogs(DefaultLogsSpecs):
    """`DIR/node-<infra rank>/cycle-<cycle id>/<local rank>/{stdout,stderr}.log`; nothing is deleted."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        cycle_id = os.environ.get("FT_CYCLE_ID")
        if cycle_id is None or self.root_log_dir == os.devnull:
            return super().reify(envs)  # Another rendezvous backend, or no logs at all.
        base = _make_new(Path(self.root_log_dir) / _node_name() / f"cycle-{cycle_id}")
        found = LogsDest()
        if "filtered_stdout" in {field.name for field in dataclasses.fields(LogsDest)}:  # Not before torch 2.9.
            found.filtered_stdout, found.filtered_stderr = (
                str(base / "filtered_stdout.log"),
                str(base / "filtered_stderr.log"),
            )
        redirects, tees = to_map(self._redirects, len(envs)), to_map(self._tee, len(envs))
        for local_rank, env in envs.items():
            folder = base / str(local_rank)
            folder.mkdir()
            found.error_files[local_rank] = env["TORCHELASTIC_ERROR_FILE"] = str(folder / "error.json")
            for flag, name, files, shown in (
                (Std.OUT, "stdout.log", found.stdouts, found.tee_stdouts),
                (Std.ERR, "stderr.log", found.stderrs, found.tee_stderrs),
            ):
                # Torch writes output to a file first, and shows it from there.
                is_kept = bool((redirects[local_rank] | tees[local_rank]) & flag)
                is_muted = local_rank not in (self._local_ranks_filter or envs)
                files[local_rank] = str(folder / name) if is_kept else (os.devnull if is_muted else CONSOLE)
                if tees[local_rank] & flag and not is_muted:
                    shown[local_rank] = files[local_rank]
        return found


def _node_name() -> str:
    infra_rank = os.environ.get("FT_NODE_INFRA_RANK")
    return f"node-{infra_rank}" if infra_rank else f"node-{socket.gethostname()}-{os.getpid()}"


def _make_new(path: Path) -> Path:
    """Make a new directory. A run that is started again has the same cycle ids as the one before."""
    for number in count(1):
        wanted = path if number == 1 else path.with_name(f"{path.name}.{number}")
        try:
            wanted.mkdir(parents=True)
        except FileExistsError:
            continue
        return wanted
    raise AssertionError("counting ends with a free name")
