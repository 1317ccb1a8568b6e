"""What follows from a record, a death or a decision about a node: the roster says it, the coordinator acts on it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.model import Late, Outcome, Request, Stacks, UpdateNews


class FenceCause(StrEnum):
    LOST = "lost"
    """It did not beat for the length of a lease, or its process has ended."""
    DEAF = "deaf"
    """It beats, but it does not act on events."""
    REPLACED = "replaced"
    """A newer start of the same node is in the run."""
    REFUSED = "refused"
    """It was not admitted."""
    QUARANTINED = "quarantined"
    """It was the first to fail too often."""

    @property
    def is_refusal(self) -> bool:
        """Whether the node must not try again under a new incarnation."""
        return self not in (FenceCause.LOST, FenceCause.DEAF)


@dataclass(frozen=True, slots=True)
class Fence:
    """An incarnation that is not in the run any more, and the reason that the node gets to see."""

    incarnation: str
    node: str
    cause: FenceCause
    reason: str
    silent_s: float = 0.0
    """Seconds since its last beat."""
    cycle_id: int | None = None
    """The cycle in which it trained, if that is not the last common one."""


@dataclass(frozen=True, slots=True)
class NodeFinish:
    """A node's workers ended well. It waits in the exit barrier."""

    incarnation: str
    node: str


@dataclass(frozen=True, slots=True)
class NodeExit:
    """A node said goodbye."""

    incarnation: str
    node: str
    role: Role
    outcome: Outcome
    reason: str


@dataclass(frozen=True, slots=True)
class NodeUnfit:
    """A node's health check failed."""

    incarnation: str
    node: str
    reason: str


@dataclass(frozen=True, slots=True)
class CheckpointWritten:
    """A worker of a group's current cycle has written a checkpoint."""

    group: int


@dataclass(frozen=True, slots=True)
class Loss:
    """A node died, or was replaced by a newer start of itself."""

    key: str
    incarnation: str
    node: str


@dataclass(frozen=True, slots=True)
class UpdatesTold:
    """Workers of a node have reported updates. The node may be over by now."""

    node: str
    news: UpdateNews


Effect = (
    Fence | FailureNote | NodeFinish | NodeExit | NodeUnfit | CheckpointWritten | UpdatesTold | Request | Late | Stacks
)
"""What follows from a record outside of the roster. Requests and late ranks are left to the coordinator."""
