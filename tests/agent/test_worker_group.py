"""Which failures of workers a node reports, and which are the fault of a cycle that is over."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ft_rendezvous import worker
from ft_rendezvous.agent.worker_group import StartedWorkers, WorkerGroup
from ft_rendezvous.agent.worker_messages import GroupLostMessage, SubscribeMessage, decode_from_agent
from ft_rendezvous.core.update_notes import StepTime, UpdateNote, UpdateOutcome
from ft_rendezvous.env_names import INBOX_VARIABLE
from ft_rendezvous.protocol.participant import Place
from ft_rendezvous.protocol.worker_policy import STUCK_REASON, GroupState
from tests.agent.fake_link import FakeLink
from tests.agent.process_stage import ProcessStage, wait_for_zombie
from tests.support.waiting import WAIT_S, wait_until

CYCLE_ID = 3
GLOBAL_RANK = 4


@pytest.fixture
def link() -> FakeLink:
    return FakeLink()


@pytest.fixture
def group(link: FakeLink) -> Iterator[WorkerGroup]:
    group = WorkerGroup()
    any_link: Any = link
    group.set_link(any_link)
    group.set_place(any_link, place(CYCLE_ID))
    yield group
    group.end()


def place(cycle_id: int) -> Place:
    return Place(cycle_id, "0" * 16, 0, 1, "a", 1, None)


def look(group: WorkerGroup) -> GroupState:
    """What torch's agent gets to see when it finds that the worker has failed."""
    return group.look(GroupState.FAILED, {GLOBAL_RANK: 7}).state


