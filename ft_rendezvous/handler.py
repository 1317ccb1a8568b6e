"""Torch's RendezvousHandler on top of a session; the only place that translates errors to torch's."""

from __future__ import annotations

import logging
import os
import sys

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

from ft_rendezvous import net, torch_seams
from ft_rendezvous.agent_store import AgentStore, barrier_keys
from ft_rendezvous.core.model import NodeInfo, Outcome, Verdict, VerdictKind
from ft_rendezvous.errors import FtError, RunClosed, StoreUnavailable
from ft_rendezvous.participant import Place
from ft_rendezvous.session import Session, open_session, reopen_link
from ft_rendezvous.settings import Settings, log_level, parse_settings

log = logging.getLogger("ft_rendezvous")

BACKEND = "ft"


def create_handler(params: RendezvousParameters) -> FtRendezvousHandler:
    """Check everything that can be checked before any node is met."""
    barrier_keys()
    torch_seams.install(FtRendezvousHandler)
    _show_logs()
    if params.run_id == "none":
        log.warning("the run id is torchrun's default 'none': pass --rdzv-id, or jobs will meet each other's nodes")
    try:
        settings = parse_settings(
            endpoint=params.endpoint,
            run_id=params.run_id,
            min_nodes=params.min_nodes,
            max_nodes=params.max_nodes,
            conf=params.config,
            local_addr=params.local_addr,
        )
    except FtError as error:
        raise ValueError(str(error)) from error
    return FtRendezvousHandler(settings)


