"""Both sides of an inbox, for tests: an inbox that keeps its messages, and the environment of a worker."""

from __future__ import annotations

import os
import queue
import socket

from ft_rendezvous.agent.worker_inbox import Door
from ft_rendezvous.agent.worker_messages import Message, socket_name
from tests.support.torchrun_cluster import WAIT_S

CYCLE_ID = 7
ENVIRON = {
    "TORCHELASTIC_RUN_ID": "job",
    "FT_CYCLE_ID": str(CYCLE_ID),
    "FT_NODE_RANK": "1",
    "FT_NODE_INFRA_RANK": "12",
    "FT_NODE_DOMAIN": "rack3",
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "2",
    "ROLE_NAME": "trainer",
}
"""The environment of a worker, without the address of the inbox."""


class InboxRig:
    """A door, and what came through it."""

    def __init__(self) -> None:
        self._heard: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.door = Door(self._heard.put)

    @property
    def environ(self) -> dict[str, str]:
        return {**ENVIRON, "FT_DOOR": self.door.address}

    def hear(self) -> Message:
        """The next message. Fails if none comes."""
        return self._heard.get(timeout=WAIT_S)

    def close(self) -> list[Message]:
        """Close the inbox. Returns the messages that no test has read."""
        self.door.close()
        return [self._heard.get() for _ in range(self._heard.qsize())]


def send(address: str, data: bytes, attached: bytes | None = None) -> None:
    """Send any bytes to an inbox, with descriptors attached if wanted. Waits while the inbox is full."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, attached)] if attached is not None else []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendmsg([data], rights, 0, socket_name(address))


def open_fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))
