"""The demo's nodes as processes: started, found with all their workers, and ended without a trace.

Torch starts workers in sessions of their own, so neither a process group nor a parent link reaches them all. Every
process of the demo inherits a mark in its environment and is found by it in /proc.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK_NAME = "FTR_DEMO_MARK"
END_PATIENCE_S = 10.0

FOREIGN_PREFIXES = ("FT_", "FTR_", "PET_", "SLURM_", "TORCHELASTIC_")
FOREIGN_NAMES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"})
"""What an outer job may have set, and what would make torchrun or us take the demo for a part of it."""


@dataclass(slots=True)
class NodeProcess:
    """One torchrun."""

    name: str
    process: subprocess.Popen[bytes]
    mark: str

    @property
    def pid(self) -> int:
        return self.process.pid

    def exit_code(self) -> int | None:
        return self.process.poll()

    def kill(self) -> None:
        """SIGKILL the agent first, so that it cannot speak of it, then its workers."""
        self.process.kill()
        end_marked(self.mark)
        self.process.wait()


def is_supported() -> bool:
    return Path("/proc/self/environ").exists()


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("", 0))
        port: int = sock.getsockname()[1]
        return port


def start_node(name: str, command: Sequence[str], env: Mapping[str, str], mark: str, log_path: Path) -> NodeProcess:
    """Start a node in a session of its own, so that Ctrl-C is the demo's to answer."""
    with log_path.open("wb") as log_file:
        process = subprocess.Popen(
            command,
            # torchrun makes a directory for logs and leaves it behind: here it goes with the demo's own.
            env={**env, MARK_NAME: mark, "TMPDIR": str(log_path.parent)},
            stdin=subprocess.DEVNULL,
            stdout=log_file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    return NodeProcess(name, process, mark)


def node_env(infra_rank: int) -> dict[str, str]:
    """This process's environment without what belongs to an outer job."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if name not in FOREIGN_NAMES and not name.startswith(FOREIGN_PREFIXES)
    }
    defaults = {
        "GLOO_SOCKET_IFNAME": "lo",  # The machine's own name may not resolve.
        "RES_OPTIONS": "timeout:1 attempts:1",  # TCPStore asks DNS for every connection's name.
    }
    own = {"FT_INFRA_RANK": str(infra_rank), "FT_LOGLEVEL": "DEBUG", "OMP_NUM_THREADS": "1"}
    return {**defaults, **inherited, **own}


def torchrun_command(
    *, nnodes: str, endpoint: str, run_id: str, conf: Mapping[str, str], module: str, arguments: Sequence[str]
) -> list[str]:
    """What a user would type, with this interpreter's own torchrun."""
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nnodes={nnodes}",
        "--nproc-per-node=1",
        "--max-restarts=100",
        "--rdzv-backend=ft",
        f"--rdzv-endpoint={endpoint}",
        f"--rdzv-id={run_id}",
        f"--rdzv-conf={','.join(f'{key}={value}' for key, value in conf.items())}",
        "-m",
        module,
        *arguments,
    ]


def marked_pids(mark: str) -> list[int]:
    """Every live process whose mark begins with this one."""
    wanted = f"{MARK_NAME}={mark}".encode()
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with suppress(OSError):  # It ended, or is somebody else's.
                if any(item.startswith(wanted) for item in (entry / "environ").read_bytes().split(b"\0")):
                    found.append(int(entry.name))
    return found


def end_marked(mark: str, patience_s: float = END_PATIENCE_S) -> list[int]:
    """SIGKILL all marked processes, and those they were just starting. Returns what is left: nothing, or a bug."""
    deadline = time.monotonic() + patience_s
    while left := marked_pids(mark):
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return left
        time.sleep(0.02)
    return []
