"""Why each world ended, told from what happened to it and not from what was written about it.

A second account beside the ledger: it knows which workers were made to fail, which nodes were lost, and when the host
stood still. Judges nothing.
"""

# ruff: noqa: ARG002 - a checker is told every sighting whole, and looks at what it needs.

from __future__ import annotations

from typing import TYPE_CHECKING

from ft_rendezvous.core.model import (
    AnyRecord,
    Closed,
    Goodbye,
    NodeInfo,
    NodesDrain,
    Opened,
    Outcome,
    RestartRequested,
    Sealed,
    Seat,
    Withdrawal,
    WorldGrows,
)
from ft_rendezvous.protocol.participant import Place
from tests.sim.checkers.base import Checker
from tests.sim.faults import Ending
from tests.sim.kernel import Process

if TYPE_CHECKING:
    from tests.sim.agent import SimNode
    from tests.sim.world import World


def identities(info: NodeInfo) -> tuple[str, ...]:
    """The names under which a node is known across its starts: its infra rank, else its address."""
    return (f"infra rank {info.infra_rank}",) if info.infra_rank is not None else (f"address {info.addr}",)


class Account(Checker):
    """Sees everything before the checkers do, and after the census."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.failed: dict[str, float] = {}
        """Incarnations of the last world whose workers failed, and how long after they had taken their places."""
        self.excuse = ""
        """Why no node is to blame for the end of the last world."""
        self.chargeable = 0
        """Worlds that ended because workers failed, with no excuse."""
        self.streak = 0
        """Those of them in a row, up to now, that failed at their start."""
        self._cycle_id = 0
        self._is_settled = False
        """The end of the last world was charged before the next one could be sealed: a node was quarantined."""
        self._sealed_at = 0.0
        self._read_at = 0.0
        self._took_place_at: dict[str, float] = {}
        self._said: list[AnyRecord] = []

    # --- a world begins and ends --------------------------------------------------------------------

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        self._settle()
        self._cycle_id, self._sealed_at = event.cycle_id, self._now
        self.failed, self.excuse, self._is_settled = {}, "", False

    def closed(self, event: Closed) -> None:
        self._settle()

    def _settle(self) -> None:
        if self._is_settled:
            return
        self._is_settled = True
        if self.failed and not self.excuse:
            self.chargeable += 1
            self.streak = self.streak + 1 if min(self.failed.values()) <= self._settings.crash_loop_s + 0.01 else 0
        else:
            self.streak = 0

    def opened(self, event: Opened) -> None:
        if isinstance(event.why, RestartRequested | NodesDrain | WorldGrows):
            self._excuse("its end was asked for")

    # --- what happens to it -------------------------------------------------------------------------

    def takes_place(self, node: SimNode, place: Place) -> None:
        self._took_place_at[place.incarnation] = self._now

    def workers_end(self, node: SimNode, place: Place, ending: Ending) -> None:
        if ending is not Ending.WELL and place.cycle_id == self._cycle_id:
            self.failed[place.incarnation] = self._now - self._took_place_at[place.incarnation]

    def record(self, record: AnyRecord, process: Process) -> None:
        if isinstance(record, Goodbye | Withdrawal):
            self._said.append(record)

    def logs_read(self) -> None:
        said, self._said = self._said, []
        for record in said:
            if isinstance(record, Withdrawal) or (isinstance(record, Goodbye) and record.outcome is not Outcome.FAILED):
                self._lose(record.incarnation, "left")
        # The coordinator reads several times per lease, unless it or the store stands still.
        stood_still_s = self._now - max(self._read_at, self._sealed_at)
        if stood_still_s > self._settings.lease_s * (1 + 2e-4) + 0.01:
            self._excuse(f"the host stood still for {stood_still_s:.3f} s")
        self._read_at = self._now

    def fenced(self, incarnation: str, reason: str) -> None:
        if reason.startswith("refused: quarantined"):
            self._settle()
        else:
            self._lose(incarnation, "was lost")

    def _lose(self, incarnation: str, how: str) -> None:
        """A node of this world is gone. One that has come to the next cycle has ended its part in this one."""
        census = self._census
        is_of_world = incarnation in census.world and incarnation not in census.finished
        if is_of_world and census.arrived_in.get(incarnation, 0) <= self._cycle_id:
            self._excuse(f"{self._name(incarnation)} {how}")

    def _excuse(self, why: str) -> None:
        self.excuse = self.excuse or why
