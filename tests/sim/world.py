"""A whole run in virtual time, derived from one seed: topology, settings, schedule, faults, healing.

Owns the processes and the order of events. Judges nothing: `eyes` see, `checkers` judge.
"""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass, field
from random import Random

import msgspec

from ft_rendezvous.coordinator import Coordinator
from ft_rendezvous.core.model import NodeInfo
from ft_rendezvous.journal import CycleWaits, Entry, RecordRefused
from ft_rendezvous.settings import RunSettings
from tests.sim import checkers
from tests.sim.agent import SimNode
from tests.sim.checkers import Violation
from tests.sim.eyes import Eyes
from tests.sim.faults import Faults, Workers
from tests.sim.host import SimHost
from tests.sim.kernel import Kernel, Process, Server

MOST_STEPS = 400_000
"""A run that takes more steps spins."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What one seed draws before anything happens."""

    settings: RunSettings
    node_count: int
    has_infra_ranks: bool
    has_domains: bool
    tells_workers: bool
    heals_at: float
    arrive_within_s: float
    has_faults: bool = True
    is_restless: bool = False
    """Workers of every cycle fail soon, until the world heals."""


def crowd(count: int) -> Shape:
    """Many nodes that come within half a second, in a world where nothing goes wrong."""
    return Shape(
        settings=RunSettings(run_id="sim", min_nodes=count, max_nodes=count),
        node_count=count,
        has_infra_ranks=True,
        has_domains=True,
        tells_workers=True,
        heals_at=3600.0,
        arrive_within_s=0.5,
        has_faults=False,
    )


def restless(heals_at: float) -> Shape:
    """Three nodes and a spare, cycle after cycle."""
    return Shape(
        settings=RunSettings(
            run_id="sim", min_nodes=3, max_nodes=4, last_call_s=0.5, max_node_failures=0, crash_loop=0
        ),
        node_count=4,
        has_infra_ranks=True,
        has_domains=False,
        tells_workers=True,
        heals_at=heals_at,
        arrive_within_s=0.1,
        has_faults=False,
        is_restless=True,
    )


def draw_shape(rng: Random, min_nodes: int | None = None, has_faults: bool = True) -> Shape:
    """A small run: what goes wrong among thousands goes wrong among five."""
    min_nodes = min_nodes or rng.choice((1, 2, 2, 3, 3, 4, 5))
    spares = rng.choice((0, 0, 1, 1, 2, 3))
    lease_s = rng.choice((3.25, 4.0, 5.0))
    settings = RunSettings(
        run_id="sim",
        min_nodes=min_nodes,
        max_nodes=min_nodes + spares + rng.choice((0, 4)),
        lease_s=lease_s,
        beat_s=1.0,
        join_s=rng.uniform(3 * lease_s, 8 * lease_s),
        last_call_s=rng.choice((0.5, 2.0, lease_s, 2 * lease_s)),
        settle_s=rng.choice((0.0, 0.0, 0.3)),
        max_node_failures=0,
        crash_loop=0,
        drain_grace_s=rng.choice((0.0, 2.0, 5.0)),
    )
    return Shape(
        settings=settings,
        node_count=min_nodes + spares,
        has_infra_ranks=rng.random() < 0.6,
        has_domains=rng.random() < 0.5,
        tells_workers=rng.random() < 0.5,
        heals_at=rng.uniform(2.0, 25.0) if has_faults else rng.uniform(0.0, 3.0),
        arrive_within_s=rng.choice((0.01, 0.5, 3.0)),
        has_faults=has_faults,
    )


@dataclass(slots=True)
class Result:
    """What became of a seed."""

    seed: int
    violation: Violation | None
    digest: int
    steps: int
    ended_at: float
    cycles: int
    transcript: list[str] = field(default_factory=list)


