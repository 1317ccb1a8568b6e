"""A whole run in virtual time, derived from one seed: topology, settings, schedule, faults, healing.

Owns the processes and the order of events. Judges nothing: `eyes` see, `checkers` judge. What is drawn beforehand is
in `shapes`.
"""

from __future__ import annotations

import gc
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from random import Random
from unittest.mock import patch

import msgspec

from ft_rendezvous.core.model import NodeInfo, RequestKind
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.coordinator import Coordinator
from ft_rendezvous.protocol.journal import CycleWaits, Entry, RecordRefused
from tests.sim import checkers
from tests.sim.agent import SimNode
from tests.sim.checkers import Violation
from tests.sim.faults import Faults, Workers
from tests.sim.hangs import HANG_TIMEOUT_S, SimHangs
from tests.sim.host import SimHost
from tests.sim.kernel import Kernel, Process, Server
from tests.sim.lifelines import LifelineFaults, SimSwitchboard
from tests.sim.log import SimLog
from tests.sim.naive_capacity import Grounds, block_of, count_placeable
from tests.sim.operator import SimOperator
from tests.sim.shapes import (
    Rules,
    Shape,
    crowd,
    draw_groups,
    draw_rules,
    draw_shape,
    draw_updates,
    with_groups,
    with_limits,
    with_rules,
)
from tests.sim.sightings import Eyes
from tests.sim.worker_store import SimPorts

MOST_STEPS = 400_000
"""A run that takes more steps spins."""


