"""What a node makes of its workers, broken on purpose. `variants` says what these are for."""

# ruff: noqa: ARG001, PLR0917 - what replaces a function takes what the function took.

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from ft_rendezvous.core.model import RequestKind
from ft_rendezvous.core.node_step import WorkerExit
from ft_rendezvous.protocol.ops import Move
from ft_rendezvous.protocol.participant import Participant
from ft_rendezvous.protocol.worker_policy import AgentSight, GroupState, WorkerFailure, WorkerPolicy
from tests.sim.variants.base import variant

_look, _see_failure = WorkerPolicy.look, WorkerPolicy.see_failure


@variant("ended_workers_are_seen")
def excused_once_seen() -> AbstractContextManager[Any]:
    """What the watch saw and did not report is excused for ever, also in a cycle that goes on."""

    def look(
        self: WorkerPolicy, state: GroupState, exit_codes: Mapping[int, int], now: float, is_over: bool
    ) -> AgentSight:
        return _look(self, state, exit_codes, now, is_over or self._seen_at is not None)

    return patch.object(WorkerPolicy, "look", look)


@variant("ended_workers_are_seen")
def reported_by_the_watch_alone() -> AbstractContextManager[Any]:
    """The agent leaves every failure to the watch, and there may be none."""

    def look(
        self: WorkerPolicy, state: GroupState, exit_codes: Mapping[int, int], now: float, is_over: bool
    ) -> AgentSight:
        if state is GroupState.FAILED and not self._has_reported:
            return AgentSight(GroupState.HEALTHY)
        return _look(self, state, exit_codes, now, is_over)

    return patch.object(WorkerPolicy, "look", look)


@variant("workers_keep_to_their_cycle")
def late_watch_of_any_place() -> AbstractContextManager[Any]:
    """A watch that is late speaks for the place that its node has by then."""

    def see_failure(
        self: WorkerPolicy, cycle_id: int, rank: int | None, exit_code: int | None, now: float, is_over: bool
    ) -> WorkerFailure | None:
        return _see_failure(self, self.cycle_id, rank, exit_code, now, is_over=False)

    return patch.object(WorkerPolicy, "see_failure", see_failure)


@variant("workers_keep_to_their_cycle")
def late_report_is_kept() -> AbstractContextManager[Any]:
    """A report of an earlier place is kept, and sent when workers of the next place fail."""

    def report_exit(self: Participant, cycle_id: int, end: WorkerExit) -> Move[None]:
        if self.worker_exit is None:
            self.worker_exit = end
        yield from self.report_failure(cycle_id)

    return patch.object(Participant, "report_exit", report_exit)


@variant("workers_keep_to_their_cycle", focus=("ask_restart",))
def restart_asked_in_any_cycle() -> AbstractContextManager[Any]:
    """What a worker wants is asked for in the cycle that its node has heard of."""

    def ask_restart(self: Participant, cycle_id: int, reason: str) -> Move[None]:
        yield from self.ask(RequestKind.RESTART, reason)

    return patch.object(Participant, "ask_restart", ask_restart)
