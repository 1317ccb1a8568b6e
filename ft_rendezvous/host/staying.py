"""How long a node that hosts the store stays after its own part in the run has ended."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, auto

from ft_rendezvous.host.host import Host

log = logging.getLogger("ft_rendezvous")

QUIET_GRACE_S = 1.0
"""A run that ends within this time ends without a word about staying."""
SIGNAL_POLL_S = 0.2
"""How soon a host that stays says that it has seen a signal."""


class StayStep(Enum):
    STAY = auto()
    EXPLAIN = auto()
    """Stay, and say why a signal does not end the wait."""
    LEAVE = auto()


@dataclass(slots=True)
class HostStay:
    """Whether the other nodes still need the store on this node."""

    join_s: float
    alone_since: float

    def decide_staying(self, others: int, has_signal: bool, now: float) -> StayStep:
        """What to do now. `others` is the number of nodes in the run, `has_signal` says that a signal has come."""
        if others:
            self.alone_since = now
            return StayStep.EXPLAIN if has_signal else StayStep.STAY
        return StayStep.LEAVE if has_signal or now >= self.alone_since + self.join_s else StayStep.STAY


def stay_while_needed(host: Host, join_s: float, take_signal: Callable[[], signal.Signals | None]) -> None:
    """Wait while other nodes need the store on this node.

    The wait ends when the run is closed and every node has gone. It also ends when no other node is in the run, and a
    signal comes or no node has come for `join_s`. A signal does not end it while other nodes are in the run: the first
    one only explains that. `take_signal` returns a signal that has come, once. After that, signals must act as before.
    """
    if not host.wait(QUIET_GRACE_S):
        log.info("this node hosts the store: staying until every other node has gone")
    stay = HostStay(join_s, time.monotonic())
    while not host.wait(SIGNAL_POLL_S):
        others, signum = host.node_count, take_signal()
        match stay.decide_staying(others, signum is not None, time.monotonic()):
            case StayStep.LEAVE:
                return
            case StayStep.EXPLAIN:
                assert signum is not None
                text = "%s: staying, because other nodes need the store on this node (%d); a second signal ends the run"
                log.warning(text, signum.name, others)
