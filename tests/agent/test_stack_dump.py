"""Stacks of real processes: by py-spy and by signal, also where the interpreter is held or the process is stopped."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ft_rendezvous.agent import stack_dump
from ft_rendezvous.agent.progress_cells import ProgressCells
from ft_rendezvous.agent.stack_dump import STOPPED, Target, find_py_spy, take_stacks
from ft_rendezvous.agent.stack_texts import make_frame, parse_faulthandler, parse_py_spy
from ft_rendezvous.core.stacks import Frame, describe_place, normalise
from ft_rendezvous.env_names import PROGRESS_VARIABLE
from ft_rendezvous.host.side_call import SideCall
from tests.agent.process_stage import ProcessStage
from tests.support.torchrun_cluster import state_of
from tests.support.waiting import wait_until

SCRIPT = """
import itertools, sys, threading, time
from ft_rendezvous import worker

class Loader:
    def sleep(self):
        time.sleep(3600)

def loop_in_c():
    sum(itertools.repeat(0))

for _ in range(int(sys.argv[2])):
    threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()
worker.progress(1)
print("ready", flush=True)
if sys.argv[1] == "sleep":
    Loader().sleep()
loop_in_c()
"""
WAYS = ["py-spy", "signal"]


@pytest.fixture
def cells() -> Iterator[ProgressCells]:
    cells = ProgressCells(4)
    yield cells
    cells.close()


def start(stage: ProcessStage, cells: ProgressCells, how: str, local_rank: int = 0, threads: int = 1) -> Target:
    environ = {"FT_CYCLE_ID": "1", "LOCAL_RANK": str(local_rank), PROGRESS_VARIABLE: cells.path}
    process = stage.start((sys.executable, "-c", SCRIPT, how, str(threads)), environ=environ)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == b"ready"
    cell = cells.read(local_rank, 1)
    assert cell is not None
    return Target(process.pid, cell.stack_fd)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("how", "function"), [("sleep", "sleep"), ("loop", "loop_in_c")])
def test_the_stack_of_the_main_thread_is_taken(
    stage: ProcessStage, cells: ProgressCells, way: str, how: str, function: str
) -> None:
    py_spy = find_py_spy()
    assert py_spy is not None, "the tests need the extra `hang`"
    target = start(stage, cells, how)
    by_way = Target(target.pid, None) if way == "py-spy" else target

    def look() -> bool:
        stack = take_stacks({3: by_way}, py_spy if way == "py-spy" else None)[3]
        return bool(stack) and stack[0].function == function and stack[-1].function == "<module>"

    wait_until(f"the stack of {function}", lambda: look() or None)


def test_both_ways_tell_the_same_stack(stage: ProcessStage, cells: ProgressCells) -> None:
    py_spy, target = find_py_spy(), start(stage, cells, "sleep")

    def look() -> bool:
        spied = take_stacks({0: Target(target.pid, None)}, py_spy)[0]
        signalled = take_stacks({0: target}, None)[0]
        return bool(spied) and normalise(spied) == normalise(signalled)

    wait_until("the same stack by both ways", lambda: look() or None)


def test_no_other_thread_is_taken_for_the_main_thread(stage: ProcessStage, cells: ProgressCells) -> None:
    """faulthandler writes a hundred threads, and the main thread would be the last. py-spy has no such limit."""
    target = start(stage, cells, "sleep", threads=120)
    assert take_stacks({0: target}, None) == {0: ()}
    wait_until("a stack by py-spy", lambda: take_stacks({0: target}, find_py_spy())[0][-1:] or None)


def test_several_workers_are_asked_at_once_and_again(stage: ProcessStage, cells: ProgressCells) -> None:
    targets = {rank: start(stage, cells, "sleep", rank) for rank in range(3)}

    def look() -> bool:
        found = take_stacks(targets, None)
        return [describe_place(found[rank])[:11] for rank in range(3)] == ["is in sleep"] * 3

    for _ in range(3):
        wait_until("three stacks", lambda: look() or None)


def test_a_stopped_worker_is_said_to_be_stopped(stage: ProcessStage, cells: ProgressCells) -> None:
    target = start(stage, cells, "sleep")
    os.kill(target.pid, signal.SIGSTOP)
    wait_until("stopped", lambda: state_of(target.pid) == "T" or None)
    assert take_stacks({0: target}, None)[0] == STOPPED


def test_a_worker_that_cannot_be_asked_has_no_stack(stage: ProcessStage) -> None:
    process = stage.start(("sleep", "600"))
    assert take_stacks({0: Target(process.pid, None)}, find_py_spy()) == {0: ()}
    assert take_stacks({0: Target(process.pid, 1)}, None) == {0: ()}, "it does not catch the signal, and lives on"
    assert process.poll() is None


def test_a_tool_that_hangs_is_given_up(
    stage: ProcessStage, cells: ProgressCells, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(stack_dump, "PY_SPY_TIMEOUT_S", 0.2)
    slow = tmp_path / "py-spy"
    slow.write_text("#!/bin/sh\nexec sleep 600\n")
    slow.chmod(0o755)
    target = start(stage, cells, "sleep")
    assert take_stacks({0: target}, str(slow))[0][0].function == "sleep", "the worker itself is asked then"


def test_a_tool_that_cannot_be_ended_is_not_waited_for(
    stage: ProcessStage, cells: ProgressCells, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A wrapper's child holds the pipe, as a tool does that stands still in the kernel beside its target."""
    monkeypatch.setattr(stack_dump, "PY_SPY_TIMEOUT_S", 0.2)
    wrapper = tmp_path / "py-spy"
    wrapper.write_text("#!/bin/sh\nsetsid sleep 3600 &\nwait\n")
    wrapper.chmod(0o755)
    target = start(stage, cells, "sleep")
    taken = SideCall(lambda: take_stacks({0: target}, str(wrapper))[0], "stacks")
    taken.start()
    assert taken.wait(30.0), "the stacks are taken within a bounded time"
    assert taken.value
    assert taken.value[0].function == "sleep"


@pytest.mark.parametrize("text", ["", "[]", "{}", "no json", '[{"frames": 3}]', '[{"os_thread_id": 1, "pid": 1}]'])
def test_what_is_no_stack_is_none(text: str) -> None:
    assert parse_py_spy(text) == ()
    assert parse_faulthandler(text) == ()


def test_files_of_libraries_are_named_from_their_package_on() -> None:
    assert make_frame("all_reduce", "/v/lib/python3.11/site-packages/torch/distributed/c10d.py", 3) == Frame(
        "all_reduce", "torch/distributed/c10d.py", 3, True
    )
    assert make_frame("Queue.get", "/usr/lib/python3.11/queue.py", 3) == Frame("get", "queue.py", 3, True)
    assert make_frame("main", "/home/me/train.py", 3) == Frame("main", "train.py", 3, False)
    assert make_frame("_run", "<frozen runpy>", 3).is_library
