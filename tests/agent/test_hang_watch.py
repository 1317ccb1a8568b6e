"""The watch over the progress of real workers: late, paused, asked, held by a debugger, and ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ft_rendezvous.agent.hang_watch import DEBUGGER
from ft_rendezvous.agent.worker_group import StartedWorkers, WorkerGroup
from ft_rendezvous.core.leases import WorkersProgress
from ft_rendezvous.core.progress import HangRules, ProgressFrom
from ft_rendezvous.env_names import PROGRESS_VARIABLE
from ft_rendezvous.protocol.participant import Place
from tests.agent.fake_link import FakeLink
from tests.agent.process_stage import ProcessStage
from tests.support.torchrun_cluster import is_alive
from tests.support.waiting import wait_until

CYCLE_ID = 3
FIRST_RANK = 10
WORKER = """
import signal, sys, time
from ft_rendezvous import worker

signal.signal(signal.SIGTERM, lambda *_: None)

def obey():
    for line in sys.stdin:
        word, _, value = line.strip().partition(" ")
        if word == "step":
            worker.progress(int(value))
        elif word == "pause":
            with worker.pause_progress("checkpoint"):
                print("done", flush=True)
                sys.stdin.readline()
        elif word == "write":
            print("x" * 100, file=sys.stderr, flush=True)
        print("done", flush=True)

obey()
"""


class Stage:
    """A node with workers that do what the test says, and that hang between two words."""

    def __init__(self, stage: ProcessStage, rules: HangRules, count: int = 2, log_dir: Path | None = None) -> None:
        self._stage, self.link = stage, FakeLink()
        source = ProgressFrom.CALLS if log_dir is None else ProgressFrom.LOG
        self.group = WorkerGroup(count, rules, source)
        link: Any = self.link
        self.group.set_link(link)
        self.group.set_place(link, Place(CYCLE_ID, "0" * 16, 0, 1, "a", 1, None))
        self.logs = {rank: "" if log_dir is None else str(log_dir / f"{rank}.log") for rank in range(count)}
        self.processes = [self._start(rank) for rank in range(count)]
        pids = {rank: process.pid for rank, process in enumerate(self.processes)}
        ranks = {rank: FIRST_RANK + rank for rank in range(count)}
        self.group.started(StartedWorkers(pids, ranks, {}, self.logs))

    def _start(self, local_rank: int) -> subprocess.Popen[bytes]:
        path = self.group.environment()[PROGRESS_VARIABLE]
        environ = {"FT_CYCLE_ID": str(CYCLE_ID), "LOCAL_RANK": str(local_rank), PROGRESS_VARIABLE: path}
        redirect = f" 2>{self.logs[local_rank]}" if self.logs[local_rank] else ""
        command = f'exec "$0" -c "$1"{redirect}'
        return self._stage.start(("sh", "-c", command, sys.executable, WORKER), environ)

    def say(self, local_rank: int, word: str) -> None:
        process = self.processes[local_rank]
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(word.encode() + b"\n")
        process.stdin.flush()
        assert process.stdout.readline().strip() == b"done"

    def ask(self, no: int) -> tuple[int, int, list[Any], list[tuple[int, str]], list[int]]:
        self.link.inquire(CYCLE_ID, no)
        return wait_until("an answer", lambda: next((each for each in self.link.answers if each[1] == no), None))

    def wait_late(self) -> int:
        wait_until("a rank is late", lambda: self.link.late or None)
        return self.link.late[0][1].rank


@pytest.fixture
def stages() -> Iterator[list[Stage]]:
    stages: list[Stage] = []
    yield stages
    for each in stages:
        each.group.end()


def test_a_worker_that_stops_is_late_with_step_and_stack(stage: ProcessStage, stages: list[Stage]) -> None:
    node = Stage(stage, HangRules(hang_s=2.0))
    stages.append(node)
    node.say(1, "step 8")
    assert node.wait_late() == FIRST_RANK + 1, "a worker that never spoke is not judged"
    cycle_id, late, after_s = node.link.late[0]
    assert (cycle_id, late.step, late.is_starting) == (CYCLE_ID, 8, False)
    assert late.late_s >= 2.0
    assert after_s >= 2.0
    cycle_id, _, stacks, paused, moving = node.ask(41)
    assert (cycle_id, paused, moving) == (CYCLE_ID, [], [])
    assert [(each.ranks, each.steps) for each in stacks] == [((FIRST_RANK,), (None,)), ((FIRST_RANK + 1,), (8,))]
    assert all(each.stack and each.stack[0].function == "obey" for each in stacks)


def test_workers_are_watched_without_pidfds(
    stage: ProcessStage, stages: list[Stage], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python that was built with old headers has none, and neither has an agent without a free descriptor."""
    monkeypatch.delattr(os, "pidfd_open")
    node = Stage(stage, HangRules(hang_s=2.0))
    stages.append(node)
    for rank in (0, 1):
        node.say(rank, "step 8")
    node.processes[0].kill()
    assert node.wait_late() == FIRST_RANK + 1, "a worker that has ended is not late"
    _, _, stacks, _, _ = node.ask(41)
    assert [each.ranks for each in stacks if each.stack] == [(FIRST_RANK + 1,)]


