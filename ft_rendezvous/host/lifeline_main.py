"""The process that holds the lifelines of a run: thousands of idle connections, and one line of news per sign.

An isolated interpreter runs this file by its path. It is a process of its own so that ten thousand connections take no
time and no descriptors of the coordinator's process. It decides nothing.

It writes to standard output, each with an incarnation: `+` connected, `-` hung up, `~` said goodbye, `!` is dead, as
its reaper says. Of several lifelines of one incarnation only the newest counts.

A hang-up is told only if it says that the node's kernel has closed the connection, just now. A node that lives and
loses its lifeline beats quickly, but not for long.
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import select
import socket
import sys
import time

GREETING_TIMEOUT_S = 10.0
"""How long a client may take to greet. Other programs find the port, too."""
MOST_STRANGERS = 4096
"""How many clients may be connected that have not greeted. The oldest has to go."""
MOST_LINE_BYTES = 128
ACCEPT_PAUSE_S = 0.5
"""How long to wait for a free descriptor."""
LOOK_INTERVAL_S = 0.25
"""How often this process wakes up at least, so that it notices that it stood still."""
LATE_AFTER_S = 0.5
"""Ends that it finds so late are old. Nodes beat quickly for a second, and the host needs a part of that."""
MOST_EVENTS = 1024
SILENT_ERRORS = frozenset({errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH})
"""The network does not reach the node. Its kernel has closed nothing."""
WORDS = {b"bye": "~", b"dead": "!"}


class Peer:
    """One connection."""

    def __init__(self, sock: socket.socket, now: float) -> None:
        self.socket = sock
        self.since = now
        self.name = ""
        """The incarnation, once it has greeted."""
        self.received = b""


class Switchboard:
    """All connections of one run."""

    def __init__(self, listener: socket.socket, host_fd: int, epoch: str) -> None:
        self._listener = listener
        self._host_fd = host_fd
        self._greeting = f"ft-lifeline 1 {epoch} ".encode()
        self._peers: dict[int, Peer] = {}
        self._strangers: dict[int, Peer] = {}
        """Those that have not greeted, the oldest first."""
        self._newest: dict[str, Peer] = {}
        self._accepts_at = 0.0
        self._looked_at = time.monotonic()
        self._is_behind = self._was_full = False
        """Whether ends that are found now may be old; whether there may be more than were found at the last look."""
        self._poll = select.epoll()
        self._poll.register(listener.fileno(), select.EPOLLIN)
        self._poll.register(host_fd, select.EPOLLIN)
        listener.setblocking(False)

    def serve(self) -> None:
        """Serve until the host has ended."""
        while True:
            for fd in self._look():
                if fd == self._host_fd:
                    return
                if fd == self._listener.fileno():
                    self._accept()
                elif fd in self._peers:
                    self._hear(self._peers[fd])
            self._send_strangers_off()

    def _look(self) -> list[int]:
        """Wait for descriptors with something to read."""
        found = self._poll.poll(self._timeout(), MOST_EVENTS)
        now = time.monotonic()
        stood_still = now - self._looked_at > LOOK_INTERVAL_S + LATE_AFTER_S
        if stood_still and not found:  # A process that goes on finds its wait interrupted.
            found = self._poll.poll(0, MOST_EVENTS)
        self._is_behind = stood_still or (self._is_behind and self._was_full)
        self._looked_at, self._was_full = now, len(found) == MOST_EVENTS
        return [fd for fd, _ in found]

    def _timeout(self) -> float:
        now = time.monotonic()
        due = [now + LOOK_INTERVAL_S]
        if self._strangers:
            due.append(next(iter(self._strangers.values())).since + GREETING_TIMEOUT_S)
        if self._accepts_at:
            due.append(self._accepts_at)
        return max(0.0, min(due) - now)

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                # A client that is gone again does no harm. Without a free descriptor, the listener would wake this
                # process again and again.
                if isinstance(error, ConnectionError):
                    continue
                self._poll.modify(self._listener.fileno(), 0)
                self._accepts_at = time.monotonic() + ACCEPT_PAUSE_S
                return
            sock.setblocking(False)
            self._keep_alive(sock)
            self._peers[sock.fileno()] = self._strangers[sock.fileno()] = Peer(sock, time.monotonic())
            self._poll.register(sock.fileno(), select.EPOLLIN | select.EPOLLRDHUP)
            if len(self._strangers) > MOST_STRANGERS:
                self._drop(next(iter(self._strangers.values())))

    def _keep_alive(self, sock: socket.socket) -> None:
        """Give the descriptor of a machine that is gone without a word back within some minutes."""
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 60)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 20)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)

    def _hear(self, peer: Peer) -> None:
        is_told = not self._is_behind
        try:
            data = peer.socket.recv(MOST_LINE_BYTES)
        except BlockingIOError:
            return
        except OSError as error:
            data = b""
            is_told = is_told and error.errno not in SILENT_ERRORS
        peer.received += data
        while b"\n" in peer.received:
            line, _, peer.received = peer.received.partition(b"\n")
            if not self._take(peer, line):
                return
        if not data or len(peer.received) > MOST_LINE_BYTES:
            self._end(peer, "-" if is_told else "")

    def _take(self, peer: Peer, line: bytes) -> bool:
        """Take one line. False if the connection has ended with it."""
        if peer.name:
            self._end(peer, WORDS.get(line, "-"))
            return False
        name = line[len(self._greeting) :].decode(errors="replace")
        if not line.startswith(self._greeting) or not (name.isascii() and name.isalnum()):
            self._drop(peer)
            return False
        if self._has_given_up(peer) or not self._confirm(peer):
            self._drop(peer)
            return False
        del self._strangers[peer.socket.fileno()]
        peer.name = name
        self._newest[name] = peer
        self._tell("+", name)
        return True

    @staticmethod
    def _has_given_up(peer: Peer) -> bool:
        """Whether a client has greeted and is gone: this process may have let it wait for too long.

        Such a node most often lives, and knows of no lifeline. So it would not beat at once when that lifeline ends.
        """
        try:
            return not peer.socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    @staticmethod
    def _confirm(peer: Peer) -> bool:
        try:
            peer.socket.send(b"ok\n")
        except OSError:
            return False
        return True

    def _end(self, peer: Peer, sign: str) -> None:
        """End a connection, and tell the sign, if there is one."""
        self._drop(peer)
        if self._newest.get(peer.name) is peer:
            del self._newest[peer.name]
            if sign:
                self._tell(sign, peer.name)

    def _drop(self, peer: Peer) -> None:
        fd = peer.socket.fileno()
        self._peers.pop(fd, None)
        self._strangers.pop(fd, None)
        peer.socket.close()

    def _send_strangers_off(self) -> None:
        now = time.monotonic()
        while self._strangers:
            oldest = next(iter(self._strangers.values()))
            if now < oldest.since + GREETING_TIMEOUT_S:
                break
            self._drop(oldest)
        if self._accepts_at and now >= self._accepts_at:
            self._accepts_at = 0.0
            self._poll.modify(self._listener.fileno(), select.EPOLLIN)

    def _tell(self, sign: str, name: str) -> None:
        sys.stdout.write(f"{sign}{name}\n")
        sys.stdout.flush()


def main(listen_fd: int, host_fd: int, epoch: str) -> None:
    """Serve at a socket that listens, until the process with this pidfd has ended."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.suppress(BrokenPipeError):  # The host has ended, or has closed its lifelines.
        Switchboard(socket.socket(fileno=listen_fd), host_fd, epoch).serve()
    # The interpreter's own end would close ten thousand connections one by one, and flush into a broken pipe.
    os._exit(0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])
