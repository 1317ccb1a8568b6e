"""Finds out whether a SLURM job has lost the machine of its batch script: then nothing would end the job.

A job with --no-kill outlives that machine. SLURM then keeps the allocation until the time limit, because the script
that would end it is gone. So a node that has nothing left to do looks for srun, which lives as long as the script:

- srun can be reached: all is well;
- the machine refuses connections for minutes: the machine is up, but srun is gone;
- the machine refuses or does not answer, and SLURM also says that the machine is lost.

A node that is itself cut off from the network sees neither of the last two. It must not end a job that goes on without
it. The search has no time limit: the node has nothing else to do, and the time limit of the job ends it.
"""

from __future__ import annotations

import random
import socket
import time
from collections.abc import Callable, Mapping
from enum import StrEnum

from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.slurm import AskScontrol

SRUN_CONNECT_TIMEOUT_S = 5.0
REFUSED_TIMEOUT_S = 120.0
"""After this time, srun will not come back to a machine that refuses connections."""
FIRST_RETRY_DELAY_S, LONGEST_RETRY_DELAY_S = 5.0, 60.0


class Srun(StrEnum):
    """What is at the address of srun."""

    THERE = "it is there"
    REFUSED = "the machine is up, but nothing listens"
    SILENT = "the machine does not answer"


def is_lost(shown: str) -> bool:
    """Whether `scontrol show node --oneliner` says that the node is down or does not answer."""
    state = next((word.partition("=")[2] for word in shown.split() if word.startswith("State=")), "")
    return "DOWN" in state or "NOT_RESPONDING" in state or "*" in state


def is_abandoned(
    batch_node: str,
    env: Mapping[str, str],
    ask: AskScontrol,
    sleep: Callable[[float], None],
    clock: Callable[[], float] = time.monotonic,
) -> bool:
    """Whether the batch script is gone, so that nothing would end the job. Looks until the answer is certain."""
    refused_since: float | None = None
    delay_s = FIRST_RETRY_DELAY_S
    while True:
        found = _look_for_srun(env)
        if found is Srun.THERE:
            return False
        refused_since = (refused_since or clock()) if found is Srun.REFUSED else None
        if refused_since is not None and clock() - refused_since >= REFUSED_TIMEOUT_S:
            return True
        if _is_lost_to(ask, batch_node):
            return True
        # All nodes of the job look at the same time, when SLURM may be busy. Random delays spread them.
        sleep(delay_s * random.uniform(0.5, 1.5))
        delay_s = min(delay_s * 1.5, LONGEST_RETRY_DELAY_S)


def _is_lost_to(ask: AskScontrol, batch_node: str) -> bool:
    try:
        return is_lost(ask(f"show node {batch_node} --oneliner"))
    except ConfigError:
        return False  # SLURM does not answer. The next round asks it again.


def _look_for_srun(env: Mapping[str, str]) -> Srun:
    """What is at the port of the srun that started this node. srun listens there as long as it lives."""
    host, port = env.get("SLURM_SRUN_COMM_HOST", ""), env.get("SLURM_SRUN_COMM_PORT", "")
    if not host or not port.isdecimal():
        return Srun.SILENT
    try:
        socket.create_connection((host, int(port)), SRUN_CONNECT_TIMEOUT_S).close()
    except ConnectionRefusedError:
        return Srun.REFUSED
    except OSError:
        return Srun.SILENT
    return Srun.THERE
