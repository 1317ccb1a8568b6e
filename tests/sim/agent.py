"""A node: one process with an elastic agent that does what torch's does with our handler.

It takes places, trains, asks ten times a second whether its workers must stop, takes its time to stop them, and
comes back; it leaves when its workers have ended well, when the run is over or when it is told to. What its
workers do is drawn by `faults`; what it does with the store is the protocol's own code.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ft_rendezvous.core.model import NodeInfo, Outcome, RequestKind, Verdict, View
from ft_rendezvous.core.node_step import Drained, WorkerExit
from ft_rendezvous.errors import FtError, RunClosed, StoreUnavailable, Unhealthy
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.ops import Op
from ft_rendezvous.protocol.participant import Participant, Place
from ft_rendezvous.store.worker_store import Bootstrap
from tests.sim.faults import Ending
from tests.sim.kernel import Connection, Delays, Process, Routine, Sleep, Thread
from tests.sim.link import SimLink

if TYPE_CHECKING:
    from tests.sim.world import World

MONITOR_S = 0.1
decode_head = lru_cache(maxsize=8)(codec.decode_head)


class Signal(Exception):
    """SIGTERM, as torch raises it in the agent's thread."""


class WorkersFailed(Exception):
    """The workers failed and the agent has spent its restarts."""


class GaveUpPlace(Exception):
    """The node was drained."""


