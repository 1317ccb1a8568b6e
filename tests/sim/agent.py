"""A node: one process with an elastic agent that does what torch's does with our handler.

It takes places, starts workers, looks at them now and then, takes its time to stop them, and comes back; it leaves when
its workers have ended well, when the run is over or when it gets a signal. What its workers do is drawn by `faults`.
What it makes of that (`WorkerPolicy`), and what it does with the store, is the protocol's own code.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ft_rendezvous.agent.worker_watch import STOP_TIMEOUT_S
from ft_rendezvous.core.model import NodeInfo, Outcome, Verdict, View
from ft_rendezvous.core.node_step import Drained
from ft_rendezvous.core.update_notes import UpdateNote
from ft_rendezvous.errors import FtError, RunClosed, StoreUnavailable, Unhealthy
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.node_policy import ends_well
from ft_rendezvous.protocol.ops import Op
from ft_rendezvous.protocol.participant import Participant
from ft_rendezvous.protocol.worker_policy import GroupState, WorkerPolicy
from ft_rendezvous.store.worker_store import Bootstrap
from tests.sim.hangs import SimProgress
from tests.sim.kernel import Connection, Delays, Process, Routine, Sleep, Thread
from tests.sim.link import SimLink
from tests.sim.worker_processes import SimWorkers

if TYPE_CHECKING:
    from tests.sim.world import World

POLL_S = 0.1
MONITOR_INTERVALS_S = (0.1, 0.1, 1.0, 5.0)
"""How often an agent looks at its workers; torchrun has an option for it."""
LONGEST_STOP_S = 0.4
"""How long workers take to stop in a healed world."""
MANY_RESTARTS = 1000
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
        self.monitor_s = self._draw_monitor_s()
        self.has_watch = world.kernel.rng.random() < 0.8
        """Not every system lets an agent watch its workers."""
        self.policy = WorkerPolicy()
        self.group: SimWorkers | None = None
        """The workers of the last place taken."""
        self.restarts_left = MANY_RESTARTS
        self.has_ended_well = False
        self.is_leaving = False
        self.is_terminated = False
        self.ailment = ""
        """What the next health check finds."""
        self.progress = SimProgress(self, world.hangs)
        self.agent = Thread(self, "agent", self._live())
        if world.hangs.is_on:
            Thread(self, "progress", self.progress.run())

    def _draw_monitor_s(self) -> float:
        """How often this agent looks. A world that grows must have time to come back: an agent that looks less often
        than `last_call_timeout` is left out of every larger world, and the world grows for it again."""
        world = self.world
        if not world.shape.has_faults:
            return MONITOR_INTERVALS_S[0]
        drawn = world.kernel.rng.choice(MONITOR_INTERVALS_S)
        can_come_back = drawn + LONGEST_STOP_S < world.settings.last_call_s
        return drawn if can_come_back or not world.shape.has_latecomers else MONITOR_INTERVALS_S[0]

    # --- the agent ----------------------------------------------------------------------------------

    def _live(self) -> Routine:
        error: Exception | None = None
        try:
            yield from self._take_part()
            outcome, reason = Outcome.SUCCEEDED, "its workers ended well"
        except GaveUpPlace:
            outcome, reason = Outcome.DRAINED, "drained"
        except WorkersFailed as failed:
            outcome, reason = Outcome.FAILED, str(failed)
        except Signal:
            outcome, reason = Outcome.LEFT, "SIGTERM"
        except FtError as raised:
            outcome, reason, error = Outcome.LEFT, str(raised), raised
        self.is_leaving = True
        self.agent.signal = None
        if self.link is not None:
            yield from self.link.leave(outcome, reason)
        self.world.eyes.exits(self, reason, error)
        self.die()

    def _take_part(self) -> Routine:
        """As `SimpleElasticAgent._invoke_run` of torch does."""
        yield from self._start_workers()
        while True:
            yield Sleep(self.monitor_s)
            sight = yield from self._monitor_workers()
            match sight.state:
                case GroupState.SUCCEEDED:
                    yield from self._await_peers()
                    return
                case GroupState.FAILED if self.restarts_left == 0:
                    raise WorkersFailed(sight.reason_to_give_up)
                case GroupState.FAILED:
                    self.restarts_left -= 1
                    yield from self._restart_workers()
                case GroupState.HEALTHY if self._num_nodes_waiting() > 0:
                    yield from self._restart_workers()

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
            self.link = SimLink(self, self._connect, participant, settings, self.world.switchboard)

    def _find_store(self, patience_s: float) -> Routine:
        server, deadline = self.world.server, self.clock() + patience_s
        while server.is_dead or server.is_paused or codec.HEAD_KEY not in server.store.data:
            if self.clock() >= deadline:
                raise StoreUnavailable("store", "nothing listens there")
            yield Sleep(POLL_S)
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
            on_inquiry=self.progress.inquired,
        )

    def _start_workers(self) -> Routine:
        """Take a place and start its workers. They may fail before they are all there, and are watched only then."""
        place = yield from self._next_place()
        if place.rank == 0:
            self.bootstrap.serve()
        self.policy.begin(place.cycle_id, self.clock())
        self.world.eyes.takes_place(self, place)
        self.group = SimWorkers(self, place, self.world.workers.plan(place))
        rng = self.kernel.rng
        if self.world.shape.has_faults and rng.random() < 0.3:
            yield Sleep(rng.choice((0.02, 0.5)) * rng.random())
        if self.has_watch:
            self.group.watch()

    def _restart_workers(self) -> Routine:
        yield from self._stop_workers()
        yield from self._start_workers()

    def _stop_workers(self) -> Routine:
        """A report on its way is waited for, but not for long."""
        self._group.is_stopping = True
        report_in_s = self._group.report_due_at - self.kernel.now
        if report_in_s > 0:
            yield Sleep(min(report_in_s, STOP_TIMEOUT_S))
        self.policy.stop()
        yield Sleep(self.world.workers.stop_s())
        self._group.stop()

    def _monitor_workers(self) -> Routine:
        """What the agent sees when it looks, after our patch of its monitor."""
        group = self._group
        is_over = self._link.must_stop(group.place.cycle_id)
        sight = self.policy.look(group.state, group.failures, self.clock(), is_over)
        if sight.report is not None:
            yield Sleep(group.read_files_s())
            group.report(sight.report)
        return sight

    def _num_nodes_waiting(self) -> int:
        place = self._group.place
        self._link.tick(place.cycle_id)
        must_stop = self._link.must_stop(place.cycle_id)
        self.world.eyes.asks_whether_to_stop(self, place, must_stop)
        return int(must_stop)

    def _await_peers(self) -> Routine:
        """The exit barrier. Torch's agent logs what goes wrong in it and goes on; the handler then finds that it
        knows no verdict, and waits for one itself."""
        link, place = self._link, self._group.place
        participant = link.participant
        self.has_ended_well = True
        try:
            if self.kernel.random() < 0.1:
                raise StoreUnavailable("store", "torch's barrier fails")
            yield from link.run(participant.finish(place.cycle_id))
            yield from link.run(participant.await_verdict())
        except FtError as error:
            self.world.tell(self.name, f"left the exit barrier: {error}")
        verdict = participant.verdict or (yield from link.run(participant.await_end(place.cycle_id)))
        self.world.eyes.hears_verdict(self, verdict)
        if not ends_well(verdict, participant.is_going):
            raise RunClosed("sim", verdict)

    # --- what happens to it -------------------------------------------------------------------------

    @property
    def is_training(self) -> bool:
        """Whether workers run, and the agent does not stop them."""
        return self.group is not None and self.group.is_running and not self.is_leaving

    @property
    def _group(self) -> SimWorkers:
        assert self.group is not None
        return self.group

    def revise_workers(self) -> None:
        """The world has healed: workers that run end well."""
        if self.group is not None:
            self.group.revise()

    def die(self, loses_sent: bool = False) -> None:
        if not self.is_dead and self.link is not None:
            self.link.break_lifeline(is_silent=loses_sent)
        super().die(loses_sent)
        if self.group is not None:
            self.group.stop()

    def drain(self) -> None:
        """SIGUSR1."""
        if self.link is not None and not self.is_leaving:
            self.link.post(self.link.participant.ask_drain("SIGUSR1"))

    def ask_restart(self) -> None:
        """A worker does not like what it sees."""
        if self.link is not None and self.is_training:
            cycle_id = self._group.place.cycle_id
            if self.policy.takes_message(cycle_id):
                self.link.post(self.link.participant.ask_restart(cycle_id, f"NaN in cycle {cycle_id}"))

    def write_checkpoint(self) -> None:
        if self.link is not None and self.is_training:
            self.link.post(self.link.participant.tell_checkpoint(self._group.place.cycle_id))

    def report_updates(self, cycle_id: int, notes: Sequence[UpdateNote]) -> None:
        if self.link is None or self.is_leaving or not self.policy.takes_report(cycle_id):
            return
        for note in notes:
            self.world.eyes.reports_update(self, cycle_id, note)
            self.link.participant.note_update(cycle_id, note)

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
