"""Progress cells: memory that an agent shares with its workers, one cell for each.

The agent makes the memory before it starts workers, and names it in their environment. A worker writes to its own cell
only. To write is a few stores to memory: no call of the system, no lock that the agent could hold. The agent and
`ft_rendezvous.worker` share this module: it needs nothing beyond the standard library.
"""

from __future__ import annotations

import errno
import mmap
import os
import signal
from dataclasses import dataclass

CELL_BYTES = 128
NUMBERS = 8
"""Numbers of 8 bytes at the beginning of a cell. The rest is text."""
CYCLE, COUNT, STEP, HAS_STEP, PAUSES, STACK_FD, OWNER = range(7)
"""Places of the numbers. The count is written last: a new count comes with its step. The owner is a process id."""
TEXT_BYTES = CELL_BYTES - 8 * NUMBERS
STACK_SIGNAL = signal.SIGRTMIN + 11
"""Makes a worker that offers it write its stacks. Few programs use signals of this kind."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What a worker has said by now."""

    count: int
    """Changes with every progress."""
    step: int | None
    pause: str
    """Why it expects to make no progress for a while. Empty: it does not."""
    stack_fd: int | None
    """The worker's own descriptor of the file to which it writes its stacks when it gets the signal."""


def create_memory(name: str) -> int:
    """A file without a place on any disk. Raises OSError where there can be none."""
    if not hasattr(os, "memfd_create"):
        raise OSError(errno.ENOSYS, "this system or this Python has no memfd_create")
    return os.memfd_create(name, os.MFD_CLOEXEC)


class CellWriter:
    """One worker's cell, as the worker sees it. Raises OSError or ValueError if there is none.

    The first process that opens the cell owns it. Processes that it starts inherit its environment, and must not speak
    for it: their steps would hide that it hangs.
    """

    def __init__(self, path: str, local_rank: int, cycle_id: int) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            memory = mmap.mmap(fd, 0)
        finally:
            os.close(fd)
        if not 0 <= local_rank < len(memory) // CELL_BYTES:
            raise ValueError(f"there is no progress cell for local rank {local_rank}")
        cell = memoryview(memory)[local_rank * CELL_BYTES : (local_rank + 1) * CELL_BYTES]
        self._numbers, self._text = cell[: 8 * NUMBERS].cast("q"), cell[8 * NUMBERS :]
        if self._numbers[CYCLE] != cycle_id:
            self._numbers[COUNT] = self._numbers[HAS_STEP] = 0
            self._own()
            self._numbers[CYCLE] = cycle_id
        elif self._numbers[OWNER] == os.getpid() or not _is_alive(self._numbers[OWNER]):
            self._own()
        else:
            raise ValueError(f"process {self._numbers[OWNER]} speaks for local rank {local_rank}")

    def _own(self) -> None:
        """No pause of an earlier owner goes on."""
        self._numbers[PAUSES] = self._numbers[STACK_FD] = 0
        self._numbers[OWNER] = os.getpid()

    def move(self, step: int) -> None:
        """The worker has made progress."""
        numbers = self._numbers
        numbers[STEP] = step
        numbers[HAS_STEP] = 1
        numbers[COUNT] += 1

    def pause(self, reason: str) -> None:
        """The worker announces a pause. Pauses may be nested."""
        text = reason.encode(errors="replace")[: TEXT_BYTES - 1]
        self._text[: len(text) + 1] = text + b"\0"
        self._numbers[PAUSES] += 1

    def resume(self) -> None:
        """A pause is over."""
        self._numbers[PAUSES] -= 1

    def offer_stacks(self, fd: int) -> None:
        self._numbers[STACK_FD] = fd + 1


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class ProgressCells:
    """The cells of all workers of a node, as the agent sees them. Raises OSError where there can be none."""

    def __init__(self, count: int) -> None:
        self._fd = create_memory("ft-progress")
        try:
            os.ftruncate(self._fd, max(1, count) * CELL_BYTES)
            self._memory = mmap.mmap(self._fd, 0)
        except BaseException:
            os.close(self._fd)
            raise
        self._count = count
        self.path = f"/proc/{os.getpid()}/fd/{self._fd}"
        """What workers open. It is gone with the agent, so no file stays behind."""

    def clear(self) -> None:
        """No worker of a new place has said anything yet."""
        self._memory[:] = bytes(len(self._memory))

    def read(self, local_rank: int, cycle_id: int) -> Cell | None:
        """What a worker of this cycle has said; None if it has said nothing."""
        if not 0 <= local_rank < self._count:
            return None
        with memoryview(self._memory) as memory, memory[local_rank * CELL_BYTES :] as cell:
            with cell[: 8 * NUMBERS].cast("q") as numbers:
                count, is_current = numbers[COUNT], numbers[CYCLE] == cycle_id
                step = numbers[STEP] if numbers[HAS_STEP] else None
                is_paused, stack_fd = numbers[PAUSES] > 0, numbers[STACK_FD] - 1
            text = bytes(cell[8 * NUMBERS : CELL_BYTES])
        if not is_current:
            return None
        pause = text.partition(b"\0")[0].decode(errors="replace") or "no reason given"
        return Cell(count, step, pause if is_paused else "", stack_fd if stack_fd >= 0 else None)

    def close(self) -> None:
        self._memory.close()
        os.close(self._fd)
