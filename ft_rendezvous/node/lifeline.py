"""The node's end of a lifeline: a connection to the host that carries nothing.

Its end says that this process has ended. So no other process may hold it, with one exception: the reaper, which says
`dead` on it when the agent has ended. A program that is started anew does not inherit it. A fork closes it.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref

from ft_rendezvous.config.addresses import format_endpoint
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.store.raw_client import keep_alive

HAIL_TIMEOUT_S = 5.0
CONFIRMED = b"ok\n"
GOODBYE = b"bye\n"


class Lifeline:
    """Connected and confirmed from its creation on. Raises StoreUnavailable."""

    def __init__(self, address: str, port: int, epoch: str, incarnation: str) -> None:
        self.incarnation = incarnation
        endpoint = format_endpoint(address, port)
        try:
            self._socket = socket.create_connection((address, port), timeout=HAIL_TIMEOUT_S)
        except ConnectionRefusedError as error:
            raise StoreUnavailable(endpoint, "the lifeline is refused", is_refused=True) from error
        except OSError as error:
            raise StoreUnavailable(endpoint, f"the lifeline cannot be connected: {error}") from error
        _open.add(self)
        try:
            keep_alive(self._socket)
            self._socket.sendall(greeting(epoch, incarnation))
            answer = self._socket.recv(len(CONFIRMED))
            self._socket.settimeout(None)
        except OSError as error:
            self._socket.close()
            raise StoreUnavailable(endpoint, f"the lifeline is not confirmed: {error}") from error
        if answer != CONFIRMED:
            self._socket.close()
            raise StoreUnavailable(endpoint, "the lifeline is not confirmed: another program is there")

    def fileno(self) -> int:
        return self._socket.fileno()

    def await_end(self) -> None:
        """Block until the connection has ended. The host says nothing on it."""
        with contextlib.suppress(OSError):
            while self._socket.recv(64):
                pass

    def close(self, *, says_goodbye: bool) -> None:
        """End it for all that hold it, in peace or without a word. Another thread may be waiting for its end."""
        with contextlib.suppress(OSError):  # The host may have ended it first, or its buffer is full.
            if says_goodbye:
                self._socket.send(GOODBYE, socket.MSG_DONTWAIT)
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Give its descriptor back. Its end is not affected: the reaper may hold it, too."""
        self._socket.close()


def greeting(epoch: str, incarnation: str) -> bytes:
    """The first line on a lifeline."""
    return f"ft-lifeline 1 {epoch} {incarnation}\n".encode()


_open: weakref.WeakSet[Lifeline] = weakref.WeakSet()


def _close_all_in_fork() -> None:
    for lifeline in list(_open):
        lifeline.release()


os.register_at_fork(after_in_child=_close_all_in_fork)
