"""Decides when a sealed cycle ends: the next one opens, or the run is closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from ft_rendezvous.core.model import AnyWhy, NodesDrain, NodesLost, Verdict, VerdictKind, WorldGrows
from ft_rendezvous.text import NAMED


@dataclass(frozen=True, slots=True)
class Stay:
    """The world continues to train."""


@dataclass(frozen=True, slots=True)
class OpenNext:
    why: AnyWhy


@dataclass(frozen=True, slots=True)
class Close:
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Call:
    """Ask the workers to report their next checkpoint."""

    reason: str


MoveDecision = Stay | OpenNext | Close | Call


class Grow(StrEnum):
    """When a world that can be larger is formed again."""

    NOW = "now"
    NEXT = "next"
    """When the next cycle opens for another reason."""
    CHECKPOINT = "checkpoint"


@dataclass(frozen=True, slots=True)
class Growth:
    """The world can be larger than it is."""

    was: int
    to: int
    due_at: float
    """The earliest time for it: until then more nodes may come."""
    is_called: bool
    """Whether the workers were asked to report their next checkpoint."""


@dataclass(frozen=True, slots=True)
class DrainState:
    """Nodes of the world were asked to give up their places."""

    nodes: tuple[str, ...]
    """Names of those that still train."""
    due_at: float
    """When the next cycle opens even if no checkpoint is written."""
    is_covered: bool
    """Whether enough other live nodes can form the next world."""
    is_total: bool
    """Whether all other nodes together, finished or not, are too few for a world."""


@dataclass(frozen=True, slots=True)
class World:
    """A sealed cycle, and what has happened since the seal."""

    unfinished_count: int
    troubles: Sequence[AnyWhy]
    drain: DrainState | None
    growth: Growth | None
    is_at_checkpoint: bool
    """Whether a checkpoint was written since the workers were last asked for one."""


def decide_move(world: World, now: float, grow: Grow) -> MoveDecision:
    """Close when every active node has finished. Open the next cycle when one of them cannot continue or must leave.

    The first trouble that was read is the cause. Losses that were read together are named together. A drain that leaves
    too few nodes opens nothing: the workers may finish, or they are ended from outside and the job is queued again.
    """
    drain, growth = world.drain, world.growth
    if world.unfinished_count == 0:
        if drain is not None and drain.is_total:
            return Close(Verdict(VerdictKind.CANCELLED, "drained: too few nodes would remain", is_retryable=True))
        return Close(Verdict(VerdictKind.SUCCEEDED))
    if world.troubles:
        return OpenNext(find_cause(world.troubles))
    if drain is not None and drain.nodes and drain.is_covered and (world.is_at_checkpoint or now >= drain.due_at):
        return OpenNext(NodesDrain(drain.nodes[:NAMED], len(drain.nodes)))
    if growth is not None and grow is not Grow.NEXT and now >= growth.due_at:
        larger = WorldGrows(growth.was, growth.to)
        if grow is Grow.NOW or (growth.is_called and world.is_at_checkpoint):
            return OpenNext(larger)
        return Stay() if growth.is_called else Call(str(larger))
    return Stay()


def find_cause(troubles: Sequence[AnyWhy]) -> AnyWhy:
    """Why a world ends: its first trouble. Losses that were read together are named together."""
    first = troubles[0]
    if not isinstance(first, NodesLost):
        return first
    return gather_losses([trouble for trouble in troubles if isinstance(trouble, NodesLost)])


def gather_losses(lost: Sequence[NodesLost]) -> NodesLost:
    """Losses of single nodes as one cause."""
    return NodesLost(
        nodes=tuple(name for each in lost[:NAMED] for name in each.nodes),
        ranks=tuple(rank for each in lost[:NAMED] for rank in each.ranks),
        count=len(lost),
    )
