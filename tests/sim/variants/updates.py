"""Updates that workers report, broken on purpose. `variants` says what these are for."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from msgspec.structs import replace

from ft_rendezvous.core.effects import Effect, UpdatesTold
from ft_rendezvous.core.model import UpdateNews
from ft_rendezvous.core.recent import RecentNumbers
from ft_rendezvous.core.roster import Roster
from ft_rendezvous.core.update_notes import UpdateNote
from ft_rendezvous.protocol.update_queue import UpdateQueue
from tests.sim.variants.base import variant

_add, _take, _take_updates = UpdateQueue.add, UpdateQueue.take, Roster._take_updates


@variant("updates_are_journaled_once", focus=("cut", "cut_again_and_again"))
def told_twice() -> AbstractContextManager[Any]:
    """A record that is written twice, after a connection broke, counts twice."""
    return patch.object(RecentNumbers, "advance", lambda *_: True)


@variant("updates_are_journaled_once")
def failures_are_merged() -> AbstractContextManager[Any]:
    """Of all updates since the last record only the newest is told."""

    def add(self: UpdateQueue, cycle_id: int, note: UpdateNote) -> None:
        _add(self, cycle_id, note)
        waiting = self._waiting[cycle_id]
        while len(waiting.notes) > 1:
            waiting.merged = waiting.merged.plus(waiting.notes.popleft())

    return patch.object(UpdateQueue, "add", add)


@variant("updates_are_journaled_once")
def told_of_the_current_cycle() -> AbstractContextManager[Any]:
    """A late report counts in the cycle in which it is written."""

    def take(self: UpdateQueue, now: float, cycle_id: int, incarnation: str) -> UpdateNews | None:
        news = _take(self, now, cycle_id, incarnation)
        return None if news is None else replace(news, worker_cycle_id=cycle_id)

    return patch.object(UpdateQueue, "take", take)


@variant("updates_are_journaled_once", focus=("partition", "pause_coordinator"))
def over_and_unheard() -> AbstractContextManager[Any]:
    """What a node has passed on is lost if the node is over when it is read."""

    def take_updates(self: Roster, news: UpdateNews) -> list[Effect]:
        return _take_updates(self, news) if news.incarnation in self.members else []

    return patch.object(Roster, "_take_updates", take_updates)


@variant("updates_are_journaled_once")
def sums_are_dropped() -> AbstractContextManager[Any]:
    """The journal tells only what is told singly."""

    def take_updates(self: Roster, news: UpdateNews) -> list[Effect]:
        effects = _take_updates(self, news)
        return [
            UpdatesTold(each.node, replace(news, merged=type(news.merged)()))
            for each in effects
            if isinstance(each, UpdatesTold)
        ]

    return patch.object(Roster, "_take_updates", take_updates)
