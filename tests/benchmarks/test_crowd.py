"""Nodes in threads of one or more processes: one world, one clock, and nobody is left behind."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from benchmarks.children import ChildFailed, call
from benchmarks.crowd import Formed, Join, Seat, form_world
from benchmarks.measure import DidNotFinish
from tests.benchmarks.test_children import is_running

COUNT = 5
LONG_S = 60.0


def form_in(per_process: int, directory: Path, ill: int | None = None, pause_s: float = 0.0) -> Formed:
    """Form a world of nodes that leave their process's id behind; one may be ill."""

    def connect(index: int) -> Join:
        (directory / str(index)).write_text(str(os.getpid()))

        def join() -> Seat:
            assert len(list(directory.iterdir())) == COUNT, "released before all were connected"
            if index == ill:
                raise ValueError("no such rank")
            time.sleep(LONG_S if ill is not None else pause_s)
            return Seat(index, COUNT, "here")

        return join

    return form_world(COUNT, connect, per_process)


def pids_in(directory: Path) -> set[int]:
    return {int(path.read_text()) for path in directory.iterdir()}


@pytest.mark.parametrize(("per_process", "processes"), [(COUNT, 1), (2, 3)])
def test_all_nodes_are_released_together_and_get_their_seats(tmp_path: Path, per_process: int, processes: int) -> None:
    formed = call(LONG_S, form_in, per_process, tmp_path, None, 0.1)
    assert sorted(seat.rank for seat in formed.seats) == list(range(COUNT))
    assert 0.1 <= formed.seconds < LONG_S
    assert len(pids_in(tmp_path)) == processes


@pytest.mark.parametrize("per_process", [COUNT, 2])
def test_a_failure_is_told_at_once_though_the_others_wait(tmp_path: Path, per_process: int) -> None:
    with pytest.raises(ChildFailed, match="no such rank"):
        call(LONG_S / 2, form_in, per_process, tmp_path, 1)


def test_who_does_not_finish_leaves_no_process_behind(tmp_path: Path) -> None:
    with pytest.raises(DidNotFinish):
        call(5.0, form_in, 2, tmp_path, None, 10 * LONG_S)
    deadline = time.monotonic() + LONG_S
    while any(map(is_running, pids_in(tmp_path))):
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("per_process", [COUNT, 2])
def test_the_limit_begins_with_the_release(per_process: int) -> None:
    with pytest.raises(DidNotFinish) as late:
        call(LONG_S, form_slowly, per_process, 0.5)
    assert late.value.limit_s == 0.5


def form_slowly(per_process: int, limit_s: float) -> Formed:
    """Slow to connect, which is nobody's concern, and slower to join."""

    def connect(index: int) -> Join:
        time.sleep(2 * limit_s)

        def join() -> Seat:
            time.sleep(LONG_S * index)
            return Seat(index, COUNT, "here")

        return join

    return form_world(COUNT, connect, per_process, limit_s)
