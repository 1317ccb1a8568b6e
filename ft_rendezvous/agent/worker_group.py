"""What an agent does for its workers beside running them.

It reports which worker failed first, receives the messages of workers, and forwards the drain signal to them. There is
one `WorkerGroup` per run of an agent. It owns the reaper, the inbox, the watch, and the nursery of warm workers.
`protocol.worker_policy` decides what it reports; this module brings the facts from threads, processes and files. It
speaks to the coordinator through the link's posts, so it never waits for the store. What torch knows of its workers
comes in through `torch_patches`.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import FrameType

from ft_rendezvous.agent import processes
from ft_rendezvous.agent.exit_description import describe_exit, read_words
from ft_rendezvous.agent.hang_watch import HangWatch, WatchedWorkers
from ft_rendezvous.agent.progress_cells import ProgressCells
from ft_rendezvous.agent.reaper import Reaper
from ft_rendezvous.agent.signals import replace_handlers, restore_handlers
from ft_rendezvous.agent.update_message import UpdateMessage
from ft_rendezvous.agent.worker_inbox import WorkerInbox
from ft_rendezvous.agent.worker_messages import (
    CheckpointMessage,
    DrainMessage,
    GroupLostMessage,
    RestartMessage,
    WorkerMessage,
)
from ft_rendezvous.agent.worker_watch import FirstFailure, WorkerWatch
from ft_rendezvous.core.leases import WorkersProgress
from ft_rendezvous.core.node_step import WorkerExit
from ft_rendezvous.core.progress import HangRules, LateTable, ProgressFrom
from ft_rendezvous.core.update_notes import StepTime, UpdateNote, UpdateOutcome
from ft_rendezvous.env_names import (
    INBOX_VARIABLE,
    MARKER_VARIABLE,
    NURSERY_VARIABLE,
    PROGRESS_FROM_VARIABLE,
    PROGRESS_VARIABLE,
)
from ft_rendezvous.node.threads import Link
from ft_rendezvous.protocol.participant import Place
from ft_rendezvous.protocol.worker_policy import STUCK_REASON, AgentSight, GroupState, WorkerFailure, WorkerPolicy
from ft_rendezvous.text import one_line
from ft_rendezvous.warm.nursery import Nursery

log = logging.getLogger("ft_rendezvous")

DRAIN_SIGNAL = signal.SIGUSR1
DRAIN_ANSWER_TIMEOUT_S = 1.0
"""How long the workers' drain signal waits until the coordinator knows of the drain."""
MAX_PATH_CHARS = 500
END_TIMEOUT_S = 30.0
"""How long new workers wait for the end of killed ones."""
LAST_END_TIMEOUT_S = 2.0
"""The same for the end of the agent, which nothing may hold up."""


@dataclass(frozen=True, slots=True)
class StartedWorkers:
    """The workers of one place, as torch started them; by local rank."""

    pids: Mapping[int, int]
    ranks: Mapping[int, int]
    error_files: Mapping[int, str]
    logs: Mapping[int, str] = field(default_factory=dict)
    """The files for standard error. Empty for a worker that writes to the console or to no file."""
    outputs: Mapping[int, str] = field(default_factory=dict)
    """The same for standard output."""


