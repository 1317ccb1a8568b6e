"""The watch reports the first failure, once, and leaves every worker to be reaped by its Popen."""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence

import pytest

from ft_rendezvous.agent.worker_watch import FirstFailure, WorkerWatch
from tests.agent.process_stage import ProcessStage, open_fds, wait_for_zombie
from tests.support.waiting import wait_until


class Watched:
    """Workers that wait to be released, and a watch on them that keeps what it reports."""

    def __init__(self, stage: ProcessStage, exit_codes: Sequence[int]) -> None:
        self.workers = [stage.start(("sh", "-c", f"read word; exit {code}")) for code in exit_codes]
        self.reports: list[FirstFailure] = []
        self.since = time.monotonic()
        self.watch: WorkerWatch | None = None

    def begin(self) -> WorkerWatch:
        # Not in the order of ranks: the order of the mapping means nothing.
        pids = {rank: worker.pid for rank, worker in reversed(list(enumerate(self.workers)))}
        self.watch = WorkerWatch(pids, self.reports.append)
        return self.watch

    def release(self, rank: int) -> None:
        stdin = self.workers[rank].stdin
        assert stdin is not None
        stdin.close()
        wait_for_zombie(self.workers[rank])

    def reported(self) -> list[tuple[int, int | None]]:
        return [(report.local_rank, report.exit_code) for report in self.reports]


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "ft-worker-watch"]


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Neither a thread nor a descriptor is left of any watch."""
    before = open_fds()
    yield
    assert watchers() == []
    assert open_fds() == before


def test_an_exit_code_is_reported_and_left_to_popen(stage: ProcessStage) -> None:
    watched = Watched(stage, [0, 3])
    watch = watched.begin()
    watched.release(1)
    wait_until("a report", lambda: bool(watched.reports))
    now = time.monotonic()
    assert watched.reported() == [(1, 3)]
    assert watched.since < watched.reports[0].seen_at <= now
    watch.stop()
    assert watched.workers[1].wait() == 3


def test_a_signal_is_a_negative_code(stage: ProcessStage) -> None:
    watched = Watched(stage, [0])
    watch = watched.begin()
    watched.workers[0].kill()
    wait_until("a report", lambda: bool(watched.reports))
    watch.stop()
    assert watched.reported() == [(0, -signal.SIGKILL)]
    assert watched.workers[0].wait() == -signal.SIGKILL


def test_only_the_first_is_reported(stage: ProcessStage) -> None:
    watched = Watched(stage, [3, 4, 5])
    watch = watched.begin()
    watched.release(2)
    wait_until("a report", lambda: bool(watched.reports))
    watched.release(0)
    watched.release(1)
    watch.stop()
    assert watched.reported() == [(2, 5)]


def test_of_several_seen_at_once_it_is_the_lowest_rank_that_failed(stage: ProcessStage) -> None:
    watched = Watched(stage, [0, 4, 5])
    for rank in range(3):
        watched.release(rank)
    watch = watched.begin()
    wait_until("a report", lambda: bool(watched.reports))
    watch.stop()
    assert watched.reported() == [(1, 4)]


def test_a_good_end_is_no_failure_and_the_watch_goes_on(stage: ProcessStage) -> None:
    watched = Watched(stage, [0, 0, 7])
    watch = watched.begin()
    watched.release(0)
    watched.release(1)
    watched.release(2)
    wait_until("a report", lambda: bool(watched.reports))
    watch.stop()
    assert watched.reported() == [(2, 7)]


def test_the_watch_ends_by_itself_when_all_have_ended_well(stage: ProcessStage) -> None:
    watched = Watched(stage, [0, 0])
    watch = watched.begin()
    watched.release(0)
    watched.release(1)
    wait_until("the thread is gone", lambda: not watchers())
    assert watched.reports == []
    assert [worker.wait() for worker in watched.workers] == [0, 0]
    watch.stop()


def test_after_the_stop_nothing_is_reported(stage: ProcessStage) -> None:
    watched = Watched(stage, [0, 0])
    watch = watched.begin()
    watch.stop()
    assert watchers() == []
    for worker in watched.workers:
        worker.terminate()
    assert [worker.wait() for worker in watched.workers] == [-signal.SIGTERM] * 2
    watch.stop()
    assert watched.reports == []


def test_a_failure_from_before_the_stop_is_reported(stage: ProcessStage) -> None:
    watched = Watched(stage, [3])
    watched.release(0)
    watched.begin().stop()
    assert watched.reported() == [(0, 3)]


def test_of_a_worker_that_was_reaped_the_code_is_unknown(stage: ProcessStage) -> None:
    watched = Watched(stage, [3])
    watched.release(0)
    watched.workers[0].wait()
    watched.begin().stop()
    assert watched.reported() == [(0, None)]


def test_of_a_worker_that_another_reaps_the_code_is_unknown(stage: ProcessStage) -> None:
    """This process cannot wait for a grandchild. The same holds for a child that the agent has reaped."""
    parent = stage.start(("sh", "-c", "sleep 600 & echo $!; wait"))
    assert parent.stdout is not None
    grandchild = int(parent.stdout.readline())
    reports: list[FirstFailure] = []
    watch = WorkerWatch({5: grandchild}, reports.append)
    os.kill(grandchild, signal.SIGKILL)
    wait_until("a report", lambda: bool(reports))
    watch.stop()
    assert [(report.local_rank, report.exit_code) for report in reports] == [(5, None)]


def test_the_reported_may_stop_the_watch(stage: ProcessStage) -> None:
    worker = stage.start(("sh", "-c", "read word; exit 3"))
    reports: list[FirstFailure] = []

    def stop_and_keep(failure: FirstFailure) -> None:
        watch.stop()
        reports.append(failure)

    watch = WorkerWatch({0: worker.pid}, stop_and_keep)
    worker.kill()
    wait_until("a report", lambda: bool(reports))
    watch.stop()


def test_a_report_that_is_stuck_does_not_hold_the_stop(stage: ProcessStage) -> None:
    worker = stage.start(("sh", "-c", "exit 3"))
    is_begun, may_end = threading.Event(), threading.Event()

    def hang(_: FirstFailure) -> None:
        is_begun.set()
        may_end.wait()

    watch = WorkerWatch({0: worker.pid}, hang)
    assert is_begun.wait(60)
    watch.stop()
    assert watchers() != []
    may_end.set()
    wait_until("the thread is gone", lambda: not watchers())


def test_where_workers_cannot_be_watched_the_agent_is_warned(
    stage: ProcessStage, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    opened = iter([os.pidfd_open])

    def open_one(pid: int) -> int:
        """One descriptor is left."""
        real = next(opened, None)
        if real is None:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return real(pid)

    monkeypatch.setattr(os, "pidfd_open", open_one)
    watched = Watched(stage, [3, 4])
    watch = watched.begin()
    watched.release(0)
    watched.release(1)
    watch.stop()
    assert watched.reports == []
    assert "no watch on the workers" in caplog.text
    assert [worker.wait() for worker in watched.workers] == [3, 4]


def test_a_worker_under_a_debugger_is_waited_for(stage: ProcessStage) -> None:
    """Its parent cannot read how it ended until the debugger lets go, and then reads it right."""
    watched = Watched(stage, [3])
    tracer = stage.start((sys.executable, "-S", "-c", TRACER, str(watched.workers[0].pid)))
    assert tracer.stdout is not None
    if tracer.stdout.readline() != b"0\n":
        pytest.skip("tracing is not allowed here")
    watch = watched.begin()
    stdin = watched.workers[0].stdin
    assert stdin is not None
    stdin.close()
    tracer.stdout.readline()
    assert watched.reports == []
    tracer.kill()
    wait_until("a report", lambda: bool(watched.reports))
    watch.stop()
    assert watched.reported() == [(0, 3)]


TRACER = """
import ctypes, sys, time
from pathlib import Path
SEIZE, pid = 0x4206, int(sys.argv[1])
print(ctypes.CDLL(None).ptrace(SEIZE, pid, None, None), flush=True)
while Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z":
    time.sleep(0.01)
print("it is a zombie", flush=True)
time.sleep(600)
"""
