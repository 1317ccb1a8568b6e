"""What goes wrong: drawn from the seed, aimed when it happens, over when the world heals.

Owns what workers do and every fault there is. A fault acts on processes, connections and the server only; it
knows nothing of the protocol.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from random import Random
from typing import TYPE_CHECKING

from ft_rendezvous.core.capacity import Policy
from ft_rendezvous.core.model import RequestKind
from ft_rendezvous.core.update_notes import StepTime, UpdateNote, UpdateOutcome
from ft_rendezvous.protocol.participant import Place
from tests.sim.kernel import Process, Trap

if TYPE_CHECKING:
    from tests.sim.agent import SimNode
    from tests.sim.world import World

# --- workers ----------------------------------------------------------------------------------------


class Ending(StrEnum):
    WELL = "end well"
    FAILED = "fail"
    FOR_GOOD = "fail, and the agent has spent its restarts"


@dataclass(frozen=True, slots=True)
class Plan:
    """When and how one node's workers of one cycle end."""

    ends_at: float
    ending: Ending
    is_healthy: bool = False


@dataclass(frozen=True, slots=True)
class Fate:
    """What becomes of a cycle's training, for all its nodes together."""

    kind: str
    begins_at: float
    first: int
    second: int


_FATES = {"one fails": 45, "some fail": 10, "lasts": 33, "ends well": 5, "is torn": 5, "one gives up": 2}
_NEVER = Plan(float("inf"), Ending.FAILED)


