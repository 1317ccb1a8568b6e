"""A link without a run: it keeps what an agent reports, and says what the test wants."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ft_rendezvous.core.model import Outcome, Verdict
from ft_rendezvous.core.node_step import WorkerExit


class FakeLink:
    def __init__(self) -> None:
        self.is_cycle_over = False
        self.reports: list[tuple[int, WorkerExit]] = []
        self.goodbyes: list[tuple[Outcome, str]] = []
        self.verdict: Verdict | None = None

    def must_stop(self, _cycle_id: int) -> bool:
        return self.is_cycle_over

    def report_exit(self, cycle_id: int, end: WorkerExit) -> None:
        self.reports.append((cycle_id, end))

    def leave(self, outcome: Outcome, reason: str) -> None:
        self.goodbyes.append((outcome, reason))

    def on_drain(self, act: Callable[[], Any]) -> None: ...

    def on_group_ended(self, act: Callable[[int, str], Any]) -> None: ...