class FtRendezvousHandler(RendezvousHandler):
    """Seen by the agent: blocks for a place, tells when workers must stop, says goodbye."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session: Session | None = None
        self._place: Place | None = None
        self._role: str | None = None
        self._local_world_size: int | None = None

    def attach(self, role: str, local_world_size: int) -> None:
        """Learn what the agent starts on this node, so that seats can carry the worker ranks."""
        self._role, self._local_world_size = role, local_world_size

    def check_end(self) -> None:
        """Raise if the run did not end well although this node's workers did.

        The agent swallows whatever its exit barrier raises, so the barrier cannot tell.
        """
        verdict = self.verdict
        if verdict is None:
            raise RendezvousConnectionError(
                f"the store of run {self.get_run_id()!r} was lost in the exit barrier: "
                "this node's workers ended well, the run's verdict is unknown"
            )
        if verdict.kind is not VerdictKind.SUCCEEDED:
            raise RendezvousClosedError(str(RunClosed(self.get_run_id(), verdict)))

    # --- torch's interface --------------------------------------------------------------------------

    def get_backend(self) -> str:
        return BACKEND

    @property
    def use_agent_store(self) -> bool:
        return self._settings.node.shares_store

    def get_run_id(self) -> str:
        return self._settings.run.run_id

    def next_rendezvous(self) -> RendezvousInfo:
        try:
            place = self._next_place()
            return self._begin(place)
        except RunClosed as error:
            if error.verdict.kind is VerdictKind.SUCCEEDED:
                raise RendezvousGracefulExitError(str(error)) from error
            raise RendezvousClosedError(str(error)) from error
        except StoreUnavailable as error:
            log.error("%s; this node stops", error)
            raise RendezvousConnectionError(str(error)) from error
        except FtError as error:
            raise RendezvousError(str(error)) from error

    def is_closed(self) -> bool:
        return self.verdict is not None

    def set_closed(self) -> None:
        """Torch's agent never calls this. A node does not close a run; its goodbye says what it knows."""
        self.shutdown()

    def num_nodes_waiting(self) -> int:
        """1 when this node's workers must stop; torch then restarts them. Parked spares do not count."""
        if self._session is None or self._place is None:
            return 0
        return int(self._session.link.must_stop(self._place.cycle_id))

    def shutdown(self) -> bool:
        """Say goodbye with what became of us; the host stays until the run is closed and all have gone.

        Never raises: it would replace the error that is on its way to the user.
        """
        try:
            return self._leave(*_outcome_of(sys.exc_info()[1]))
        except Exception:
            log.exception("leaving run %r failed", self.get_run_id())
            return False

    # --- parts --------------------------------------------------------------------------------------

    @property
    def verdict(self) -> Verdict | None:
        return self._session.link.verdict if self._session is not None else None

    def _next_place(self) -> Place:
        session = self._linked_session()
        self._place = None
        session.bootstrap.release()
        try:
            result = session.link.run(session.link.participant.next_place())
        except StoreUnavailable:
            if not session.link.is_broken:
                raise
            # A connection can be reset without the store being lost: one more try, as for a training node.
            session = self._linked_session()
            result = session.link.run(session.link.participant.next_place())
        if isinstance(result, Verdict):
            raise RunClosed(self.get_run_id(), result)
        return result

    def _linked_session(self) -> Session:
        """The session, with a link that works: a broken one is replaced within a lease, or the store is lost."""
        if self._session is None:
            self._session = open_session(self._settings, self._node_info())
        elif self._session.link.is_broken:
            self._session = self._reopen(self._session)
        return self._session

    def _reopen(self, old: Session) -> Session:
        run = self._settings.run
        old.link.stop()
        old.bootstrap.release()
        former = old.link.participant
        session = reopen_link(self._settings, self._node_info(), former.epoch, patience_s=run.lease_s)
        session.host = old.host
        session.link.participant.is_return = True
        # The others need not wait for the lease of the incarnation that lost its connection.
        session.link.run(former.goodbye(Outcome.LEFT, "its connection was lost; it joins again"))
        return session

    def _node_info(self) -> NodeInfo:
        node = self._settings.node
        return NodeInfo(
            addr=net.advertised_address(node),
            pid=os.getpid(),
            infra_rank=node.infra_rank,
            domain_id=node.domain_id,
            role=self._role,
            local_world_size=self._local_world_size,
            digest=self._settings.run.digest,
        )

    def _begin(self, place: Place) -> RendezvousInfo:
        """Everything the workers of this cycle need: their store, and who they are."""
        session = self._session
        assert session is not None
        self._place = place
        if place.rank == 0 and self.use_agent_store:
            session.bootstrap.serve()
        else:
            session.bootstrap.release()
        self._export(place)
        log.info("cycle=%d rank=%d world=%d", place.cycle_id, place.rank, place.world_size)
        return RendezvousInfo(
            AgentStore(session.link, place),
            place.rank,
            place.world_size,
            RendezvousStoreInfo(place.master_addr, place.master_port),
        )

    def _export(self, place: Place) -> None:
        """Workers inherit the agent's environment; these names are outputs, never read as inputs."""
        node = self._settings.node
        outputs = {
            "FT_CYCLE_ID": str(place.cycle_id),
            "FT_INCARNATION": place.incarnation,
            "FT_NODE_RANK": str(place.rank),
            "FT_NODE_INFRA_RANK": "" if node.infra_rank is None else str(node.infra_rank),
            "FT_NODE_DOMAIN": node.domain_id or "",
        }
        os.environ.update(outputs)

    def _leave(self, outcome: Outcome, reason: str) -> bool:
        session, self._session = self._session, None
        if session is None:
            return True
        progress = session.link.participant.progress
        has_finished = progress.finished_in > 0 and progress.finished_in == progress.trained_in
        if outcome is Outcome.SUCCEEDED and session.link.verdict is None and not has_finished:
            outcome = Outcome.LEFT
        session.link.leave(outcome, reason)
        session.bootstrap.release()
        if session.host is not None:
            self._stay_as_host(session)
        return True

    def _stay_as_host(self, session: Session) -> None:
        host = session.host
        assert host is not None
        if not host.wait(1.0):
            log.info("this node hosts the store: staying until every other node has gone")
        host.wait()
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
