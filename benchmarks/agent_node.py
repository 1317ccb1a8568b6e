"""A node as torch's agent drives it, with any handler."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.crowd import Seat
from ft_rendezvous.config.addresses import format_endpoint

ASK_S = 0.01
"""How often a node asks whether its workers must stop. Torch's agent asks a tenth as often."""


class AgentNode:
    """A handler, used as torch's agent uses it."""

    def __init__(self, handler: Any) -> None:
        self.handler = handler

    def join(self) -> Seat:
        """Join the next world. A node that has a place and joins again says thereby that its workers failed."""
        info = self.handler.next_rendezvous()
        master = info.bootstrap_store_info
        return Seat(info.rank, info.world_size, format_endpoint(master.master_addr, master.master_port))

    def wait_over(self) -> None:
        """Wait until the world must end: its workers must stop, or a node waits for the next world."""
        while self.handler.num_nodes_waiting() == 0:
            time.sleep(ASK_S)
