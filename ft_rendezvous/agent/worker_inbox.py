"""The agent's inbox: a socket to which the workers of this node send messages, and a thread that receives them.

It takes only messages of its own user. No datagram ends the thread. The inbox decides nothing: it passes on a message
of an earlier cycle like any other, and the receiver compares the cycle. It answers questions itself, and tells
subscribers what happens. It never waits for a worker.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import threading
from collections.abc import Callable

from ft_rendezvous.agent.datagrams import open_socket, receive, send_at_once
from ft_rendezvous.agent.worker_messages import (
    AgentMessage,
    Fault,
    GroupLostMessage,
    PlaceAnswer,
    PlaceQuestion,
    SubscribeMessage,
    WorkerMessage,
    decode,
    encode,
    socket_name,
)

log = logging.getLogger("ft_rendezvous")

CLOSE_TIMEOUT_S = 1.0
"""How long `close` waits for a message that is being passed on: the caller may hold a lock that the receiver needs."""

MAX_SUBSCRIBERS = 1024
"""More than the workers of any node. A worker that subscribes again and again must not fill the agent's memory."""


class WorkerInbox:
    """Open from its creation until it is closed. Raises OSError where the system allows no such socket."""

    def __init__(
        self,
        on_message: Callable[[WorkerMessage], None],
        is_place_trusted: Callable[[int], bool] = lambda _cycle_id: False,
    ) -> None:
        """The inbox's thread calls `on_message` for one message at a time. Meanwhile a few more messages can wait.

        It asks `is_place_trusted` whether the place of a cycle still stands when a worker wants to know. Questions and
        subscriptions are not passed on.
        """
        self.address = f"@ft-rendezvous/{secrets.token_hex(16)}"
        """What workers find as FT_INBOX."""
        self._on_message = on_message
        self._is_place_trusted = is_place_trusted
        self._uid = os.getuid()
        self._logged_faults: set[Fault] = set()
        self._subscribers: dict[bytes, int] = {}
        """The cycle of each worker that wants to hear of lost groups, by the address of its socket."""
        self._lock = threading.Lock()
        """Guards the subscribers, and the decision to close. No call under it waits."""
        self._is_closed = False
        self._socket = open_socket(socket_name(self.address))
        self._thread = threading.Thread(target=self._listen, name="ft-inbox", daemon=True)
        self._thread.start()

    def tell(self, message: GroupLostMessage) -> int:
        """Send a message to all subscribers of its cycle. Returns how many it reached.

        Never waits. A worker whose socket is full does not get this message. A worker that is gone is forgotten.
        """
        with self._lock:
            addresses = [address for address, cycle_id in self._subscribers.items() if cycle_id == message.cycle_id]
        return sum(self._send(message, address) for address in addresses)

    def forget_subscribers(self) -> None:
        """The workers of the last place are gone."""
        with self._lock:
            self._subscribers.clear()

    def close(self) -> None:
        """End the thread. It still passes on the messages that came before. A second call does nothing."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                self._socket.shutdown(socket.SHUT_RD)
        if threading.current_thread() is not self._thread:
            self._thread.join(CLOSE_TIMEOUT_S)

    def _listen(self) -> None:
        # Only this thread closes the socket: another thread cannot know whether this one still reads from it.
        with self._socket:
            while (datagram := receive(self._socket, self._uid)) is not None:
                if isinstance(datagram.content, Fault):
                    self._ignore(datagram.content)
                else:
                    self._receive(datagram.content, datagram.sender)

    def _receive(self, data: bytes, sender: bytes | None) -> None:
        message = decode(data)
        if isinstance(message, Fault):
            self._ignore(message)
            return
        try:
            if not isinstance(message, SubscribeMessage | PlaceQuestion):
                self._on_message(message)
            elif sender is None:
                self._ignore(Fault.NO_ADDRESS)
            elif isinstance(message, SubscribeMessage):
                self._subscribe(message, sender)
            else:
                is_trusted = self._is_place_trusted(message.cycle_id)
                self._send(PlaceAnswer(cycle_id=message.cycle_id, is_trusted=is_trusted), sender)
        except Exception:  # An error of the receiver with one message must not stop the messages after it.
            log.exception("a worker's message was lost: %s", message)

    def _subscribe(self, message: SubscribeMessage, address: bytes) -> None:
        with self._lock:
            self._subscribers.pop(address, None)
            if len(self._subscribers) >= MAX_SUBSCRIBERS:
                del self._subscribers[next(iter(self._subscribers))]
            self._subscribers[address] = message.cycle_id

    def _send(self, message: AgentMessage, address: bytes) -> bool:
        """Send to a worker. False if it did not get the message."""
        try:
            send_at_once(encode(message), address)
        except ConnectionRefusedError:  # It has ended, or closed its socket.
            with self._lock:
                self._subscribers.pop(address, None)
            return False
        except OSError:  # Its socket is full: it has enough to read. Or this process has no free descriptor.
            return False
        return True

    def _ignore(self, fault: Fault) -> None:
        if fault not in self._logged_faults:
            self._logged_faults.add(fault)
            log.warning("ignored a message to the agent's inbox: %s; this warning is not repeated", fault)
