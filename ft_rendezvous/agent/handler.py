"""Torch's RendezvousHandler on top of a session; the only place that translates errors to torch's."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time

from torch.distributed.elastic.multiprocessing import SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.rendezvous.api import (
    RendezvousClosedError,
    RendezvousConnectionError,
    RendezvousError,
    RendezvousGracefulExitError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from ft_rendezvous.agent import torch_events, torch_patches
from ft_rendezvous.agent.agent_store import AgentStore, barrier_keys
from ft_rendezvous.agent.health import check_health
from ft_rendezvous.agent.signals import on_signals, signals_held
from ft_rendezvous.agent.worker_group import Workers
from ft_rendezvous.agent.worker_watch import FirstFailure
from ft_rendezvous.config.load import load_settings, locate_node, log_level
from ft_rendezvous.config.settings import Settings
from ft_rendezvous.core.model import NodeInfo, Outcome, Verdict
from ft_rendezvous.core.node_step import Drained
from ft_rendezvous.errors import FtError, RunClosed, StoreUnavailable, Unhealthy
from ft_rendezvous.host.host import Host
from ft_rendezvous.node.session import Session, open_session
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.participant import Place
from ft_rendezvous.store import net

log = logging.getLogger("ft_rendezvous")

BACKEND = "ft"
SIGNAL_GLANCE_S = 0.2
"""How soon a host that stays says that it has seen a signal."""


def create_handler(params: RendezvousParameters) -> FtRendezvousHandler:
    """Check everything that can be checked before any node is met."""
    barrier_keys()
    torch_patches.install(FtRendezvousHandler)
    _show_logs()
    if params.run_id == "none":
        log.warning("the run id is torchrun's default 'none': pass --rdzv-id, or jobs will meet each other's nodes")
    try:
        settings = load_settings(
            endpoint=params.endpoint,
            run_id=params.run_id,
            min_nodes=params.min_nodes,
            max_nodes=params.max_nodes,
            conf=params.config,
            local_addr=params.local_addr,
        )
        settings = locate_node(settings)
    except FtError as error:
        log.error("%s", error)
        raise ValueError(str(error)) from None
    return FtRendezvousHandler(settings)


class FtRendezvousHandler(RendezvousHandler):
    """Seen by the agent: blocks for a place, tells when workers must stop, says goodbye."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._born_us = time.monotonic_ns() // 1_000
        self._session: Session | None = None
        self._place: Place | None = None
        self._cycle_told_over = 0
        self._role: str | None = None
        self._local_world_size: int | None = None
        self._exit_command = settings.node.exit_command
        self.workers: Workers | None = None
        """What an agent needs beside its workers; there only while one runs with this handler."""

    def attach(self, role: str, local_world_size: int) -> None:
        """Learn what the agent starts on this node, so that seats can carry the worker ranks."""
        self._role, self._local_world_size = role, local_world_size
        self.workers = Workers()
        self._export(self.workers.environment())

    def detach(self) -> None:
        """The agent has stopped its workers for the last time."""
        workers, self.workers = self.workers, None
        if workers is not None:
            workers.end()

    def say_goodbye_early(self, error: BaseException | None, failure: FirstFailure | None) -> None:
        """The agent is about to stop its workers for good, which may take 30 s; the others need not wait for that."""
        session = self._session
        if session is None or isinstance(error, RendezvousGracefulExitError) or (error is None and failure is None):
            return
        outcome, reason = _outcome_of(error)
        if failure is not None and error is None:
            outcome, reason = Outcome.FAILED, "its agent has spent its restarts"
        try:
            with signals_held():
                session.link.leave(outcome, reason)
        except Exception:  # Whatever it is, it must not keep the agent from stopping its workers.
            log.exception("the goodbye could not be said")

    def check_end(self) -> None:
        """Raise if the run did not end well although this node's workers did.

        The agent swallows every error of its exit barrier, so the barrier cannot tell. If the barrier failed, this node
        waits for the verdict itself.
        """
        verdict = self.verdict or self._await_verdict()
        if verdict is None:
            raise RendezvousConnectionError(
                f"the store of run {self.get_run_id()!r} was lost in the exit barrier: "
                "this node's workers ended well, the run's verdict is unknown"
            )
        if not self._ends_well(verdict):
            raise RendezvousClosedError(str(RunClosed(self.get_run_id(), verdict)))

    def _await_verdict(self) -> Verdict | None:
        """The verdict, once there is one; None if the store is lost."""
        session, place = self._session, self._place
        if session is None or place is None:
            return None
        try:
            session.link.finish(place.cycle_id)
            return session.link.await_verdict()
        except FtError as error:
            log.error("%s", error)
            return None

    # --- torch's interface --------------------------------------------------------------------------

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return self._settings.node.shares_store

    def get_run_id(self) -> str:
        return self._settings.run.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        return torch_events.tell_rendezvous(self.get_run_id(), self._next_info)

    def _next_info(self) -> RendezvousInfo:
        try:
            self._check_health()
            place = self._next_place()
            if isinstance(place, Drained):
                log.info("drained: this node holds no place any more, and leaves")
                raise RendezvousGracefulExitError("this node is drained")
            return self._begin(place)
        except RunClosed as error:
            if self._ends_well(error.verdict):
                raise RendezvousGracefulExitError(str(error)) from error
            log.error("%s; this node stops", error)
            raise RendezvousClosedError(str(error)) from error
        except StoreUnavailable as error:
            log.error("%s; the run is over for this node, and it stops", error)
            raise RendezvousConnectionError(str(error)) from error
        except FtError as error:
            log.error("%s; this node stops", error)
            raise RendezvousError(str(error)) from error

    def is_closed(self) -> bool:
        return self.verdict is not None

    def set_closed(self) -> None:
        """Torch's agent never calls this. A node does not close a run; its goodbye says what it knows."""
        self.shutdown()

    def num_nodes_waiting(self) -> int:
        """1 when this node's workers must stop; torch then restarts them. Parked spares do not count."""
        session, place = self._session, self._place
        if session is None or place is None or not session.link.must_stop(place.cycle_id):
            return 0
        if self._cycle_told_over != place.cycle_id:
            self._cycle_told_over = place.cycle_id
            log.info("over cycle=%d: %s", place.cycle_id, session.link.why_stop())
        return 1

    def shutdown(self) -> bool:
        """Say goodbye with what became of us; the host stays until the run is closed and all have gone.

        Never raises: it would replace the error that is on its way to the user.
        """
        session = self._session
        try:
            outcome, reason = _outcome_of(sys.exc_info()[1])
            torch_events.tell_shutdown(self.get_run_id(), outcome, reason)
            is_left = self._leave(outcome, reason)
            self._run_exit_command(session)
            return is_left
        except SignalException:
            # The second one: whoever sent it means it.
            raise
        except Exception:
            log.exception("leaving run %r failed", self.get_run_id())
            return False

    # --- parts --------------------------------------------------------------------------------------

    def _run_exit_command(self, session: Session | None) -> None:
        """Run what is to be run last, once; it takes the time it needs, and is told how the run ended."""
        command, self._exit_command = self._exit_command, None
        if command is None:
            return
        verdict = None if session is None else session.link.verdict
        told = ("unknown", 1) if verdict is None else (verdict.kind, int(verdict.is_retryable))
        words = ("env", f"FT_VERDICT={told[0]}", f"FT_IS_RETRYABLE={told[1]}", "/bin/sh", "-c", command)
        log.debug("running exit_command: %s", command)
        subprocess.run(words, stdin=subprocess.DEVNULL, check=False)

    @property
    def verdict(self) -> Verdict | None:
        return self._session.link.verdict if self._session is not None else None

    def _ends_well(self, verdict: Verdict) -> bool:
        return self._session is not None and self._session.link.ends_well(verdict)

    def _check_health(self) -> None:
        """Withdraw from the run if this node is not fit to train."""
        node = self._settings.node
        reason = check_health(node.health_check, node.health_check_s, node.checks_gpus)
        if reason is not None:
            self._join().link.withdraw(reason)
            raise Unhealthy(reason)

    def _next_place(self) -> Place | Drained:
        session = self._join()
        self._place = None
        session.bootstrap.retire()
        result = session.link.next_place()
        if isinstance(result, Verdict):
            raise RunClosed(self.get_run_id(), result)
        return result

    def _join(self) -> Session:
        """The session; opened at the first call."""
        if self._session is None:
            node = self._node_info()
            codec.check_node(node)
            self._session = open_session(self._settings, node)
        if self.workers is not None:
            self.workers.greet(self._session.link)
        return self._session

    def _node_info(self) -> NodeInfo:
        node = self._settings.node
        return NodeInfo(
            addr=net.advertised_address(node),
            pid=os.getpid(),
            infra_rank=node.infra_rank,
            domain_id=node.domain_id,
            unit_id=node.unit_id,
            role=self._role,
            local_world_size=self._local_world_size,
            born_us=self._born_us,
        )

    def _begin(self, place: Place) -> RendezvousInfo:
        """Everything the workers of this cycle need: their store, and who they are."""
        session = self._session
        assert session is not None
        self._place = place
        if self.workers is not None:
            self.workers.take(session.link, place)
        if place.rank == 0 and self.use_agent_store:
            session.bootstrap.serve()
        elif place.rank == 0:
            session.bootstrap.release()
        self._export(self._outputs(place))
        log.info("cycle=%d rank=%d world=%d", place.cycle_id, place.rank, place.world_size)
        return RendezvousInfo(
            AgentStore(session.link, place),
            place.rank,
            place.world_size,
            RendezvousStoreInfo(place.master_addr, place.master_port),
        )

    def _export(self, outputs: dict[str, str]) -> None:
        """Workers inherit the agent's environment; these names are outputs, never read as inputs."""
        os.environ.update(outputs)

    def _outputs(self, place: Place) -> dict[str, str]:
        node = self._settings.node
        return {
            "FT_CYCLE_ID": str(place.cycle_id),
            "FT_INCARNATION": place.incarnation,
            "FT_NODE_RANK": str(place.rank),
            "FT_NODE_INFRA_RANK": "" if node.infra_rank is None else str(node.infra_rank),
            "FT_NODE_DOMAIN": node.domain_id or "",
            # The agent looks at it when it numbers its workers, right after it got its place.
            "TORCH_ELASTIC_WORKER_IDENTICAL": "1" if self._settings.run.has_identical_workers else "0",
        }

    def _leave(self, outcome: Outcome, reason: str) -> bool:
        session, self._session = self._session, None
        if session is None:
            return True
        with signals_held():
            session.link.leave(outcome, reason)
            session.bootstrap.release()
        if session.host is not None:
            self._stay_as_host(session.host)
        return True

    def _stay_as_host(self, host: Host) -> None:
        """While others need this node's store, one signal is not enough to take it from them."""
        got: list[int] = []
        with on_signals(got.append) as restore:
            if not host.wait(1.0):
                log.info("this node hosts the store: staying until every other node has gone")
            alone_until = time.monotonic() + self._settings.run.join_s
            while not host.wait(SIGNAL_GLANCE_S):
                others, now = len(host.coordinator.roster.members), time.monotonic()
                if not others and (got or now >= alone_until):
                    break  # Nobody came, or nobody is left: the store is of no use to anybody.
                alone_until = now + self._settings.run.join_s if others else alone_until
                if got:
                    text = "%s: staying, because other nodes need the store on this node (%d); again: the run ends"
                    log.warning(text, signal.Signals(got[0]).name, others)
                    got.clear()
                    restore()
        host.stop()


def _outcome_of(error: BaseException | None) -> tuple[Outcome, str]:
    """What became of the agent, from the error in flight while torch calls `shutdown()`."""
    if error is None:
        return Outcome.SUCCEEDED, ""
    if isinstance(error, ChildFailedError) and error.failures:
        rank, failure = error.get_first_failure()
        return Outcome.FAILED, f"worker rank {rank} exited with {failure.exitcode}"
    return Outcome.LEFT, f"{type(error).__name__}: {error}"


def _show_logs() -> None:
    """Log as torch's elastic does when nobody has configured logging: a rendezvous must tell its story."""
    if not log.handlers and not logging.getLogger().handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("[ft %(asctime)s %(levelname)s] %(message)s"))
        log.addHandler(handler)
        log.setLevel(log_level())
        log.propagate = False
