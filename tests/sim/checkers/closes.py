"""The end of a run, judged by facts: what was injected, what nodes did, and what time it was."""

# ruff: noqa: ARG002 - a checker is told every sighting whole, and looks at what it needs.

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from ft_rendezvous.core.model import (
    AnyRecord,
    Arrival,
    Called,
    Closed,
    Goodbye,
    NodeInfo,
    Opened,
    Outcome,
    Request,
    RequestKind,
    Sealed,
    Seat,
    VerdictKind,
    Withdrawal,
    node_key,
)
from ft_rendezvous.host.verdict_file import VERDICT_FILE_TIMEOUT_S
from ft_rendezvous.protocol.participant import Place
from tests.sim.checkers.base import Checker
from tests.sim.faults import Ending
from tests.sim.kernel import Process
from tests.sim.naive_capacity import count_placeable, least_nodes

if TYPE_CHECKING:
    from tests.sim.agent import SimNode
    from tests.sim.world import World


class every_close_is_justified(Checker):
    """A run is closed as failed or cancelled only for a reason that the facts of the run bear out.

    | reason | facts |
    |---|---|
    | closed by an operator | an operator wrote that request |
    | drained | nodes of the last world were asked to go, and too few others are left |
    | every node has left | no node is in the run, and nodes said goodbye since the last seal |
    | join_timeout | the host was at work for that long, and too few nodes were free and well |
    | unhealthy | so many nodes failed their health check, and were not replaced, that too few can remain |
    | finished or spent | workers of the last world ended well, or for good, and too few others are left |
    | max_cycles | so many worlds ended because workers failed, without an excuse |
    | crash loop | so many of them in a row, each at its start |

    Too few are left only if that holds for the nodes that nothing has happened to for a few leases, too: a stall of the
    host or a reset must not be taken for a loss.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._closers: set[str] = set()
        self._asked: set[str] = set()
        self._finished: set[str] = set()
        self._spent: set[str] = set()
        self._left: list[str] = []
        self._refused: set[SimNode] = set()
        self._unfit: dict[str, None] = {}
        """Nodes that failed their health check and were not replaced, oldest first."""
        self._known: set[str] = set()
        self._said: list[Arrival | Withdrawal] = []
        self._free_since: dict[Process, float] = {}
        """When nodes without workers arrived: others train, or take their time to stop."""
        self._cycle_id = 1
        self._waits_since: float | None = None
        """How long the host had been at work when the open cycle began to wait for nodes."""
        self._at_work_s = self._read_at = 0.0
        self._short_since = 0.0
        """How long the host had been at work when too few groups were sealed."""
        self._facts: dict[str, Callable[[Closed], str]] = {
            "closed by an operator": lambda _: "" if self._closers else "no operator asked for it",
            "drained": self._doubt_drain,
            "every node has left": self._doubt_all_left,
            "join_timeout": self._doubt_join_timeout,
            "max_cycles": self._doubt_budget,
            "crash loop": self._doubt_loop,
        }

    # --- facts --------------------------------------------------------------------------------------

    def record(self, record: AnyRecord, process: Process) -> None:
        match record:
            case Request(kind=RequestKind.CLOSE) if process in self._world.operators:
                self._closers.add(record.incarnation)
            case Goodbye(outcome=Outcome.LEFT | Outcome.DRAINED):
                self._left.append(record.incarnation)
            case Arrival():
                self._waits_since = self._at_work_s if self._waits_since is None else self._waits_since
                self._said.append(record)
                self._free_since.setdefault(process, self._now)
            case Withdrawal():
                self._said.append(record)

    def called(self, event: Called, draining: set[str]) -> None:
        self._asked |= draining

    def fenced(self, incarnation: str, reason: str) -> None:
        if reason.startswith("refused"):
            self._refused.add(self._world.node_of(incarnation))

    def opened(self, event: Opened) -> None:
        is_enough = len(self._census.sealed_groups) >= self._settings.min_groups - 1
        if event.group is not None and is_enough:
            self._short_since = self._at_work_s
        if event.group is not None:
            return
        self._cycle_id = event.cycle_id
        if event.cycle_id > 1:
            self._waits_since = self._at_work_s

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        if event.group is None:
            self._finished.clear()
            self._spent.clear()
            self._left.clear()

    def takes_place(self, node: SimNode, place: Place) -> None:
        self._free_since.pop(node, None)

    def workers_end(self, node: SimNode, place: Place, ending: Ending) -> None:
        if ending is Ending.WELL:
            self._finished.add(place.incarnation)
        elif ending is Ending.FOR_GOOD or node.restarts_left == 0:
            self._spent.add(place.incarnation)

    def logs_read(self) -> None:
        # The coordinator reads several times per lease, unless it or the store stands still.
        since_s, self._read_at = self._now - self._read_at, self._now
        self._at_work_s += since_s if since_s < self._settings.lease_s else self._settings.beat_s
        said, self._said = self._said, []
        for record in said:
            if isinstance(record, Withdrawal):
                self._unfit[node_key(record.node)] = None
        for record in said:
            if isinstance(record, Arrival):
                self._unfit.pop(node_key(record.node), None)
        # Where more nodes have come than the run can use, the first that were unfit have been replaced. A newcomer
        # counts at the next read: it may be refused.
        known, self._known = self._known, set(self._census.members)
        while self._unfit and len(known & self._known) + len(self._unfit) > self._settings.max_nodes:
            del self._unfit[next(iter(self._unfit))]

    # --- judging ------------------------------------------------------------------------------------

    def closed(self, event: Closed) -> None:
        if event.verdict.kind is VerdictKind.SUCCEEDED:
            return
        reason = re.sub(r"^group \d+: ", "", event.verdict.reason)
        doubt = next((judge for word, judge in self._facts.items() if reason.startswith(word)), self._doubt_other)
        if found := doubt(event):
            self.fail(f"{event.verdict}: {found}")

    def _doubt_drain(self, event: Closed) -> str:
        if not self._asked & self._census.world.keys():
            return "no node of the last world was asked to go"
        return self._doubt_shortage()

    def _doubt_all_left(self, event: Closed) -> str:
        if self._census.members:
            return f"{len(self._census.members)} nodes are in the run"
        return self._doubt_shortage() if self._left else "no node has said goodbye"

    def _doubt_join_timeout(self, event: Closed) -> str:
        settings = self._settings
        waited_s = self._at_work_s - (self._waits_since or 0.0)
        if "groups train" in event.verdict.reason:
            sealed = len(self._census.sealed_groups)
            if sealed >= settings.min_groups:
                return f"{sealed} groups train"
            waited_s = self._at_work_s - self._short_since
            return "" if waited_s >= settings.join_s - settings.beat_s else f"it was short for {waited_s:.3f} s"
        if waited_s < settings.join_s - settings.beat_s:
            return f"the host was at work for {waited_s:.3f} s of {settings.join_s:.3f} s"
        able, census = self._census.able(), self._census
        here = [info for name, info in able.items() if census.arrived_in[name] == self._cycle_id]
        since = self._now - VERDICT_FILE_TIMEOUT_S - settings.beat_s
        return self._doubt_shortage(here, lambda node: self._free_since.get(node, self._now) < since)

    def _doubt_budget(self, event: Closed) -> str:
        chargeable, limit = self._world.eyes.account.chargeable, self._settings.max_cycles
        return "" if 0 < limit <= chargeable else f"{chargeable} worlds ended because workers failed"

    def _doubt_loop(self, event: Closed) -> str:
        streak, limit = self._world.eyes.account.streak, self._settings.crash_loop
        return "" if 0 < limit <= streak else f"{streak} worlds in a row failed at their start"

    def _doubt_other(self, event: Closed) -> str:
        settings, reason = self._settings, event.verdict.reason
        if "unhealthy" in reason:
            if settings.max_nodes - len(self._unfit) >= self._least:
                return f"{len(self._unfit)} nodes are unfit and not replaced"
            return self._doubt_shortage()
        is_known = ("finished" in reason, "spent" in reason)
        if is_known == (False, False):
            return "this is no reason to close a run"
        if (is_known[0] and not self._finished) or (is_known[1] and not self._spent):
            return f"{len(self._finished)} nodes finished, {len(self._spent)} agents spent their restarts"
        return self._doubt_shortage()

    def _doubt_shortage(
        self, here: list[NodeInfo] | None = None, is_ready: Callable[[SimNode], bool] = lambda _: True
    ) -> str:
        """Why it is not true that too few nodes are left: of those in the run, or of those that are well."""
        settings = self._settings
        here = list(self._census.able().values()) if here is None else here
        if count_placeable(here, settings) >= self._least:
            return f"{len(here)} nodes are there"
        well = [node.info for node in self._world.nodes if self._is_well(node) and is_ready(node)]
        return f"{len(well)} nodes are well" if count_placeable(well, settings) >= self._least else ""

    @property
    def _least(self) -> int:
        return least_nodes(self._settings, is_first=not self._census.has_sealed)

    def _is_well(self, node: SimNode) -> bool:
        """Whether nothing has happened to a node for a few leases, so that it must be in the run."""
        settings = self._settings
        if node.is_dead or node.is_leaving or node.has_ended_well or node.is_paused or node.is_cut_off or node.ailment:
            return False
        if node.link is None or node.link.participant.is_going or node in self._refused:
            return False
        if node.link.participant.incarnation in self._asked:
            return False  # It has not heard yet that it is to go.
        since = self._now - 3 * settings.lease_s - 2 * settings.beat_s
        return max(node.born_at, node.disturbed_at, node.delays.spikes_until) < since


class the_host_stays_while_needed(Checker):
    """A node that hosts the store leaves an open run only when no other node is in it."""

    def host_leaves(self) -> None:
        if self._census.members:
            names = " ".join(map(self._name, self._census.members))
            self.fail(f"the host leaves, and {names} are in the run")