UP_BEFORE_S = 36_000.0
"""How long a machine was up when the run began."""


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
        *,
        checks: tuple[type[checkers.Checker], ...] = checkers.ALL,
        host_class: type[SimHost] = SimHost,
        focus: tuple[str, ...] = (),
        rules: Rules | None = None,
    ) -> None:
        rng = Random(seed)
        self.seed = seed
        self.kernel = Kernel(rng)
        self.shape = shape or _draw(seed, rng, rules)
        self.settings = self.shape.settings
        self.grounds = Grounds(self.settings, self.shape.has_domains, rng)
        self.focus = focus
        self.heals_at = self.shape.heals_at
        self.is_healed = False
        self.server_died_at: float | None = None
        self.is_lost = False
        """The host was lost, and the run with it."""
        self.epoch = self.new_id()
        self.nodes: list[SimNode] = []
        self.operators: list[SimOperator] = []
        self.ports: defaultdict[str, SimPorts] = defaultdict(SimPorts)
        """Of every machine, by its address."""
        self.incarnations: dict[str, tuple[SimNode, int]] = {}
        """Whose incarnation each id is, and which of its owner's."""
        self.transcript: list[tuple[float, str, str]] = []
        self.on_entry: Callable[[Entry], None] = lambda _: None
        self.cycles = 0
        self.places_taken = 0
        self._addresses = 0
        self._booted_at: dict[str, list[float]] = {}
        """When each machine was booted, by its address."""
        self.workers = Workers(self)
        self.hangs = SimHangs(self)
        self.eyes = Eyes(self, checks)
        self.server = Server(self.kernel, self.eyes.applied)
        self.server.reads_in_one_step = not self.shape.has_faults
        self.switchboard = SimSwitchboard(self.kernel, self.server, seed)
        self._start_host(host_class)
        self.faults = Faults(self)
        self.lifeline_faults = LifelineFaults(self)

    # --- processes ----------------------------------------------------------------------------------

    def _start_host(self, host_class: type[SimHost]) -> None:
        process = Process(self.kernel, "host")
        self.log = SimLog(process, self.shape.log_line_s)
        coordinator = Coordinator(self.settings, self.epoch, process.clock, self._note)
        # A small run has one channel; most of ours have several, so that something can go wrong between them.
        publisher = coordinator.publisher
        publisher.channels = max(publisher.channels, 1 + self.seed % 3)
        self._hurry(coordinator)
        self.host = host_class(process, self.server, coordinator, self.settings)
        if self.settings.has_lifelines:
            coordinator.publisher.lifeline_port = 1
            coordinator.membership.take_lifeline_news = self.switchboard.take_news
            self.switchboard.on_news = lambda: process.deliver(self.host.ring)
        self.host.on_failure = lambda error: self.eyes.thread_dies(process, "coordinator", error)
        self.host.on_leave = self._leave
        self.host.verdict_file_s = self.shape.verdict_file_s

    def _hurry(self, coordinator: Coordinator) -> None:
        """A simulated run is short: let what is deleted or forgotten after long be so after a while, or soon."""
        stored, names = coordinator.stored, coordinator.roster.refused
        stored.long_log_bytes = (1, 300, stored.long_log_bytes)[self.seed % 3]
        stored.fence_retention_s = (0.5, 3.0)[self.seed % 2] * self.settings.lease_s
        names.most = 2

    def start_node(self, info: NodeInfo, addr: str | None = None, is_rebooted: bool = False) -> SimNode:
        """Start an agent. Every start has a pid of its own. The clock of a machine begins anew with every boot."""
        addr, now = addr or info.addr, self.kernel.now
        boots = self._booted_at.setdefault(addr, [-UP_BEFORE_S])
        if is_rebooted:
            boots.append(now - 1.0)
        born_us, boot_id = int((now - boots[-1]) * 1e6), f"boot{len(boots):04d}"
        info = msgspec.structs.replace(info, pid=1000 + len(self.nodes), addr=addr, born_us=born_us, boot_id=boot_id)
        node = SimNode(self, f"n{len(self.nodes)}", info)
        self.nodes.append(node)
        rank = "" if info.infra_rank is None else f" with infra rank {info.infra_rank}"
        homes = [home for home in (info.domain_id, info.unit_id) if home is not None]
        where = f", in {' and '.join(homes)}" if homes else ""
        self.tell(node.name, f"starts at {info.addr}{rank}{where}")
        return node

    def start_operator(self, kind: RequestKind, target: str = "", *, is_hasty: bool = False) -> SimOperator:
        """Start a program that asks the run for something."""
        operator = SimOperator(self, f"op{len(self.operators)}", kind, target, is_hasty=is_hasty)
        self.operators.append(operator)
        self.tell(operator.name, f"asks: {kind} {target}")
        return operator

    def new_addr(self) -> str:
        self._addresses += 1
        return f"10.0.{self._addresses // 256}.{self._addresses % 256}"

    def new_info(self, others: Sequence[NodeInfo] | None = None, must_fit: bool = False) -> NodeInfo:
        """A node at an address, and with an infra rank, that no other has had; at home where the others leave room."""
        addr = self.new_addr()
        others = [node.info for node in self.able_nodes()] if others is None else others
        domain_id, unit_id = self.grounds.choose_home(self._addresses, others, must_fit)
        return NodeInfo(
            addr=addr,
            pid=0,
            infra_rank=self._addresses if self.shape.has_infra_ranks else None,
            domain_id=domain_id,
            unit_id=unit_id,
            role="trainer" if self.shape.tells_workers else None,
            local_world_size=8 if self.shape.tells_workers else None,
        )

    def new_incarnation(self, node: SimNode) -> str:
        incarnation = self.new_id()
        self.incarnations[incarnation] = (node, node.lives)
        if node.lives:
            self.eyes.begins_anew(node)
        node.lives += 1
        return incarnation

    def new_id(self) -> str:
        return f"{self.kernel.rng.getrandbits(64):016x}"

    def node_of(self, incarnation: str) -> SimNode:
        return self.incarnations[incarnation][0]

    def name_of(self, incarnation: str) -> str:
        node, count = self.incarnations[incarnation]
        return node.name + "'" * count

    def kill_server(self) -> None:
        """The host's machine is lost, and with it the run."""
        if self.server_died_at is None and not self.host.is_done:
            is_silent = self.kernel.rng.random() < 0.5
            self.tell("host", "dies, and its machine with it" if is_silent else "dies")
            self.is_lost = True
            self.host.process.die()
            self._stop_server(is_silent)

    def _leave(self) -> None:
        """The node that hosts the store is not needed any more, and the run is not closed: the run ends with it."""
        if self.server_died_at is None:
            self.is_lost = True
            self.eyes.host_leaves()
            self.host.process.die()
            self._stop_server()

    def _stop_server(self, is_silent: bool = False) -> None:
        self.server_died_at = self.kernel.now
        self.server.die(is_silent)
        self.switchboard.close_all()
        for process in (*self.nodes, *self.operators):
            for connection in process.connections:
                connection.cut(loses_sent=True)

    # --- the run ------------------------------------------------------------------------------------

    def run(self) -> Result:
        """Run to the end, or to the first violation."""
        violation: Violation | None = None
        logger = logging.getLogger("ft_rendezvous")
        level = logger.level
        logger.setLevel(logging.CRITICAL)  # The transcript tells what happens; simulated nodes would log it again.
        try:
            self.set_up()
            while not self._is_over() and self.kernel.step():
                if self.kernel.steps > MOST_STEPS:
                    raise Violation("converges", f"{MOST_STEPS} steps by {self.kernel.now:.3f} s: it spins")
            self.eyes.run_ends()
        except Violation as found:
            violation = found
            self.tell("!!!", str(found))
        finally:
            logger.setLevel(level)
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
        infos: list[NodeInfo] = []
        for _ in range(shape.node_count):
            comes_at = kernel.rng.uniform(0.0, shape.arrive_within_s)
            infos.append(self.new_info(infos, must_fit=len(infos) < self.settings.min_nodes))
            kernel.at(comes_at, self.start_node, infos[-1])
        if shape.has_faults:
            self.faults.schedule(self.heals_at, self.focus)
            if self.settings.has_lifelines:
                self.lifeline_faults.schedule(self.heals_at)
            self.hangs.schedule(self.heals_at)
        kernel.at(self.heals_at, self._heal)
        kernel.at(1.0, self._every_second)

    def _heal(self) -> None:
        self.tell("", "the world heals")
        self.is_healed = True
        self.faults.heal()
        self.lifeline_faults.heal()
        self.hangs.heal()
        for node in self.nodes:
            node.revise_workers()
        self._replace_the_dead()
        if self.shape.has_latecomers:
            self.kernel.at(self.kernel.now + self.kernel.rng.uniform(0.5, 6.0), self._bring_latecomers)

    def able_nodes(self) -> list[SimNode]:
        """Everybody who may train, or train again."""
        return [node for node in self.nodes if not (node.is_dead or node.is_leaving or node.has_ended_well)]

    def _replace_the_dead(self) -> None:
        """Start new nodes where too few are left for a world, in domains and units that lack them."""
        infos = [node.info for node in self.able_nodes()]
        while count_placeable(infos, self.settings) < self.settings.min_nodes:
            infos.append(self.new_info(infos, must_fit=True))
            self.start_node(infos[-1])

    def _bring_latecomers(self) -> None:
        """Another block, if a world may be so large."""
        infos = [node.info for node in self.able_nodes()]
        for _ in range(block_of(self.settings) if len(infos) < self.settings.max_nodes else 0):
            infos.append(self.new_info(infos, must_fit=True))
            self.start_node(infos[-1])

    def _every_second(self) -> None:
        self.eyes.second_passes()
        if self.shape.is_hosted_by_node and self.nodes and self.nodes[0].is_leaving and self.nodes[0].is_dead:
            self.host.stay()
        if self.host.is_done and self.server_died_at is None:
            # The host leaves when the run is closed and everybody has gone.
            self._stop_server()
        if self.is_healed and self.server_died_at is None and self.host.coordinator.verdict is None:
            self._replace_the_dead()
        self.kernel.at(self.kernel.now + 1.0, self._every_second)

    def _is_over(self) -> bool:
        return self.server_died_at is not None and self.is_healed and all(node.is_dead for node in self.nodes)

    def converges_by(self) -> float:
        """When a healed run must be over: deaths noticed, survivors called, the missing given up on, latecomers in."""
        settings = self.settings
        hanging_s = 2 * (HANG_TIMEOUT_S + 3.0) if self.hangs.is_on else 0.0
        growing_s = 2 * (self.shape.healthy_s[1] + 2 * settings.last_call_s) if self.shape.has_latecomers else 0.0
        return (
            self.heals_at
            + 4 * settings.lease_s
            + 3 * settings.last_call_s
            + settings.join_s
            + 15.0
            + growing_s
            + hanging_s
        )

    # --- telling ------------------------------------------------------------------------------------

    def tell(self, who: str, text: str) -> None:
        self.transcript.append((self.kernel.now, who, text))

    def _note(self, entry: Entry) -> None:
        """The coordinator's journal: for readers of the transcript, not for checkers."""
        self.log.take()
        self.on_entry(entry)
        self.eyes.journals(entry)
        if isinstance(entry, CycleWaits):
            self.tell("host", f"waits in cycle {entry.cycle_id}: {entry.reason}")
        elif isinstance(entry, RecordRefused):
            self.tell("host", f"refuses a record in cycle {entry.cycle_id}: {entry.record.reason}")


