"""The workers of one place, and the watch over them: what processes, signals and error files are in production.

Workers end whenever they like, also while their agent stands still, starts them or stops them. What that means is not
decided here: the watch asks the `WorkerPolicy` of its agent, as `agent.worker_group` does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ft_rendezvous.agent.exit_description import ERROR_FILE_TIMEOUT_S
from ft_rendezvous.agent.worker_watch import STOP_TIMEOUT_S
from ft_rendezvous.core.node_step import WorkerExit
from ft_rendezvous.protocol.participant import Place
from ft_rendezvous.protocol.worker_policy import GroupState, WorkerFailure
from tests.sim.faults import Ending, Plan

if TYPE_CHECKING:
    from tests.sim.agent import SimNode

LONGEST_LAG_S = 3 * STOP_TIMEOUT_S
HELD_S = 0.5
"""How often workers that stand still look whether they can go on."""
PEER_LAG_S = 0.05
"""How long the next worker of a node outlives the first one that failed."""


class SimWorkers:
    """Two workers, of which one or both fail, or which end well together."""

    def __init__(self, node: SimNode, place: Place, plan: Plan) -> None:
        self.place = place
        self.plan = plan
        self.state = GroupState.HEALTHY
        """What a look at the processes finds."""
        self.ended_at: float | None = None
        self.failures: dict[int, int] = {}
        """Exit codes by global rank."""
        self.is_stopping = False
        """The agent has begun to stop them."""
        self.is_gone = False
        """The agent has stopped them, or has died and its reaper has."""
        self.report_due_at = 0.0
        """When the watch has done what it has to do about the worker that failed."""
        self._node = node
        self._kernel = node.kernel
        self._is_watched = False
        self._saves_at = node.world.workers.saves_at()
        self._updates_at = node.world.workers.updates_at()
        self._expect_end()
        self._save_later()
        self._update_later()

    @property
    def is_running(self) -> bool:
        """Whether all of them run, and the agent leaves them alone."""
        return self.ended_at is None and not self.is_stopping and not self.is_gone

    def revise(self) -> None:
        """Healing overtakes what was planned for workers that run."""
        plan = self._node.world.workers.revise(self.place, self.plan)
        if plan is not self.plan and self.is_running:
            self.plan = plan
            self._expect_end()

    def stop(self) -> None:
        self.is_gone = True

    def _expect_end(self) -> None:
        """Nothing happens in the past: workers that were to end before they started end at once."""
        if self.plan.ends_at != float("inf"):
            self._kernel.at(max(self.plan.ends_at, self._kernel.now), self._end, self.plan)

    def _end(self, plan: Plan) -> None:
        if plan is not self.plan or self.ended_at is not None or self.is_gone:
            return
        if plan.is_healthy and self._is_torn():
            return  # They hang in a collective operation until their agent stops them.
        if plan.ending is Ending.WELL and self._node.world.hangs.find(self.place) is not None:
            self._kernel.at(self._kernel.now + HELD_S, self._end, plan)
            return
        self.ended_at = self._kernel.now
        self._node.world.eyes.workers_end(self._node, self.place, plan.ending)
        if plan.ending is Ending.WELL:
            self.state = GroupState.SUCCEEDED
            return
        self._node.world.workers.torn.add((self.place.cycle_id, self.place.group))
        if plan.ending is Ending.FOR_GOOD:
            self._node.restarts_left = 0
        rng, first = self._kernel.rng, self.place.rank * 2
        ranks = rng.sample((first, first + 1), 2)
        self._fail(ranks[0], 1)
        if rng.random() < 0.3:
            self._kernel.at(self._kernel.now + rng.random() * PEER_LAG_S, self._fail, ranks[1], -6)

    def _is_torn(self) -> bool:
        """Whether peers of this cycle and group have failed, or are being stopped."""
        world, place = self._node.world, self.place
        newest = max(world.host.coordinator.cycle_id, world.host.coordinator.groups.cycle_of(place.group))
        return (place.cycle_id, place.group) in world.workers.torn or place.cycle_id < newest

    def _fail(self, rank: int, exit_code: int) -> None:
        if self.is_gone:
            return
        self.state, self.failures[rank] = GroupState.FAILED, exit_code
        if self._is_watched and len(self.failures) == 1:
            self._wake_watch()

    # --- the agent's threads ------------------------------------------------------------------------

    def watch(self) -> None:
        """Begin to watch. Workers may have failed before."""
        self._is_watched = True
        if self.failures:
            self._wake_watch()

    def _wake_watch(self) -> None:
        # The agent may take the exit code before the watch can read it.
        exit_code = None if self._kernel.random() < 0.1 else next(iter(self.failures.values()))
        self._take_time(0.0, self._see_failure, next(iter(self.failures)), exit_code)

    def _see_failure(self, rank: int, exit_code: int | None) -> None:
        node, cycle_id = self._node, self.place.cycle_id
        if node.link is None:
            return
        failure = node.policy.see_failure(cycle_id, rank, exit_code, node.clock(), node.link.must_stop(cycle_id))
        if failure is not None:
            self._take_time(self.read_files_s(), self.report, failure)

    def _take_time(self, seconds: float, act: Callable[..., None], *args: Any) -> None:
        """Let the thread of the watch go on after this long. It may starve for longer than its agent waits for it."""
        rng = self._kernel.rng
        if rng.random() < 0.1 and not self._node.world.is_healed:
            seconds += LONGEST_LAG_S * rng.random()
        self.report_due_at = self._kernel.now + seconds
        self._kernel.at(self.report_due_at, self._kernel.soon, self._node.deliver, act, *args)

    def read_files_s(self) -> float:
        """How long the error file of a failed worker takes to read. A file system may hang."""
        rng = self._kernel.rng
        return rng.choice((0.0, 0.001, ERROR_FILE_TIMEOUT_S * rng.random(), ERROR_FILE_TIMEOUT_S))

    def report(self, failure: WorkerFailure) -> None:
        link, cycle_id = self._node.link, failure.cycle_id
        if link is not None:
            reason = f"exit code {failure.exit_code}"
            end = WorkerExit(reason, failure.rank, failure.exit_code, failure.after_s, log_of(self.place.cycle_id))
            link.post(link.participant.report_exit(cycle_id, end))

    def _save_later(self) -> None:
        if self._saves_at != float("inf"):
            self._kernel.at(self._saves_at, self._node.deliver, self._save)

    def _save(self) -> None:
        if self.is_running:
            self._node.write_checkpoint()
            self._saves_at = self._node.world.workers.saves_at()
            self._save_later()

    def _update_later(self) -> None:
        if self._updates_at != float("inf"):
            self._kernel.at(self._updates_at, self._node.deliver, self._update)

    def _update(self) -> None:
        """Report updates. A worker that is being stopped may still do so; by then its node may have another place."""
        if self.ended_at is None and self._node.group is not None:
            workers = self._node.world.workers
            self._node.report_updates(self.place.cycle_id, workers.draw_updates())
            self._updates_at = workers.updates_at()
            if not self.is_gone:
                self._update_later()


def log_of(cycle_id: int) -> str:
    """Where a worker of a cycle writes its log."""
    return f"/logs/cycle_{cycle_id}/stderr.log"
