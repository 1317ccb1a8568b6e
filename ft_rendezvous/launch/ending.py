"""What a run's end means to the launcher: its exit code, and whether to queue the job again. Pure."""

from __future__ import annotations

import signal
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ft_rendezvous.core.model import VerdictKind
from ft_rendezvous.host.verdict_file import VerdictReport

FAILED, CANCELLED = 1, 3

ENDING = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""Whoever sends one of these wants no more of this job; SIGUSR1 only says that this allocation is to be left."""


@dataclass(frozen=True, slots=True)
class Ended:
    """All that is known when every process has ended."""

    report: VerdictReport | None
    """None: nobody wrote a verdict, as when the store host was lost."""
    exit_codes: Sequence[int]
    """Of the nodes, or of srun."""
    signals: Collection[int] = ()
    """What the launcher itself was sent."""
    has_begun: bool = True
    """Whether any worker was ever started."""


def exit_code_of(ended: Ended) -> int:
    """The verdict's, if there is one: a node that was lost and replaced is no failure."""
    if ended.report is not None and ended.report.verdict is VerdictKind.SUCCEEDED:
        return 0
    for signum in ended.signals:
        if signum in ENDING:
            return 128 + signum
    if ended.report is None:
        return FAILED if any(ended.exit_codes) else 0
    return FAILED if ended.report.verdict is VerdictKind.FAILED else CANCELLED


@dataclass(frozen=True, slots=True)
class Requeue:
    reason: str


@dataclass(frozen=True, slots=True)
class LetBe:
    """Do not queue the job again; an empty reason needs no telling."""

    reason: str = ""


def decide_requeue(ended: Ended, restarts: int, requeues: int) -> Requeue | LetBe:
    """Queue the job again only if that can help, and whoever signalled the launcher has not decided already."""
    report = ended.report
    if requeues == 0 or (report is not None and report.verdict is VerdictKind.SUCCEEDED):
        return LetBe()
    if any(signum in ENDING for signum in ended.signals):
        return LetBe("the job was told to end")
    if report is None and not any(ended.exit_codes):
        return LetBe()
    if report is not None and not report.is_retryable:
        return LetBe(f"that would not help: {report.verdict}({report.reason})")
    if restarts >= requeues:
        return LetBe(f"it was queued again {restarts} times already: --requeue {requeues}")
    if report is None and not ended.has_begun:
        return LetBe("no worker was ever started, and a start that fails would fail again")
    if report is None:
        return Requeue("there is no verdict: the store host was lost")
    return Requeue(f"{report.verdict}({report.reason})")
