"""How long a node that hosts the store stays after its own part in the run has ended."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable

from ft_rendezvous.host.host import Host

log = logging.getLogger("ft_rendezvous")

QUIET_GRACE_S = 1.0
"""A run that ends within this time ends without a word about staying."""
SIGNAL_POLL_S = 0.2
"""How soon a host that stays says that it has seen a signal."""


def stay_while_needed(host: Host, join_s: float, take_signal: Callable[[], signal.Signals | None]) -> None:
    """Wait while other nodes need the store on this node.

    The wait ends when the run is closed and every node has gone. It also ends when no other node is in the run, and a
    signal comes or no node has come for `join_s`. A signal does not end it while other nodes are in the run: the first
    one only explains that. `take_signal` returns a signal that has come, once. After that, signals must act as before.
    """
    if not host.wait(QUIET_GRACE_S):
        log.info("this node hosts the store: staying until every other node has gone")
    alone_until = time.monotonic() + join_s
    while not host.wait(SIGNAL_POLL_S):
        others, signum, now = host.node_count, take_signal(), time.monotonic()
        if others:
            alone_until = now + join_s
        elif signum is not None or now >= alone_until:
            return
        if signum is not None:
            text = "%s: staying, because other nodes need the store on this node (%d); a second signal ends the run"
            log.warning(text, signum.name, others)
