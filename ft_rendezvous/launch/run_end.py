"""How a run ended: the exit code of the launcher, and whether to queue the job again. Pure."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from ft_rendezvous.agent.signals import ENDING_SIGNALS
from ft_rendezvous.core.model import VerdictKind
from ft_rendezvous.host.verdict_file import VerdictReport

FAILED, CANCELLED = 1, 3


@dataclass(frozen=True, slots=True)
class RunEnd:
    """All that the launcher knows when every process has ended."""

    report: VerdictReport | None
    """None: there is no verdict, for example because the store host was lost."""
    exit_codes: Sequence[int]
    """Of the nodes, or of srun."""
    signals: Collection[int] = ()
    """Signals that the launcher itself received."""
    has_begun: bool = True
    """Whether any worker was started."""


def launcher_exit_code(ended: RunEnd) -> int:
    """The exit code of the verdict, if there is one: a node that was lost and replaced is no failure."""
    if ended.report is not None and ended.report.verdict is VerdictKind.SUCCEEDED:
        return 0
    for signum in ended.signals:
        if signum in ENDING_SIGNALS:
            return 128 + signum
    if ended.report is None:
        return FAILED if any(ended.exit_codes) else 0
    return FAILED if ended.report.verdict is VerdictKind.FAILED else CANCELLED


@dataclass(frozen=True, slots=True)
class Requeue:
    reason: str


@dataclass(frozen=True, slots=True)
class NoRequeue:
    """Do not queue the job again. An empty reason is not logged."""

    reason: str = ""


def decide_requeue(ended: RunEnd, restarts: int, requeues: int) -> Requeue | NoRequeue:
    """Queue the job again only if that can help, and no signal has asked the launcher to end the job."""
    report = ended.report
    if requeues == 0 or (report is not None and report.verdict is VerdictKind.SUCCEEDED):
        return NoRequeue()
    if any(signum in ENDING_SIGNALS for signum in ended.signals):
        return NoRequeue("a signal asked for the end of the job")
    if report is None and not any(ended.exit_codes):
        return NoRequeue()
    if report is not None and not report.is_retryable:
        return NoRequeue(f"that would not help: {report.verdict}({report.reason})")
    if restarts >= requeues:
        return NoRequeue(f"it was queued again {restarts} times already: --requeue {requeues}")
    if report is None and not ended.has_begun:
        return NoRequeue("no worker was ever started, and a start that fails would fail again")
    if report is None:
        return Requeue("there is no verdict: the store host was lost")
    return Requeue(f"{report.verdict}({report.reason})")
