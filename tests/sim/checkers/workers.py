"""Workers and their agents: an end is seen, and what a worker says is about its own cycle."""

from __future__ import annotations

from ft_rendezvous.core.model import AnyRecord, Failure, Request
from ft_rendezvous.protocol.participant import Place
from tests.sim.agent import SimNode
from tests.sim.checkers.base import Checker
from tests.sim.kernel import Process
from tests.sim.worker_processes import SimWorkers, log_of

LOOK_S = 1.0
"""What a look may take beyond the monitor interval: the files of a failed worker, and the lag of threads."""


class ended_workers_are_seen(Checker):
    """An agent does not take workers that have ended for healthy, unless it restarts them at this very look. It sees
    every end within its monitor interval. It then stops what is left of them and comes back, or leaves."""

    def asks_whether_to_stop(self, node: SimNode, place: Place, must_stop: bool) -> None:
        # Torch's agent asks only if it saw healthy workers.
        group = node.group
        if group is not None and group.ended_at is not None and not must_stop:
            self.fail(f"{node.name} sees healthy workers in cycle {place.cycle_id}, which have ended")

    def second_passes(self) -> None:
        for node in self._world.nodes:
            group = node.group
            if group is None or group.ended_at is None or group.is_gone or node.is_dead or node.is_paused:
                continue
            since = max(group.ended_at, node.resumed_at)
            if self._now > since + node.monitor_s + LOOK_S and not self._is_seen_to(node, group):
                self.fail(
                    f"the workers of {node.name} ended {self._now - since:.3f} s ago in cycle {group.place.cycle_id}, "
                    f"and it looks every {node.monitor_s:g} s"
                )

    @staticmethod
    def _is_seen_to(node: SimNode, group: SimWorkers) -> bool:
        return node.has_ended_well or node.is_leaving or group.is_stopping


class workers_keep_to_their_cycle(Checker):
    """No worker of an earlier cycle runs when a node takes a place. What a node says of its workers, or for them, it
    says in their own cycle: how they failed, and that they want a restart."""

    def takes_place(self, node: SimNode, place: Place) -> None:
        group = node.group
        if group is not None and not group.is_gone:
            self.fail(f"{node.name} takes a place in cycle {place.cycle_id} with workers of {group.place.cycle_id}")

    def record(self, record: AnyRecord, process: Process) -> None:
        cycle_id = record.cycle_id
        match record:
            case Failure(log_path=log_path) if log_path not in ("", log_of(cycle_id)):
                self.fail(f"{process.name} reports {log_path} as a failure of cycle {cycle_id}")
            case Request(reason=reason) if reason.startswith("NaN") and reason != f"NaN in cycle {cycle_id}":
                self.fail(f"{process.name} asks in cycle {cycle_id}: {reason}")
