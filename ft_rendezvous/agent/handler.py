"""Torch's RendezvousHandler on top of a session. The only module that translates our errors to torch's."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
import time
from collections.abc import Mapping

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
from ft_rendezvous.agent.agent_store import AgentStore
from ft_rendezvous.agent.exit_command import run_exit_command
from ft_rendezvous.agent.health import check_health
from ft_rendezvous.agent.processes import read_boot_id
from ft_rendezvous.agent.signals import first_signal_held, signals_held
from ft_rendezvous.agent.torch_parts import check_torch
from ft_rendezvous.agent.worker_group import WorkerGroup
from ft_rendezvous.config.load import load_settings, locate_node, log_level, torchft_variables
from ft_rendezvous.config.settings import Settings
from ft_rendezvous.core.model import NodeInfo, Outcome, Verdict
from ft_rendezvous.core.node_step import Drained
from ft_rendezvous.errors import FtError, RunClosed, StoreUnavailable, Unhealthy
from ft_rendezvous.host.lighthouse_rules import derive_timeouts
from ft_rendezvous.host.logs import flush_logs, set_up_logging
from ft_rendezvous.host.staying import stay_while_needed
from ft_rendezvous.node.session import Session, open_session
from ft_rendezvous.protocol.participant import Place

log = logging.getLogger("ft_rendezvous")

BACKEND = "ft"


def create_handler(params: RendezvousParameters) -> FtRendezvousHandler:
    """Make the handler of one agent, and check all that can be checked without the other nodes.

    Raises ConfigError for an unknown torch, and ValueError for a mistake of the user.
    """
    check_torch()
    torch_patches.install(FtRendezvousHandler)
    set_up_logging(log_level())
    # The interpreter's last garbage collection goes through all of torch's objects: a third of a second.
    atexit.register(gc.freeze)
    if params.run_id == "none":
        log.warning("the run id is torchrun's default 'none': pass --rdzv-id, or nodes of different jobs may meet")
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
        flush_logs()  # Python prints a traceback next.
        raise ValueError(str(error)) from None
    return FtRendezvousHandler(settings)


class FtRendezvousHandler(RendezvousHandler):
    """What torch's agent sees: it waits for a place, says when workers must stop, and says goodbye."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._born_us = time.monotonic_ns() // 1_000
        self._session: Session | None = None
        self._place: Place | None = None
        self._last_cycle_logged_over = 0
        self._role: str | None = None
        self._local_world_size: int | None = None
        self._exit_command = settings.node.exit_command
        self._torchft_variables = self._derive_torchft_variables()
        self.workers: WorkerGroup | None = None
        """Set while an agent runs with this handler."""
        self.exported: dict[str, str] = {}
        """What workers find in their environment beside torch's own variables."""
        self.agent_calls = torch_patches.AgentCalls()

    def attach(self, role: str, local_world_size: int, *, is_warm: bool = False) -> None:
        """An agent begins to run. The seats of a cycle carry worker ranks, so the run must know how many it starts.

        `is_warm`: its workers are forked from a nursery, which starts now.
        """
        self._role, self._local_world_size = role, local_world_size
        run = self._settings.run
        self.workers = WorkerGroup(local_world_size, run.hang_rules, run.progress_from, is_warm=is_warm)
        self._export(self.workers.environment())

    def detach(self) -> None:
        """The agent has stopped its workers for good."""
        workers, self.workers = self.workers, None
        if workers is not None:
            workers.end()

    def say_goodbye_early(self, error: BaseException | None, reason_to_give_up: str) -> None:
        """The agent is about to stop its workers for good. That may take 30 s, and other nodes must not wait for it.

        `error` is on its way through the agent. Without one, the agent gives up for a reason, or all ended well.
        """
        session = self._session
        if session is None or isinstance(error, RendezvousGracefulExitError):
            return
        if error is None and not reason_to_give_up:
            return
        outcome, reason = _outcome_of(error) if error is not None else (Outcome.FAILED, reason_to_give_up)
        try:
            with signals_held():
                session.link.leave(outcome, reason)
        except Exception:  # No error may stop the agent from stopping its workers.
            log.exception("this node could not say goodbye")

    def check_end(self) -> None:
        """Raise if the run did not end well although this node's workers did.

        The agent swallows every error of its exit barrier, so the barrier cannot raise it. If the barrier failed, this
        node waits for the verdict itself.
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
            return session.link.await_end(place.cycle_id)
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
        if self._place is not None and self.workers is not None:
            self.agent_calls.expect("_start_workers", "_restart_workers")
        return torch_events.record_rendezvous(self.get_run_id(), self._next_info)

    def _next_info(self) -> RendezvousInfo:
        try:
            self._check_health()
            place = self._next_place()
            if isinstance(place, Drained):
                log.info("drained: this node has given up its place, and leaves")
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
        """Torch's agent never calls this. A node does not close a run. It says goodbye with its own outcome."""
        self.shutdown()

    def num_nodes_waiting(self) -> int:
        """1 if this node's workers must stop: torch then restarts them. Spares that wait do not count."""
        session, place = self._session, self._place
        if self.workers is not None:
            self.agent_calls.expect("_start_workers", "_monitor_workers")
        if session is None or place is None:
            return 0
        session.link.tick(place.cycle_id)
        if not session.link.must_stop(place.cycle_id):
            return 0
        if self._last_cycle_logged_over != place.cycle_id:
            self._last_cycle_logged_over = place.cycle_id
            log.info("over cycle=%d: %s", place.cycle_id, session.link.why_stop())
        return 1

    def shutdown(self) -> bool:
        """Say goodbye with this node's outcome. The host stays until the run is closed and every node has gone.

        Raises only for a second signal: another error would replace the one that is on its way to the user.
        """
        session = self._session
        try:
            outcome, reason = _outcome_of(sys.exc_info()[1])
            torch_events.record_shutdown(self.get_run_id(), outcome, reason)
            self._leave(outcome, reason)
            command, self._exit_command = self._exit_command, None  # Torch may call this twice.
            if command is not None:
                run_exit_command(command, None if session is None else session.link.verdict)
            return True
        except SignalException:
            raise
        except Exception:
            log.exception("leaving run %r failed", self.get_run_id())
            return False

    # --- parts --------------------------------------------------------------------------------------

    @property
    def verdict(self) -> Verdict | None:
        return self._session.link.verdict if self._session is not None else None

    def _ends_well(self, verdict: Verdict) -> bool:
        return self._session is not None and self._session.link.ends_well(verdict)

    def _check_health(self) -> None:
        """Withdraw from the run if this node is unfit to train."""
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
        """The session, which the first call opens."""
        if self._session is None:
            self._session = open_session(self._settings, self._node_info())
        if self.workers is not None:
            self.workers.set_link(self._session.link)
        return self._session

    def _node_info(self) -> NodeInfo:
        node = self._settings.node
        return NodeInfo(
            addr=node.local_addr or "",
            pid=os.getpid(),
            infra_rank=node.infra_rank,
            domain_id=node.domain_id,
            unit_id=node.unit_id,
            role=self._role,
            local_world_size=self._local_world_size,
            born_us=self._born_us,
            boot_id=read_boot_id(),
        )

    def _begin(self, place: Place) -> RendezvousInfo:
        """Prepare what the workers of this cycle need: their store, and their environment."""
        session = self._session
        assert session is not None
        self._place = place
        if self.workers is not None:
            self.workers.set_place(session.link, place)
        if place.rank == 0 and self.use_agent_store:
            session.bootstrap.serve()
        elif place.rank == 0:
            session.bootstrap.release()
        self._export(self._outputs(place))
        group = f" group={place.group}" if self._settings.run.group_size else ""
        log.info("cycle=%d%s rank=%d world=%d", place.cycle_id, group, place.rank, place.world_size)
        return RendezvousInfo(
            AgentStore(session.link, place),
            place.rank,
            place.world_size,
            RendezvousStoreInfo(place.master_addr, place.master_port),
        )

    def _export(self, outputs: dict[str, str]) -> None:
        """Workers inherit the agent's environment. The agent never reads these names."""
        self.exported.update(outputs)
        os.environ.update(outputs)

    def _outputs(self, place: Place) -> dict[str, str]:
        node = self._settings.node
        outputs = {
            "FT_CYCLE_ID": str(place.cycle_id),
            "FT_INCARNATION": place.incarnation,
            "FT_NODE_RANK": str(place.rank),
            "FT_NODE_INFRA_RANK": "" if node.infra_rank is None else str(node.infra_rank),
            "FT_NODE_DOMAIN": node.domain_id or "",
            # The agent reads it when it numbers its workers, right after it got its place.
            "TORCH_ELASTIC_WORKER_IDENTICAL": "1" if self._settings.run.has_identical_workers else "0",
        }
        return outputs | self._group_outputs(place) if self._settings.run.group_size else outputs

    def _group_outputs(self, place: Place) -> dict[str, str]:
        """What the workers of a replica group find, under our names and under torchft's."""
        assert self._session is not None
        address = self._session.lighthouse
        lighthouse = {"TORCHFT_LIGHTHOUSE": address} if address else {}
        return {
            "FT_GROUP_ID": str(place.group),
            "REPLICA_GROUP_ID": str(place.group),
            "NUM_REPLICA_GROUPS": str(place.group_count),
            **lighthouse,
            **self._torchft_variables,
        }

    def _derive_torchft_variables(self) -> Mapping[str, str]:
        """Timeouts for torchft that the user has not set. Derived once: workers inherit what this agent exports."""
        run = self._settings.run
        if not (run.group_size and run.has_lighthouse):
            return {}
        timeouts = derive_timeouts(run.lease_s, torchft_variables())
        for warning in timeouts.warnings:
            log.warning("%s", warning)
        return timeouts.values

    def _leave(self, outcome: Outcome, reason: str) -> None:
        session, self._session = self._session, None
        if session is None:
            return
        with signals_held():
            session.link.leave(outcome, reason)
            session.bootstrap.release()
        if session.host is not None:
            with first_signal_held() as take_signal:
                stay_while_needed(session.host, self._settings.run.join_s, take_signal)
            session.host.stop()


def _outcome_of(error: BaseException | None) -> tuple[Outcome, str]:
    """The outcome of the agent, from the error on its way while torch calls `shutdown()`."""
    if error is None:
        return Outcome.SUCCEEDED, ""
    if isinstance(error, ChildFailedError) and error.failures:
        rank, failure = error.get_first_failure()
        return Outcome.FAILED, f"worker rank {rank} exited with {failure.exitcode}"
    return Outcome.LEFT, f"{type(error).__name__}: {error}"
