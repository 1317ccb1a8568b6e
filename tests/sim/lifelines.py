"""Lifelines in virtual time: the process that holds them beside the host, the nodes' ends, and what happens to them.

A lifeline carries nothing, so only its beginning and its end take time. Both ends may see the end at different times.
All chance comes from a source of its own: runs without lifelines are the same as before there were any.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from ft_rendezvous.core.suspects import LifelineNews, LifelineSign
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.node.lifeline import HAIL_TIMEOUT_S
from tests.sim.kernel import Condition, Kernel, Routine, Server, Sleep

if TYPE_CHECKING:
    from tests.sim.agent import SimNode
    from tests.sim.world import World

POLL_S = 0.02


@dataclass(slots=True, eq=False)
class SimLifeline:
    """One connection."""

    node: SimNode
    incarnation: str
    connected_at: float
    ended: Condition = field(default_factory=Condition)
    has_ended: bool = False
    """At the node's end."""

    def end_here(self) -> None:
        """The node's end is closed."""
        self.has_ended = True
        self.ended.notify_all()


class SimSwitchboard:
    """What `host.lifeline_main` and `host.lifelines` are to the host."""

    def __init__(self, kernel: Kernel, server: Server, seed: int) -> None:
        self.rng = Random(f"lifelines of {seed}")
        self.newest: dict[str, SimLifeline] = {}
        self.told: list[tuple[float, LifelineNews]] = []
        """All that the coordinator could know, and since when."""
        self.on_news: Callable[[], None] = lambda: None
        self.is_blocked = False
        """A firewall lets no new lifeline through. It drops packets, or refuses."""
        self.refuses = False
        self._kernel, self._server = kernel, server
        self._news: list[LifelineNews] = []

    def take_news(self) -> list[LifelineNews]:
        news, self._news = self._news, []
        return news

    def hail(self, node: SimNode, incarnation: str) -> Routine:
        """One attempt of a node to connect. Returns the lifeline; raises StoreUnavailable."""
        deadline = self._kernel.now + HAIL_TIMEOUT_S
        yield Sleep(2 * self._delay(node))
        while self._is_silent(node):
            if self._kernel.now >= deadline:
                raise StoreUnavailable("lifeline", "no answer")
            yield Sleep(POLL_S)
        if self._server.is_dead or (self.is_blocked and self.refuses):
            raise StoreUnavailable("lifeline", "refused", is_refused=True)
        lifeline = SimLifeline(node, incarnation, self._kernel.now)
        self.newest[incarnation] = lifeline
        self._tell(incarnation, LifelineSign.CONNECTED)
        return lifeline

    def _is_silent(self, node: SimNode) -> bool:
        server = self._server
        is_gone = server.is_dead and server.is_silent
        return is_gone or server.is_paused or node.is_cut_off or (self.is_blocked and not self.refuses)

    def end(self, lifeline: SimLifeline, sign: LifelineSign, *, late_s: float = 0.0, told_node_s: float = 0.0) -> None:
        """The connection ends: the host sees it after a moment or later, and so does the node."""
        kernel = self._kernel
        kernel.at(kernel.now + self._delay(lifeline.node) + late_s, self._see_end, lifeline, sign)
        kernel.at(kernel.now + told_node_s, lifeline.node.deliver, lifeline.end_here)

    def _see_end(self, lifeline: SimLifeline, sign: LifelineSign) -> None:
        if self.newest.get(lifeline.incarnation) is lifeline:
            del self.newest[lifeline.incarnation]
            self._tell(lifeline.incarnation, sign)

    def _tell(self, incarnation: str, sign: LifelineSign) -> None:
        news = LifelineNews(incarnation, sign)
        self._news.append(news)
        self.told.append((self._kernel.now, news))
        self.on_news()

    def _delay(self, node: SimNode) -> float:
        delays = node.delays
        spike_s = delays.spike_s if self._kernel.now < delays.spikes_until else 0.0
        return delays.typical_s * (0.5 + self.rng.random()) + spike_s * self.rng.random()

    def close_all(self) -> None:
        """The host is gone. Its machine may have gone with it: then no node hears of it."""
        for lifeline in self.newest.values():
            if not self._server.is_silent:
                self._kernel.at(self._kernel.now + self._delay(lifeline.node), lifeline.node.deliver, lifeline.end_here)
        self.newest.clear()


class LifelineFaults:
    """What happens to lifelines alone, without any harm to their nodes."""

    def __init__(self, world: World) -> None:
        self._world, self._kernel = world, world.kernel
        self._board = world.switchboard
        self._rng = Random(f"faults of lifelines of {world.seed}")

    def schedule(self, until: float) -> None:
        kinds = (self.reset, self.reset, self.half_open, self.storm, self.again_and_again, self.block)
        for _ in range(self._rng.choice((0, 2, 4, 8))):
            self._kernel.at(self._rng.uniform(0.0, until), self._strike, self._rng.choice(kinds))

    def _strike(self, kind: Callable[[], None]) -> None:
        if not self._world.is_healed:
            kind()

    def heal(self) -> None:
        self._board.is_blocked = False

    def _choose(self) -> SimLifeline | None:
        living = [lifeline for lifeline in self._board.newest.values() if not lifeline.node.is_dead]
        return self._rng.choice(living) if living else None

    def _reset(self, lifeline: SimLifeline, late_s: float = 0.0, told_node_s: float = 0.0) -> None:
        self._world.tell(lifeline.node.name, f"its lifeline is reset; host {late_s:g} s, node {told_node_s:g} s later")
        self._board.end(lifeline, LifelineSign.HUNG_UP, late_s=late_s, told_node_s=told_node_s)

    def reset(self) -> None:
        lifeline = self._choose()
        if lifeline is not None:
            self._reset(lifeline)

    def half_open(self) -> None:
        """One end sees it later than the other. A node that hears of it too late has beaten in vain."""
        lifeline = self._choose()
        if lifeline is not None:
            self._reset(lifeline, *self._rng.choice(((0.05, 0.0), (0.5, 0.0), (0.0, 0.05))))

    def storm(self) -> None:
        """A switch resets all of them."""
        for lifeline in list(self._board.newest.values()):
            if not lifeline.node.is_dead:
                self._reset(lifeline)

    def again_and_again(self) -> None:
        """A proxy that resets a lifeline for a while, as soon as it is connected."""
        for number in range(20):
            self._kernel.at(self._kernel.now + 0.1 * number, self._strike, self.reset)

    def block(self) -> None:
        """A firewall closes the port, and resets what was open."""
        self._board.is_blocked, self._board.refuses = True, self._rng.random() < 0.5
        self._world.tell("", f"the port for lifelines is {'refused' if self._board.refuses else 'blocked'}")
        if self._rng.random() < 0.7:
            self.storm()
        self._kernel.at(self._kernel.now + self._rng.uniform(0.1, 8.0), self.heal)
