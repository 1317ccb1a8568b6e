"""One fault in one step of one party, on a real event loop with real threads; and what must hold afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ft_rendezvous.updates import Fleet, Party, PartyState, Update, UpdateError
from tests.support.waiting import wait_until

STEPS = ("pause", "release", "connect", "transfer")
NAMES = ("gen-0", "gen-1", "gen-2")
STEP_TIMEOUT_S = 0.3
MAX_PAUSE_S = 0.2
BEAT_S = 0.01
FAULTY_VERSION = 2
BLOCK_S = 0.3
"""How long a blocking call takes in a cell that looks for a pause of the loop."""


@dataclass(frozen=True, slots=True)
class Cell:
    """What goes wrong: in one step, on one party, in the first try of the second update."""

    step: str
    party: str
    fault: str
    """`raises`, `hangs` or `cancelled`."""
    is_blocking: bool
    min_parties: int
    """With 2, the others complete the update. With 3, the caller sees an error."""

    def __str__(self) -> str:
        how = "blocking" if self.is_blocking else "async"
        return f"{self.step}-{self.party}-{self.fault}-{how}-{self.min_parties}"


class FaultOfCell(Exception):
    """The first error."""


class FaultOfUndo(Exception):
    """An error of the clean-up. It must not replace the first one."""


class RigParty:
    def __init__(self, name: str, rig: Rig) -> None:
        self.name = name
        self.rig = rig
        self.calls: list[tuple[int, int, str, str]] = []
        """Version, attempt, step, and what was called."""
        self.released = threading.Event()
        self.is_aborted = asyncio.Event()

    def note(self, update: Update, step: str, what: str) -> bool:
        """Note a call. Returns whether it is the one that goes wrong."""
        self.calls.append((update.version, update.attempt, step, what))
        cell = self.rig.cell
        here = (update.version, update.attempt, step, self.name)
        is_faulty = here == (FAULTY_VERSION, 1, cell.step, cell.party)
        if is_faulty and what == "undo":
            raise FaultOfUndo
        return is_faulty and what == "action"

    def do_blocking(self, update: Update, step: str, what: str) -> None:
        if self.note(update, step, what):
            self._go_wrong()
            self.released.wait()
            raise RuntimeError("released")
        if what == "action" and update.version == FAULTY_VERSION and step == STEPS[0]:
            time.sleep(self.rig.block_s)

    async def do_async(self, update: Update, step: str, what: str) -> None:
        if self.note(update, step, what):
            self._go_wrong()
            await self.is_aborted.wait()
            raise RuntimeError("released")

    def _go_wrong(self) -> None:
        if self.rig.cell.fault == "raises":
            raise FaultOfCell
        if self.rig.cell.fault == "cancelled":
            self.rig.cancel()

    def abort(self) -> None:
        self.released.set()
        self.rig.loop.call_soon_threadsafe(self.is_aborted.set)


@dataclass
class Rig:
    """Runs two updates, the second of which goes wrong as the cell says."""

    cell: Cell
    block_s: float = 0.0
    parties: dict[str, RigParty] = field(default_factory=dict)
    error: BaseException | None = None
    longest_pause_s: float = 0.0

    def run(self) -> None:
        asyncio.run(self._run())

    async def _run(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.parties = {name: RigParty(name, self) for name in NAMES}
        self.fleet = Fleet(
            [Party(name, party) for name, party in self.parties.items()],
            min_parties=self.cell.min_parties,
            step_timeout_s=STEP_TIMEOUT_S if self.cell.fault == "hangs" else 30.0,
            cleanup_timeout_s=30.0,
            abort_timeout_s=30.0,
            on_unrecoverable="raise",
        )
        await self.fleet.update(self._flow, version=1)
        beating = self.loop.create_task(self._beat())
        self._task = self.loop.create_task(self.fleet.update(self._flow, version=FAULTY_VERSION))
        await asyncio.wait([self._task])
        beating.cancel()
        await asyncio.wait([beating])
        self.error = asyncio.CancelledError() if self._task.cancelled() else self._task.exception()
        self.tasks_left = asyncio.all_tasks() - {asyncio.current_task()}

    def cancel(self) -> None:
        self.loop.call_soon_threadsafe(self._task.cancel)

    async def _flow(self, update: Update) -> None:
        method = "do_blocking" if self.cell.is_blocking else "do_async"

        def call(p: Any, step: str, what: str) -> Any:
            return getattr(p, method)(update, step, what)

        for step in STEPS:
            await update.step(
                step,
                partial(call, step=step, what="action"),
                finish=partial(call, step=step, what="finish"),
                undo=partial(call, step=step, what="undo"),
                abort=lambda p: p.abort(),
            )

    async def _beat(self) -> None:
        last = self.loop.time()
        while True:
            await asyncio.sleep(BEAT_S)
            now = self.loop.time()
            self.longest_pause_s, last = max(self.longest_pause_s, now - last - BEAT_S), now


def calls_when_all_tasks_are_cancelled_before_their_first_step() -> dict[str, list[str]]:
    """What is called on each party if the second step is cancelled before any party was called for it."""
    calls: dict[str, list[str]] = {name: [] for name in NAMES}

    class Quiet:
        def __init__(self, name: str) -> None:
            self.name = name

        async def call(self, what: str) -> None:
            calls[self.name].append(what)

    async def flow(update: Update) -> None:
        await update.step("one", lambda p: p.call("one"), undo=lambda p: p.call("undo one"))
        # As asyncio.run does when it ends: the tasks of the next step exist by then, and have not run.
        asyncio.get_running_loop().call_soon(cancel_all)
        await update.step("two", lambda p: p.call("two"), undo=lambda p: p.call("undo two"))

    def cancel_all() -> None:
        for task in asyncio.all_tasks():
            task.cancel()

    async def main() -> None:
        await Fleet([Party(name, Quiet(name)) for name in NAMES]).update(flow, version=1)

    with contextlib.suppress(asyncio.CancelledError):
        asyncio.run(main())
    return calls


# --- what must hold -----------------------------------------------------------------------------------


def find_faults(rig: Rig) -> set[str]:
    """The names of the properties that do not hold."""
    checks = {
        "what began is cleaned up once": _is_cleaned_up(rig),
        "the first error is seen": _is_first_error_seen(rig),
        "the event loop never pauses": rig.longest_pause_s <= MAX_PAUSE_S,
        "no task is left": not rig.tasks_left,
        "no thread is left": is_no_thread_left(),
        "one version serves": _serves_one_version(rig),
    }
    return {name for name, holds in checks.items() if not holds}


def _is_cleaned_up(rig: Rig) -> bool:
    cell = rig.cell
    for party in rig.parties.values():
        expected: list[tuple[int, int, str, str]] = []
        until = STEPS.index(cell.step) + 1
        has_second_try = cell.fault != "cancelled" and cell.min_parties == 2 and party.name != cell.party
        for version, attempt, begun, is_failed in (
            (1, 1, STEPS, False),
            (FAULTY_VERSION, 1, STEPS[:until], True),
            *([(FAULTY_VERSION, 2, STEPS, False)] if has_second_try else []),
        ):
            expected += [(version, attempt, step, "action") for step in begun]
            for step in reversed(begun):
                expected += [
                    (version, attempt, step, what) for what in (("undo", "finish") if is_failed else ("finish",))
                ]
        if party.calls != expected:
            return False
    return True


def _is_first_error_seen(rig: Rig) -> bool:
    cell, error = rig.cell, rig.error
    if cell.fault == "cancelled":
        return isinstance(error, asyncio.CancelledError)
    if cell.min_parties == 2:
        return error is None
    if not isinstance(error, UpdateError):
        return False
    cause = FaultOfCell if cell.fault == "raises" else TimeoutError
    undo_failed = [each for each in error.cleanup_errors if isinstance(each.__cause__, FaultOfUndo)]
    notes = getattr(error, "__notes__", [])
    return (
        (error.step, error.party, error.version) == (cell.step, cell.party, FAULTY_VERSION)
        and isinstance(error.__cause__, cause)
        and [(each.what, each.step, each.party) for each in undo_failed] == [("undo", cell.step, cell.party)]
        and any("FaultOfUndo" in note for note in notes)
    )


def is_no_thread_left() -> bool:
    def look() -> bool:
        return not [thread for thread in threading.enumerate() if thread.name.startswith("ft-party")]

    try:
        return wait_until("no thread is left", look, 10.0)
    except AssertionError:
        return False


def _serves_one_version(rig: Rig) -> bool:
    cell = rig.cell
    others = {name for name in NAMES if name != cell.party}
    has_second_try = cell.fault != "cancelled" and cell.min_parties == 2
    version = FAULTY_VERSION if has_second_try else 1
    serving = {party.name for party in rig.fleet.serving()}
    records = {record.name: record for record in rig.fleet.parties}
    return (
        serving == others
        and {records[name].version for name in serving} == {version}
        and {party.name for party in rig.fleet.serving(FAULTY_VERSION)} == (others if has_second_try else set())
        and records[cell.party].state is PartyState.SUSPECT
    )
