"""A run in one thread: a coordinator and nodes, driven step by step on any store that performs at once.

It has a clock that moves only on command, and plays each node's agent: it stops workers when they must stop, asks for
the next place, enters the exit barrier and says goodbye. Performs no blocking read before its key is there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.model import NodeInfo, Outcome, Verdict, View
from ft_rendezvous.core.node_step import Drained
from ft_rendezvous.errors import FtError
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.coordinator import Coordinator
from ft_rendezvous.protocol.journal import Entry
from ft_rendezvous.protocol.ops import Check, Delete, Get, Op, Rest, Routine, Store, perform_move
from ft_rendezvous.protocol.participant import Participant, Place

EPOCH = "0123456789abcdef"
ENDLESS = 10_000
"""A cluster that does not come to rest after this many steps is in a loop."""


@dataclass(slots=True)
class Clock:
    now: float = 1000.0

    def __call__(self) -> float:
        return self.now


class Node:
    """One agent process."""

    def __init__(self, cluster: Cluster, name: str, info: NodeInfo, store: Store) -> None:
        self.cluster = cluster
        self.name = name
        self.store = store
        self.place: Place | None = None
        self.outcome: Verdict | FtError | Outcome | None = None
        self.is_busy = False
        """Its agent is slow to stop the workers."""
        self.is_frozen = False
        self.is_hung = False
        self.is_gone = False
        self.has_finished = False
        self.starts = 0
        self.next_beat_at = cluster.clock()
        self._routine: Routine[Any] | None = None
        self._watch: Routine[None] | None = None
        self._awaits: Op | Rest | None = None
        """What the watch asked for last."""
        self.participant = Participant(
            epoch=EPOCH,
            node=info,
            lease_s=cluster.settings.lease_s,
            clock=cluster.clock,
            new_incarnation=self._new_incarnation,
            hold_bootstrap=lambda *_: 20000 + info.pid,
            on_enlisted=self._start_watch,
            greeted=self._greet(),
        )
        self._ask()

    # --- what happens to it -------------------------------------------------------------------------

    def fail(self) -> None:
        """Its workers fail; its agent has restarts left."""
        assert self.place is not None, f"{self.name} does not train"
        self._ask()

    def finish(self) -> None:
        """Its workers end well: the node enters the exit barrier, as torch's agent does."""
        assert self.place is not None, f"{self.name} does not train"
        place, self.has_finished = self.place, True
        perform_move(self.store, self.participant.finish(place.cycle_id))
        self._routine = self.participant.await_verdict()

    def save(self) -> None:
        """Its workers report a checkpoint."""
        assert self.place is not None, f"{self.name} does not train"
        perform_move(self.store, self.participant.tell_checkpoint(self.place.cycle_id))

    def leave(self, outcome: Outcome, reason: str) -> None:
        if self.participant.incarnation:
            perform_move(self.store, self.participant.goodbye(outcome, reason))
        if self.cluster.verdict is not None:
            self.cluster.wake_at = (
                self.cluster.clock()
            )  # No bell rings any more: the coordinator looks often at a closed run.
        self.is_gone = True

    def kill(self) -> None:
        self.is_gone = True

    # --- its threads --------------------------------------------------------------------------------

    def step(self) -> bool:
        """Do what can be done without waiting. Returns whether anything was done."""
        if self.is_gone or self.is_frozen:
            return False
        return self._listen() or (not self.is_hung and (self._speak() or self._look()))

    def beat_if_due(self) -> None:
        if not (self.is_gone or self.is_frozen) and self.cluster.clock() >= self.next_beat_at:
            self.next_beat_at = self.cluster.clock() + self.cluster.settings.beat_s
            if self.participant.incarnation:
                perform_move(self.store, self.participant.beat())

    def _listen(self) -> bool:
        if isinstance(self._awaits, Rest):
            self._advance_watch(None)
            return not isinstance(self._awaits, Rest)
        if not isinstance(self._awaits, Get) or not self.cluster.exists(self._awaits.key):
            return False
        self._advance_watch(self.store.perform(self._awaits))
        return True

    def _speak(self) -> bool:
        """Run the routine until it ends or waits for a change."""
        if self._routine is None:
            return False
        reply, did_anything = None, False
        while True:
            try:
                op = self._routine.send(reply)
            except StopIteration as stop:
                self._routine = None
                self._take(stop.value)
                return True
            except FtError as error:
                self._routine, self.outcome, self.is_gone = None, error, True
                self.cluster.tell(self, error)
                return True
            if isinstance(op, Rest):
                return did_anything
            reply, did_anything = self.store.perform(op), True

    def _look(self) -> bool:
        """What the agent does about its workers."""
        if self.place is None or self.has_finished or self.is_busy:
            return False
        must_stop = self.participant.must_stop(self.place.cycle_id)
        if must_stop:
            self._ask()
        return must_stop

    # --- parts --------------------------------------------------------------------------------------

    def _ask(self) -> None:
        self.place = None
        self._routine = self.participant.next_place()

    def _take(self, result: Place | Verdict | Drained) -> None:
        if isinstance(result, Drained):
            self.outcome = Outcome.DRAINED
            self.leave(Outcome.DRAINED, "")
            return
        self.cluster.tell(self, result)
        if isinstance(result, Place):
            self.place = result
        else:
            self.outcome = result
            self.leave(Outcome.SUCCEEDED if self.has_finished else Outcome.LEFT, "")

    def _start_watch(self) -> None:
        self._watch = self.participant.watch(self.participant.incarnation)
        self._advance_watch(None)

    def _advance_watch(self, reply: Any) -> None:
        assert self._watch is not None
        try:
            self._awaits = self._watch.send(reply)
        except StopIteration:
            self._watch = self._awaits = None

    def _greet(self) -> View:
        assert self.store.perform(Check([codec.HEAD_KEY]))
        return codec.decode_head(self.store.perform(Get(codec.HEAD_KEY))).view

    def _new_incarnation(self) -> str:
        self.starts += 1
        return self.cluster.name_incarnation(self)


