"""Hangs that are judged wrongly. `variants` says what these are for."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from ft_rendezvous.core import progress
from ft_rendezvous.core.hangs import Hang, Inquiry, NoHang
from ft_rendezvous.core.progress import LateRank, LateTable, WorkerReading
from ft_rendezvous.core.stacks import OddOnesOut
from ft_rendezvous.protocol.inquiries import Inquiries
from ft_rendezvous.protocol.membership import Asked
from ft_rendezvous.protocol.ops import Move
from tests.sim.hangs import HANG_TIMEOUT_S
from tests.sim.variants.base import variant

ON = str(HANG_TIMEOUT_S)


@variant("hangs_are_judged_rightly", hang_timeout=ON)
def blamed_without_a_majority() -> AbstractContextManager[Any]:
    """The node that said first that a rank is late is blamed where there is no odd one."""
    original = Inquiry._find_blamed

    def find_blamed(self: Inquiry, odd: OddOnesOut) -> str | None:
        return original(self, odd) or self.suspect.incarnation

    def judge(self: Inquiry, workers: Mapping[str, int | None]) -> NoHang | Hang:
        with patch.object(Inquiry, "_find_rank", lambda self, _odd, _blamed: (self.suspect.rank, None, "")):
            return judged(self, workers)

    judged = Inquiry.judge
    return patch.multiple(Inquiry, _find_blamed=find_blamed, judge=judge)


@variant("hangs_are_judged_rightly", hang_timeout=ON)
def late_although_paused() -> AbstractContextManager[Any]:
    """An agent does not heed the pauses of its own workers."""
    original = LateTable.look

    def look(self: LateTable, readings: Mapping[int, WorkerReading], elapsed_s: float) -> list[LateRank]:
        deaf = {rank: WorkerReading(each.token, each.step) for rank, each in readings.items()}
        return original(self, deaf, elapsed_s)

    return patch.object(LateTable, "look", look)


@variant("hangs_are_judged_rightly", hang_timeout=ON)
def pauses_of_other_nodes_do_not_count() -> AbstractContextManager[Any]:
    """The coordinator judges without asking who is paused."""
    return patch.object(Inquiry, "_pauses", lambda self: [])  # noqa: ARG005


@variant("hangs_are_judged_rightly", focus=("pause", "pause", "pause"), hang_timeout=ON)
def stalls_of_the_agent_count() -> AbstractContextManager[Any]:
    """The time that passes while an agent stands still counts as time without progress."""
    return patch.object(progress, "MOST_LOOKS", 1e9)


@variant("converges", hang_timeout=ON)
def late_ranks_are_not_heeded() -> AbstractContextManager[Any]:
    """The coordinator does not ask where the workers are: a world that hangs lasts for ever."""

    def tick(self: Inquiries, asked: Asked) -> Move[float]:  # noqa: ARG001
        yield from ()
        return float("inf")

    return patch.object(Inquiries, "tick", tick)
