"""When a sealed cycle is over: the next one opens, or the run is closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ft_rendezvous.core.model import NAMED, AnyWhy, NodesDrain, NodesLost, Verdict, VerdictKind


@dataclass(frozen=True, slots=True)
class Stay:
    """The world trains on."""


@dataclass(frozen=True, slots=True)
class OpenNext:
    why: AnyWhy


@dataclass(frozen=True, slots=True)
class Close:
    verdict: Verdict


MoveDecision = Stay | OpenNext | Close


@dataclass(frozen=True, slots=True)
class Drain:
    """Nodes of the world have been asked to give up their places."""

    nodes: tuple[str, ...]
    """Those that still train."""
    due_at: float
    """When the next cycle opens even if no checkpoint is written."""
    is_at_checkpoint: bool
    is_covered: bool
    """Whether enough other nodes are alive that can form the next world."""
    is_total: bool
    """Whether all others together, finished or not, are too few for a world."""


def decide_move(unfinished_count: int, troubles: Sequence[AnyWhy], drain: Drain | None, now: float) -> MoveDecision:
    """Close when every active has finished; open the next cycle when one of them cannot go on, or must go.

    The first trouble read names the cause; losses read together are told together. A drain that leaves too few
    nodes opens nothing: the workers may finish, or are ended from outside, and the run is to be continued later.
    """
    if unfinished_count == 0:
        if drain is not None and drain.is_total:
            return Close(Verdict(VerdictKind.CANCELLED, "drained: too few nodes would remain"))
        return Close(Verdict(VerdictKind.SUCCEEDED))
    if troubles:
        return OpenNext(_cause(troubles))
    if drain is not None and drain.nodes and drain.is_covered and (drain.is_at_checkpoint or now >= drain.due_at):
        return OpenNext(NodesDrain(drain.nodes[:NAMED], len(drain.nodes)))
    return Stay()


def _cause(troubles: Sequence[AnyWhy]) -> AnyWhy:
    first = troubles[0]
    if not isinstance(first, NodesLost):
        return first
    lost = [trouble for trouble in troubles if isinstance(trouble, NodesLost)]
    return NodesLost(
        nodes=tuple(name for trouble in lost[:NAMED] for name in trouble.nodes),
        ranks=tuple(rank for trouble in lost[:NAMED] for rank in trouble.ranks),
        count=len(lost),
    )
