"""What a run's end means: exit code, and whether to queue the job again."""

from __future__ import annotations

import signal

import pytest

from ft_rendezvous.core.model import VerdictKind
from ft_rendezvous.host.verdict_file import VerdictReport
from ft_rendezvous.launch.run_end import NoRequeue, Requeue, RunEnd, decide_requeue, launcher_exit_code


def report(kind: str, is_retryable: bool = False) -> VerdictReport:
    return VerdictReport(run_id="r", verdict=VerdictKind(kind), reason="because", is_retryable=is_retryable, cycle=3)


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        pytest.param(RunEnd(report("succeeded"), [0, 0]), 0, id="succeeded"),
        pytest.param(RunEnd(report("succeeded"), [0, -9]), 0, id="a node was lost on the way"),
        pytest.param(RunEnd(report("failed"), [1, 1]), 1, id="failed"),
        pytest.param(RunEnd(report("failed"), [0, 0]), 1, id="the verdict counts, not srun's code"),
        pytest.param(RunEnd(report("cancelled"), [0]), 3, id="cancelled"),
        pytest.param(RunEnd(None, [0, 1]), 1, id="no verdict, a node failed"),
        pytest.param(RunEnd(None, [0, -9]), 1, id="no verdict, a node was killed"),
        pytest.param(RunEnd(None, [0, 0]), 0, id="no verdict, nothing failed"),
        pytest.param(RunEnd(report("cancelled"), [0], [signal.SIGTERM]), 143, id="signal to end"),
        pytest.param(RunEnd(report("succeeded"), [0], [signal.SIGTERM]), 0, id="signal to end, too late"),
        pytest.param(RunEnd(report("cancelled"), [0], [signal.SIGUSR1]), 3, id="signal to drain"),
        pytest.param(RunEnd(report("cancelled"), [0], [signal.SIGUSR1, signal.SIGINT]), 130, id="drain, then end"),
    ],
)
def test_exit_code(ended: RunEnd, code: int) -> None:
    assert launcher_exit_code(ended) == code


LOST = report("failed", is_retryable=True)
DRAINED = report("cancelled", is_retryable=True)
NO_VERDICT = "there is no verdict: the store host was lost"


@pytest.mark.parametrize(
    ("ended", "restarts", "requeues", "decision"),
    [
        pytest.param(RunEnd(DRAINED, [0]), 0, 3, Requeue("cancelled(because)"), id="drained"),
        pytest.param(
            RunEnd(DRAINED, [0], [signal.SIGUSR1]), 0, 3, Requeue("cancelled(because)"), id="drained by signal"
        ),
        pytest.param(RunEnd(LOST, [1]), 2, 3, Requeue("failed(because)"), id="too few nodes, once more"),
        pytest.param(RunEnd(None, [1]), 0, 3, Requeue(NO_VERDICT), id="the store host was lost"),
        pytest.param(RunEnd(DRAINED, [0]), 0, 0, NoRequeue(), id="never asked for"),
        pytest.param(RunEnd(report("succeeded"), [0]), 0, 3, NoRequeue(), id="succeeded"),
        pytest.param(RunEnd(None, [0]), 0, 3, NoRequeue(), id="nothing failed"),
        pytest.param(
            RunEnd(None, [1], has_begun=False),
            0,
            3,
            NoRequeue("no worker was ever started, and a start that fails would fail again"),
            id="nothing was ever started",
        ),
        pytest.param(
            RunEnd(LOST, [1]), 3, 3, NoRequeue("it was queued again 3 times already: --requeue 3"), id="often enough"
        ),
        pytest.param(
            RunEnd(report("failed"), [1]),
            0,
            3,
            NoRequeue("that would not help: failed(because)"),
            id="a bug of its own",
        ),
        pytest.param(
            RunEnd(DRAINED, [0], [signal.SIGTERM]),
            0,
            3,
            NoRequeue("a signal asked for the end of the job"),
            id="scancel",
        ),
        pytest.param(
            RunEnd(None, [1], [signal.SIGINT]), 0, 3, NoRequeue("a signal asked for the end of the job"), id="Ctrl-C"
        ),
    ],
)
def test_the_job_is_queued_again_only_if_that_can_help(
    ended: RunEnd, restarts: int, requeues: int, decision: Requeue | NoRequeue
) -> None:
    assert decide_requeue(ended, restarts, requeues) == decision