def _draw(seed: int, rng: Random, rules: Rules | None, nodes: int | None = None) -> Shape:
    own_rng = Random(f"rules of {seed}")
    shape = with_limits(draw_shape(rng, nodes), Random(f"limits of {seed}"))
    shape = replace(shape, log_line_s=Random(f"log of {seed}").choice((0.0, 0.0, 0.5, 3600.0)))
    shape = replace(shape, updates_every_s=draw_updates(Random(f"reports of {seed}")))
    group_rng = Random(f"groups of {seed}")
    has_lifelines = Random(f"lifelines of {seed}").random() < 0.5 if rules is None else "has_lifelines" in rules
    shape = replace(shape, settings=replace(shape.settings, has_lifelines=has_lifelines))
    if rules is None and Random(f"hang settings of {seed}").random() < 0.25:
        shape = replace(shape, settings=replace(shape.settings, hang_timeout=str(HANG_TIMEOUT_S)))
    rules = (draw_groups(group_rng) or draw_rules(own_rng)) if rules is None else rules
    if "group_size" in rules:
        return with_groups(shape, rules, group_rng)
    return with_rules(shape, rules, own_rng)


def run_seed(
    seed: int,
    nodes: int | None = None,
    checks: tuple[type[checkers.Checker], ...] = checkers.ALL,
    rules: Rules | None = None,
    focus: tuple[str, ...] = (),
) -> Result:
    """One run with faults; of these kinds, and under these rules, if they are given."""
    shape = _draw(seed, Random(seed), rules, nodes) if nodes else None
    return World(seed, shape, checks=checks, rules=rules, focus=focus).run()


def time_crowd(count: int, groups: int | None = None) -> float:
    """Seconds of wall time in which so many nodes take their places in one cycle; in so many replica groups."""
    gc.collect()
    gc.disable()
    # On machines of their own, nodes decode the same bytes side by side.
    decode_head, decode_event = lru_cache(256)(codec.decode_head), lru_cache(256)(codec.decode_event)
    try:
        with patch.object(codec, "decode_head", decode_head), patch.object(codec, "decode_event", decode_event):
            return _time_crowd(count, groups)
    finally:
        gc.enable()


def _time_crowd(count: int, groups: int | None) -> float:
    began = time.perf_counter()
    world = World(1, crowd(count, groups))
    world.set_up()
    while world.places_taken < count and world.kernel.step():
        pass
    took_s = time.perf_counter() - began
    assert world.places_taken == count
    assert world.cycles == 1
    placed = {node.group.place.group for node in world.nodes if node.group is not None}
    assert len(placed) == (groups or 1), "nodes are not in as many groups as there should be"
    return took_s
