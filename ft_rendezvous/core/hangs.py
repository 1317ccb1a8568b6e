"""Hangs: what the coordinator asks nodes when a rank is late, and what follows from their answers.

Pure. One inquiry is about one sealed world. It ends when all nodes have answered or time is over, and is then judged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ft_rendezvous.core.model import Late, Stacks
from ft_rendezvous.core.stacks import OddOnesOut, RankStack, cut, judge_stacks
from ft_rendezvous.text import count, duration, listing

ANSWER_TIMEOUT_S = 2.0
"""How long the coordinator waits for the stacks of all nodes."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """The node whose rank was late first."""

    incarnation: str
    rank: int
    step: int | None
    late_s: float
    after_s: float
    """Since the node took its place."""
    is_starting: bool


@dataclass(frozen=True, slots=True)
class NoHang:
    """A rank was late, and the world goes on."""

    reason: str


@dataclass(frozen=True, slots=True)
class Hang:
    """The world does not go on. Its cycle ends."""

    reason: str
    odd: OddOnesOut
    blamed: str | None
    """The incarnation of the one node with odd ranks. None: no node is to blame."""
    rank: int
    """The first odd rank of that node. Without one, the rank that was late first."""
    step: int | None
    stack: str
    """Where that rank is, from the innermost call outwards."""


@dataclass(slots=True)
class Inquiry:
    """What nodes of one world have answered so far."""

    no: int
    """The number of the event that asks."""
    cycle_id: int
    group: int
    suspect: Suspect
    due_at: float
    answers: dict[str, Stacks] = field(default_factory=dict)

    def take(self, answer: Stacks) -> None:
        """Take in a node's answer. The first one counts: a record may be written twice."""
        if answer.inquiry == self.no:
            self.answers.setdefault(answer.incarnation, answer)

    def is_complete(self, nodes: Sequence[str], now: float) -> bool:
        """Whether all of these nodes have answered, or time is over. A rank that is paused or moves answers for all."""
        if now >= self.due_at or self._pauses() or self._moving():
            return True
        return all(name in self.answers for name in nodes)

    def _pauses(self) -> list[str]:
        found = ((rank, why) for answer in self.answers.values() for rank, why in answer.paused)
        return [f"rank {rank}: {why}" for rank, why in sorted(found)]

    def _moving(self) -> list[int]:
        return sorted(rank for answer in self.answers.values() for rank in answer.moving)

    def judge(self, workers: Mapping[str, int | None]) -> NoHang | Hang:
        """What the answers mean. `workers`: the nodes of the world, and how many ranks each has, if that is known."""
        if pauses := self._pauses():
            return NoHang(f"a pause was announced, {listing(pauses, 4)}")
        if moving := self._moving():
            return NoHang(f"other ranks make progress: {listing(moving)}")
        answers = [self.answers[name] for name in workers if name in self.answers]
        # A node that could not tell any frame has nothing to compare.
        depth = min((answer.depth for answer in answers if answer.depth), default=0)
        stacks = cut((stack for answer in answers for stack in answer.stacks), depth)
        odd = judge_stacks(stacks, sum(self._count(name, known) for name, known in workers.items()))
        blamed = self._find_blamed(odd)
        rank, step, stack = self._find_rank(odd, blamed)
        return Hang(self._describe(odd), odd, blamed, rank, step, stack)

    def _count(self, name: str, known: int | None) -> int:
        answered = sum(len(each.ranks) for each in self.answers[name].stacks) if name in self.answers else 0
        return max(answered, known or 1)

    def _find_blamed(self, odd: OddOnesOut) -> str | None:
        homes = {rank: name for name, answer in self.answers.items() for each in answer.stacks for rank in each.ranks}
        nodes = {homes[rank] for rank in odd.odd_ranks}
        return nodes.pop() if len(nodes) == 1 else None

    def _find_rank(self, odd: OddOnesOut, blamed: str | None) -> tuple[int, int | None, str]:
        wanted = self.suspect.rank if blamed is None else odd.odd_ranks[0]
        for group in odd.groups:
            if wanted in group.ranks:
                return wanted, group.steps[group.ranks.index(wanted)], describe_stack(group)
        return wanted, self.suspect.step, ""

    def _describe(self, odd: OddOnesOut) -> str:
        return f"{describe_late(self.suspect)}: {odd}"


def describe_late(late: Suspect | Late) -> str:
    """How long a rank has made no progress."""
    if late.is_starting:
        return f"no progress within {duration(late.late_s)} of the start"
    step = "" if late.step is None else f" after step {late.step}"
    return f"no progress for {duration(late.late_s)}{step}"


def describe_stack(group: RankStack) -> str:
    """A stack in one line."""
    return " < ".join(map(str, group.stack)) or f"{count(len(group.ranks), 'rank')} without a stack"
