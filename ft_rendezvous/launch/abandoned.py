"""Ends a SLURM job whose run is lost together with the machine of its batch script.

A job with --no-kill outlives that machine. SLURM then keeps the allocation, without a script that would ever end it,
until the time limit. So a node that has lost the store looks: if srun cannot be reached, and SLURM too takes the batch
script's node for lost, nobody else is left to end the job. Both must hold: a node that is cut off itself must not end a
job that goes on without it.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

REACH_S = 5.0
LOOK_S = 5.0
PATIENCE_S = 900.0
"""SLURM takes a node for lost after its SlurmdTimeout, by default 300 s."""

Scontrol = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Abandoned:
    """What to end, and whose loss leaves it abandoned."""

    job_id: str
    batch_node: str


def is_lost(shown: str) -> bool:
    """Whether `scontrol show node --oneliner` tells of a node that is down or does not answer."""
    state = next((word.partition("=")[2] for word in shown.split() if word.startswith("State=")), "")
    return "DOWN" in state or "NOT_RESPONDING" in state or "*" in state


def is_abandoned(job: Abandoned, env: Mapping[str, str], ask: Scontrol, sleep: Callable[[float], None]) -> bool:
    """Whether nobody is left to end the job; looks until that is certain, one way or the other."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if _reaches_srun(env):
            return False
        if is_lost(ask(f"show node {job.batch_node} --oneliner")):
            return True
        sleep(LOOK_S)
    return False


def _reaches_srun(env: Mapping[str, str]) -> bool:
    """Whether the srun that started this node's task listens; it does for as long as it lives."""
    host, port = env.get("SLURM_SRUN_COMM_HOST", ""), env.get("SLURM_SRUN_COMM_PORT", "")
    if not host or not port.isdecimal():
        return False
    try:
        socket.create_connection((host, int(port)), REACH_S).close()
    except OSError:
        return False
    return True
