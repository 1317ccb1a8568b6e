"""What an agent does for its workers beside running them: who failed first, what they ask for, whom a drain reaches.

One `Workers` per agent process. It owns the reaper, the door and the watch, and speaks to the coordinator through
the link's posts, so that nothing here ever waits for the store. What torch knows of its workers comes in through
`torch_seams`.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

from ft_rendezvous.agent import processes
from ft_rendezvous.agent.reaper import Reaper
from ft_rendezvous.agent.worker_inbox import Door
from ft_rendezvous.agent.worker_messages import AtCheckpoint, Drain, Message, Restart
from ft_rendezvous.agent.worker_watch import FirstFailure, WorkerWatch
from ft_rendezvous.core.node_step import WorkerExit
from ft_rendezvous.env_names import INBOX_VARIABLE, MARKER_VARIABLE
from ft_rendezvous.node.threads import Link
from ft_rendezvous.protocol.participant import Place
from ft_rendezvous.text import one_line

log = logging.getLogger("ft_rendezvous")

DRAIN_SIGNAL = signal.SIGUSR1
TOLD_S = 1.0
"""How long the run may take to hear of a drain before the workers hear of it."""
LONGEST_PATH = 500
TAIL_BYTES = 4096
Handler = Callable[[int, FrameType | None], None]


@dataclass(frozen=True, slots=True)
class Started:
    """The workers of one place, as torch started them; by local rank."""

    pids: Mapping[int, int]
    ranks: Mapping[int, int]
    error_files: Mapping[int, str]
    logs: Mapping[int, str] = field(default_factory=dict)
    """Where standard error goes; nowhere, or to the console, if empty."""


class Workers:
    """The workers of this node, in whatever cycle."""

    def __init__(self) -> None:
        self._link: Link | None = None
        self._place: Place | None = None
        self._seated_at = 0.0
        self._started = Started({}, {}, {})
        self._pids: tuple[int, ...] = ()
        self._watch: WorkerWatch | None = None
        self._has_forwarded = False
        self._is_called = threading.Event()
        self._marker = secrets.token_hex(8)
        self._reaper = Reaper.start(self._marker)
        self._door = Door(self._hear)
        self._is_excused = False
        self._is_ended = False
        self._alarm_fd = os.eventfd(0)
        threading.Thread(target=self._await_alarm, name="ft-drain", daemon=True).start()
        self._former = _set_handler(DRAIN_SIGNAL, self._on_drain_signal)

    def environment(self) -> dict[str, str]:
        """What workers need to be found, and to find their agent."""
        # A worker that renames itself with `setproctitle` would wipe its environment, and the marker with it.
        return {MARKER_VARIABLE: self._marker, INBOX_VARIABLE: self._door.address, "SPT_NOENV": "1"}

    def end(self) -> None:
        """The agent is on an orderly way out: its workers are gone, and nobody must be killed for it."""
        self.stop_watch()
        self._door.close()
        self._reaper.dismiss()
        if self._former is not None:
            # A node that stays for the sake of others must not die of the default action.
            signal.signal(DRAIN_SIGNAL, signal.SIG_IGN if self._former is signal.SIG_DFL else self._former)
        self._is_ended = True
        os.eventfd_write(self._alarm_fd, 1)

    # --- one place after another --------------------------------------------------------------------

    def take(self, link: Link, place: Place) -> None:
        """Workers are about to start in this place."""
        self._link, self._place, self._seated_at = link, place, time.monotonic()
        self._is_excused = False

    def started(self, started: Started) -> None:
        self._started, self._pids = started, tuple(started.pids.values())
        self._watch = WorkerWatch(started.pids, self._seated_at, lambda failure: self._tell_failure(started, failure))

    def stop_watch(self) -> FirstFailure | None:
        """What becomes of the workers from here on is the agent's doing. Returns how the first of them failed.

        A worker whose exit code the agent took first may have ended well: that is no failure to speak of.
        """
        watch, self._watch, self._pids = self._watch, None, ()
        if watch is None:
            return None
        watch.stop()
        is_known = watch.failure is not None and watch.failure.exit_code is not None
        return watch.failure if is_known and not self._is_excused else None

    def confirm(self, exit_codes: Mapping[int, int]) -> None:
        """The agent has seen workers fail; by global rank. It tells what the watch could not.

        The agent sometimes takes an exit code before the watch can read it, and there may be no watch at all. Then
        this is the first to know, a tenth of a second late.
        """
        link, watch = self._link, self._watch
        if link is None or watch is None or self._is_excused or link.has_reported:
            return
        seen = watch.failure
        after_s = seen.after_s if seen is not None else time.monotonic() - self._seated_at
        by_rank = {rank: local_rank for local_rank, rank in self._started.ranks.items()}
        rank = next((rank for rank in sorted(exit_codes) if rank in by_rank), None)
        if rank is not None:
            self._tell_failure(self._started, FirstFailure(by_rank[rank], exit_codes[rank], after_s))

    @property
    def is_excused(self) -> bool:
        """Whether the workers failed when their cycle was over: their peers were being stopped already."""
        return self._is_excused

    def _tell_failure(self, started: Started, failure: FirstFailure) -> None:
        """Tell at once: the agent looks ten times a second, and stops the others before it says a word."""
        link, place = self._link, self._place
        if link is None or place is None or failure.exit_code is None:
            return
        if link.must_stop(place.cycle_id):
            self._is_excused = True
            return
        rank = started.ranks.get(failure.local_rank)
        reason = describe_exit(failure.exit_code, started.error_files.get(failure.local_rank))
        log_path = started.logs.get(failure.local_rank, "")[-LONGEST_PATH:]
        end = WorkerExit(reason, rank, failure.exit_code, round(failure.after_s, 6), log_path, last_words_in(log_path))
        log.error("cycle=%d rank=%s: worker ended first on this node: %s", place.cycle_id, rank, reason)
        link.report_exit(place.cycle_id, end)

    # --- what workers and people ask for ------------------------------------------------------------

    def _hear(self, message: Message) -> None:
        link, place = self._link, self._place
        if link is None or place is None or message.cycle_id != place.cycle_id:
            return
        match message:
            case Restart():
                link.ask_restart(message.reason)
            case Drain():
                link.ask_drain(message.reason or "a worker asked for it")
            case AtCheckpoint():
                link.tell_checkpoint(place.cycle_id)

    def _on_drain_signal(self, _signum: int, _frame: FrameType | None) -> None:
        """Runs in the main thread, between any two of its steps: it must not wait for what that thread holds."""
        os.eventfd_write(self._alarm_fd, 1)

    def _await_alarm(self) -> None:
        while True:
            os.eventfd_read(self._alarm_fd)
            if self._is_ended:
                os.close(self._alarm_fd)
                return
            self._drain_by_signal()

    def _drain_by_signal(self) -> None:
        """Workers hear of it when the run has been told: a checkpoint that they write before counts for nothing.

        But they hear of it soon in any case: whoever sent the signal may end this node in a minute.
        """
        log.info("%s: this node is draining", DRAIN_SIGNAL.name)
        if self._link is not None:
            self._link.ask_drain(DRAIN_SIGNAL.name)
            self._is_called.wait(TOLD_S)
        self.forward_drain()

    def greet(self, link: Link) -> None:
        """A link to the run is there: a signal that comes before the first place finds whom to tell."""
        self._link = link
        link.on_drain(self._on_called)

    def _on_called(self) -> None:
        reason = self._link.drain_reason if self._link is not None else ""
        log.info("this node is asked to give up its place: %s", reason or "no reason given")
        self.forward_drain()
        self._is_called.set()

    def forward_drain(self) -> None:
        """Workers may want to save: they get the signal too, once, if they have a handler for it."""
        if not self._has_forwarded and self._pids:
            self._has_forwarded = True
            reached = processes.forward(DRAIN_SIGNAL, self._pids)
            log.info("%s forwarded to %d of %d workers", DRAIN_SIGNAL.name, len(reached), len(self._pids))


def describe_exit(exit_code: int, error_file: str | None) -> str:
    """How a worker ended, with its own words if it left any (torch's `@record` writes them)."""
    how = _signal_name(-exit_code) if exit_code < 0 else f"exit code {exit_code}"
    message = _message_in(error_file)
    return f"{how}: {message}" if message else how


def last_words_in(log_path: str) -> str:
    """The last line a worker wrote: of a Python program that failed, the error itself."""
    try:
        with Path(log_path or os.devnull).open("rb") as log_file:
            log_file.seek(-min(TAIL_BYTES, log_file.seek(0, os.SEEK_END)), os.SEEK_END)
            lines = log_file.read(TAIL_BYTES).decode(errors="replace").split("\n")
    except OSError:
        return ""
    return next((one_line(line.strip())[:150] for line in reversed(lines) if line.strip()), "")


def _signal_name(number: int) -> str:
    try:
        return f"killed by {signal.Signals(number).name}"
    except ValueError:
        return f"killed by signal {number}"


def _message_in(error_file: str | None) -> str:
    try:
        message = json.loads(Path(error_file or os.devnull).read_bytes())["message"]
        text = message["message"] if isinstance(message, dict) else message
        return one_line(str(text).strip().splitlines()[0])[:150]
    except (OSError, ValueError, KeyError, TypeError, IndexError):
        return ""


def _set_handler(signum: signal.Signals, handler: Handler) -> Any:
    """Install a handler where Python allows it; returns the former one. None if nothing was installed."""
    if threading.current_thread() is not threading.main_thread():
        log.warning("not in the main thread: %s is not handled", signum.name)
        return None
    return signal.signal(signum, handler)
