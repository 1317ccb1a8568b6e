"""A link without a run: it keeps what an agent reports, and says what the test wants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ft_rendezvous.core.leases import WorkersProgress
from ft_rendezvous.core.model import Outcome, Verdict
from ft_rendezvous.core.node_step import WorkerExit
from ft_rendezvous.core.progress import LateRank
from ft_rendezvous.core.stacks import RankStack
from ft_rendezvous.core.update_notes import UpdateNote


class FakeLink:
    def __init__(self) -> None:
        self.is_cycle_over = False
        self.reports: list[tuple[int, WorkerExit]] = []
        self.updates: list[tuple[int, UpdateNote]] = []
        self.goodbyes: list[tuple[Outcome, str]] = []
        self.verdict: Verdict | None = None
        self.is_hang = False
        self.late: list[tuple[int, LateRank, float]] = []
        self.answers: list[tuple[int, int, list[RankStack], list[tuple[int, str]], list[int]]] = []
        self.read_progress: Callable[[], WorkersProgress | None] = lambda: None
        self.inquire: Callable[[int, int], None] = lambda _cycle_id, _no: None

    def tick(self, cycle_id: int) -> None:
        pass

    def must_stop(self, _cycle_id: int) -> bool:
        return self.is_cycle_over

    def report_exit(self, cycle_id: int, end: WorkerExit) -> None:
        self.reports.append((cycle_id, end))

    def report_update(self, cycle_id: int, note: UpdateNote) -> None:
        self.updates.append((cycle_id, note))

    def leave(self, outcome: Outcome, reason: str) -> None:
        self.goodbyes.append((outcome, reason))

    def on_drain(self, act: Callable[[], Any]) -> None: ...

    def on_group_ended(self, act: Callable[[int, str], Any]) -> None: ...

    def on_lifeline(self, act: Callable[[int], Any]) -> None: ...

    def on_inquiry(self, act: Callable[[int, int], None]) -> None:
        self.inquire = act

    def show_progress(self, read: Callable[[], WorkersProgress | None]) -> None:
        self.read_progress = read

    def hangs(self, _cycle_id: int) -> bool:
        return self.is_hang

    def tell_late(self, cycle_id: int, late: LateRank, after_s: float) -> None:
        self.late.append((cycle_id, late, after_s))

    def tell_stacks(
        self,
        cycle_id: int,
        inquiry: int,
        stacks: Sequence[RankStack],
        paused: Sequence[tuple[int, str]],
        moving: Sequence[int],
    ) -> None:
        self.answers.append((cycle_id, inquiry, list(stacks), list(paused), list(moving)))
