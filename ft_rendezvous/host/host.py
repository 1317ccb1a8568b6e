"""The store host: a TCPStore server and the coordinator's threads beside it.

Runs in the first agent, or alone (`ftr serve`). It depends on nothing the agent's own thread does.
"""

from __future__ import annotations

import gc
import logging
import os
import platform
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch

from ft_rendezvous import __version__
from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.core.model import Verdict, VerdictKind
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.host.lifelines import Lifelines
from ft_rendezvous.host.lighthouse import Lighthouse
from ft_rendezvous.host.verdict_file import FirstFailureReport, VerdictReport, write_verdict_in_time
from ft_rendezvous.protocol.coordinator import Coordinator
from ft_rendezvous.protocol.journal import HostLeft, Journal, RunBegan, tell_all
from ft_rendezvous.protocol.ops import Delete, perform_move
from ft_rendezvous.state.read.store_query import QueryServer
from ft_rendezvous.state.record.recorder import Recorder
from ft_rendezvous.store.client import ServedStore
from ft_rendezvous.store.raw_client import StoreSocket

log = logging.getLogger("ft_rendezvous")


class Host:
    """Serves one run until it is closed and every node has gone."""

    def __init__(
        self,
        served: ServedStore,
        settings: RunSettings,
        epoch: str,
        journal: Journal,
        verdict_path: Path | None = None,
        *,
        recorder: Recorder | None = None,
        lighthouse: Lighthouse | None = None,
        lifelines: Lifelines | None = None,
    ) -> None:
        self._served = served
        self._settings = settings
        self._stall_s = 0.0
        """The last stall in the log. 0 once the coordinator looks in time again."""
        self._rung = threading.Event()
        self._done = threading.Event()
        self._verdict_path = verdict_path
        self._recorder = recorder
        self._journal = journal if recorder is None else tell_all(journal, recorder)
        self.coordinator = Coordinator(
            settings, epoch, time.monotonic, self._journal, self._write_verdict, lambda: served.operations
        )
        self._lighthouse = lighthouse
        if lighthouse is not None:
            self.coordinator.publisher.lighthouse = lighthouse.address
        self._lifelines = lifelines
        if lifelines is not None:
            self.coordinator.publisher.lifeline_port = lifelines.port
            self.coordinator.membership.take_lifeline_news = lifelines.take_news
            lifelines.on_news = self._rung.set
        self._journal(began(settings, epoch))
        perform_move(served, self.coordinator.start())
        # A full garbage collection goes through all of torch's objects: a tenth of a second in the thread that seals.
        self._has_frozen = gc.get_freeze_count() == 0  # What other code has frozen stays frozen.
        if self._has_frozen:
            gc.freeze()
        self._bell = StoreSocket("localhost", served.port)
        self._window = None if recorder is None else self._open_window(recorder)
        self._threads = [self._start(self._listen_for_bell, "ft-bell"), self._start(self._coordinate, "ft-coordinator")]

    @property
    def verdict(self) -> Verdict | None:
        return self.coordinator.verdict

    @property
    def node_count(self) -> int:
        """How many nodes are in the run."""
        return len(self.coordinator.roster.members)

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the run is closed and every node has said goodbye or lost its lease."""
        return self._done.wait(timeout_s)

    def stop(self) -> None:
        """Stop serving. A node that is still connected sees a reset connection."""
        self._done.set()
        self._rung.set()
        self._bell.close()
        if self._window is not None:
            self._window.close()
        if self._lighthouse is not None:
            self._lighthouse.close()
        if self._lifelines is not None:
            self._lifelines.close()
        for thread in self._threads:
            thread.join()
        self._served.stop()
        if self._has_frozen:
            gc.unfreeze()
        if self.verdict is None:
            self._journal(HostLeft())
        if self._recorder is not None:
            self._recorder.close()

    def _open_window(self, recorder: Recorder) -> QueryServer | None:
        """Answers `ftr status` and `ftr events`. A run goes on without it."""
        try:
            return QueryServer(recorder.look, self.coordinator.keys, self._served.port)
        except StoreUnavailable as error:
            log.warning("ftr status and ftr events cannot reach this run through its store: %s", error)
            return None

    def _start(self, target: Callable[[], None], name: str) -> threading.Thread:
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
        return thread

    def _coordinate(self) -> None:
        try:
            while not self.coordinator.is_done and not self._done.is_set():
                wake_at = perform_move(self._served, self.coordinator.tick())
                self._warn_of_stall()
                self._rung.wait(max(0.0, wake_at - time.monotonic()))
                self._rung.clear()
        except Exception as error:  # The end of a thread: no error may leave the nodes waiting.
            log.exception("the coordinator failed; closing the run")
            self._close_after(error)
        finally:
            self._done.set()

    def _warn_of_stall(self) -> None:
        """Say once that this process did nothing for so long that nodes have stopped their workers."""
        stall_s, known_s = self.coordinator.membership.leases.stall_s, self._stall_s
        self._stall_s = stall_s
        if stall_s and stall_s != known_s:
            text = "this process, which hosts the store, stood still for %.1f s: every lease begins anew, %s"
            log.warning(text, stall_s, "and no node is blamed for workers that failed or had to stop")

    def _write_verdict(self, verdict: Verdict, cycle_id: int, first: FailureNote | None) -> None:
        """Write the file that the batch script reads. The run must end even if the disk is full or hangs."""
        if self._verdict_path is None:
            return
        failure = None
        if first is not None:
            failure = FirstFailureReport(
                node=first.node,
                rank=first.rank,
                exit_code=first.exit_code,
                cycle=first.cycle_id,
                reason=first.reason,
                last_words=first.last_words,
            )
        report = VerdictReport(
            run_id=self._settings.run_id,
            verdict=verdict.kind,
            reason=verdict.reason,
            is_retryable=verdict.is_retryable,
            cycle=cycle_id,
            first_failure=failure,
        )
        try:
            write_verdict_in_time(self._verdict_path, report)
        except TimeoutError as error:
            log.warning("%s is not written yet: %s; the run ends without waiting for it", self._verdict_path, error)
        except Exception as error:  # Without a file, the log and every node still say how the run ended.
            log.error("the verdict could not be written to %s: %s", self._verdict_path, error)

    def _close_after(self, error: Exception) -> None:
        """Close the run as failed and give the nodes time to hear it. If that fails, too, stop the store."""
        verdict = Verdict(
            VerdictKind.FAILED, f"the coordinator failed: {type(error).__name__}: {error}", is_retryable=True
        )
        try:
            perform_move(self._served, self.coordinator.close(verdict))
            self._done.wait(self._settings.store_grace_s)
        except Exception:  # No coordinator runs any more: the nodes must not be left waiting.
            log.exception("the run could not be closed; stopping the store")
            self._served.stop()

    def _listen_for_bell(self) -> None:
        """Turn the bell key into a wake-up.

        A node writes its record before it rings. This thread deletes the key before the coordinator reads. So the
        coordinator's next read sees every record whose bell this deletion has removed.
        """
        bell = self.coordinator.keys.bell
        try:
            while not self._done.is_set():
                self._bell.wait_for(bell)
                self._bell.perform(Delete(bell))
                self._rung.set()
        except StoreUnavailable:
            if not self._done.is_set():
                log.warning("the bell is lost; the coordinator now reads by the clock alone")


def began(settings: RunSettings, epoch: str) -> RunBegan:
    return RunBegan(
        run_id=settings.run_id,
        epoch=epoch,
        settings=settings.as_dict(),
        versions={
            "ft_rendezvous": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        host=f"{socket.gethostname()} pid {os.getpid()}",
    )
