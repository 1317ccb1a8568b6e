"""Both sides of an inbox, for tests: the messages that came, and what a worker finds in its environment."""

from __future__ import annotations

import os
import queue
import socket

from ft_rendezvous.agent.worker_inbox import WorkerInbox
from ft_rendezvous.agent.worker_messages import GroupLostMessage, WorkerMessage, socket_name
from tests.support.waiting import WAIT_S, wait_until

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
"""What a worker finds, beside the address of the inbox."""


class InboxRig:
    """An inbox, and the messages that came."""

    def __init__(self) -> None:
        self._received: queue.SimpleQueue[WorkerMessage] = queue.SimpleQueue()
        self.trusted_cycles = {CYCLE_ID}
        self._inbox = WorkerInbox(self._received.put, lambda cycle_id: cycle_id in self.trusted_cycles)

    @property
    def address(self) -> str:
        return self._inbox.address

    @property
    def environ(self) -> dict[str, str]:
        return {**ENVIRON, "FT_INBOX": self.address}

    def tell(self, group: int, reason: str = "", cycle_id: int = CYCLE_ID) -> int:
        """Tell the subscribers that a group is lost. Returns how many it reached."""
        return self._inbox.tell(GroupLostMessage(group=group, cycle_id=cycle_id, reason=reason))

    def tell_all(self, group: int, reason: str = "", subscribers: int = 1) -> None:
        """The same, once there are so many subscribers."""
        wait_until("all have subscribed", lambda: len(self._inbox._subscribers) >= subscribers)
        assert self.tell(group, reason) == subscribers

    def forget(self) -> None:
        self._inbox.forget_subscribers()

    def hear(self) -> WorkerMessage:
        """The next message; fails if none comes."""
        return self._received.get(timeout=WAIT_S)

    def close(self) -> list[WorkerMessage]:
        """Close the inbox, and return the messages that no test has taken."""
        self._inbox.close()
        return [self._received.get() for _ in range(self._received.qsize())]


def send(address: str, data: bytes, attached: bytes | None = None) -> None:
    """Send any bytes to an inbox, perhaps with descriptors attached. Waits while the inbox is full."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, attached)] if attached is not None else []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sock:
        sock.sendmsg([data], rights, 0, socket_name(address))


def open_fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))