def test_without_memory_to_share_the_agent_says_that_it_notices_no_hangs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.delattr(os, "pidfd_open")
    group = WorkerGroup(1, HangRules(hang_s=2.0))
    group.end()
    assert "this node cannot notice hangs" in caplog.text


def test_a_start_without_a_word_is_late(stage: ProcessStage, stages: list[Stage]) -> None:
    node = Stage(stage, HangRules(startup_s=2.0), count=1)
    stages.append(node)
    node.wait_late()
    assert node.link.late[0][1].is_starting


def test_a_paused_worker_answers_for_its_node_and_nobody_is_late(stage: ProcessStage, stages: list[Stage]) -> None:
    node = Stage(stage, HangRules(hang_s=1.0))
    stages.append(node)
    for rank in (0, 1):
        node.say(rank, "step 1")
    node.say(1, "pause")
    for no in range(5):  # Each answer comes after a look.
        _, _, stacks, paused, moving = node.ask(no)
        assert (stacks, paused, moving) == ([], [(FIRST_RANK + 1, "checkpoint")], [])
    assert node.link.late == []


HOLDER = """
import ctypes, sys, time
ATTACH, pid = 16, int(sys.argv[1])
print(ctypes.CDLL(None).ptrace(ATTACH, pid, None, None), flush=True)
time.sleep(600)
"""


def test_a_worker_that_a_debugger_holds_is_not_late(stage: ProcessStage, stages: list[Stage]) -> None:
    node = Stage(stage, HangRules(hang_s=600.0))
    stages.append(node)
    for rank in (0, 1):
        node.say(rank, "step 1")
    debugger = stage.start((sys.executable, "-S", "-c", HOLDER, str(node.processes[0].pid)))
    assert debugger.stdout is not None
    if debugger.stdout.readline() != b"0\n":
        pytest.skip("tracing is not allowed here")
    held = [(FIRST_RANK, DEBUGGER)]
    wait_until("its agent says why", lambda: node.ask(len(node.link.answers) + 1)[3] == held or None)
    debugger.kill()
    wait_until("it is let go", lambda: node.ask(len(node.link.answers) + 1)[3] == [] or None)


def test_a_worker_that_moves_says_so(stage: ProcessStage, stages: list[Stage]) -> None:
    node = Stage(stage, HangRules(hang_s=600.0), count=1)
    stages.append(node)
    node.say(0, "step 7")
    told = WorkersProgress(7, 0, FIRST_RANK, 600)
    wait_until("its beat says so", lambda: node.link.read_progress() == told or None)
    wait_until("it moves", lambda: node.ask(len(node.link.answers) + 1)[4] == [FIRST_RANK] or None)


def test_an_inquiry_about_another_cycle_is_not_answered(stage: ProcessStage, stages: list[Stage]) -> None:
    node = Stage(stage, HangRules(hang_s=600.0), count=1)
    stages.append(node)
    node.link.inquire(CYCLE_ID + 1, 1)
    node.ask(2)
    assert [each[1] for each in node.link.answers] == [2]


def test_output_is_progress(stage: ProcessStage, stages: list[Stage], tmp_path: Path) -> None:
    node = Stage(stage, HangRules(hang_s=2.0), log_dir=tmp_path)
    stages.append(node)
    node.say(0, "write")
    assert node.wait_late() == FIRST_RANK
    assert node.link.late[0][1].step is None


def test_output_to_the_console_is_warned_about(
    stage: ProcessStage, stages: list[Stage], caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    node = Stage(stage, HangRules(hang_s=600.0), count=0, log_dir=tmp_path)
    stages.append(node)
    assert "progress_from=log has no effect" in caplog.text


def test_a_worker_that_has_ended_is_not_late(stage: ProcessStage, stages: list[Stage]) -> None:
    node = Stage(stage, HangRules(hang_s=2.0))
    stages.append(node)
    for rank in (0, 1):
        node.say(rank, "step 1")
    stdin = node.processes[0].stdin
    assert stdin is not None
    stdin.close()
    assert node.wait_late() == FIRST_RANK + 1
    assert {each[1].rank for each in node.link.late} == {FIRST_RANK + 1}


@pytest.mark.parametrize("is_hang", [True, False])
def test_workers_of_a_world_that_hangs_are_ended_and_no_others(
    stage: ProcessStage, stages: list[Stage], is_hang: bool
) -> None:
    node = Stage(stage, HangRules(hang_s=600.0), count=1)
    stages.append(node)
    node.say(0, "step 1")
    watch = node.group._hang_watch
    assert watch is not None
    node.link.is_hang = is_hang
    node.group.stop_watch()
    os.kill(node.processes[0].pid, signal.SIGTERM)  # The worker catches it, and goes on.
    wait_until("the watch has ended", lambda: not watch._thread.is_alive() or None)
    if is_hang:
        assert node.processes[0].wait() == -signal.SIGKILL
    else:
        assert is_alive(node.processes[0].pid)


def test_nothing_is_watched_unless_it_is_asked_for(stage: ProcessStage, stages: list[Stage]) -> None:
    node = Stage(stage, HangRules(), count=1)
    stages.append(node)
    assert node.group.environment()[PROGRESS_VARIABLE] == ""
    assert node.group._hang_watch is None
