"""What an agent makes of its workers' ends and messages, on a live run with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from ft_rendezvous.agent.worker_group import StartedWorkers, WorkerGroup
from ft_rendezvous.agent.worker_messages import CheckpointMessage, DrainMessage, RestartMessage
from ft_rendezvous.config.load import caught_signals
from ft_rendezvous.protocol import journal
from ft_rendezvous.protocol.worker_policy import GroupState
from tests.contract.live import LiveNode, LiveRun, live_run


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]),
        ("SIGTERM, SIGUSR2", [signal.SIGTERM, signal.SIGUSR2]),
        ("SIGNONSENSE", []),
    ],
)
def test_torch_is_asked_which_signals_it_catches(text: str | None, expected: list[signal.Signals]) -> None:
    assert caught_signals({} if text is None else {"TORCHELASTIC_SIGNALS_TO_HANDLE": text}) == expected


@pytest.fixture
def run() -> Iterator[LiveRun]:
    with live_run(min_nodes=2, max_nodes=3, crash_loop=0, drain_grace_s=1000.0) as run:
        yield run


@pytest.fixture
def workers() -> Iterator[WorkerGroup]:
    workers = WorkerGroup()
    yield workers
    workers.end()


def seat(run: LiveRun, workers: WorkerGroup) -> LiveNode:
    """A node with rank 0 that trains beside another."""
    node, other = run.node(0, infra_rank=0), run.node(1, infra_rank=1)
    (place, _) = run.seal(node, other)
    workers.set_link(node.link)
    workers.set_place(node.link, place)
    return node


def test_the_first_worker_to_fail_is_told_at_once_with_its_global_rank(run: LiveRun, workers: WorkerGroup) -> None:
    seat(run, workers)
    with (
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as good,
        subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as bad,
    ):
        workers.started(StartedWorkers({0: good.pid, 1: bad.pid}, {0: 4, 1: 5}, {}))
        run.wait_for(lambda: bool(run.told(journal.WorkersEnded)))
        (told,) = run.told(journal.WorkersEnded)
        assert (told.failure.rank, told.failure.exit_code, told.failure.reason) == (5, 3, "exit code 3")
        assert told.failure.after_s is not None
        run.wait_for(lambda: run.host.coordinator.cycle_id == 2)
        workers.stop_watch()
        good.kill()


def test_what_the_watch_cannot_tell_the_agent_tells(run: LiveRun, workers: WorkerGroup) -> None:
    """It took the exit code first: nothing was told, and the time of the end is not lost."""
    node = seat(run, workers)
    with subprocess.Popen([sys.executable, "-c", "raise SystemExit(3)"]) as bad:
        bad.wait(60)
        workers.started(StartedWorkers({0: bad.pid}, {0: 4}, {}))
        assert not node.link.has_reported
        assert workers.look(GroupState.FAILED, {4: 3}).state is GroupState.FAILED
        run.wait_for(lambda: bool(run.told(journal.WorkersEnded)))
    (told,) = run.told(journal.WorkersEnded)
    assert (told.failure.rank, told.failure.exit_code) == (4, 3)
    assert told.failure.after_s is not None


def test_what_a_worker_asks_for_reaches_the_coordinator(run: LiveRun, workers: WorkerGroup) -> None:
    node = seat(run, workers)
    workers._on_message(RestartMessage(cycle_id=7, local_rank=0, reason="of another cycle"))
    workers._on_message(CheckpointMessage(cycle_id=1, local_rank=0))
    workers._on_message(DrainMessage(cycle_id=1, local_rank=0, reason="slow"))
    run.wait_for(lambda: node.link.is_draining)
    (called,) = run.told(journal.CycleCalled)
    assert called.reason == "slow"
    assert run.host.coordinator.cycle_id == 1, "too few would remain"
    run.node(2, infra_rank=2).ask()
    run.wait_for(lambda: len(run.host.coordinator.roster.members) == 3)
    workers._on_message(CheckpointMessage(cycle_id=1, local_rank=0))
    run.wait_for(lambda: run.host.coordinator.cycle_id == 2)


def test_the_drain_signal_reaches_the_coordinator_and_the_workers_that_catch_it(
    run: LiveRun, workers: WorkerGroup
) -> None:
    node = seat(run, workers)
    code = (
        "import signal, sys\n"
        "signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))\n"
        "print('ready', flush=True)\n"
        "signal.pause()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"ready\n"
        workers.started(StartedWorkers({0: worker.pid}, {0: 0}, {}))
        os.kill(os.getpid(), signal.SIGUSR1)
        assert worker.wait(60) == 0
        run.wait_for(lambda: node.link.is_draining)
