"""When a sealed cycle is over: the next one opens, or the run is closed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ft_rendezvous.core.model import NAMED, AnyWhy, NodesLost, Verdict, VerdictKind


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


def decide_move(unfinished_count: int, troubles: Sequence[AnyWhy]) -> MoveDecision:
    """Close when every active has finished; open the next cycle when one of them cannot go on.

    The first trouble read names the cause; losses read together are told together.
    """
    if unfinished_count == 0:
        return Close(Verdict(VerdictKind.SUCCEEDED))
    if not troubles:
        return Stay()
    first = troubles[0]
    if isinstance(first, NodesLost):
        lost = [trouble for trouble in troubles if isinstance(trouble, NodesLost)]
        first = NodesLost(
            nodes=tuple(name for trouble in lost[:NAMED] for name in trouble.nodes),
            ranks=tuple(rank for trouble in lost[:NAMED] for rank in trouble.ranks),
            count=len(lost),
        )
    return OpenNext(first)