class SimNode(Process):
    """One agent process."""

    def __init__(self, world: World, name: str, info: NodeInfo) -> None:
        super().__init__(world.kernel, name)
        self.world = world
        self.info = info
        self.born_at = world.kernel.now
        self.delays = Delays(typical_s=world.kernel.rng.choice((2e-4, 1e-3, 5e-3)))
        self.link: SimLink | None = None
        self.ports = world.ports[info.addr]
        self.bootstrap = Bootstrap(self.ports.listen, lambda listener: listener)
        self.lives = 0
        self._greeted: View | None = None
        self.is_training = False
        self.has_ended_well = False
        self.is_leaving = False
        self.is_terminated = False
        self.ailment = ""
        """What the next health check finds."""
        self.agent = Thread(self, "agent", self._live())

    # --- the agent ----------------------------------------------------------------------------------

    def _live(self) -> Routine:
        error: Exception | None = None
        try:
            yield from self._take_part()
            outcome, reason = Outcome.SUCCEEDED, "its workers ended well"
        except GaveUpPlace:
            outcome, reason = Outcome.DRAINED, "drained"
        except WorkersFailed:
            outcome, reason = Outcome.FAILED, "worker rank 0 exited with 1"
        except Signal:
            outcome, reason = Outcome.LEFT, "SIGTERM"
        except FtError as raised:
            outcome, reason, error = Outcome.LEFT, str(raised), raised
        self.is_training, self.is_leaving = False, True
        self.agent.signal = None
        if self.link is not None:
            yield from self.link.leave(outcome, reason)
        self.world.eyes.exits(self, reason, error)
        self.die()

    def _take_part(self) -> Routine:
        while True:
            place = yield from self._next_place()
            if (yield from self._train(self._link, place)):
                yield from self._await_peers(self._link, place)
                return

    def _next_place(self) -> Routine:
        yield from self._join()
        if self.ailment:
            yield from self._link.run(self._link.participant.withdraw(self.ailment))
            raise Unhealthy(self.ailment)
        self.bootstrap.retire()
        result = yield from self._link.run(self._link.participant.next_place())
        if isinstance(result, Verdict):
            self.world.eyes.hears_verdict(self, result)
            raise RunClosed("sim", result)
        if isinstance(result, Drained):
            raise GaveUpPlace
        return result

    @property
    def _link(self) -> SimLink:
        assert self.link is not None
        return self.link

    def _join(self) -> Routine:
        settings = self.world.settings
        if self.link is None:
            yield from self._find_store(settings.join_s)
            participant = self._new_participant()
            self.link = SimLink(self, self._connect, participant, beat_s=settings.beat_s, join_s=settings.join_s)

    def _find_store(self, patience_s: float) -> Routine:
        server, deadline = self.world.server, self.clock() + patience_s
        while server.is_dead or server.is_paused or codec.HEAD_KEY not in server.store.data:
            if self.clock() >= deadline:
                raise StoreUnavailable("store", "nothing listens there")
            yield Sleep(MONITOR_S)
        self._greeted = decode_head(server.store.data[codec.HEAD_KEY]).view

    def _connect(self, name: str) -> Connection:
        return Connection(self, self.world.server, self.delays, f"{self.name} {name}")

    def _new_participant(self) -> Participant:
        return Participant(
            epoch=self.world.epoch,
            node=self.info,
            lease_s=self.world.settings.lease_s,
            clock=self.clock,
            new_incarnation=lambda: self.world.new_incarnation(self),
            hold_bootstrap=self.bootstrap.hold,
            greeted=self._greeted,
        )

    def _train(self, link: SimLink, place: Place) -> Routine:
        """Run the workers of one cycle. True if they ended well."""
        self.is_training = True
        if place.rank == 0:
            self.bootstrap.serve()
        self.world.eyes.takes_place(self, place)
        workers = self.world.workers
        plan, seated_at = workers.plan(place), self.clock()
        saves_at = workers.saves_at()
        while True:
            plan = workers.revise(place, plan)
            if self.kernel.now >= plan.ends_at:
                self.is_training = False
                self.world.eyes.workers_end(self, place, plan.ending)
                if plan.ending is Ending.WELL:
                    self.has_ended_well = True
                    return True
                after_s = self.clock() - seated_at
                end = WorkerExit("exit code 1", 0, 1, after_s)
                if self.kernel.rng.random() < 0.8 and not link.must_stop(place.cycle_id):
                    # The watch over the workers reports at once. Not every system lets the agent watch.
                    link.post(link.participant.report_exit(place.cycle_id, end))
                if plan.ending is Ending.FOR_GOOD:
                    raise WorkersFailed
                yield Sleep(workers.stop_s())
                return False
            must_stop = link.must_stop(place.cycle_id)
            self.world.eyes.asks_whether_to_stop(self, place, must_stop)
            if must_stop:
                self.is_training = False
                yield Sleep(workers.stop_s())
                return False
            if self.kernel.now >= saves_at:
                self.write_checkpoint()
                saves_at = workers.saves_at()
            yield Sleep(MONITOR_S)

    def _await_peers(self, link: SimLink, place: Place) -> Routine:
        """The exit barrier. Torch's agent logs what goes wrong in it and goes on; the handler then finds that it
        knows no verdict."""
        participant = link.participant
        try:
            yield from link.run(participant.finish(place.cycle_id))
            verdict = yield from link.run(participant.await_verdict())
            self.world.eyes.hears_verdict(self, verdict)
        except FtError as error:
            self.world.tell(self.name, f"left the exit barrier: {error}")

    # --- what happens to it -------------------------------------------------------------------------

    def drain(self) -> None:
        """SIGUSR1."""
        if self.link is not None and not self.is_leaving:
            self.link.post(self.link.participant.ask_drain("SIGUSR1"))

    def ask_restart(self) -> None:
        """A worker does not like what it sees."""
        if self.link is not None and self.is_training:
            self.link.post(self.link.participant.ask(RequestKind.RESTART, "NaN"))

    def write_checkpoint(self) -> None:
        if self.link is not None and self.is_training:
            self.link.post(self.link.participant.tell_checkpoint(self.link.participant.progress.trained_in))

    def terminate(self) -> None:
        if not self.is_leaving:
            self.is_terminated = True
            self.agent.interrupt(Signal())

    def on_wait(self, connection: Connection, key: str) -> None:
        self.world.eyes.waits(connection, key)

    def on_reply(self, connection: Connection, op: Op, reply: Any) -> None:
        self.world.eyes.receives(connection, op, reply)

    def on_thread_death(self, thread: Thread, error: Exception) -> None:
        if isinstance(error, Signal):
            # It came before the agent had begun.
            self.die()
        else:
            self.world.eyes.thread_dies(self, thread.name, error)
