"""For training scripts that use torchft: `attach(manager)` tells torchft at once what the agents of the run know.

Torchft finds out by itself that a replica group is gone: by a closed connection, or by a timeout of a minute. The
agents know it sooner. This module ends the collective that waits for a lost group, so that torchft forms its next
quorum now. It also keeps a worker that stood still for long, or whose script has failed, from joining one. It decides
nothing else, and changes no result: a step whose collective was ended is not committed, as after any error.

A pending collective of gloo has no abort. It ends when its connections do. Gloo puts the timeout of the process group
on the sockets of its connections, so this module gives the process group a timeout that no other one has, and finds
them by it. It shuts down only those: a listening socket that is shut down would end the process. Other process groups
(NCCL, and those of torchft that run in a process of their own) have an abort that works.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from types import TracebackType
from typing import Any

from torchft.manager import Manager
from torchft.process_group import ProcessGroup, ProcessGroupGloo

from ft_rendezvous import worker
from ft_rendezvous.errors import PlaceLost

log = logging.getLogger("ft_rendezvous")

MARKS_S = (0.137, 0.157, 0.177, 0.197)
"""What marks the timeout of a process group, one per manager. Timeouts that people choose have no such fraction."""
MARK_TOLERANCE_S = 0.011
"""The kernel rounds a timeout of a socket up to its clock, which may tick a hundred times per second."""
LOSS_MEMORY_S = 3.0
"""How long a member that was lost spoils a quorum. A quorum with it can come late: formed before, or just after."""
LOOK_INTERVAL_S = 0.25
"""How often this module looks at the clock, to find out whether this process stood still."""
STANDSTILL_S = 1.0
"""A process that stood still for longer asks its agent whether its place still stands. Less than a lease."""
ANSWER_TIMEOUT_S = 5.0
"""How long the agent may take to answer. It answers in less than a millisecond, unless it is stopped itself."""
RELEASE_INTERVAL_S = 0.05
"""How often the connections are looked for while torchft still opens them."""

_marks = itertools.cycle(MARKS_S)
_TIMEVAL = struct.Struct("ll")


def attach(manager: Manager) -> bool:
    """Tell this manager of lost groups, until the process ends. Call it once, before the first quorum.

    Pass `replica_id=os.environ["REPLICA_GROUP_ID"]` to the manager: then the loss of a group ends only a collective of
    which it is a member. If the own group is lost, this worker takes part in nothing any more. Returns False, and does
    nothing, if no agent of this backend has started this process.
    """
    attachment = _Attachment(manager)
    if not worker.on_group_lost(attachment.on_group_lost):
        return False
    attachment.install()
    return True


class _Attachment:
    """What is known of a manager's quorum, and the wrappers around the manager that let it know."""

    def __init__(self, manager: Manager) -> None:
        self._manager: Any = manager
        self._process_group = _innermost(self._manager._pg)
        self._lock = threading.Lock()
        self._members: tuple[str, ...] = ()
        """The replica ids of the last quorum."""
        self._lost_at: dict[str, float] = {}
        """When the group of a member was lost. The group comes back under another id."""
        self._quorum_count = 0
        self._is_broken = False
        """Whether a lost group is a member of the last quorum, or this worker has lost its place."""
        self._store_port: int | None = None
        """The port of the store through which the process group connects at this moment, if it does."""
        self._former_sockets: frozenset[int] = frozenset()
        """Sockets that were open before it began."""
        self._looked_at = time.monotonic()
        self._place_lock = threading.Lock()
        """Held while the agent is asked: a quorum must not start before the answer has come."""
        self._has_lost_place = False

    def install(self) -> None:
        manager, process_group = self._manager, self._process_group
        self._start_quorum, manager.start_quorum = manager.start_quorum, self._checked_start_quorum
        self._configure, process_group.configure = process_group.configure, self._watched_configure
        self._client, manager._client = manager._client, _WatchedClient(manager._client, self._on_quorum)
        if _is_gloo(process_group):
            process_group.set_timeout(_marked(process_group._timeout))
        threading.Thread(target=self._guard_place, name="ft-place", daemon=True).start()
        self._excepthook, sys.excepthook = sys.excepthook, self._on_uncaught_error

    # --- lost groups --------------------------------------------------------------------------------

    def on_group_lost(self, group: int, reason: str) -> None:
        """Called by the thread that listens to the agent."""
        if group == _group_of(f"{self._manager._replica_id}:"):
            with self._place_lock:
                self._lose_place(f"this group is lost: {reason}")
            return
        with self._lock:
            lost = [member for member in self._members if _group_of(member) in (group, None)]
            if not lost or len(self._members) < 2:
                return  # The quorum is without it. Or nothing can wait for it.
            # A member that does not name its group may be another group. Then one step is lost, and nothing more.
            self._lost_at |= {member: time.monotonic() for member in lost if _group_of(member) is not None}
            if self._is_broken:
                return
            self._is_broken = True
            broken = self._quorum_count
        log.warning("group %d is lost, so the collective across groups ends now: %s", group, reason)
        self._release(broken)

    def _release(self, quorum_count: int) -> None:
        """End what waits for a lost member of this quorum. Repeats it while connections are still being opened."""
        aborted = False
        while True:
            with self._lock:
                is_current = self._is_broken and self._quorum_count == quorum_count
                store_port, former_sockets = self._store_port, self._former_sockets
            if not is_current:
                return
            if _is_gloo(self._process_group):
                _shut_down_marked(self._process_group._timeout)
            elif store_port is None and not aborted:
                aborted = True
                self._process_group.abort()
            if store_port is None:
                return
            _shut_down_connections_to(store_port, former_sockets)
            time.sleep(RELEASE_INTERVAL_S)

    def _on_quorum(self, replica_ids: list[str]) -> None:
        """Torchft has a quorum, perhaps the same as before. It connects its members next, if it is another one."""
        with self._lock:
            self._members = tuple(replica_ids)
            self._quorum_count += 1
            remembered_since = time.monotonic() - LOSS_MEMORY_S
            self._lost_at = {member: at for member, at in self._lost_at.items() if at > remembered_since}
            self._is_broken = self._has_lost_place or not self._lost_at.keys().isdisjoint(self._members)

    def _watched_configure(self, store_addr: str, *args: Any, **kwargs: Any) -> None:
        port = store_addr.partition("/")[0].rpartition(":")[2]
        with self._lock:
            if self._is_broken:
                raise RuntimeError("a member of this quorum is lost: torchft forms the next one")
            self._former_sockets = frozenset(inode for _, inode in _open_sockets())
            self._store_port = int(port)
        try:
            self._configure(store_addr, *args, **kwargs)
        finally:
            with self._lock:
                self._store_port = None

    # --- the own place ------------------------------------------------------------------------------

    def _checked_start_quorum(self, *args: Any, **kwargs: Any) -> None:
        """A worker that stood still must not join: its agent is about to stop it, and the others would wait for it."""
        if not self._check_place():
            raise PlaceLost
        self._start_quorum(*args, **kwargs)

    def _guard_place(self) -> None:
        """Torchft's server in this process asks for a quorum again by itself if its connection broke meanwhile."""
        while self._check_place():
            time.sleep(LOOK_INTERVAL_S)

    def _check_place(self) -> bool:
        """Whether this process may go on. Asks the agent if this process stood still."""
        with self._place_lock:
            now = time.monotonic()
            stood_s, self._looked_at = now - self._looked_at, now
            if stood_s < STANDSTILL_S or self._has_lost_place:
                return not self._has_lost_place
            if not worker.is_place_trusted(ANSWER_TIMEOUT_S):
                self._lose_place(f"it stood still for {stood_s:.1f} s, and its agent does not confirm its place")
            self._looked_at = time.monotonic()
            return not self._has_lost_place

    def _on_uncaught_error(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        """The script has failed, perhaps because another rank of this group is gone.

        The end of a process that uses torch takes seconds. Until then its heartbeats and open connections would keep
        the other groups waiting.
        """
        self._excepthook(kind, error, trace)
        with self._place_lock:
            self._lose_place(f"its script failed with {kind.__name__}")

    def _lose_place(self, reason: str) -> None:
        """Take part in nothing any more, so that no other group waits for this one. Under the lock of the place."""
        if self._has_lost_place:
            return
        self._has_lost_place = True
        log.error("this worker has lost its place, and joins no quorum: %s", reason)
        if self._manager._manager is not None:
            self._manager._manager.shutdown()  # No more heartbeats, and no quorum.
        with self._lock:
            self._is_broken = True
            broken = self._quorum_count
        self._release(broken)


class _WatchedClient:
    """Torchft's client of the group's manager. It passes on who is in each quorum."""

    def __init__(self, client: Any, on_quorum: Callable[[list[str]], None]) -> None:
        self._client, self._on_quorum = client, on_quorum

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def _quorum(self, *args: Any, **kwargs: Any) -> Any:
        quorum = self._client._quorum(*args, **kwargs)
        self._on_quorum(quorum.replica_ids)
        return quorum


def _group_of(replica_id: str) -> int | None:
    """The group that a manager was given as its replica id. None if it was given none, or one without a number.

    Torchft appends `:` and a random id. Like torchft, this takes the digits at the end of what was given.
    """
    given, colon, _ = replica_id.partition(":")
    digits = given[len(given.rstrip("0123456789")) :]
    return int(digits) if colon and digits else None


# --- process groups and their sockets ---------------------------------------------------------------


def _innermost(process_group: Any) -> Any:
    """The process group that opens connections, without the wrappers around it."""
    while isinstance(inner := getattr(process_group, "_pg", None), ProcessGroup):
        process_group = inner
    return process_group


def _is_gloo(process_group: Any) -> bool:
    return isinstance(process_group, ProcessGroupGloo)


def _marked(timeout: timedelta) -> timedelta:
    return timedelta(seconds=math.ceil(timeout.total_seconds()) + next(_marks))


def _open_sockets() -> list[tuple[int, int]]:
    """Descriptor and inode of every socket of this process."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # It was closed meanwhile.
            continue
        if target.startswith("socket:["):
            found.append((int(name), int(target[8:-1])))
    return found


@contextmanager
def _borrowed(fd: int, inode: int) -> Iterator[socket.socket | None]:
    """A connected socket, under a descriptor of our own. None if the given one has another socket, or none, by now."""
    try:
        own_fd = os.dup(fd)
    except OSError:
        yield None
        return
    with socket.socket(fileno=own_fd) as sock:
        is_same = os.fstat(own_fd).st_ino == inode
        is_stream = sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM
        is_connection = is_stream and not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
        yield sock if is_same and is_connection else None


def _shut_down_marked(timeout: timedelta) -> None:
    """Shut down the connections that gloo has opened with this timeout."""
    for fd, inode in _open_sockets():
        with _borrowed(fd, inode) as sock:
            if sock is not None and _has_timeout(sock, timeout.total_seconds()):
                _shut_down(sock)


def _has_timeout(sock: socket.socket, timeout_s: float) -> bool:
    for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
        seconds, micros = _TIMEVAL.unpack(sock.getsockopt(socket.SOL_SOCKET, option, _TIMEVAL.size))
        if not 0 <= seconds + micros / 1e6 - timeout_s + 1e-6 < MARK_TOLERANCE_S:
            return False
    return True


def _shut_down_connections_to(port: int, former: frozenset[int]) -> None:
    """Shut down the connections to a port of any machine that are not among the former sockets."""
    for fd, inode in _open_sockets():
        if inode in former:
            continue
        with _borrowed(fd, inode) as sock:
            try:
                is_meant = sock is not None and sock.getpeername()[1] == port
            except OSError:  # It is not connected any more.
                continue
            if sock is not None and is_meant:
                _shut_down(sock)


def _shut_down(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:  # It is not connected any more.
        return
