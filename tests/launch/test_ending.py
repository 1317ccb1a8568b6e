"""What a run's end means: exit code, and whether to queue the job again."""

from __future__ import annotations

import signal

import pytest

from ft_rendezvous.core.model import VerdictKind
from ft_rendezvous.host.verdict_file import VerdictReport
from ft_rendezvous.launch.ending import Ended, LetBe, Requeue, decide_requeue, exit_code_of


def report(kind: str, is_retryable: bool = False) -> VerdictReport:
    return VerdictReport(run_id="r", verdict=VerdictKind(kind), reason="because", is_retryable=is_retryable, cycle=3)


@pytest.mark.parametrize(
    ("ended", "code"),
    [
        pytest.param(Ended(report("succeeded"), [0, 0]), 0, id="succeeded"),
        pytest.param(Ended(report("succeeded"), [0, -9]), 0, id="a node was lost on the way"),
        pytest.param(Ended(report("failed"), [1, 1]), 1, id="failed"),
        pytest.param(Ended(report("failed"), [0, 0]), 1, id="the verdict counts, not srun's code"),
        pytest.param(Ended(report("cancelled"), [0]), 3, id="cancelled"),
        pytest.param(Ended(None, [0, 1]), 1, id="no verdict, a node failed"),
        pytest.param(Ended(None, [0, -9]), 1, id="no verdict, a node was killed"),
        pytest.param(Ended(None, [0, 0]), 0, id="no verdict, nothing failed"),
        pytest.param(Ended(report("cancelled"), [0], [signal.SIGTERM]), 143, id="told to end"),
        pytest.param(Ended(report("succeeded"), [0], [signal.SIGTERM]), 0, id="told to end too late"),
        pytest.param(Ended(report("cancelled"), [0], [signal.SIGUSR1]), 3, id="told to drain"),
        pytest.param(Ended(report("cancelled"), [0], [signal.SIGUSR1, signal.SIGINT]), 130, id="drain, then end"),
    ],
)
def test_exit_code(ended: Ended, code: int) -> None:
    assert exit_code_of(ended) == code


LOST = report("failed", is_retryable=True)
DRAINED = report("cancelled", is_retryable=True)
NO_VERDICT = "there is no verdict: the store host was lost"


@pytest.mark.parametrize(
    ("ended", "restarts", "requeues", "decision"),
    [
        pytest.param(Ended(DRAINED, [0]), 0, 3, Requeue("cancelled(because)"), id="drained"),
        pytest.param(
            Ended(DRAINED, [0], [signal.SIGUSR1]), 0, 3, Requeue("cancelled(because)"), id="drained by signal"
        ),
        pytest.param(Ended(LOST, [1]), 2, 3, Requeue("failed(because)"), id="too few nodes, once more"),
        pytest.param(Ended(None, [1]), 0, 3, Requeue(NO_VERDICT), id="the store host was lost"),
        pytest.param(Ended(DRAINED, [0]), 0, 0, LetBe(), id="never asked for"),
        pytest.param(Ended(report("succeeded"), [0]), 0, 3, LetBe(), id="succeeded"),
        pytest.param(Ended(None, [0]), 0, 3, LetBe(), id="nothing failed"),
        pytest.param(
            Ended(None, [1], has_begun=False),
            0,
            3,
            LetBe("no worker was ever started, and a start that fails would fail again"),
            id="nothing was ever started",
        ),
        pytest.param(
            Ended(LOST, [1]), 3, 3, LetBe("it was queued again 3 times already: --requeue 3"), id="often enough"
        ),
        pytest.param(
            Ended(report("failed"), [1]), 0, 3, LetBe("that would not help: failed(because)"), id="a bug of its own"
        ),
        pytest.param(Ended(DRAINED, [0], [signal.SIGTERM]), 0, 3, LetBe("the job was told to end"), id="scancel"),
        pytest.param(Ended(None, [1], [signal.SIGINT]), 0, 3, LetBe("the job was told to end"), id="Ctrl-C"),
    ],
)
def test_the_job_is_queued_again_only_if_that_can_help(
    ended: Ended, restarts: int, requeues: int, decision: Requeue | LetBe
) -> None:
    assert decide_requeue(ended, restarts, requeues) == decision
