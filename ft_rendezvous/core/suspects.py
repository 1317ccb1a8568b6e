"""Nodes whose lifeline has ended: each is suspected to be dead, until it proves to be alive or the grace is over.

A hang-up alone drops no node. A node that lives connects again or beats, and the table forgets it. Time is that of the
coordinator's own clock, from when it took the news.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class LifelineSign(StrEnum):
    """What the host has seen of a lifeline."""

    CONNECTED = "connected"
    HUNG_UP = "hung up"
    """It has ended without a word."""
    GOODBYE = "goodbye"
    """The node has ended it in peace."""
    DEAD = "dead"
    """The node's reaper says that the agent has ended without a goodbye."""


@dataclass(frozen=True, slots=True)
class LifelineNews:
    """One sign of one incarnation's newest lifeline."""

    incarnation: str
    sign: LifelineSign


@dataclass(slots=True)
class Suspicion:
    """One suspected incarnation."""

    judged_at: float
    """When the next reading of its beat is due."""
    counter: int | None = None
    """Its beat in the first reading. None: there was none yet."""
    is_certain: bool = False
    """Its reaper has said that it is dead."""
    is_unknown: bool = False
    """When its reading was due, it was not in the run."""


@dataclass(slots=True)
class SuspectTable:
    """The suspected incarnations of a run."""

    grace_s: float
    suspects: dict[str, Suspicion] = field(default_factory=dict)

    def take(self, news: Iterable[LifelineNews], now: float) -> None:
        """Take in what the host has seen, in the order in which it saw it."""
        for each in news:
            match each.sign:
                case LifelineSign.CONNECTED | LifelineSign.GOODBYE:
                    self.suspects.pop(each.incarnation, None)
                case LifelineSign.HUNG_UP if each.incarnation not in self.suspects:
                    self.suspects[each.incarnation] = Suspicion(judged_at=now)
                case LifelineSign.DEAD:
                    self.suspects[each.incarnation] = Suspicion(judged_at=now, is_certain=True)

    def forget(self, incarnation: str) -> None:
        """It is not in the run any more."""
        self.suspects.pop(incarnation, None)

    def due(self, members: Container[str], now: float) -> list[str]:
        """The members whose beats must be read now.

        An incarnation that is not in the run may have written its arrival a moment ago, and has a grace for it to be
        read. After that it is forgotten.
        """
        due = [name for name, suspicion in self.suspects.items() if now >= suspicion.judged_at]
        for name in due:
            suspicion = self.suspects[name]
            if name not in members and suspicion.is_unknown:
                del self.suspects[name]
            elif name not in members:
                suspicion.is_unknown, suspicion.judged_at = True, now + self.grace_s
        return [name for name in due if name in members]

    def judge(self, counters: Mapping[str, int], now: float) -> list[str]:
        """The dead among the suspects whose beats were just read. Those that live are forgotten.

        A reading that comes late says nothing: while this process stood still, so did the news of new lifelines. Then
        the suspicion begins anew. The first reading may come late without harm.
        """
        dead = []
        for name, counter in counters.items():
            suspicion = self.suspects[name]
            is_late = now > suspicion.judged_at + self.grace_s
            if suspicion.is_certain:
                dead.append(name)
            elif suspicion.counter is None or (is_late and counter == suspicion.counter):
                suspicion.counter, suspicion.judged_at = counter, now + self.grace_s
            elif counter == suspicion.counter:
                dead.append(name)
            else:
                del self.suspects[name]
        return dead

    def next_judgement(self) -> float:
        """When the next reading is due; infinity if no incarnation is suspected."""
        return min((suspicion.judged_at for suspicion in self.suspects.values()), default=float("inf"))

    def find(self, incarnations: Container[str]) -> list[str]:
        """Those of the incarnations that are suspected."""
        return [name for name in self.suspects if name in incarnations]
