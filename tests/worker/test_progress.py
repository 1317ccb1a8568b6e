"""What a worker says of its progress, in memory that it shares with its agent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous import worker
from ft_rendezvous.agent.optimizer_progress import watch_steps
from ft_rendezvous.agent.progress_cells import STACK_SIGNAL, TEXT_BYTES, Cell, CellWriter, ProgressCells
from ft_rendezvous.env_names import PROGRESS_VARIABLE
from ft_rendezvous.host.side_call import SideCall
from tests.worker.inbox_rig import CYCLE_ID, ENVIRON

LOCAL_RANK = int(ENVIRON["LOCAL_RANK"])


@pytest.fixture
def cells() -> Iterator[ProgressCells]:
    cells = ProgressCells(LOCAL_RANK + 2)
    yield cells
    cells.close()


@pytest.fixture
def watched(cells: ProgressCells, monkeypatch: pytest.MonkeyPatch) -> ProgressCells:
    """This process is a worker whose progress is watched."""
    for name, value in {**ENVIRON, PROGRESS_VARIABLE: cells.path}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(worker, "_progress", worker._Progress())
    return cells


def read(cells: ProgressCells) -> Cell:
    cell = cells.read(LOCAL_RANK, CYCLE_ID)
    assert cell is not None
    return cell


def test_progress_is_counted_with_its_step(watched: ProgressCells) -> None:
    assert watched.read(LOCAL_RANK, CYCLE_ID) is None
    assert worker.progress(7)
    assert (read(watched).count, read(watched).step) == (1, 7)
    assert worker.progress(7)
    assert (read(watched).count, read(watched).step) == (2, 7), "the same step again is progress, too"
    assert watched.read(LOCAL_RANK + 1, CYCLE_ID) is None
    assert watched.read(LOCAL_RANK, CYCLE_ID + 1) is None, "it is not said of another cycle"


def test_a_pause_is_told_with_its_reason_and_may_be_nested(watched: ProgressCells) -> None:
    worker.progress(1)
    with worker.pause_progress("checkpoint"):
        assert read(watched).pause == "checkpoint"
        with worker.pause_progress("x" * 1000):
            assert read(watched).pause == "x" * (TEXT_BYTES - 1)
        assert read(watched).pause
    assert read(watched).pause == ""
    with contextlib.suppress(KeyError), worker.pause_progress(""):
        assert read(watched).pause == "no reason given"
        raise KeyError
    assert read(watched).pause == "", "an error ends a pause"


def test_pauses_of_several_threads_are_all_counted(watched: ProgressCells) -> None:
    def pause() -> None:
        for _ in range(500):
            with worker.pause_progress("save"):
                pass

    threads = [threading.Thread(target=pause) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read(watched).pause == ""


def test_every_optimizer_step_is_progress(watched: ProgressCells) -> None:
    assert worker.watch_optimizer()
    assert worker.watch_optimizer(), "a second call changes nothing"
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    for _ in range(3):
        weight.grad = torch.ones(1)
        optimizer.step()
    assert (read(watched).count, read(watched).step) == (3, 3)


def test_the_hook_can_be_removed() -> None:
    steps: list[int] = []
    remove = watch_steps(steps.append)
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    optimizer.step()
    remove()
    optimizer.step()
    assert steps == [1]


@pytest.mark.parametrize("path", ["", "/proc/self/fd/999999", "/dev/null"])
def test_without_an_agent_that_watches_nothing_happens(monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    for name, value in {**ENVIRON, PROGRESS_VARIABLE: path}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(worker, "_progress", worker._Progress())
    assert not worker.progress(1)
    assert not worker.watch_optimizer()
    with worker.pause_progress("checkpoint"):
        pass


def test_a_local_rank_without_a_cell_is_refused(cells: ProgressCells) -> None:
    with pytest.raises(ValueError):
        CellWriter(cells.path, LOCAL_RANK + 2, CYCLE_ID)
    assert cells.read(LOCAL_RANK + 2, CYCLE_ID) is None


def test_a_new_place_finds_empty_cells(watched: ProgressCells) -> None:
    worker.progress(1)
    watched.clear()
    assert watched.read(LOCAL_RANK, CYCLE_ID) is None


def test_the_cell_of_an_earlier_cycle_is_taken_over(cells: ProgressCells) -> None:
    CellWriter(cells.path, 0, 1).move(9)
    later = CellWriter(cells.path, 0, 2)
    assert cells.read(0, 1) is None
    cell = cells.read(0, 2)
    assert cell == Cell(0, None, "", None)
    later.move(3)
    assert cells.read(0, 2) == Cell(1, 3, "", None)


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.text(max_size=200) | st.none(), max_size=30))
def test_a_cell_says_what_was_written(said: list[int | str | None]) -> None:
    """Steps, announced pauses, and ends of pauses, in any order."""
    cells = ProgressCells(1)
    writer, count, step, pauses = CellWriter(cells.path, 0, 5), 0, None, 0
    for each in said:
        if isinstance(each, int):
            writer.move(each)
            count, step = count + 1, each
        elif isinstance(each, str):
            writer.pause(each)
            pauses += 1
        elif pauses:
            writer.resume()
            pauses -= 1
        cell = cells.read(0, 5)
        assert cell is not None
        assert (cell.count, cell.step, bool(cell.pause)) == (count, step, pauses > 0)
    cells.close()


@pytest.mark.parametrize("how", ["fork", "program"])
def test_a_process_of_a_worker_does_not_speak_for_the_worker(watched: ProgressCells, how: str) -> None:
    """One of its data loader, for example. Its steps would hide that the worker hangs, and its stacks are elsewhere."""
    worker.progress(1)
    before = read(watched)
    assert before.stack_fd is not None
    if how == "fork":
        pid = os.fork()
        if pid == 0:
            with worker.pause_progress("not a pause of the worker"):
                os._exit(1 if worker.progress(99) else 0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    else:
        script = "from ft_rendezvous import worker\nassert not worker.progress(99)\n"
        subprocess.run([sys.executable, "-c", script], check=True)
    assert read(watched) == before


def test_a_worker_that_cannot_offer_stacks_says_how_far_it_is(
    watched: ProgressCells, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "memfd_create")
    assert worker.progress(7)
    assert read(watched) == Cell(1, 7, "", None)


def test_a_process_takes_the_place_of_one_that_has_ended(watched: ProgressCells) -> None:
    """A script that starts the training itself may have made progress before."""
    script = (
        "import os; from ft_rendezvous import worker\nworker.progress(3)\n"
        "with worker.pause_progress('a'): os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    assert read(watched).pause == "a"
    assert worker.progress(4)
    cell = read(watched)
    assert (cell.count, cell.step, cell.pause) == (2, 4, "")


def test_a_signal_handler_may_announce_a_pause_at_any_moment(watched: ProgressCells) -> None:
    """A handler that saves for a drain may interrupt the announcement of another pause, in the same thread."""
    worker.progress(1)

    def interrupted() -> str:
        with worker._progress.lock, worker.pause_progress("drain"):
            return read(watched).pause

    call = SideCall(interrupted, "handler")
    call.start()
    assert call.wait(30.0), "the worker does not wait for itself"
    assert call.value == "drain"


def test_a_signal_that_the_script_uses_is_left_alone(cells: ProgressCells) -> None:
    script = (
        "import signal; from ft_rendezvous import worker\n"
        f"signal.signal({int(STACK_SIGNAL)}, lambda *_: print('mine'))\n"
        f"worker.progress(1); signal.raise_signal({int(STACK_SIGNAL)})\n"
    )
    environ = {**os.environ, **ENVIRON, PROGRESS_VARIABLE: cells.path}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "mine\n"
    assert read(cells) == Cell(1, 1, "", None)
    assert signal.getsignal(STACK_SIGNAL) is signal.SIG_DFL


def test_no_file_stays_behind_when_the_agent_is_gone() -> None:
    cells = ProgressCells(1)
    path = cells.path
    cells.close()
    assert not Path(path).exists()
