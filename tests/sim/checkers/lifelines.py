"""Lifelines: what their end may cost, and what it must not."""

# ruff: noqa: ARG002 - a checker is told every sighting whole, and looks at what it needs.

from __future__ import annotations

from typing import TYPE_CHECKING

from ft_rendezvous.core.model import Sealed, Seat
from ft_rendezvous.core.suspects import LifelineSign
from tests.sim.checkers.base import Checker

if TYPE_CHECKING:
    from tests.sim.world import World

HUNG_UP, SAID_DEAD = "its lifeline hung up", "has ended without a goodbye"
MARGIN_S = 0.05
"""More than any delay of a network that is not slow."""


class a_hang_up_alone_drops_no_node(Checker):
    """A node whose lifeline has ended is dropped only if it does not beat, and does not connect again, for a grace; and
    a node that is well does one of both."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._reads: dict[str, list[float]] = {}
        self._beat_at: dict[str, float] = {}

    def beat(self, incarnation: str, counter: int) -> None:
        self._beat_at[incarnation] = self._now

    def beats_read(self, incarnations: list[str]) -> None:
        for name in incarnations:
            self._reads.setdefault(name, []).append(self._now)

    def fenced(self, incarnation: str, reason: str) -> None:
        node, name = self._world.node_of(incarnation), self._name(incarnation)
        if SAID_DEAD in reason and not node.is_dead:
            self.fail(f"{name} was dropped for being dead, and lives")
        if HUNG_UP not in reason:
            return
        reads = self._reads.get(incarnation, [0.0])
        # The coordinator may stand still between two fences: it judges by its last reading.
        hung_up_at = self._hung_up_at(incarnation, before=reads[-1])
        reads = [time for time in reads if time >= hung_up_at]
        if len(reads) < 2 or reads[-1] - reads[0] < self._settings.lifeline_grace_s * 0.99:
            self.fail(f"{name} was dropped without a grace after its lifeline had ended at {hung_up_at:.3f}")
        self._judge_grace(incarnation, name, reads)
        lifeline = self._world.switchboard.newest.get(incarnation)
        if lifeline is not None and lifeline.connected_at < reads[-1] - MARGIN_S:
            self.fail(f"{name} was dropped, and has had a lifeline again since {lifeline.connected_at:.3f}")
        self._judge_living(incarnation, name)

    def _judge_grace(self, incarnation: str, name: str, reads: list[float]) -> None:
        """Within the grace before the last reading, the node must not have beaten, and the host must have looked."""
        grace_s, host = self._settings.lifeline_grace_s, self._world.host.process
        since, until = max(time for time in reads if time <= reads[-1] - grace_s * 0.99), reads[-1]
        if since < self._beat_at.get(incarnation, 0.0) <= until:
            self.fail(f"{name} was dropped, and has beaten at {self._beat_at[incarnation]:.3f}")
        if since <= host.paused_at and host.resumed_at <= until and host.resumed_at - host.paused_at > 2 * grace_s:
            self.fail(f"{name} was dropped {until - host.resumed_at:.3f} s after the host had stood still")

    def _hung_up_at(self, incarnation: str, before: float) -> float:
        told = [(at, news) for at, news in self._world.switchboard.told if at <= before]
        times = [at for at, news in told if news.incarnation == incarnation and news.sign is LifelineSign.HUNG_UP]
        if not times:
            self.fail(f"{self._name(incarnation)} was dropped for the end of its lifeline, which has not ended")
        return times[-1]

    def _judge_living(self, incarnation: str, name: str) -> None:
        """A node to which nothing happens but the end of its lifeline, at both ends at once, is not dropped."""
        node, host, server = self._world.node_of(incarnation), self._world.host.process, self._world.server
        if node.is_dead or node.is_leaving or node.is_paused or node.is_cut_off or host.is_paused or server.is_paused:
            return
        since = self._now - 2 * self._settings.lifeline_grace_s - self._settings.beat_s
        disturbed_at = max(node.disturbed_at, node.delays.spikes_until, host.disturbed_at)
        if disturbed_at < since:
            self.fail(f"{name} was dropped, and nothing happened to it but the end of its lifeline")


class the_dead_get_no_rank(Checker):
    """A node whose lifeline ended well before the seal, and that has not connected or beaten since, is not placed."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._looked_at = 0.0
        self._beat_at: dict[str, float] = {}

    def logs_read(self) -> None:
        self._looked_at = self._now

    def beat(self, incarnation: str, counter: int) -> None:
        self._beat_at[incarnation] = self._now

    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None:
        told = self._world.switchboard.told
        signs = {news.incarnation: (at, news.sign) for at, news in told if at < self._looked_at}
        for incarnation in seats:
            at, sign = signs.get(incarnation, (0.0, LifelineSign.CONNECTED))
            # A beat that was on its way when the node died looks like a sign of life.
            was_still = self._beat_at.get(incarnation, 0.0) < at
            is_known = sign in (LifelineSign.HUNG_UP, LifelineSign.DEAD) and was_still
            if is_known and self._world.node_of(incarnation).is_dead:
                self.fail(f"{self._name(incarnation)} got a seat in cycle {event.cycle_id}, and was known to have died")
