"""What the store holds: as much as the run needs, and all that was said."""

# ruff: noqa: ARG002 - a checker is told every sighting whole, and looks at what it needs.

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from ft_rendezvous.core.model import (
    Closed,
    Opened,
)
from tests.sim.checkers.base import Checker

if TYPE_CHECKING:
    from tests.sim.world import World


class keys_are_bounded(Checker):
    """The store holds what the last cycles and the nodes of a run need, however long it lasts."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._is_closed = False
        self._opened_at: deque[float] = deque()

    def opened(self, event: Opened) -> None:
        self._opened_at.append(self._now)

    def closed(self, event: Closed) -> None:
        self._is_closed = True

    def second_passes(self) -> None:
        if self._is_closed:
            return
        # A node that does not act upon events holds the keys of later cycles, and is fenced after two leases; a
        # paused coordinator deletes nothing.
        settings, host = self._settings, self._world.host.process
        patience_s = 2 * settings.lease_s + 4 * settings.beat_s
        was_paused = host.is_paused or self._now - host.resumed_at < patience_s
        since = (host.paused_at if was_paused else self._now) - patience_s
        while self._opened_at and self._opened_at[0] < since:
            self._opened_at.popleft()
        cycles, per_cycle, per_incarnation = 5 + len(self._opened_at), 22, 3
        limit = cycles * per_cycle + per_incarnation * len(self._world.incarnations)
        count = len(self._world.server.store.data)
        if count > limit:
            self.fail(f"{count} keys in the store, at most {limit} are needed")


class nothing_said_is_lost(Checker):
    """What was appended to a log stays there until the coordinator has read it, or the log is deleted as a whole."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._sizes: dict[str, int] = {}
        self._read: dict[str, int] = {}

    def appended(self, key: str, size_bytes: int) -> None:
        self._sizes[key] = self._sizes.get(key, 0) + size_bytes

    def deleted(self, key: str) -> None:
        self._sizes.pop(key, None)

    def log_emptied(self, key: str) -> None:
        if self._sizes.pop(key, 0) > self._read.get(key, 0):
            self.fail(f"{key} was emptied before all that was said in it was read")

    def logs_read(self) -> None:
        data = self._world.server.store.data
        for key, size_bytes in self._sizes.items():
            if len(data.get(key, b"")) < size_bytes:
                self.fail(f"{key} has lost what was said in it")
        self._read = dict(self._sizes)
