"""A node is SIGKILLed while a spare waits: how long until its rank, and all others, are held again.

Three processes: the host, the node that dies, and as threads of one the nodes that live. Their clocks are one: the
system's monotonic clock. Without lifelines, the end of the lease is the coordinator's: its own table says when.
"""

from __future__ import annotations

import os
import random
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import Pipe
from multiprocessing.connection import Connection

from benchmarks import ours
from benchmarks.children import call, serving
from benchmarks.crowd import Formed, in_thread
from benchmarks.measure import require
from benchmarks.restarting import first, follow, form_beside_spare
from ft_rendezvous.agent.reaper import Reaper
from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.leases import LeaseTable

LIMIT_S = 120.0
VICTIM = 1
"""The infra rank of the node that dies, and so its rank."""


@dataclass(frozen=True, slots=True)
class Loss:
    """How long a world took to be whole again."""

    after_lease_s: float | None
    """From the end of the dead node's lease to the last rank in hand. None if its lifeline told of the death."""
    total_s: float
    """From the kill to the last rank in hand."""


@dataclass(frozen=True, slots=True)
class Survived:
    """What the nodes that live saw, on the system's monotonic clock."""

    killed_at: float
    held_at: float
    formed: Formed


class TellingLeases(LeaseTable):
    """Tells when a lease that is over has ended."""

    def __init__(self, run: RunSettings, tell: Callable[[float], None]) -> None:
        super().__init__(run.lease_s, run.beat_s)
        self._tell = tell

    def judge_leases(self, now: float) -> list[str]:
        ended = super().judge_leases(now)
        for name in ended:
            self._tell(self.leases[name].seen_at + self.lease_s)
        return ended


def lose_node(run: RunSettings, *, has_reaper: bool = False) -> tuple[Loss, Formed]:
    """Form a world, kill one of its nodes, and wait until its spare has replaced it.

    With a reaper, only the agent dies; without one, all processes of the node do.
    """
    inbox, outbox = Pipe(duplex=False)
    with serving(serve_telling, run, outbox) as port, serving(take_part, run, port, VICTIM, has_reaper) as pid:
        outbox.close()
        survived = call(LIMIT_S, survive, run, port, pid)
        lease_ended_at: float | None = None
        if not run.has_lifelines:
            require(inbox.poll(0), "no lease has ended: the world was formed without a loss")
            lease_ended_at = inbox.recv()
        require(not inbox.poll(0), "a living node has lost its lease, too: the machine is too busy")
    inbox.close()
    after_lease_s = None if lease_ended_at is None else survived.held_at - lease_ended_at
    return Loss(after_lease_s, survived.held_at - survived.killed_at), survived.formed


# --- in the host's process --------------------------------------------------------------------------


@contextmanager
def serve_telling(run: RunSettings, outbox: Connection) -> Iterator[int]:
    with ours.hosting(run) as (host, port):
        # No node has come yet: no lease is lost with the table that is replaced.
        host.coordinator.membership.leases = TellingLeases(run, outbox.send)
        yield port


# --- in the process of the node that dies -----------------------------------------------------------


@contextmanager
def take_part(run: RunSettings, port: int, index: int, has_reaper: bool) -> Iterator[int]:
    """Be a node; yields the pid to kill."""
    node = ours.open_node(run, port, index)
    if has_reaper:
        node.link.on_lifeline(Reaper.start(secrets.token_hex(8)).hold_lifeline)
    in_thread(node.join)
    yield os.getpid()


# --- in the process of those that live --------------------------------------------------------------


def survive(run: RunSettings, port: int, victim_pid: int) -> Survived:
    count = run.min_nodes
    nodes = [ours.open_node(run, port, index) for index in range(count) if index != VICTIM]
    _, becoming = form_beside_spare(nodes, lambda: ours.open_node(run, port, count))
    following = [in_thread(partial(follow, node)) for node in nodes]
    time.sleep(random.uniform(0, run.beat_s))  # A node may die at any time between two beats.
    os.kill(victim_pid, signal.SIGKILL)
    killed_at = time.monotonic()
    held = first(count, [*following, becoming])
    held_at = max(at for at, _ in held)
    return Survived(killed_at, held_at, Formed(held_at - killed_at, [seat for _, seat in held]))
