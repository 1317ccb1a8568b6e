"""The end of a run: no thread dies, and a run that has healed ends, in success where that is possible."""

# ruff: noqa: ARG002 - a checker is told every sighting whole, and looks at what it needs.

from __future__ import annotations

from typing import TYPE_CHECKING

from ft_rendezvous.core.capacity import Policy
from ft_rendezvous.core.model import (
    AnyRecord,
    Closed,
    Goodbye,
    Opened,
    Outcome,
    Request,
    RequestKind,
    Sealed,
    Seat,
    Verdict,
    VerdictKind,
    WorldGrows,
)
from ft_rendezvous.core.next_cycle import Grow
from ft_rendezvous.protocol.participant import Place
from tests.sim.checkers.base import Checker
from tests.sim.faults import Ending
from tests.sim.kernel import Process
from tests.sim.naive_capacity import largest_world

if TYPE_CHECKING:
    from tests.sim.agent import SimNode
    from tests.sim.world import World


class nothing_throws(Checker):
    """No thread of a node or of the host ends by an error it did not expect."""

    def thread_dies(self, process: Process, thread: str, error: Exception) -> None:
        self.fail(f"{process.name}: its {thread} died: {type(error).__name__}: {error}")


MOST_VAIN_GROWTHS = 3
"""A healed run may count on a few nodes that died before it healed."""


class converges(Checker):
    """Once faults stop, the run is closed and everybody has gone within a bound; and if nothing that happened
    before stands in the way, it succeeds. A world that can grow does, and cycles are not opened for it in vain."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._verdict: Verdict | None = None
        self._obstacle = ""
        self._cycle_id = 0
        self._is_sealed = False
        self._is_from_before = True
        """Whether the cycle was opened before the world healed."""
        self._grows_from: int | None = None
        """How large the world was that the cycle was opened to enlarge."""
        self._vain_growths = 0
        self._ended_in = 0
        """The newest cycle in which workers have ended well, whether or not their agent has seen it."""
        self._could_grow_since: float | None = None
        # More nodes are noticed at the next look; a checkpoint has to be asked for, and is written every 3 s (6462).
        self._patience_s = {Grow.NOW: 1.5, Grow.CHECKPOINT: 4.0, Grow.NEXT: float("inf")}[self._settings.grow]
        self._is_elastic = self._settings.policy is Policy.ELASTIC

    def record(self, record: AnyRecord, process: Process) -> None:
        if isinstance(record, Request) and record.kind in (RequestKind.DRAIN, RequestKind.CLOSE):
            self._obstacle = "a node was drained, or an operator closed the run"
        elif isinstance(record, Goodbye) and record.outcome is not Outcome.LEFT and not self._world.is_healed:
            self._obstacle = "a node gave up before"

    def workers_end(self, node: SimNode, place: Place, ending: Ending) -> None:
        if ending is not Ending.FAILED and not self._world.is_healed:
            self._obstacle = "a node finished, or gave up, before"
        if ending is Ending.WELL:
            self._ended_in = place.cycle_id

    def closed(self, event: Closed) -> None:
        """Whether the reason is borne out by facts is the question of another checker."""
        self._verdict, reason = event.verdict, event.verdict.reason
        has_just_healed = self._now < self._world.heals_at + 5.0
        if not self._world.is_healed:
            self._obstacle = "it was closed before"
        elif reason.startswith("every node has left") and has_just_healed:
            self._obstacle = "they left before"
        elif "max_cycles" in reason or "crash loop" in reason:
            self._obstacle = "workers failed before; those of a healed world do not"
        elif reason.startswith("join_timeout") and self._is_from_before:
            self._obstacle = "the nodes that were missing, or took long to stop their workers, came too late"
        elif "unhealthy" in reason:
            self._obstacle = "nodes were unfit before"
        elif "finished" in reason and self._has_lost_an_active():
            self._obstacle = "a node of its last world had died before, and the others did not miss it"

    def _has_lost_an_active(self) -> bool:
        nodes = [self._world.node_of(name) for name in self._census.world]
        return any(node.is_dead and not node.has_ended_well for node in nodes)

    def opened(self, event: Opened) -> None:
        self._cycle_id, self._is_sealed = event.cycle_id, False
        self._is_from_before = not self._world.is_healed
        grows = self._world.is_healed and isinstance(event.why, WorldGrows)
        if grows and self._ended_in == event.cycle_id - 1:
            # Known and open: an agent that looks every few seconds says late that its workers have ended.
            self._obstacle = "the world grew while it ended"
        self._grows_from = len(self._census.world) if grows else None

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        self._is_sealed = True
        if self._grows_from is not None and event.world_size <= self._grows_from:
            self._vain_growths += 1
            if self._vain_growths > MOST_VAIN_GROWTHS:
                self.fail(f"cycle {event.cycle_id} is no larger than the last: growth in vain, again and again")

    def logs_read(self) -> None:
        if not (self._is_elastic and self._is_sealed and self._world.is_healed):
            self._could_grow_since = None
            return
        census = self._census
        size, largest = len(census.world), largest_world(census.waiting(self._cycle_id).values(), self._settings)
        if largest <= size or census.has_begun_to_finish or self._verdict is not None or not self._is_trained_in():
            self._could_grow_since = None
        elif self._could_grow_since is None:
            self._could_grow_since = self._now
        elif self._now > self._could_grow_since + self._patience_s:
            since_s = self._now - self._could_grow_since
            self.fail(f"cycle {self._cycle_id} of {size} could be of {largest} for {since_s:.3f} s, and stays")

    def _is_trained_in(self) -> bool:
        """Whether there are workers to write a checkpoint: the dead count until their lease is over."""
        nodes = [self._world.node_of(name) for name in self._census.world]
        return any(node.is_training and not node.is_dead for node in nodes)

    def second_passes(self) -> None:
        if self._world.is_healed and self._now > self._world.converges_by():
            self.fail(f"not over by {self._now:.1f} s, healed at {self._world.heals_at:.1f} s: {self._state()}")

    def _state(self) -> str:
        alive = [node.name for node in self._world.nodes if not node.is_dead]
        return f"verdict {self._verdict}, still there: {', '.join(alive) or 'nobody'}"

    def run_ends(self) -> None:
        if self._world.is_lost or self._obstacle:
            return
        if self._verdict is None or self._verdict.kind is not VerdictKind.SUCCEEDED:
            self.fail(f"nothing stands in the way of success, but the verdict is {self._verdict}")
