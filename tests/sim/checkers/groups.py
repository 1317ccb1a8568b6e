"""Replica groups: one restarts for its own sake, the others train on, and a node is in one of them."""

# ruff: noqa: ARG002 - a checker is told every sighting whole, and looks at what it needs.

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from ft_rendezvous.core.model import (
    AnyEvent,
    AnyRecord,
    Arrival,
    Called,
    Closed,
    Failure,
    Goodbye,
    GroupFailsAgain,
    Late,
    Opened,
    Request,
    RequestKind,
    RestartRequested,
    Sealed,
    Seat,
    Withdrawal,
    WorkersFailed,
)
from ft_rendezvous.protocol.participant import Place
from tests.sim.checkers.base import Checker
from tests.sim.kernel import Process

if TYPE_CHECKING:
    from tests.sim.agent import SimNode
    from tests.sim.world import World


class groups_restart_for_their_own_sake(Checker):
    """A group that is sealed opens its next cycle only for a cause in that group, or a request. All groups restart
    together only if none of them trains on, or none can after several restarts of one, or on request."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._causes: defaultdict[int, list[str]] = defaultdict(list)
        """What has happened to each group since its seal."""
        self._sealed: set[int] = set()
        self._said: list[tuple[AnyRecord, bool]] = []
        self._asks_for_all = False

    def record(self, record: AnyRecord, process: Process) -> None:
        if self._settings.group_size and not isinstance(record, Arrival):
            self._said.append((record, process in self._world.operators))

    def logs_read(self) -> None:
        said, self._said = self._said, []
        for record, is_operators in said:
            match record:
                case Request(kind=RequestKind.RESTART) if is_operators and not record.target:
                    self._asks_for_all = True
                    for group in self._sealed:  # Each restarts for itself if others have finished.
                        self._causes[group].append("an operator asked")
                case Request(kind=RequestKind.RESTART) if is_operators:
                    self._causes[int(record.target)].append("an operator asked")
                case Failure() | Late() | Goodbye() | Withdrawal() | Request(kind=RequestKind.RESTART):
                    self._note(record.incarnation, type(record).__name__)

    def fenced(self, incarnation: str, reason: str) -> None:
        self._note(incarnation, reason)

    def called(self, event: Called, draining: set[str]) -> None:
        for name in draining:
            self._note(name, "drains")

    def _note(self, incarnation: str, what: str) -> None:
        group = self._census.group_of(incarnation)
        if group is not None:
            self._causes[group].append(what)

    def opened(self, event: Opened) -> None:
        if not self._settings.group_size:
            return
        if event.group is None:
            self._judge_all(event)
            self._sealed.clear()
        else:
            if event.group in self._sealed and not self._causes[event.group]:
                self.fail(f"cycle {event.cycle_id} of group {event.group} opens, and nothing happened to it")
            self._sealed.discard(event.group)

    def _judge_all(self, event: Opened) -> None:
        if isinstance(event.why, GroupFailsAgain) or event.cycle_id == 1:
            return
        if isinstance(event.why, RestartRequested):
            if not (self._asks_for_all or len(self._sealed) == 1):
                self.fail(f"cycle {event.cycle_id} opens for all groups, and no operator asked for it")
            return
        well = [group for group in sorted(self._sealed) if not self._causes[group]]
        if well:
            self.fail(f"cycle {event.cycle_id} opens for all groups, and nothing happened to {well}")

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        for group in event.masters:
            self._causes[group].clear()
            self._sealed.add(group)


class nodes_are_in_one_group(Checker):
    """A node is in one group at a time. Between two places it arrives again, so a spare is given once."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._places: dict[str, tuple[int, int]] = {}
        """The last cycle and group in which each incarnation was placed, if it has not arrived since."""

    def record(self, record: AnyRecord, process: Process) -> None:
        if isinstance(record, Arrival):
            self._places.pop(record.incarnation, None)

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        for name, seat in seats.items():
            if seat.rank is None:
                continue
            before = self._places.get(name)
            if before is not None:
                what = f"is placed in cycle {event.cycle_id}, group {seat.group}"
                self.fail(f"{self._name(name)} {what}, and has a place in cycle {before[0]}, group {before[1]}")
            self._places[name] = (event.cycle_id, seat.group)


SLACK = 2
"""Restarts of a group that the account from outside may count, and the coordinator may excuse."""


class restarts_of_a_group_are_bounded(Checker):
    """A group that fails `max_group_failures` times in a row without `crash_loop_s` of training does not restart alone
    any more: all groups restart, or the run ends. Unless other groups have finished, and can train no more."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._sealed_at: dict[int, float] = {}
        self._ended: dict[int, tuple[float, bool]] = {}
        """How long the last world of an open group has trained, and whether its workers failed."""
        self._in_row: defaultdict[int, int] = defaultdict(int)

    def published(self, event: AnyEvent) -> None:
        # Told before the account forgets what happened to the last world.
        match event:
            case Opened(group=int(group)) if group in self._sealed_at:
                trained_s = self._now - self._sealed_at.pop(group)
                self._ended[group] = (trained_s, isinstance(event.why, WorkersFailed))
            case Opened(group=None):
                self._sealed_at.clear()
            case Sealed(group=int(group)):
                self._judge(group)

    def _judge(self, group: int) -> None:
        trained_s, has_failed = self._ended.pop(group, (float("inf"), False))
        end, limit = self._world.eyes.account.ends.get(group), self._settings.max_group_failures
        if trained_s >= self._settings.crash_loop_s * (1 - 2e-4) - 0.05:
            self._in_row[group] = 0
        elif has_failed and end is not None and not end.excuse:
            self._in_row[group] += 1
        has_finished = not self._census.finished.isdisjoint(self._census.world)
        if 0 < limit + SLACK <= self._in_row[group] and limit and not has_finished:
            self.fail(f"group {group} restarts alone after {self._in_row[group]} failures in a row")

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        if event.group is None:
            self._in_row.clear()
        for group in event.masters:
            self._sealed_at[group] = self._now


class other_groups_train_on(Checker):
    """Workers of a group stop only if that group, or all of them, open another cycle, the run is closed, or their own
    node is out of touch."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._heard: dict[tuple[str, int | None], int] = {}
        self._closed: set[str] = set()
        self._fenced: set[str] = set()

    def fenced(self, incarnation: str, reason: str) -> None:
        self._fenced.add(incarnation)

    def hears(self, incarnation: str, event: AnyEvent) -> None:
        if isinstance(event, Opened):
            self._heard[incarnation, event.group] = event.cycle_id
        elif isinstance(event, Closed):
            self._closed.add(incarnation)

    def asks_whether_to_stop(self, node: SimNode, place: Place, must_stop: bool) -> None:
        if not must_stop or not self._settings.group_size:
            return
        name = place.incarnation
        newest = max(self._heard.get((name, group), 0) for group in (None, place.group))
        if newest > place.cycle_id or name in self._closed or name in self._fenced or self._is_disturbed(node):
            return
        self.fail(f"{node.name} stops its workers of cycle {place.cycle_id}, group {place.group}, for no reason")

    def _is_disturbed(self, node: SimNode) -> bool:
        host, server, settings = self._world.host.process, self._world.server, self._settings
        if node.is_paused or node.is_cut_off or host.is_paused or server.is_paused or server.is_dead:
            return True
        since = max(self._now - 3 * settings.lease_s - 2 * settings.beat_s, 1e-9)  # Nothing has happened at 0.
        return max(node.disturbed_at, node.delays.spikes_until, host.disturbed_at, node.resumed_at) >= since
