"""A node's side of its lifeline: when to connect it, and what to do when it ends.

Written as a routine, so it performs nothing itself. The lifeline says only that this process lives: it carries no
record and no event, and its end alone costs the node nothing.
"""

from __future__ import annotations

import logging

from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.protocol.node_loop import NodeLoop
from ft_rendezvous.protocol.node_policy import FIRST_RETRY_DELAY_S
from ft_rendezvous.protocol.ops import AwaitHangUp, Hail, LifelineRoutine, Rest

log = logging.getLogger("ft_rendezvous")

LONGEST_RETRY_DELAY_S = 10.0
"""A port that a firewall closes is tried this often."""
WARN_AFTER_TRIES = 5
"""A host that ends refuses the lifeline, too, a moment before the node hears of it. That is no reason to warn."""


class LifelineKeeper:
    """Keeps a lifeline for the current incarnation of a node."""

    def __init__(self, loop: NodeLoop) -> None:
        self._loop = loop
        self._failed_tries = 0
        self._has_warned = False

    def keep(self) -> LifelineRoutine[None]:
        """Connect a lifeline, and connect it again when it ends, until the node leaves."""
        loop, node = self._loop, self._loop.participant
        delay_s = FIRST_RETRY_DELAY_S
        while not loop.is_over:
            name = node.lifeline_name
            if not name:
                yield Rest(until=lambda: loop.is_over or bool(node.lifeline_name))
                continue
            try:
                yield Hail(name)
            except StoreUnavailable as error:
                self._note_failure(error)
                yield Rest(delay_s, lambda: loop.is_over)
                delay_s = min(2 * delay_s, LONGEST_RETRY_DELAY_S)
                continue
            delay_s, self._failed_tries = FIRST_RETRY_DELAY_S, 0
            loop.gain_lifeline()
            yield AwaitHangUp()
            if name == node.lifeline_name and not loop.is_over:
                loop.lose_lifeline()

    def _note_failure(self, error: StoreUnavailable) -> None:
        self._failed_tries += 1
        self._loop.miss_lifeline(error.is_refused)
        if self._failed_tries == WARN_AFTER_TRIES and not self._has_warned and not self._loop.is_out_of_touch:
            self._has_warned = True
            log.warning(
                "no lifeline to the store host: %s; the death of this node is noticed after lease_timeout=%g s: open "
                "the port (lifeline_port makes it a fixed one), or set lifeline=no",
                error,
                self._loop.participant.lease_s,
            )
