"""What an agent makes of the ends of its workers: which failure it reports, and what torch's agent gets to see.

Pure decisions, without threads, processes and files. `agent.worker_group` and the simulated agent bring the facts: a
place begins, a worker ended, torch's agent looks, the workers are being stopped. Each fact comes with the time and,
where it matters, with whether the workers' cycle is over at this moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

SPENT_REASON = "its agent has spent its restarts"
STUCK_REASON = "a worker hangs in the kernel (uninterruptible sleep), and torch cannot restart it"


class GroupState(StrEnum):
    """What torch's agent finds when it looks at its workers. The names are torch's."""

    HEALTHY = "HEALTHY"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    UNHEALTHY = "UNHEALTHY"


@dataclass(frozen=True, slots=True)
class WorkerFailure:
    """A failure that a node reports, once per place."""

    cycle_id: int
    rank: int | None
    """The global rank of the worker that failed first. None if it is unknown, or if a worker hangs and none failed."""
    exit_code: int | None
    """As in subprocess. None if a worker hangs."""
    after_s: float
    """From the start of the place until the worker ended, or until the agent saw it."""


@dataclass(frozen=True, slots=True)
class AgentSight:
    """What torch's agent gets to see of its workers, and what this node does about it."""

    state: GroupState
    report: WorkerFailure | None = None
    reason_to_give_up: str = ""
    """Why the agent gives up if it has no restarts left. Empty if the workers give no reason."""


@dataclass(slots=True)
class WorkerPolicy:
    """The workers of one node, in one place after another."""

    cycle_id: int = 0
    """The cycle of the last place. 0 before the first one."""
    began_at: float = 0.0
    _seen_at: float | None = None
    """When the watch first saw a worker fail in this place."""
    _has_reported: bool = False
    _is_stopping: bool = False
    _has_forwarded_drain: bool = False

    def begin(self, cycle_id: int, now: float) -> None:
        """Workers are about to start in a new place."""
        self.cycle_id, self.began_at, self._seen_at = cycle_id, now, None
        self._has_reported = self._is_stopping = False

    def stop(self) -> None:
        """The agent stops the workers: their ends are no failures any more."""
        self._is_stopping = True

    def see_failure(
        self, cycle_id: int, rank: int | None, exit_code: int | None, now: float, is_over: bool
    ) -> WorkerFailure | None:
        """The watch saw a worker of a cycle fail. The failure to report at once, before the agent looks.

        The watch of an earlier place may be late. Without an exit code the worker may have ended well: the agent, which
        took the code, says so when it looks.
        """
        if cycle_id != self.cycle_id or self._is_stopping:
            return None
        if self._seen_at is None:
            self._seen_at = now
        if exit_code is None or is_over:
            return None
        return self._report(rank, exit_code)

    def look(self, state: GroupState, exit_codes: Mapping[int, int], now: float, is_over: bool) -> AgentSight:
        """Torch's agent looks at its workers; exit codes by global rank, of the workers that failed.

        Workers are excused if they failed after their cycle was over: their peers were being stopped. Then the agent
        sees healthy workers, asks whether a restart is due, and restarts them at no cost. That is decided by the moment
        of the look: an agent that sees healthy workers in a cycle that goes on would never see the failure. Any other
        failure is reported here if the watch has not reported it. There may be no watch at all.
        """
        if self._seen_at is None and state in (GroupState.FAILED, GroupState.UNHEALTHY):
            self._seen_at = now
        if state is GroupState.FAILED:
            if is_over and not self._has_reported:
                return AgentSight(GroupState.HEALTHY)
            rank = min(exit_codes, default=None)
            report = None if rank is None else self._report(rank, exit_codes[rank])
            return AgentSight(state, report, SPENT_REASON)
        if state is GroupState.UNHEALTHY:
            return AgentSight(state, None if is_over else self._report(None, None), STUCK_REASON)
        return AgentSight(state)

    def takes_message(self, cycle_id: int) -> bool:
        """Whether a message comes from a worker of this place."""
        return cycle_id == self.cycle_id

    def takes_report(self, cycle_id: int) -> bool:
        """Whether a report is taken: it says what has happened, so a worker of an earlier place may be late."""
        return 0 < cycle_id <= self.cycle_id

    def forwards_drain(self) -> bool:
        """Whether the workers of this place get the drain signal now. They get it once."""
        is_first, self._has_forwarded_drain = not self._has_forwarded_drain, True
        return is_first

    def _report(self, rank: int | None, exit_code: int | None) -> WorkerFailure | None:
        """One failure per place. The watch and the agent may see the same one."""
        if self._has_reported or self.cycle_id == 0:
            return None
        self._has_reported = True
        assert self._seen_at is not None
        return WorkerFailure(self.cycle_id, rank, exit_code, round(self._seen_at - self.began_at, 6))
