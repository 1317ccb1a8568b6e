"""Whether a SLURM job has lost the machine of its batch script, and so whoever would end it.

A job with --no-kill outlives that machine. SLURM then keeps the allocation, without a script that would ever end it,
until the time limit. So a node that has nothing left to do looks at srun, which lives for as long as the script does:

- it can be reached: all is well;
- the machine refuses, for minutes: it is there, and srun is not;
- the machine refuses or does not answer, and SLURM too takes the node for lost.

A node that is cut off itself sees neither of the last two, and must not end a job that goes on without it. There is no
limit to the looking: the node has nothing else to do, and the job's time limit ends it.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Mapping
from enum import StrEnum

from ft_rendezvous.errors import ConfigError

REACH_S = 5.0
REFUSED_S = 120.0
"""How long a machine without srun may take to be one on which there will be none again."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 5.0, 60.0

Scontrol = Callable[[str], str]


class Srun(StrEnum):
    """What is found where srun should be."""

    THERE = "it is there"
    REFUSED = "the machine is there, and nobody listens"
    SILENT = "the machine does not answer"


def is_lost(shown: str) -> bool:
    """Whether `scontrol show node --oneliner` tells of a node that is down or does not answer."""
    state = next((word.partition("=")[2] for word in shown.split() if word.startswith("State=")), "")
    return "DOWN" in state or "NOT_RESPONDING" in state or "*" in state


def is_abandoned(
    batch_node: str,
    env: Mapping[str, str],
    ask: Scontrol,
    sleep: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Whether nobody is left to end the job; looks until that is certain, one way or the other."""
    refused_since: float | None = None
    pause_s = FIRST_PAUSE_S
    while True:
        found = _look_for_srun(env)
        if found is Srun.THERE:
            return False
        refused_since = (refused_since or clock()) if found is Srun.REFUSED else None
        if refused_since is not None and clock() - refused_since >= REFUSED_S:
            return True
        if _is_lost_to(ask, batch_node):
            return True
        # All nodes of the job look, just when SLURM may have much to do.
        sleep(pause_s * random.uniform(0.5, 1.5))
        pause_s = min(pause_s * 1.5, LONGEST_PAUSE_S)


def _is_lost_to(ask: Scontrol, batch_node: str) -> bool:
    try:
        return is_lost(ask(f"show node {batch_node} --oneliner"))
    except ConfigError:
        return False  # SLURM does not answer; it will be asked again.


def _look_for_srun(env: Mapping[str, str]) -> Srun:
    """What is at the port at which the srun of this node's task listens for as long as it lives."""
    host, port = env.get("SLURM_SRUN_COMM_HOST", ""), env.get("SLURM_SRUN_COMM_PORT", "")
    if not host or not port.isdecimal():
        return Srun.SILENT
    try:
        socket.create_connection((host, int(port)), REACH_S).close()
    except ConnectionRefusedError:
        return Srun.REFUSED
    except OSError:
        return Srun.SILENT
    return Srun.THERE