class Workers:
    """Draws what workers do. After healing they all end well."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng: Random = world.kernel.rng
        self.fates: dict[tuple[int, int], Fate] = {}
        """By cycle and group."""
        self.torn: set[tuple[int, int]] = set()
        """Cycles, with the group, in which workers have failed. Once the world has healed, the others of the group
        wait for those in vain."""
        self.updates = 0
        self._update_rng = Random(f"updates of {world.seed}")
        self._patience_s = 0.1 if world.shape.is_restless else self._rng.choice((0.1, 1.0, 5.0))
        """How long training lasts before something becomes of it: short cycles follow close upon each other."""

    def plan(self, place: Place) -> Plan:
        rng, now = self._rng, self._world.kernel.now
        if self._world.is_healed:
            return Plan(now + rng.uniform(*self._world.shape.healthy_s), Ending.WELL, is_healthy=True)
        key = (place.cycle_id, place.group)
        if key not in self.fates:
            is_restless = self._world.shape.is_restless
            kind = "one fails" if is_restless else rng.choices(list(_FATES), list(_FATES.values()))[0]
            first, second = rng.randrange(place.world_size), rng.randrange(place.world_size)
            begins_at = now + rng.uniform(0.0, self._patience_s)
            self.fates[key] = Fate(kind, begins_at, first, second)
        return self._draw(self.fates[key], place.rank)

    def _draw(self, fate: Fate, rank: int) -> Plan:
        at = fate.begins_at + self._rng.uniform(0.0, 0.2)
        match fate.kind:
            case "one fails" if rank == fate.first:
                return Plan(at, Ending.FAILED)
            case "some fail" if self._rng.random() < 0.5:
                return Plan(at, Ending.FAILED)
            case "ends well":
                return Plan(at, Ending.WELL)
            case "is torn" if rank == fate.first:
                return Plan(at, Ending.WELL)
            case "is torn" if rank == fate.second:
                return Plan(at, Ending.FAILED)
            case "one gives up" if rank == fate.first:
                return Plan(at, Ending.FOR_GOOD)
        return _NEVER

    def revise(self, place: Place, plan: Plan) -> Plan:
        """The plan that holds now: healing overtakes what was drawn before."""
        return self.plan(place) if self._world.is_healed and not plan.is_healthy else plan

    def saves_at(self) -> float:
        """When the workers next write a checkpoint."""
        every_s = self._world.shape.saves_every_s
        if every_s is None:
            return float("inf")
        if self._world.is_healed:
            every_s = min(every_s, 1.0)
        return self._world.kernel.now + every_s * self._rng.uniform(0.5, 1.5)

    def updates_at(self) -> float:
        """When the workers next report updates. Drawn apart, so that a run without any is the same as ever."""
        every_s = self._world.shape.updates_every_s
        return (
            float("inf") if every_s is None else self._world.kernel.now + every_s * self._update_rng.uniform(0.5, 1.5)
        )

    def draw_updates(self) -> list[UpdateNote]:
        """A few updates, of which some failed or were retried. Each has a version of its own."""
        return [self._draw_update() for _ in range(self._update_rng.choice((1, 1, 2, 5)))]

    def _draw_update(self) -> UpdateNote:
        rng = self._update_rng
        self.updates += 1
        attempts, is_failed = rng.choice((1, 1, 1, 2)), rng.random() < 0.2
        parties, failed = rng.randrange(1, 5), attempts - 1 + is_failed
        return UpdateNote(
            version=self.updates,
            outcome=UpdateOutcome.FAILED if is_failed else UpdateOutcome.COMPLETED,
            attempts=attempts,
            parties=parties,
            updated=0 if is_failed else parties,
            failed_count=failed,
            failed=tuple(f"generator {number}" for number in range(failed)),
            steps=tuple(StepTime(name, 0.125) for name in ("pause", "transfer")[: rng.randrange(3)]),
            duration_s=0.25,
            lost_s=0.125 * failed,
            reason="x" * rng.choice((1, 200)) if failed else "",
        )

    def stop_s(self) -> float:
        """How long stopping workers takes; sometimes longer than anybody waits for."""
        rng = self._rng
        if rng.random() < 0.1 and not self._world.is_healed:
            return rng.uniform(0.0, 2 * self._world.settings.last_call_s)
        return rng.uniform(0.0, 0.4)


# --- faults -----------------------------------------------------------------------------------------


class Faults:
    """Injects the faults of one run between its start and its healing."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._kernel = world.kernel
        self._rng = world.kernel.rng
        self._lease_s = world.settings.lease_s
        self._kinds: dict[Callable[[], None], int] = {
            self.crash: 3,
            self.crash_at_a_call: 5,
            self.pause: 4,
            self.pause_at_a_call: 5,
            self.pause_between_events: 5,
            self.slow_down: 5,
            self.cut: 5,
            self.cut_again_and_again: 3,
            self.partition: 5,
            self.pause_coordinator: 3,
            self.pause_coordinator_at_a_call: 3,
            self.stall_server: 3,
            self.stall_host: 3,
            self.start_twice: 2,
            self.restart: 3,
            self.start_impostor: 1,
            self.terminate: 2,
            self.drain: 3,
            self.ask_restart: 2,
            self.start_another: 3,
            self.stall_a_newcomer: 4,
            self.fail_health_check: 4,
            self.start_unfit: 3,
            self.operator_drains: 3,
            self.operator_restarts: 2,
            self.operator_lists: 1,
            self.operator_closes: 1,
            self.signal_host: 1,
        }
        if world.settings.policy is Policy.ELASTIC:
            self._kinds[self.start_a_visitor] = 4
        if world.settings.group_size:
            self._kinds |= {self.crash_group: 3, self.pause_group: 3, self.operator_restarts_group: 3}

    def schedule(self, until: float, focus: tuple[str, ...] = ()) -> None:
        """Draw how many faults there are, when, and of which few kinds: faults of one kind bring each other out
        more often than faults of all kinds do. `focus` names the kinds instead."""
        rng = self._rng
        kinds = [(kind, weight) for kind, weight in self._kinds.items() if kind.__name__ in focus or not focus]
        self._kinds = dict(rng.sample(kinds, min(len(kinds), rng.choice((1, 2, 3, 5, len(kinds))))))
        for _ in range(rng.choice((3, 6, 10)) if focus else rng.choice((0, 1, 3, 6, 10))):
            self._kernel.at(rng.uniform(0.0, until), self._strike)
        if rng.random() < 0.02 and not focus:
            self._kernel.at(rng.uniform(0.0, until), self._world.kill_server)

    def _strike(self) -> None:
        if not self._world.is_healed:
            self._rng.choices(list(self._kinds), list(self._kinds.values()))[0]()

    # --- nodes --------------------------------------------------------------------------------------

    def crash(self) -> None:
        node = self._victim()
        if node is not None:
            self._kill(node)

    def crash_at_a_call(self) -> None:
        node = self._victim()
        if node is not None:
            self._trap(node, lambda: self._kill(node))

    def pause(self) -> None:
        node = self._victim()
        if node is not None:
            self._stop(node, self._pause_s())

    def crash_group(self) -> None:
        """A switch takes all nodes of a group with it, or all but one."""
        for node in self._victims():
            self._kill(node)

    def pause_group(self) -> None:
        pause_s = self._pause_s()
        for node in self._victims():
            self._stop(node, pause_s)

    def _victims(self) -> list[SimNode]:
        nodes = [node for node in self._world.nodes if not node.is_dead and node.is_training and node.group]
        groups = sorted({node.group.place.group for node in nodes if node.group is not None})
        if not groups:
            return []
        chosen = self._rng.choice(groups)
        found = [node for node in nodes if node.group is not None and node.group.place.group == chosen]
        return found[self._rng.randrange(2) :]

    def pause_at_a_call(self) -> None:
        node, pause_s = self._victim(), self._pause_s()
        if node is not None:
            self._trap(node, lambda: self._stop(node, pause_s))

    def pause_between_events(self) -> None:
        """While the ear is not listening, events may come and go; so may the lease."""
        node, pause_s = self._victim(), self._pause_s()
        if node is not None:
            rng = self._rng
            node.trap = Trap(rng.randrange(3), rng.random() < 0.3, lambda: self._stop(node, pause_s), thread="listener")

    def slow_down(self) -> None:
        node = self._victim()
        if node is not None:
            node.delays.spike_s = self._rng.choice((0.02, 0.2, self._lease_s / 4))
            node.delays.spikes_until = self._kernel.now + self._rng.uniform(0.5, 2 * self._lease_s)
            self._world.tell(node.name, f"its network gets slow by up to {node.delays.spike_s:g} s")

    def cut(self) -> None:
        """Break one of a node's connections, or all of them."""
        node = self._victim()
        living = [c for c in node.connections if not c.is_broken] if node is not None else []
        if node is not None and living:
            chosen = living if self._rng.random() < 0.4 else [self._rng.choice(living)]
            for connection in chosen:
                self._world.tell(node.name, f"loses its connection {connection.name}")
                connection.cut(loses_sent=self._rng.random() < 0.5)

    def cut_again_and_again(self) -> None:
        """A link that is reset for a while, several times per second."""
        node = self._victim()
        if node is not None:
            every_s = self._rng.choice((0.02, 0.1, 0.5))
            until = self._kernel.now + self._rng.uniform(0.5, 1.5 * self._lease_s)
            self._world.tell(node.name, f"loses its connections every {every_s:g} s")
            self._cut_all(node, every_s, until)

    def _cut_all(self, node: SimNode, every_s: float, until: float) -> None:
        if node.is_dead or self._world.is_healed or self._kernel.now >= until:
            return
        node.disturbed_at = self._kernel.now
        for connection in node.connections:
            if not connection.is_broken:
                connection.cut(loses_sent=self._rng.random() < 0.5)
        self._kernel.at(self._kernel.now + every_s, self._cut_all, node, every_s, until)

    def partition(self) -> None:
        """Packets between a node and the store are lost without a word, one way or both ways."""
        node = self._victim()
        if node is not None and not node.is_cut_off:
            is_out, is_in = self._rng.choice(((True, True), (True, True), (True, False), (False, True)))
            way = "both ways" if is_out and is_in else "on the way out" if is_out else "on the way in"
            cut_s = self._pause_s()
            self._world.tell(node.name, f"is cut off {way} for {cut_s:.3f} s")
            node.cut_off(is_out, is_in)
            self._kernel.at(self._kernel.now + cut_s, self._end_partition, node)

    def _end_partition(self, node: SimNode) -> None:
        if node.is_cut_off and not node.is_dead:
            self._world.tell(node.name, "is reachable again")
            node.reconnect()

    def terminate(self) -> None:
        node = self._victim()
        if node is not None:
            self._world.tell(node.name, "gets SIGTERM")
            node.terminate()

    def drain(self) -> None:
        """A node is asked to go; sooner or later its workers write a checkpoint."""
        node = self._victim()
        if node is not None:
            self._world.tell(node.name, "gets SIGUSR1")
            node.drain()
            self._expect_checkpoints()

    def _expect_checkpoints(self) -> None:
        """Sooner or later the workers of every node write one."""
        for node in self._world.nodes:
            if not node.is_dead:
                self._kernel.at(self._kernel.now + self._rng.uniform(0.0, 6.0), node.write_checkpoint)

    def ask_restart(self) -> None:
        node = self._victim()
        if node is not None:
            node.ask_restart()

    # --- health -------------------------------------------------------------------------------------

    def fail_health_check(self) -> None:
        """A node breaks. It finds out before its next place, and most often another one takes its place."""
        node = self._victim()
        if node is not None:
            self._sicken(node)

    def start_unfit(self) -> None:
        """A node that is broken from the start: a new one, or one that was there before."""
        node = self._victim()
        info = node.info if node is not None and self._rng.random() < 0.3 else self._world.new_info()
        self._sicken(self._world.start_node(info))

    def _sicken(self, node: SimNode) -> None:
        if not node.ailment:
            self._world.tell(node.name, "is not healthy any more")
            node.ailment = "GPU 3 has fallen off the bus"
            if self._rng.random() < 0.7:
                self._replace_unfit(node, self._rng.uniform(0.1, 2 * self._lease_s))

    def _replace_unfit(self, node: SimNode, after_s: float) -> None:
        """Start another node once this one has gone: where it was, elsewhere with its infra rank, or anywhere."""
        if self._world.is_healed:
            return
        if not node.is_dead:
            self._kernel.at(self._kernel.now + after_s, self._replace_unfit, node, after_s)
            return
        where = self._rng.choice(("here", "elsewhere", "anywhere"))
        if where == "anywhere":
            self._world.start_node(self._world.new_info())
        else:
            self._world.start_node(node.info, addr=self._world.new_addr() if where == "elsewhere" else None)

    # --- operators ----------------------------------------------------------------------------------

    def operator_drains(self) -> None:
        """An operator means a node by its infra rank, its address or its process."""
        node = self._victim()
        if node is not None:
            info = node.info
            names = [info.addr, f"{info.addr}:{info.pid}", *([] if info.infra_rank is None else [str(info.infra_rank)])]
            self._ask(RequestKind.DRAIN, self._rng.choice(names))
            self._expect_checkpoints()

    def operator_restarts(self) -> None:
        self._ask(RequestKind.RESTART)

    def operator_restarts_group(self) -> None:
        """Of a group that is there, or was, or never was."""
        self._ask(RequestKind.RESTART, str(self._rng.randrange(self._world.settings.wanted_groups + 1)))

    def operator_lists(self) -> None:
        self._ask(RequestKind.ROSTER)

    def operator_closes(self) -> None:
        self._ask(RequestKind.CLOSE)

    def _ask(self, kind: RequestKind, target: str = "") -> None:
        self._world.start_operator(kind, target, is_hasty=self._rng.random() < 0.2)

    # --- starts -------------------------------------------------------------------------------------

    def start_twice(self) -> None:
        """Start an agent where one runs already, with the same infra rank."""
        node = self._victim()
        if node is not None:
            self._world.start_node(node.info)

    def restart(self) -> None:
        """A node dies and is started again where it was; every other time its machine has been booted again."""
        node = self._victim()
        if node is not None:
            self._kill(node)
            after_s = self._rng.choice((0.01, self._rng.uniform(0.1, 2 * self._lease_s)))
            is_rebooted = len(self._world.nodes) % 2 == 0
            self._kernel.at(self._kernel.now + after_s, self._world.start_node, node.info, None, is_rebooted)

    def start_impostor(self) -> None:
        """Start an agent elsewhere with an infra rank that is taken."""
        node = self._victim()
        if node is not None:
            self._world.start_node(node.info, addr=self._world.new_addr())

    def start_another(self) -> None:
        self._world.start_node(self._world.new_info())

    def stall_a_newcomer(self) -> None:
        """Joining takes several operations; the run does not wait for a node that is between two of them."""
        node, pause_s = self._world.start_node(self._world.new_info()), self._pause_s()
        node.trap = Trap(self._rng.randrange(7), self._rng.random() < 0.5, lambda: self._stop(node, pause_s))

    def start_a_visitor(self) -> None:
        """A node comes, and goes before long: a larger world was possible, and is not any more."""
        node = self._world.start_node(self._world.new_info())
        self._kernel.at(self._kernel.now + self._rng.uniform(0.1, self._lease_s), self._see_off, node)

    def _see_off(self, node: SimNode) -> None:
        if not node.is_dead and not self._world.is_healed:
            self._world.tell(node.name, "gets SIGTERM")
            node.terminate()

    # --- the host -----------------------------------------------------------------------------------

    def pause_coordinator(self) -> None:
        self._stop_host(self._pause_s(), with_server=self._rng.random() < 0.5)

    def pause_coordinator_at_a_call(self) -> None:
        pause_s, with_server = self._pause_s(), self._rng.random() < 0.5
        self._trap(self._world.host.process, lambda: self._stop_host(pause_s, with_server))

    def stall_server(self) -> None:
        """The store does not answer, and the coordinator beside it is alive."""
        server, stall_s = self._world.server, self._pause_s()
        if not server.is_paused and not server.is_dead:
            self._world.tell("store", f"stalls for {stall_s:.3f} s")
            self._world.host.process.disturbed_at = self._kernel.now + stall_s
            server.pause()
            self._kernel.at(self._kernel.now + stall_s, self._end_stall)

    def _end_stall(self) -> None:
        server = self._world.server
        if server.is_paused and not self._world.host.process.is_paused:
            self._world.tell("store", "answers again")
            server.resume()

    def stall_host(self) -> None:
        """The whole machine of the host stands still, for half a lease to five leases."""
        self._stop_host(self._rng.uniform(0.5, 5.0) * self._lease_s, with_server=True)

    def signal_host(self) -> None:
        """SIGTERM for a node that stays only to host the store."""
        if self._world.host.stays:
            self._world.tell("host", "gets SIGTERM")
            self._world.host.has_signal = True

    def _stop_host(self, pause_s: float, with_server: bool) -> None:
        process, server = self._world.host.process, self._world.server
        if process.is_paused or process.is_dead:
            return
        self._world.tell("host", f"is paused for {pause_s:.3f} s, its server {'too' if with_server else 'is not'}")
        process.pause()
        if with_server:
            server.pause()
        self._kernel.at(self._kernel.now + pause_s, self.resume_host)

    def resume_host(self) -> None:
        process, server = self._world.host.process, self._world.server
        if process.is_paused:
            self._world.tell("host", "goes on")
            if server.is_paused:
                server.resume()
            process.resume()

    # --- parts --------------------------------------------------------------------------------------

    def _victim(self) -> SimNode | None:
        living = [node for node in self._world.nodes if not node.is_dead]
        return self._rng.choice(living) if living else None

    def _pause_s(self) -> float:
        """Short, about as long as a lease, or much longer."""
        rng = self._rng
        return rng.choice((rng.uniform(0.0, 1.0), 1.0 + rng.uniform(-0.1, 0.2), rng.uniform(1.0, 3.0))) * self._lease_s

    def _trap(self, process: Process, spring: Callable[[], None]) -> None:
        process.trap = Trap(self._rng.randrange(12), is_after=self._rng.random() < 0.5, spring=spring)

    def _kill(self, node: SimNode) -> None:
        if not node.is_dead:
            loses_sent = self._rng.random() < 0.3
            self._world.tell(node.name, "dies, and its machine with it" if loses_sent else "dies")
            node.die(loses_sent)

    def _stop(self, node: SimNode, pause_s: float) -> None:
        if not node.is_dead and not node.is_paused:
            self._world.tell(node.name, f"is paused for {pause_s:.3f} s")
            node.pause()
            self._kernel.at(self._kernel.now + pause_s, self._go_on, node)

    def _go_on(self, node: SimNode) -> None:
        if node.is_paused and not node.is_dead:
            self._world.tell(node.name, "goes on")
            node.resume()

    def heal(self) -> None:
        """Undo what can be undone. The dead stay dead."""
        for node in self._world.nodes:
            node.trap = None
            node.ailment = ""
            # Checkers ask when a network was slow last, and what it has delayed is still on its way.
            node.delays.spikes_until = min(node.delays.spikes_until, self._kernel.now)
            self._end_partition(node)
            self._go_on(node)
        self._world.host.process.trap = None
        self.resume_host()
        self._end_stall()