class Worker:
    """A worker that fails with exit code 7 when the test says so."""

    def __init__(self, stage: ProcessStage, group: WorkerGroup, error_file: str = "", log: str = "") -> None:
        self.process = stage.start(("sh", "-c", "read word; exit 7"))
        group.started(StartedWorkers({0: self.process.pid}, {0: GLOBAL_RANK}, {0: error_file}, {0: log}))

    def fail(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        wait_for_zombie(self.process)


def wait_for_watch(group: WorkerGroup) -> None:
    watch = group._watch
    assert watch is not None
    wait_until("the watch has seen the end", lambda: not watch._thread.is_alive())


def test_a_failure_is_reported_once_with_the_workers_own_words(
    stage: ProcessStage, group: WorkerGroup, link: FakeLink, tmp_path: Path
) -> None:
    error_file, log = tmp_path / "error.json", tmp_path / "stderr.log"
    error_file.write_text(json.dumps({"message": "no GPU"}))
    log.write_text("RuntimeError: no GPU\n")
    Worker(stage, group, str(error_file), str(log)).fail()
    wait_for_watch(group)
    assert look(group) is GroupState.FAILED
    ((cycle_id, end),) = link.reports
    assert (cycle_id, end.rank, end.exit_code) == (CYCLE_ID, GLOBAL_RANK, 7)
    assert (end.reason, end.last_words) == ("exit code 7: no GPU", "RuntimeError: no GPU")
    assert end.log_path == str(log)


def test_a_file_system_that_hangs_does_not_hold_the_report(
    stage: ProcessStage, group: WorkerGroup, link: FakeLink, tmp_path: Path
) -> None:
    hanging = tmp_path / "error.json"
    os.mkfifo(hanging)
    Worker(stage, group, str(hanging)).fail()
    try:
        wait_until("a report", lambda: bool(link.reports))
        ((_, end),) = link.reports
        assert (end.rank, end.exit_code, end.reason, end.last_words) == (GLOBAL_RANK, 7, "exit code 7", "")
    finally:
        os.close(os.open(hanging, os.O_RDWR))


def test_a_failure_after_the_end_of_the_cycle_is_excused(
    stage: ProcessStage, group: WorkerGroup, link: FakeLink
) -> None:
    worker = Worker(stage, group)
    link.is_cycle_over = True
    worker.fail()
    wait_for_watch(group)
    assert look(group) is GroupState.HEALTHY
    assert link.reports == []


def test_a_failure_is_excused_only_while_the_cycle_is_over(
    stage: ProcessStage, group: WorkerGroup, link: FakeLink
) -> None:
    """An agent that hears "healthy" in a cycle that goes on would wait for ever for workers that are gone."""
    worker = Worker(stage, group)
    link.is_cycle_over = True
    worker.fail()
    wait_for_watch(group)
    link.is_cycle_over = False
    assert look(group) is GroupState.FAILED
    ((cycle_id, end),) = link.reports
    assert (cycle_id, end.rank, end.exit_code) == (CYCLE_ID, GLOBAL_RANK, 7)


def test_a_failure_that_ended_the_cycle_is_not_excused(stage: ProcessStage, group: WorkerGroup, link: FakeLink) -> None:
    """The coordinator answers a report within milliseconds, and the agent looks ten times a second."""
    Worker(stage, group).fail()
    wait_until("a report", lambda: bool(link.reports))
    link.is_cycle_over = True
    assert look(group) is GroupState.FAILED
    assert len(link.reports) == 1


def test_every_place_begins_without_a_report(stage: ProcessStage, group: WorkerGroup, link: FakeLink) -> None:
    Worker(stage, group).fail()
    wait_for_watch(group)
    any_link: Any = link
    group.stop_watch()
    group.set_place(any_link, place(CYCLE_ID + 1))
    Worker(stage, group).fail()
    wait_for_watch(group)
    assert [cycle_id for cycle_id, _ in link.reports] == [CYCLE_ID, CYCLE_ID + 1]


def test_a_failure_is_reported_also_without_a_watch(group: WorkerGroup, link: FakeLink) -> None:
    assert group.look(GroupState.FAILED, {9: -11, 8: 1}).state is GroupState.FAILED
    ((_, end),) = link.reports
    assert (end.rank, end.exit_code, end.reason) == (8, 1, "exit code 1")


def test_a_stuck_worker_is_reported_unless_its_cycle_is_over(group: WorkerGroup, link: FakeLink) -> None:
    link.is_cycle_over = True
    group.look(GroupState.UNHEALTHY, {})
    assert link.reports == []
    link.is_cycle_over = False
    group.look(GroupState.UNHEALTHY, {})
    group.look(GroupState.UNHEALTHY, {})
    ((cycle_id, end),) = link.reports
    assert (cycle_id, end.reason, end.rank, end.exit_code) == (CYCLE_ID, STUCK_REASON, None, None)


@pytest.fixture
def worker_of_group(group: WorkerGroup, monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is a worker of the group, too."""
    for name, value in {**group.environment(), "FT_CYCLE_ID": str(CYCLE_ID), "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)


@pytest.mark.usefixtures("worker_of_group")
def test_a_worker_is_told_whether_its_place_stands(
    group: WorkerGroup, link: FakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert worker.is_place_trusted(WAIT_S)
    link.is_cycle_over = True
    assert not worker.is_place_trusted(WAIT_S)
    link.is_cycle_over = False
    any_link: Any = link
    group.set_place(any_link, place(CYCLE_ID + 1))
    assert not worker.is_place_trusted(WAIT_S), "the cycle of this worker is over"
    monkeypatch.setenv("FT_CYCLE_ID", str(CYCLE_ID + 1))
    assert worker.is_place_trusted(WAIT_S)


@pytest.mark.usefixtures("worker_of_group")
def test_the_workers_of_the_place_hear_of_a_lost_group(group: WorkerGroup, link: FakeLink) -> None:
    message = SubscribeMessage(cycle_id=CYCLE_ID, local_rank=0)
    with worker._send_from_own_socket(message, group.environment()[INBOX_VARIABLE]) as sock:
        sock.settimeout(WAIT_S)
        wait_until("it has subscribed", lambda: len(group._inbox._subscribers) == 1)
        group.tell_group_lost(2, "node5\nlost its lease")
        expected = GroupLostMessage(group=2, cycle_id=CYCLE_ID, reason="node5 lost its lease")
        assert decode_from_agent(sock.recv(4096)) == expected
        any_link: Any = link
        group.set_place(any_link, place(CYCLE_ID + 1))
        group.tell_group_lost(2, "again")
        sock.settimeout(0.0)
        with pytest.raises(BlockingIOError):
            sock.recv(4096)


@pytest.mark.usefixtures("worker_of_group")
def test_a_report_of_an_update_is_passed_on_under_its_own_cycle(
    group: WorkerGroup, link: FakeLink, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = worker.UpdateReport(
        version=7,
        outcome="failed",
        attempts=2,
        parties=3,
        updated=0,
        failed=("gen-1",),
        steps=(worker.UpdateStep(name="pause", duration_s=0.25),),
        duration_s=1.5,
        lost_s=1.0,
        reason="it hangs",
    )
    assert worker.report_update(report)
    any_link: Any = link
    group.set_place(any_link, place(CYCLE_ID + 1))
    assert worker.report_update(dataclasses.replace(report, version=8))
    monkeypatch.setenv("FT_CYCLE_ID", str(CYCLE_ID + 2))
    assert worker.report_update(dataclasses.replace(report, version=9)), "there is an agent, which ignores it"
    monkeypatch.setenv("FT_CYCLE_ID", str(CYCLE_ID + 1))
    assert worker.report_update(dataclasses.replace(report, version=10))
    wait_until("all have come", lambda: len(link.updates) == 3)
    assert [(cycle_id, note.version) for cycle_id, note in link.updates] == [
        (CYCLE_ID, 7),
        (CYCLE_ID, 8),
        (CYCLE_ID + 1, 10),
    ]
    note = link.updates[0][1]
    assert note == UpdateNote(
        version=7,
        outcome=UpdateOutcome.FAILED,
        attempts=2,
        parties=3,
        updated=0,
        failed_count=1,
        failed=("gen-1",),
        steps=(StepTime("pause", 0.25),),
        duration_s=1.5,
        lost_s=1.0,
        reason="it hangs",
    )
