"""What the driver says while it runs: every change of a node, and which nodes wait for which resources, since when."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from ft_rendezvous.launch import runner
from ft_rendezvous.launch.ray.machine import NodeState, RayMachine, RayNode
from ft_rendezvous.launch.ray.request import describe_resources

INTERVAL_S = 10.0
NAMED_NODES = 8
"""So many waiting nodes are named. Of more, the number is enough."""


def say(text: str) -> None:
    """Say this on stderr. A reader that is gone, or a full disk, does not end the run."""
    with suppress(OSError):
        runner.say(text)


@dataclass(slots=True)
class NodeProgress:
    """Says each thing once."""

    machine: RayMachine
    bundle: Mapping[str, float]
    say: Callable[[str], None]
    free: Callable[[], Mapping[str, float]]
    """The resources of the cluster that nothing uses now."""
    _states: dict[int, NodeState] = field(init=False, default_factory=dict)
    _waiting_at: float = field(init=False, default=0.0)
    _told: set[str] = field(init=False, default_factory=set)

    def tell_once(self, text: str) -> None:
        """Say this, unless it was said before."""
        if text not in self._told:
            self._told.add(text)
            self.say(text)

    def tell(self, now: float) -> None:
        """Say what has changed, and from time to time who waits."""
        for node in self.machine.nodes:
            if self._states.get(node.number, NodeState.PENDING) is not node.state:
                self._states[node.number] = node.state
                detail = node.where if node.state is NodeState.RUNNING else node.reason
                has_detail = node.state in (NodeState.RUNNING, NodeState.LOST, NodeState.FAILED) and detail
                self.say(f"node {node.number} is {node.state}" + (f": {detail}" if has_detail else ""))
        is_due = now >= self._waiting_at + INTERVAL_S and now >= self.machine.began_at + 1.0
        if is_due and not self.machine.is_over and self._waiting():
            self._waiting_at = now
            self.say(self.describe_waiting(now))

    def _waiting(self) -> list[RayNode]:
        machine = self.machine
        waits = (NodeState.PENDING, NodeState.LOST)
        return [node for node in machine.nodes if node.state in waits and not machine.is_given_up(node)]

    def describe_waiting(self, now: float) -> str:
        nodes = self._waiting()
        since_s = now - min(node.since for node in nodes)
        numbers = ", ".join(str(node.number) for node in nodes[:NAMED_NODES])
        numbers += " ..." if len(nodes) > NAMED_NODES else ""
        free = self.free()
        return (
            f"waiting for Ray to place {len(nodes)} of {len(self.machine.nodes)} nodes ({numbers}) "
            f"since {since_s:.0f} s: each needs {describe_resources(self.bundle)}, the cluster has "
            f"{describe_resources({name: free.get(name, 0.0) for name in self.bundle})} free"
        )