class World:
    """All processes of one run."""

    def __init__(
        self,
        seed: int,
        shape: Shape | None = None,
        checks: tuple[type[checkers.Checker], ...] = checkers.ALL,
        host_class: type[SimHost] = SimHost,
        focus: tuple[str, ...] = (),
    ) -> None:
        rng = Random(seed)
        self.seed = seed
        self.kernel = Kernel(rng)
        self.shape = shape or draw_shape(rng)
        self.settings = self.shape.settings
        self.focus = focus
        self.heals_at = self.shape.heals_at
        self.is_healed = False
        self.server_died_at: float | None = None
        self.epoch = self._new_id()
        self.nodes: list[SimNode] = []
        self.incarnations: dict[str, tuple[SimNode, int]] = {}
        """Whose incarnation each id is, and which of its owner's."""
        self.transcript: list[tuple[float, str, str]] = []
        self.cycles = 0
        self.places_taken = 0
        self._addresses = 0
        self._digest = self.settings.digest
        self.workers = Workers(self)
        self.eyes = Eyes(self, checks)
        self.server = Server(self.kernel, self.eyes.applied)
        self.server.reads_in_one_step = not self.shape.has_faults
        self._start_host(host_class)
        self.faults = Faults(self)

    # --- processes ----------------------------------------------------------------------------------

    def _start_host(self, host_class: type[SimHost]) -> None:
        process = Process(self.kernel, "host")
        coordinator = Coordinator(self.settings, self.epoch, process.clock, self._note)
        # A small run has one channel; most of ours have several, so that something can go wrong between them.
        coordinator.channels = max(coordinator.channels, 1 + self.seed % 3)
        self.host = host_class(process, self.server, coordinator, self.settings)
        self.host.on_failure = lambda error: self.eyes.thread_dies(process, "coordinator", error)

    def start_node(self, info: NodeInfo, addr: str | None = None) -> SimNode:
        """Start an agent. Every start has a pid of its own."""
        info = msgspec.structs.replace(info, pid=1000 + len(self.nodes), addr=addr or info.addr, born=self.kernel.now)
        node = SimNode(self, f"n{len(self.nodes)}", info)
        self.nodes.append(node)
        rank = "" if info.infra_rank is None else f" with infra rank {info.infra_rank}"
        self.tell(node.name, f"starts at {info.addr}{rank}")
        return node

    def new_addr(self) -> str:
        self._addresses += 1
        return f"10.0.{self._addresses // 256}.{self._addresses % 256}"

    def new_info(self) -> NodeInfo:
        """A node at an address, and with an infra rank, that no other has had."""
        addr = self.new_addr()
        return NodeInfo(
            addr=addr,
            pid=0,
            infra_rank=self._addresses if self.shape.has_infra_ranks else None,
            domain_id=f"d{self._addresses % 2}" if self.shape.has_domains else None,
            role="trainer" if self.shape.tells_workers else None,
            local_world_size=8 if self.shape.tells_workers else None,
            digest=self._digest,
        )

    def new_incarnation(self, node: SimNode) -> str:
        incarnation = self._new_id()
        self.incarnations[incarnation] = (node, node.lives)
        node.lives += 1
        return incarnation

    def _new_id(self) -> str:
        return f"{self.kernel.rng.getrandbits(64):016x}"

    def node_of(self, incarnation: str) -> SimNode:
        return self.incarnations[incarnation][0]

    def name_of(self, incarnation: str) -> str:
        node, count = self.incarnations[incarnation]
        return node.name + "'" * count

    def kill_server(self) -> None:
        """The host's machine is lost, and with it the run."""
        if self.server_died_at is None and not self.host.is_done:
            self.tell("host", "dies")
            self.host.process.die()
            self._stop_server()

    def _stop_server(self) -> None:
        self.server_died_at = self.kernel.now
        self.server.die()
        for node in self.nodes:
            for connection in node.connections:
                connection.cut(loses_sent=True)

    # --- the run ------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Run to the end, or to the first violation."""
        violation: Violation | None = None
        try:
            self.set_up()
            while not self._is_over() and self.kernel.step():
                if self.kernel.steps > MOST_STEPS:
                    raise Violation("converges", f"{MOST_STEPS} steps by {self.kernel.now:.3f} s: it spins")
            self.eyes.run_ends()
        except Violation as found:
            violation = found
            self.tell("!!!", str(found))
        return Result(
            seed=self.seed,
            violation=violation,
            digest=self.eyes.digest,
            steps=self.kernel.steps,
            ended_at=self.kernel.now,
            cycles=self.cycles,
            transcript=[f"{time:9.4f}  {who:<6} {text}" for time, who, text in self.transcript],
        )

    def set_up(self) -> None:
        """Schedule everything that the seed decides beforehand."""
        kernel, shape = self.kernel, self.shape
        for _ in range(shape.node_count):
            kernel.at(kernel.rng.uniform(0.0, shape.arrive_within_s), self.start_node, self.new_info())
        if shape.has_faults:
            self.faults.schedule(self.heals_at, self.focus)
        kernel.at(self.heals_at, self._heal)
        kernel.at(1.0, self._every_second)

    def _heal(self) -> None:
        self.tell("", "the world heals")
        self.is_healed = True
        self.faults.heal()
        self._replace_the_dead()

    def _replace_the_dead(self) -> None:
        """Start new nodes where too few are left for a world."""
        able = sum(not (node.is_dead or node.is_leaving or node.has_ended_well) for node in self.nodes)
        for _ in range(self.settings.min_nodes - able):
            self.start_node(self.new_info())

    def _every_second(self) -> None:
        self.eyes.second_passes()
        if self.host.is_done and self.server_died_at is None:
            # The host leaves when the run is closed and everybody has gone.
            self._stop_server()
        if self.is_healed and self.server_died_at is None and self.host.coordinator.verdict is None:
            self._replace_the_dead()
        self.kernel.at(self.kernel.now + 1.0, self._every_second)

    def _is_over(self) -> bool:
        return self.server_died_at is not None and self.is_healed and all(node.is_dead for node in self.nodes)

    def converges_by(self) -> float:
        """When a healed run must be over: deaths noticed, survivors called, missing nodes given up on."""
        settings = self.settings
        return self.heals_at + 4 * settings.lease_s + 3 * settings.last_call_s + settings.join_s + 15.0

    # --- telling ------------------------------------------------------------------------------------

    def tell(self, who: str, text: str) -> None:
        self.transcript.append((self.kernel.now, who, text))

    def _note(self, entry: Entry) -> None:
        """The coordinator's journal: for readers of the transcript, not for checkers."""
        if isinstance(entry, CycleWaits):
            self.tell("host", f"waits in cycle {entry.cycle_id}: {entry.reason}")
        elif isinstance(entry, RecordRefused):
            self.tell("host", f"refuses a record in cycle {entry.cycle_id}: {entry.record.reason}")


def run_seed(seed: int, nodes: int | None = None, checks: tuple[type[checkers.Checker], ...] = checkers.ALL) -> Result:
    """One run with faults."""
    return World(seed, draw_shape(Random(seed), nodes) if nodes else None, checks).run()


def time_crowd(count: int) -> float:
    """Seconds of wall time in which so many nodes take their places in one cycle."""
    gc.collect()
    gc.disable()
    try:
        began = time.perf_counter()
        world = World(1, crowd(count))
        world.set_up()
        while world.places_taken < count and world.kernel.step():
            pass
        took_s = time.perf_counter() - began
    finally:
        gc.enable()
    assert world.places_taken == count
    assert world.cycles == 1
    return took_s