class WorkerGroup:
    """The workers of this node, in one cycle after another."""

    def __init__(
        self,
        count: int = 0,
        rules: HangRules | None = None,
        progress_from: ProgressFrom = ProgressFrom.CALLS,
        *,
        is_warm: bool = False,
    ) -> None:
        """`count` workers start at a time. `rules` say when one of them is late; None: never.

        `is_warm`: workers are clients of a nursery, which this group starts and ends.
        """
        self._link: Link | None = None
        self._lock = threading.Lock()
        """Held for one decision. The link's lock is never taken under it: the link calls `_on_drain` under its own."""
        self._policy = WorkerPolicy()
        self._started = StartedWorkers({}, {}, {})
        self._pids: tuple[int, ...] = ()
        self._ending_fds: list[int] = []
        """Warm workers that the agent has stopped."""
        self._watch: WorkerWatch | None = None
        self._coordinator_knows_drain = threading.Event()
        self._marker = secrets.token_hex(8)
        self._reaper = Reaper.start(self._marker)
        self._nursery = _start_nursery(self._marker) if is_warm else None
        self._late = LateTable(rules or HangRules())
        self._cells = _make_cells(count) if self._late.rules.is_on else None
        self._progress_from = progress_from
        if progress_from is ProgressFrom.OPTIMIZER and self._nursery is None and self._cells is not None:
            log.warning(
                "progress_from=optimizer has no effect on workers that start cold: set PYTHON_EXEC=ftr-python, "
                "or call ft_rendezvous.worker.watch_optimizer() in the script"
            )
        self._hang_watch: HangWatch | None = None
        self._inbox = WorkerInbox(self._on_message, self._is_place_trusted)
        self._is_ended = False
        self._drain_signal_fd = os.eventfd(0)
        self._drain_thread = threading.Thread(target=self._await_drain_signals, name="ft-drain", daemon=True)
        self._drain_thread.start()
        self._former_handlers = replace_handlers([DRAIN_SIGNAL], self._on_drain_signal)
        if not self._former_handlers:
            log.warning("this agent does not run in the main thread: it cannot handle %s", DRAIN_SIGNAL.name)

    def environment(self) -> dict[str, str]:
        """What workers need: the reaper finds them by it, and they find the inbox by it."""
        # A worker that renames itself with `setproctitle` would wipe its environment, and the marker with it.
        variables = {MARKER_VARIABLE: self._marker, INBOX_VARIABLE: self._inbox.address, "SPT_NOENV": "1"}
        # Empty if it is off: a worker must not find the cells or the nursery of an agent that has started this one.
        return variables | {
            PROGRESS_VARIABLE: "" if self._cells is None else self._cells.path,
            PROGRESS_FROM_VARIABLE: "" if self._cells is None else self._progress_from.value,
            NURSERY_VARIABLE: "" if self._nursery is None else self._nursery.address,
        }

    def end(self) -> None:
        """The agent ends in an orderly way. Its workers are gone, so the reaper must not act."""
        self.stop_watch()
        self._await_ends(LAST_END_TIMEOUT_S)
        if self._nursery is not None:
            self._nursery.end()
        self._inbox.close()
        self._reaper.dismiss()
        # A node that stays as the host of the store must not die of the signal's default action.
        restore_handlers(
            {
                signum: signal.SIG_IGN if handler is signal.SIG_DFL else handler
                for signum, handler in self._former_handlers.items()
            }
        )
        self._is_ended = True
        os.eventfd_write(self._drain_signal_fd, 1)
        self._drain_thread.join(DRAIN_ANSWER_TIMEOUT_S)

    # --- one place after another --------------------------------------------------------------------

    def set_place(self, link: Link, place: Place) -> None:
        """Workers are about to start in this place."""
        self._link = link
        self._await_ends(END_TIMEOUT_S)
        if self._nursery is not None:
            self._nursery.keep()
        self._inbox.forget_subscribers()
        if self._cells is not None:
            self._cells.clear()
        with self._lock:
            self._policy.begin(place.cycle_id, time.monotonic())

    def started(self, started: StartedWorkers) -> None:
        """Torch has started the workers of the place."""
        self._started, self._pids, cycle_id = started, tuple(started.pids.values()), self._policy.cycle_id
        self._watch = WorkerWatch(started.pids, lambda failure: self._on_failure(cycle_id, started, failure))
        if self._cells is not None and self._link is not None:
            watched = WatchedWorkers(cycle_id, started.pids, started.ranks, self._outputs_of(started))
            self._hang_watch = HangWatch(watched, self._cells, self._late, self._link)

    def _outputs_of(self, started: StartedWorkers) -> dict[int, tuple[str, ...]]:
        """The files whose growth is progress of a worker, by local rank."""
        if self._progress_from is not ProgressFrom.LOG:
            return {}
        files = {
            local_rank: tuple(
                path
                for path in (started.outputs.get(local_rank, ""), started.logs.get(local_rank, ""))
                if path and path != os.devnull
            )
            for local_rank in started.pids
        }
        if not any(files.values()):
            log.warning(
                "progress_from=log has no effect: the workers write to no file; "
                "pass --log-dir with --redirects=3 or --tee=3 to torchrun"
            )
        return files

    def stop_watch(self) -> None:
        """The agent is about to stop the workers: their ends are no failures any more."""
        self._ending_fds += processes.open_workers(self._pids)
        watch, self._watch, self._pids = self._watch, None, ()
        hang_watch, self._hang_watch = self._hang_watch, None
        if hang_watch is not None:
            hang_watch.stop()
        if watch is not None:
            watch.stop()
        with self._lock:
            self._policy.stop()

    def _await_ends(self, timeout_s: float) -> None:
        """Wait for warm workers whose clients torch has stopped: they end after their clients if torch kills those.

        New workers need what they hold, for example the memory of a GPU.
        """
        fds, self._ending_fds = self._ending_fds, []
        left = processes.close_after_end(fds, timeout_s)
        if left:
            log.warning("%d workers were killed and have not ended: what they hold is not free", left)

    # --- failures -----------------------------------------------------------------------------------

    def look(self, state: GroupState, exit_codes: Mapping[int, int]) -> AgentSight:
        """Torch's agent looks at its workers; exit codes by global rank. What it gets to see."""
        is_over = self._is_over(self._policy.cycle_id)
        with self._lock:
            sight = self._policy.look(state, exit_codes, time.monotonic(), is_over)
        if sight.report is not None:
            self._report(sight.report, self._started)
        return sight

    def _on_failure(self, cycle_id: int, started: StartedWorkers, failure: FirstFailure) -> None:
        """Called by the watch, so that the coordinator knows at once: the agent stops the other workers first."""
        rank, is_over = started.ranks.get(failure.local_rank), self._is_over(cycle_id)
        with self._lock:
            report = self._policy.see_failure(cycle_id, rank, failure.exit_code, failure.seen_at, is_over)
        if report is not None:
            self._report(report, started)

    def _is_over(self, cycle_id: int) -> bool:
        return self._link is not None and self._link.must_stop(cycle_id)

    def _report(self, failure: WorkerFailure, started: StartedWorkers) -> None:
        end = WorkerExit(STUCK_REASON, after_s=failure.after_s)
        if failure.exit_code is not None:
            local_rank = next((local for local, each in started.ranks.items() if each == failure.rank), -1)
            log_path = started.logs.get(local_rank, "")
            message, last_line = read_words(started.error_files.get(local_rank), log_path)
            reason, log_path = describe_exit(failure.exit_code, message), log_path[-MAX_PATH_CHARS:]
            end = WorkerExit(reason, failure.rank, failure.exit_code, failure.after_s, log_path, last_line)
        assert self._link is not None
        self._link.report_exit(failure.cycle_id, end)
        log.error("cycle=%d rank=%s: worker failed first on this node: %s", failure.cycle_id, end.rank, end.reason)

    # --- what workers and operators ask for ---------------------------------------------------------

    def set_link(self, link: Link) -> None:
        """The node is linked to its run: a drain signal before the first place reaches the coordinator, too."""
        self._link = link
        link.on_drain(self._on_drain)
        link.on_group_ended(self.tell_group_lost)
        link.on_inquiry(self._on_inquiry)
        link.show_progress(self._read_progress)
        link.on_lifeline(self._reaper.hold_lifeline)

    def _on_inquiry(self, cycle_id: int, no: int) -> None:
        """Called by the link, under its lock."""
        hang_watch = self._hang_watch
        if hang_watch is not None:
            hang_watch.inquire(cycle_id, no)

    def _read_progress(self) -> WorkersProgress | None:
        """Called by the link, under its lock, for every beat."""
        hang_watch = self._hang_watch
        return None if hang_watch is None else hang_watch.progress

    def _on_message(self, message: WorkerMessage) -> None:
        link = self._link
        is_report = isinstance(message, UpdateMessage)
        with self._lock:
            policy, cycle_id = self._policy, message.cycle_id
            is_taken = policy.takes_report(cycle_id) if is_report else policy.takes_message(cycle_id)
        if link is None or not is_taken:
            return
        match message:
            case RestartMessage():
                link.ask_restart(message.cycle_id, message.reason)
            case DrainMessage():
                link.ask_drain(message.reason or "a worker asked for it")
            case CheckpointMessage():
                link.tell_checkpoint(message.cycle_id)
            case UpdateMessage():
                link.report_update(message.cycle_id, _note_of(message))

    def tell_group_lost(self, group: int, reason: str) -> None:
        """Tell the workers of this place that another replica group is lost. Never waits; any thread may call it."""
        with self._lock:
            cycle_id = self._policy.cycle_id
        message = GroupLostMessage(group=group, cycle_id=cycle_id, reason=one_line(reason))
        reached = self._inbox.tell(message)
        if reached:
            log.info(
                "told %d workers of cycle=%d that group %d has ended: %s", reached, cycle_id, group, message.reason
            )

    def _is_place_trusted(self, cycle_id: int) -> bool:
        """Whether workers of this cycle may go on. The inbox's thread asks for a worker that stood still."""
        with self._lock:
            is_current = self._policy.takes_message(cycle_id)
        return is_current and self._link is not None and not self._link.must_stop(cycle_id)

    def _on_drain_signal(self, _signum: int, _frame: FrameType | None) -> None:
        """Runs in the main thread, between any two of its steps: it must not wait for a lock of that thread."""
        os.eventfd_write(self._drain_signal_fd, 1)

    def _await_drain_signals(self) -> None:
        while True:
            os.eventfd_read(self._drain_signal_fd)
            if self._is_ended:
                os.close(self._drain_signal_fd)
                return
            self._drain_by_signal()

    def _drain_by_signal(self) -> None:
        """Ask the coordinator first, then signal the workers: a checkpoint counts only after the coordinator knows.

        The wait is short. The sender of the signal may end this node in a minute, and workers need time to save.
        """
        log.info("%s: this node is draining", DRAIN_SIGNAL.name)
        if self._link is not None:
            self._link.ask_drain(DRAIN_SIGNAL.name)
            self._coordinator_knows_drain.wait(DRAIN_ANSWER_TIMEOUT_S)
        self._forward_drain()

    def _on_drain(self) -> None:
        reason = self._link.drain_reason if self._link is not None else ""
        log.info("the coordinator asks this node to give up its place: %s", reason or "no reason given")
        self._forward_drain()
        self._coordinator_knows_drain.set()

    def _forward_drain(self) -> None:
        """Workers may want to save. Each worker with a handler for the signal gets it, once."""
        pids = self._pids
        with self._lock:
            is_due = bool(pids) and self._policy.forwards_drain()
        if is_due:
            reached = processes.forward(DRAIN_SIGNAL, pids)
            log.info("%s forwarded to %d of %d workers", DRAIN_SIGNAL.name, len(reached), len(pids))


def _note_of(message: UpdateMessage) -> UpdateNote:
    return UpdateNote(
        version=message.version,
        outcome=UpdateOutcome(message.outcome),
        attempts=message.attempts,
        parties=message.parties,
        updated=message.updated,
        failed_count=message.failed_count,
        failed=message.failed,
        steps=tuple(StepTime(name, seconds) for name, seconds in message.steps),
        duration_s=message.duration_s,
        lost_s=message.lost_s,
        reason=message.reason,
    )


def _start_nursery(marker: str) -> Nursery | None:
    try:
        return Nursery(marker)
    except OSError as error:
        log.warning("no nursery: workers start cold reason=%s", error)
        return None


def _make_cells(count: int) -> ProgressCells | None:
    try:
        return ProgressCells(count)
    except OSError as error:
        log.warning("this node cannot notice hangs: it has no memory to share with its workers reason=%s", error)
        return None
