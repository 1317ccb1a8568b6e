"""Blame: what the run and its nodes are charged with, and what becomes of a node that is in quarantine."""

# ruff: noqa: ARG002 - a checker is told every sighting whole, and looks at what it needs.

from __future__ import annotations

from typing import TYPE_CHECKING

from ft_rendezvous.core.blame import Ledger
from ft_rendezvous.core.model import AnyEvent, Sealed, Seat
from tests.sim.checkers.base import Checker
from tests.sim.naive_blame import identities

if TYPE_CHECKING:
    from tests.sim.world import World


class charges_are_just(Checker):
    """The run's budget is charged only for a world whose workers failed, and not for a stall of the host, a lost node
    or an end that was asked for. A node is charged only if its own workers failed."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._charged = 0
        self._failures: dict[str, int] = {}

    def published(self, event: AnyEvent) -> None:
        self._judge()

    def fenced(self, incarnation: str, reason: str) -> None:
        self._judge()

    def _judge(self) -> None:
        """The coordinator settles a world just before it seals the next one, closes the run, or fences the guilty."""
        ledger, account = self._ledger, self._world.eyes.account
        charges, self._charged = ledger.charged - self._charged, ledger.charged
        # With groups, several may be charged before the first of their seals is seen.
        ended = sum(bool(end.failed) and not end.excuse for end in account.ends.values())
        if charges > max(1, ended):
            self.fail(f"{charges} cycles were charged to the run: only {ended} worlds have ended")
        if charges and not account.failed:
            self.fail(f"a cycle was charged to the run: {account.excuse or 'no workers of it had failed'}")
        failed = {key for name in account.failed for key in (*identities(self._world.node_of(name).info), name)}
        for key, count in ledger.failures.items():
            if count > self._failures.get(key, 0) and (not charges or key not in failed):
                self.fail(f"{key} was charged with a failure that is not its own: {account.excuse or sorted(failed)}")
        self._failures = dict(ledger.failures)

    @property
    def _ledger(self) -> Ledger:
        return self._world.host.coordinator.membership.ledger


class quarantined_are_not_placed(Checker):
    """A node that was put into quarantine gets no place before its time is over, under no incarnation."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._until: dict[str, float] = {}
        """On the clock of the host."""

    def published(self, event: AnyEvent) -> None:
        # The host forgets a quarantine when it is over.
        self._until.update(self._world.host.coordinator.membership.ledger.until)

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        now = self._world.host.process.clock()
        for name, seat in seats.items() if self._until else ():
            left_s = max(self._until.get(key, now) - now for key in identities(self._world.node_of(name).info))
            if seat.rank is not None and left_s > 0.01:
                what = f"{self._name(name)} is placed in cycle {event.cycle_id}"
                self.fail(f"{what}, and is in quarantine for another {left_s:.1f} s")
