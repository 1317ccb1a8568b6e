"""`warm`: the start of workers, cold and forked from a nursery, until all have trained a step; and their memory.

Without torchrun: rendezvous and torchrun's own work are the same for both. The nursery is ready before the first
sample, as that of a node that has trained, or waits as a spare.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.measure import OURS, Case, Finding, Sample, require
from ft_rendezvous.env_names import NURSERY_VARIABLE
from ft_rendezvous.warm.nursery import ALWAYS, CLIENT, Nursery

NAME = "warm"
COLD = "cold"
ROUNDS = 3
PARTS = ("interpreter", "imports", "process group", "first step")
HEAVY = "matplotlib.pyplot"
_WORKER = Path(__file__).with_name("warm_worker.py")


@dataclass(frozen=True, slots=True)
class Started:
    """Workers that have trained a step."""

    total_s: float
    parts: Mapping[str, float]
    """Of the worker that was last."""
    pss_bytes: int
    """Of the workers, each with its client and its guardian; shared pages are counted once over all."""


@contextmanager
def nursery_of(packages: Sequence[str]) -> Iterator[Nursery]:
    """A nursery that is ready."""
    nursery = Nursery(secrets.token_hex(8), (*ALWAYS, *packages))
    try:
        start_workers(1, packages, nursery)
        yield nursery
    finally:
        nursery.end()


def start_workers(count: int, packages: Sequence[str], nursery: Nursery | None) -> Started:
    """Start so many workers at once, wait for the first step of all, and end them."""
    began_at = time.monotonic()
    program = (sys.executable,) if nursery is None else (sys.executable, "-I", "-S", str(CLIENT))
    variables = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    variables[NURSERY_VARIABLE] = "" if nursery is None else nursery.address
    with contextlib.ExitStack() as running:
        workers = []
        for rank in range(count):
            worker = subprocess.Popen(
                [*program, "-u", str(_WORKER), str(began_at), *packages],
                env={**os.environ, **variables, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            running.callback(_end, worker)
            workers.append(worker)
        lines = [_read(worker) for worker in workers]
        total_s = time.monotonic() - began_at
        memory = sum(_pss(pid) for worker in workers for pid in (worker.pid, *_behind(worker.pid)))
    return Started(total_s, max(lines, key=lambda line: sum(line.values())), memory)


def _read(worker: subprocess.Popen[str]) -> Mapping[str, float]:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    require(bool(line), f"a worker ended with exit code {worker.poll()}")
    found: dict[str, float] = json.loads(line)
    return found


def _end(worker: subprocess.Popen[str]) -> None:
    _, errors = worker.communicate()
    require("starts cold" not in errors, errors)


def _behind(pid: int) -> list[int]:
    """The worker behind a client, and its guardian."""
    from ft_rendezvous.agent.processes import find_worker  # noqa: PLC0415

    worker = find_worker(pid)
    if worker == pid:
        return []
    stat = Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()
    return [worker, int(stat[1])]


def _pss(pid: int) -> int:
    text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return next(int(line.split()[1]) * 1024 for line in text.splitlines() if line.startswith("Pss:"))


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


# --- the contest ------------------------------------------------------------------------------------


def cases(is_quick: bool) -> list[Case]:
    if is_quick:
        return [_case(1, (), rounds=1)]
    return [_case(count, packages, ROUNDS) for packages in ((), (HEAVY,)) for count in (1, 8)]


def _case(count: int, packages: Sequence[str], rounds: int) -> Case:
    with_what = f"torch and {', '.join(packages)}" if packages else "torch"
    workers = f"{count} worker{'s' if count > 1 else ''}"
    return Case(NAME, f"{workers}, {with_what}: first step", rounds, partial(_prepare, count, packages), warm_ups=0)


@contextmanager
def _prepare(count: int, packages: Sequence[str]) -> Iterator[Mapping[str, Sample]]:
    with nursery_of(packages) as nursery:
        yield {
            OURS: lambda: start_workers(count, packages, nursery).total_s,
            COLD: lambda: start_workers(count, packages, None).total_s,
        }


def findings(is_quick: bool) -> list[Finding]:
    """Where the time goes, and the memory of eight workers."""
    if is_quick:
        return []
    found: list[Finding] = []
    with nursery_of(()) as nursery:
        for how, giver in ((COLD, None), ("warm", nursery)):
            starts = [start_workers(8, (), giver) for _ in range(ROUNDS)]
            for part in PARTS:
                part_s = statistics.median(start.parts[part] for start in starts)
                found.append(Finding(NAME, f"8 workers, {how}", f"{part}, the last worker", part_s, "s"))
            memory = statistics.median(start.pss_bytes for start in starts) / 2**20
            found.append(Finding(NAME, f"8 workers, {how}", "memory of all (PSS)", memory, "MB"))
    return found
