"""Watches the progress of the workers of one place, says when a rank is late, and answers inquiries about stacks.

`core.progress` decides which rank is late, and the coordinator whether that is a hang. This module brings the facts: it
reads cells, sizes of files, and stacks, in a thread of its own. It never waits for the store.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

from ft_rendezvous.agent import stack_dump
from ft_rendezvous.agent.processes import find_worker, open_pidfd, wait_for_any
from ft_rendezvous.agent.progress_cells import Cell, ProgressCells
from ft_rendezvous.agent.stack_dump import Target, take_stacks
from ft_rendezvous.core.leases import WorkersProgress
from ft_rendezvous.core.progress import LOOK_INTERVAL_S, LateTable, WorkerReading
from ft_rendezvous.core.stacks import RankStack
from ft_rendezvous.node.threads import Link

log = logging.getLogger("ft_rendezvous")

KILL_AFTER_S = 1.0
"""How long workers of a world that hangs have to end by themselves, once their agent stops them."""
FRESH_STACKS_S = 3.0
"""Stacks that were taken so long ago answer an inquiry. They were taken when a rank was found late."""
AUTO_CHANGE = 1.25
"""By which factor the timeout of `auto` changes until it is logged again."""
DEBUGGER = "a debugger holds it"


@dataclass(frozen=True, slots=True)
class WatchedWorkers:
    """The workers of a place, by local rank."""

    cycle_id: int
    pids: Mapping[int, int]
    ranks: Mapping[int, int]
    outputs: Mapping[int, tuple[str, ...]]
    """Files to which they write, if output counts as progress."""


class HangWatch:
    """The watch over one place. Its table of late ranks outlives it."""

    def __init__(self, workers: WatchedWorkers, cells: ProgressCells, table: LateTable, link: Link) -> None:
        self._workers, self._cells, self._table, self._link = workers, cells, table, link
        self._began_at = self._looked_at = time.monotonic()
        self._py_spy = stack_dump.find_py_spy()
        self._wake = threading.Event()
        self._inquiry: int | None = None
        self._is_stopped = False
        self._stacks: list[RankStack] = []
        self._stacks_at = float("-inf")
        self._pidfds: dict[int, int] = {}
        with contextlib.ExitStack() as opened:
            for local_rank, pid in workers.pids.items():
                with contextlib.suppress(OSError):
                    self._pidfds[local_rank] = open_pidfd(pid)
                    opened.callback(os.close, self._pidfds[local_rank])
            self._fds = opened.pop_all()
        self._logged_timeout_s = 0.0
        self.progress: WorkersProgress | None = None
        """How far the slowest worker is, by the last look. None until one of them has made progress."""
        table.begin()
        self._thread = threading.Thread(target=self._run, name="ft-hang-watch", daemon=True)
        self._thread.start()

    def inquire(self, cycle_id: int, no: int) -> None:
        """The coordinator asks where the workers are. Called under the link's lock, so this only leaves a note."""
        if cycle_id == self._workers.cycle_id:
            self._inquiry = no
            self._wake.set()

    def stop(self) -> None:
        """The agent is about to stop the workers. If their world hangs, they have a moment to end by themselves."""
        self._is_stopped = True
        self._wake.set()

    def _run(self) -> None:
        with self._fds:
            while not self._is_stopped:
                self._wake.wait(LOOK_INTERVAL_S)
                self._wake.clear()
                if not self._is_stopped:
                    self._look()
            if self._link.hangs(self._workers.cycle_id):
                self._kill_later()

    def _look(self) -> None:
        now = time.monotonic()
        elapsed_s, self._looked_at = now - self._looked_at, now
        cells = self._read_cells()
        readings = self._read(cells)
        late = self._table.look(readings, elapsed_s)
        self.progress = self._table.find_slowest(readings)
        self._tell_timeout()
        if late:
            # The stacks first: they tell more now than after the coordinator has asked.
            self._take_stacks(cells)
            log.warning(
                "cycle=%d rank=%d is late: no progress for %.1f s", self._workers.cycle_id, late[0].rank, late[0].late_s
            )
            self._link.tell_late(self._workers.cycle_id, late[0], now - self._began_at)
        inquiry, self._inquiry = self._inquiry, None
        if inquiry is not None:
            self._answer(inquiry, cells, readings)

    def _answer(self, inquiry: int, cells: Mapping[int, Cell | None], readings: Mapping[int, WorkerReading]) -> None:
        """A node with a paused worker, or one that moves, answers at once: its stacks are not needed."""
        paused = [(rank, reading.pause) for rank, reading in readings.items() if reading.pause]
        moving = self._table.find_moving()
        if not paused and not moving and time.monotonic() - self._stacks_at > FRESH_STACKS_S:
            self._take_stacks(cells)
        stacks = [] if paused or moving else self._stacks
        self._link.tell_stacks(self._workers.cycle_id, inquiry, stacks, paused, moving)

    # --- facts --------------------------------------------------------------------------------------

    def _read_cells(self) -> dict[int, Cell | None]:
        cycle_id = self._workers.cycle_id
        return {local_rank: self._cells.read(local_rank, cycle_id) for local_rank in self._workers.pids}

    def _read(self, cells: Mapping[int, Cell | None]) -> dict[int, WorkerReading]:
        """What each worker has said by now, by global rank."""
        return {self._workers.ranks[local_rank]: self._read_one(local_rank, cell) for local_rank, cell in cells.items()}

    def _read_one(self, local_rank: int, cell: Cell | None) -> WorkerReading:
        if self._has_ended(local_rank):
            return WorkerReading(has_ended=True)
        sizes = tuple(_size(path) for path in self._workers.outputs.get(local_rank, ()))
        count = 0 if cell is None else cell.count
        token = (count, *sizes) if count or any(sizes) else None
        pause = "" if cell is None else cell.pause
        if not pause and stack_dump.read_state(find_worker(self._workers.pids[local_rank])) == "t":
            pause = DEBUGGER
        return WorkerReading(token, None if cell is None else cell.step, pause)

    def _has_ended(self, local_rank: int) -> bool:
        """Without a descriptor of the process, its id must do."""
        pidfd = self._pidfds.get(local_rank)
        if pidfd is None:
            return stack_dump.read_state(self._workers.pids[local_rank]) in stack_dump.ENDED_STATES
        return pidfd in wait_for_any((pidfd,), timeout_ms=0)

    def _take_stacks(self, cells: Mapping[int, Cell | None]) -> None:
        ranks, pids = self._workers.ranks, self._workers.pids
        targets = {
            ranks[local_rank]: Target(find_worker(pids[local_rank]), None if cell is None else cell.stack_fd)
            for local_rank, cell in cells.items()
            if not self._has_ended(local_rank)
        }
        steps = {ranks[local_rank]: None if cell is None else cell.step for local_rank, cell in cells.items()}
        found = take_stacks(targets, self._py_spy)
        self._stacks = [RankStack((rank,), (steps[rank],), found[rank]) for rank in sorted(found)]
        self._stacks_at = time.monotonic()

    def _tell_timeout(self) -> None:
        """Log what `auto` has learned, when it changes much."""
        timeout_s, times = self._table.timeout_s, self._table.times
        if not self._table.rules.is_auto or timeout_s is None or times.count == 0:
            return
        logged_s = self._logged_timeout_s
        if not logged_s / AUTO_CHANGE < timeout_s < logged_s * AUTO_CHANGE:
            self._logged_timeout_s = timeout_s
            log.info("hang_timeout=auto is %.0f s now: the slowest recent step took %.1f s", timeout_s, times.slowest_s)

    def _kill_later(self) -> None:
        """A worker that holds the interpreter in C, or ignores SIGTERM, would cost torch's 30 s."""
        time.sleep(KILL_AFTER_S)
        for pidfd in self._pidfds.values():
            stack_dump.kill(pidfd)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
