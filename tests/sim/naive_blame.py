"""Why each world ended, told from what happened to it and not from what was written about it.

A second account beside the ledger: it knows which workers were made to fail, which nodes were lost, and when the host
stood still. Judges nothing.
"""

# ruff: noqa: ARG002 - a checker is told every sighting whole, and looks at what it needs.

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ft_rendezvous.core.model import (
    AnyRecord,
    Closed,
    Goodbye,
    GroupFailsAgain,
    NodeInfo,
    NodesDrain,
    NoGroupTrains,
    Opened,
    Outcome,
    RestartRequested,
    Sealed,
    Seat,
    Withdrawal,
    WorkersHang,
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


@dataclass(slots=True)
class WorldEnd:
    """What happened to the last world of a group."""

    cycle_id: int
    sealed_at: float
    failed: dict[str, float] = field(default_factory=dict)
    """Incarnations whose workers failed, and how long after they had taken their places."""
    excuse: str = ""
    """Why no node is to blame for its end."""
    is_settled: bool = False
    """Its end was charged."""


class Account(Checker):
    """Sees everything before the checkers do, and after the census."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.ends: dict[int, WorldEnd] = {}
        """By group."""
        self.chargeable = 0
        """Worlds that ended because workers failed, with no excuse."""
        self.streaks: dict[int, int] = {}
        """Those of each group in a row, up to now, that failed at their start."""
        self._common_streak = 0
        """Common cycles in a row that ended because some group failed at its start."""
        self._read_at = 0.0
        self._took_place_at: dict[str, float] = {}
        self._said: list[AnyRecord] = []
        self._ranks: dict[int, dict[str, int]] = {}
        """The nodes of each group's last world, by node rank."""

    @property
    def failed(self) -> set[str]:
        """Nodes whose workers failed in worlds that can be charged."""
        return {name for end in self.ends.values() if not end.excuse for name in end.failed}

    @property
    def excuse(self) -> str:
        """Why no world can be charged, if some had failures."""
        return next((end.excuse for end in self.ends.values() if end.excuse), "")

    @property
    def streak(self) -> int:
        return max([self._common_streak, *self.streaks.values()])

    # --- a world begins and ends --------------------------------------------------------------------

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        groups = set(event.masters) if event.group is not None else {*event.masters, *self.ends}
        if event.group is None:
            self._settle_common()
        for group in groups:
            self._settle(group)
            self.ends.pop(group, None)
        for group in event.masters:
            self.ends[group] = WorldEnd(event.cycle_id, self._now)
            self._ranks[group] = {n: s.rank for n, s in seats.items() if s.rank is not None and s.group == group}

    def closed(self, event: Closed) -> None:
        self._settle_common()
        for group in self.ends:
            self._settle(group)

    def _settle_common(self) -> None:
        ends = [end for end in self.ends.values() if not end.is_settled]
        self._common_streak = self._common_streak + 1 if any(map(self._is_false_start, ends)) else 0

    def _is_false_start(self, end: WorldEnd) -> bool:
        limit_s = self._settings.crash_loop_s + 0.01
        return bool(end.failed) and not end.excuse and min(end.failed.values()) <= limit_s

    def _settle(self, group: int) -> None:
        end = self.ends.get(group)
        if end is None or end.is_settled:
            return
        end.is_settled = True
        self.chargeable += bool(end.failed) and not end.excuse
        self.streaks[group] = self.streaks.get(group, 0) + 1 if self._is_false_start(end) else 0

    def opened(self, event: Opened) -> None:
        if isinstance(event.why, RestartRequested | NodesDrain | WorldGrows):
            for group in self.ends if event.group is None else {event.group} & self.ends.keys():
                self._excuse(group, "its end was asked for")
        if isinstance(event.why, GroupFailsAgain):
            self._settle(event.why.group)
        if isinstance(event.why, WorkersHang):
            self._note_hang(event.group or 0)
        if isinstance(event.why, NoGroupTrains):
            for group in event.why.groups:
                self._note_hang(group)

    def _note_hang(self, group: int) -> None:
        """A world ends while it stands still: the odd node failed, or if there is no such node, all did.

        If a node that has announced a pause does not say so in time, the coordinator takes the pause for a hang.
        """
        end = self.ends.get(group)
        hang = None if end is None else self._world.hangs.hangs.get((end.cycle_id, group))
        if end is None or hang is None:
            return
        ranks = self._ranks[group]
        odd = [name for name, rank in ranks.items() if rank in hang.odd] if len(hang.odd) == 1 else list(ranks)
        for name in odd:
            end.failed.setdefault(name, self._now - self._took_place_at.get(name, end.sealed_at))

    # --- what happens to it -------------------------------------------------------------------------

    def takes_place(self, node: SimNode, place: Place) -> None:
        self._took_place_at[place.incarnation] = self._now

    def workers_end(self, node: SimNode, place: Place, ending: Ending) -> None:
        end = self.ends.get(place.group)
        if ending is not Ending.WELL and end is not None and place.cycle_id == end.cycle_id:
            end.failed[place.incarnation] = self._now - self._took_place_at[place.incarnation]

    def record(self, record: AnyRecord, process: Process) -> None:
        if isinstance(record, Goodbye | Withdrawal):
            self._said.append(record)

    def logs_read(self) -> None:
        said, self._said = self._said, []
        for record in said:
            if isinstance(record, Withdrawal) or (isinstance(record, Goodbye) and record.outcome is not Outcome.FAILED):
                self._lose(record.incarnation, "left")
        # The coordinator reads several times per lease, unless it or the store stands still.
        for group, end in self.ends.items():
            stood_still_s = self._now - max(self._read_at, end.sealed_at)
            if stood_still_s > self._settings.lease_s * (1 + 2e-4) + 0.01:
                self._excuse(group, f"the host stood still for {stood_still_s:.3f} s")
        self._read_at = self._now

    def fenced(self, incarnation: str, reason: str) -> None:
        if reason.startswith("refused: quarantined"):
            group = self._census.group_of(incarnation)
            for each in self.ends if group is None else (group,):
                self._settle(each)
        else:
            self._lose(incarnation, "was lost")

    def _lose(self, incarnation: str, how: str) -> None:
        """A node of a world is gone. One that has come to the next cycle has ended its part in this one."""
        census = self._census
        group = census.group_of(incarnation)
        end = None if group is None else self.ends.get(group)
        if group is None or end is None or incarnation in census.finished:
            return
        if census.arrived_in.get(incarnation, 0) <= end.cycle_id:
            self._excuse(group, f"{self._name(incarnation)} {how}")

    def _excuse(self, group: int, why: str) -> None:
        self.ends[group].excuse = self.ends[group].excuse or why