@dataclass
class Cluster:
    """A run with its nodes."""

    settings: RunSettings
    store: Store
    """The coordinator's connection."""
    on_entry: Callable[[Entry], None] = lambda _: None
    on_news: Callable[[Node, Place | Verdict | FtError], None] = lambda _node, _news: None
    store_for: Callable[[str], Store] | None = None
    """A node's own connection, if it is not the coordinator's."""
    clock: Clock = field(default_factory=Clock)
    nodes: dict[str, Node] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """The name of each node, by incarnation."""
    pids: int = 0

    def __post_init__(self) -> None:
        self.coordinator = Coordinator(self.settings, EPOCH, self.clock, self.on_entry)
        self.wake_at = self.clock()
        perform_move(self.store, self.coordinator.start())

    def join(
        self,
        name: str,
        *,
        addr: str | None = None,
        infra_rank: int | None = None,
        domain_id: str | None = None,
        unit_id: str | None = None,
        local_world_size: int | None = 8,
    ) -> Node:
        """Start an agent. It does nothing before the next `settle`."""
        self.pids += 1
        info = NodeInfo(
            addr=addr or name,
            pid=self.pids,
            infra_rank=infra_rank,
            domain_id=domain_id,
            unit_id=unit_id,
            role="trainer" if local_world_size is not None else None,
            local_world_size=local_world_size,
            born_us=self.pids,
        )
        node = self.nodes[name] = Node(self, name, info, self.store_for(name) if self.store_for else self.store)
        return node

    def name_incarnation(self, node: Node) -> str:
        incarnation = f"{node.participant.node.pid:08x}{node.starts:08x}"
        self.names[incarnation] = node.name if node.starts == 1 else f"{node.name}({node.starts})"
        return incarnation

    def exists(self, key: str) -> bool:
        return bool(self.store.perform(Check([key])))

    def tell(self, node: Node, news: Place | Verdict | FtError) -> None:
        self.on_news(node, news)

    # --- time ---------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Let all nodes act until none can act before time passes."""
        for _ in range(ENDLESS):
            did_node = [node.step() for node in list(self.nodes.values())]
            if not (self._coordinate() or any(did_node)):
                return
        raise AssertionError("the cluster does not come to rest")

    def advance(self, seconds: float) -> None:
        """Let time pass, a quarter of a beat at a time."""
        end = self.clock.now + seconds
        while self.clock.now < end:
            self.clock.now = min(end, self.clock.now + self.settings.beat_s / 4)
            for node in list(self.nodes.values()):
                node.beat_if_due()
            self.settle()

    def _coordinate(self) -> bool:
        bell = self.coordinator.keys.bell
        is_rung = self.exists(bell)
        if self.coordinator.is_done or not (is_rung or self.clock() >= self.wake_at):
            return False
        if is_rung:
            self.store.perform(Delete(bell))
        self.wake_at = perform_move(self.store, self.coordinator.tick())
        return True

    # --- what is ------------------------------------------------------------------------------------

    @property
    def training(self) -> list[Node]:
        """Nodes whose workers run, by rank."""
        placed = [node for node in self.nodes.values() if node.place and not node.is_gone and not node.has_finished]
        return sorted(placed, key=lambda node: node.place.rank if node.place else 0)

    @property
    def verdict(self) -> Verdict | None:
        return self.coordinator.verdict
