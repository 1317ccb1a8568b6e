"""What a run keeps while one cycle lasts: in the store, and in the coordinator's memory.

The other checkers do not look into the coordinator. This one counts what is there, and believes none of it.
"""

# ruff: noqa: ARG002 - a checker is told every sighting whole, and looks at what it needs.

from __future__ import annotations

from typing import TYPE_CHECKING

from ft_rendezvous.protocol.stored_cycles import StoredCycles
from tests.sim.checkers.base import Checker

if TYPE_CHECKING:
    from tests.sim.world import World


class one_long_cycle_is_bounded(Checker):
    """However long a cycle lasts, and however many starts are refused in it, only what is new is kept: records that the
    coordinator has not read, fences that were just written, nodes that live, and a few names."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._log_bytes: dict[str, int] = {}
        self._long_since: dict[str, float] = {}
        """Logs that are long enough to be emptied."""
        self._fenced_at: dict[str, float] = {}
        self._dead_since: dict[str, float] = {}
        self._patience_s = self._settings.lease_s + 2 * self._settings.beat_s

    @property
    def _stored(self) -> StoredCycles:
        return self._world.host.coordinator.stored

    def appended(self, key: str, size_bytes: int) -> None:
        self._log_bytes[key] = self._log_bytes.get(key, 0) + size_bytes
        if self._log_bytes[key] >= self._stored.long_log_bytes:
            self._long_since.setdefault(key, self._now)

    def log_emptied(self, key: str) -> None:
        self._log_bytes.pop(key, None)
        self._long_since.pop(key, None)

    def deleted(self, key: str) -> None:
        self.log_emptied(key)

    def fenced(self, incarnation: str, reason: str) -> None:
        self._fenced_at[incarnation] = self._now

    def second_passes(self) -> None:
        host, server = self._world.host, self._world.server
        if host.is_done or host.process.is_dead or host.process.is_paused or server.is_paused:
            return
        # A coordinator that was paused, or whose store did not answer, has deleted nothing in the meantime.
        since = max(host.process.resumed_at, host.process.disturbed_at)
        if self._now > since + self._patience_s:
            self._judge_store(self._now - self._patience_s)
            self._judge_memory()

    def _judge_store(self, before: float) -> None:
        keys, data = self._stored.keys, self._world.server.store.data
        # A log that was deleted may be brought back by a late record. It is deleted again with later cycles.
        oldest = min((reader.cycle_id for reader in self._stored.readers), default=0)
        for key, since in self._long_since.items():
            if since < before and int(key.split("/")[4]) >= oldest:
                self.fail(f"{key} has {self._log_bytes[key]} bytes, and was not emptied")
        for incarnation, fenced_at in self._fenced_at.items():
            if fenced_at + self._stored.fence_retention_s < before and keys.fence(incarnation) in data:
                self.fail(f"the fence of {self._name(incarnation)} is {self._now - fenced_at:.3f} s old")

    def _judge_memory(self) -> None:
        membership = self._world.host.coordinator.membership
        roster, notes = membership.roster, membership.ledger.notes
        for names in (roster.fenced, roster.refused):
            if len(names) > names.most:
                self.fail(f"{len(names)} incarnations that are over are remembered, not {names.most}")
        if len(notes) > len(roster.world):
            self.fail(f"{len(notes)} failures are noted in a world of {len(roster.world)}")
        for node in self._world.nodes:
            if node.is_dead:
                self._dead_since.setdefault(node.name, self._now)
        for incarnation in {*roster.members, *membership.leases.leases}:
            since = self._dead_since.get(self._world.node_of(incarnation).name, self._now)
            if self._now > since + self._settings.lease_s + 2 * self._patience_s:
                self.fail(f"{self._name(incarnation)} is a member, {self._now - since:.3f} s after its death")
