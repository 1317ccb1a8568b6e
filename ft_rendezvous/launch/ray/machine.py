"""The life of every node of a run on Ray, as a machine that is stepped: observations and a time in, actions out. Pure.

    PENDING --placed--> STARTING --started--> RUNNING <--> SUSPECT
       ^                    |                    |            |
       |                    +------- died -------+------------+--> LOST --placed--> STARTING
       |                                         |
       |                                         +-- exited 0 --> FINISHED
       +-- (never again)                         +-- exited N --> FAILED --placed, after a pause--> STARTING

A node is a place in the run, not a process: it has at most one actor at a time, and each new actor is its next *start*.
Ray's view decides where an actor can start. It decides nothing about training: the run itself does, and a spare has
the rank of a lost node long before Ray knows of the loss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

from ft_rendezvous.errors import ProtocolBug

MAX_SHORT_STARTS = 5
"""A node that ends so many times in a row soon after its start is not started again."""
SHORT_S = 60.0
"""A start that lasted less than this counts as short."""
RESTART_PAUSES_S = (0.0, 1.0, 2.0, 5.0, 10.0)
"""How long to wait before a node is started again, by its short starts in a row."""
STOP_GRACE_S = 60.0
"""How long nodes may take to end after they were asked to. Torch gives workers 30 s, and then kills them."""
LATE_S = 10.0
"""A node that has not ended so long after the run is told to. It came too late: it waits for a store that is gone.

A node that is still starting so long after the end was decided is left: it has nothing to save.
"""
LEAVE_GRACE_S = 120.0
"""How long nodes may take to end after the run has. The same as in the other launchers."""


class NodeState(StrEnum):
    PENDING = "pending"
    """Ray has not placed it yet."""
    STARTING = "starting"
    """Its actor was asked for, and has not said that torchrun runs."""
    RUNNING = "running"
    SUSPECT = "suspect"
    """Ray cannot reach its actor now. That may pass."""
    LOST = "lost"
    """Its actor is dead. Ray looks for another machine, or waits for this one to return."""
    FINISHED = "finished"
    """Its torchrun has exited 0: the run has ended, or the node was drained. It never starts again."""
    FAILED = "failed"
    """Its torchrun has exited with an error."""


TRANSITIONS: Mapping[NodeState, frozenset[NodeState]] = {
    NodeState.PENDING: frozenset({NodeState.STARTING}),
    NodeState.STARTING: frozenset({NodeState.RUNNING, NodeState.LOST, NodeState.FINISHED, NodeState.FAILED}),
    NodeState.RUNNING: frozenset({NodeState.SUSPECT, NodeState.LOST, NodeState.FINISHED, NodeState.FAILED}),
    NodeState.SUSPECT: frozenset({NodeState.RUNNING, NodeState.LOST, NodeState.FINISHED, NodeState.FAILED}),
    NodeState.LOST: frozenset({NodeState.STARTING}),
    NodeState.FINISHED: frozenset(),
    NodeState.FAILED: frozenset({NodeState.STARTING}),
}
HAS_ACTOR = frozenset({NodeState.STARTING, NodeState.RUNNING, NodeState.SUSPECT})
"""The states in which a torchrun of the node may run."""
WAITS_FOR_RAY = frozenset({NodeState.PENDING, NodeState.LOST, NodeState.FAILED})


# --- what the driver sees -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NodePlaced:
    """Ray holds the node's resources on a live machine."""

    node: int
    machine: str
    seen_at: float = math.inf
    """When Ray was asked. What it said before the node ended may be out of date."""


@dataclass(frozen=True, slots=True)
class NodeStarted:
    node: int
    start: int
    where: str = ""


@dataclass(frozen=True, slots=True)
class NodeRefused:
    """A machine cannot run the training: the script is missing, for example."""

    node: int
    start: int
    reason: str


@dataclass(frozen=True, slots=True)
class NodeUnavailable:
    node: int
    start: int


@dataclass(frozen=True, slots=True)
class NodeAnswered:
    node: int
    start: int


@dataclass(frozen=True, slots=True)
class NodeDied:
    node: int
    start: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class NodeExited:
    node: int
    start: int
    code: int


@dataclass(frozen=True, slots=True)
class RunIsOver:
    """The run is closed, or its store is gone."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class StoreSilent:
    """A store elsewhere does not listen. If no node lives, that is the end of the run.

    Otherwise it says nothing: nodes may reach a store that the head does not.
    """


class Wish(Enum):
    DRAIN = auto()
    """Workers save their state and end; then the run is cancelled."""
    STOP = auto()
    """All nodes end now."""


@dataclass(frozen=True, slots=True)
class EndAsked:
    """An operator has asked for the end."""

    wish: Wish


Observation = (
    NodePlaced
    | NodeStarted
    | NodeRefused
    | NodeUnavailable
    | NodeAnswered
    | NodeDied
    | NodeExited
    | RunIsOver
    | StoreSilent
    | EndAsked
)


# --- what the driver does -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StartNode:
    node: int
    start: int


@dataclass(frozen=True, slots=True)
class DrainNode:
    node: int
    start: int


@dataclass(frozen=True, slots=True)
class StopNode:
    node: int
    start: int


class RayOutcome(StrEnum):
    ENDED = "ended"
    """The run has ended, and so have its nodes."""
    STOPPED = "stopped"
    REFUSED = "refused"
    PENDING_TOO_LONG = "pending too long"
    NO_NODE_LEFT = "no node left"


@dataclass(frozen=True, slots=True)
class RayEnd:
    """All is over. The driver removes what is left."""

    outcome: RayOutcome
    reason: str = ""


Action = StartNode | DrainNode | StopNode | RayEnd


# --- the machine --------------------------------------------------------------------------------------


@dataclass(slots=True)
class RayNode:
    """What is known of one node."""

    number: int
    state: NodeState = NodeState.PENDING
    since: float = 0.0
    """When it entered its state."""
    start: int = 0
    """Its newest start. 0: it never had one."""
    began_at: float = 0.0
    short_starts: int = 0
    """Starts in a row that ended soon."""
    where: str = ""
    code: int | None = None
    """How its newest torchrun exited."""
    reason: str = ""
    told: Wish | None = None
    """What its actor was told to do with torchrun."""


@dataclass(slots=True)
class RayMachine:
    """All nodes of a run. `step` is the only thing that changes it."""

    min_nodes: int
    node_count: int
    began_at: float
    pending_timeout_s: float | None = None
    knows_end: bool = True
    """Whether `RunIsOver` can come. With a store elsewhere, the nodes' exit codes say how the run ended."""
    nodes: list[RayNode] = field(init=False)
    over_at: float | None = field(init=False, default=None)
    """When the run ended. After that, no node starts."""
    has_run: bool = field(init=False, default=False)
    """Whether any node has ever run."""
    had_min: bool = field(init=False, default=False)
    """Whether so many nodes as the run needs to begin have ever been started."""
    stop_by: float | None = field(init=False, default=None)
    end: RayEnd | None = field(init=False, default=None)
    _wish: Wish | None = field(init=False, default=None)
    _ending_at: float | None = field(init=False, default=None)
    """When the run ended, or an operator first asked for its end."""
    _end_reason: str = field(init=False, default="")

    def __post_init__(self) -> None:
        self.nodes = [RayNode(number, since=self.began_at) for number in range(self.node_count)]

    def resume(self, has_run: bool, had_min: bool) -> None:
        """An earlier driver has seen this of the run."""
        self.has_run, self.had_min = has_run, had_min

    def adopt(self, node: int, start: int, now: float) -> None:
        """An actor of an earlier driver lives. It answers or dies; until then it counts as starting."""
        self._move(self.nodes[node], NodeState.STARTING, now)
        self.nodes[node].start, self.nodes[node].began_at = start, now
        self._note_min()

    def step(self, observations: Iterable[Observation], now: float) -> list[Action]:
        """Take what was observed, and return what to do. After a `RayEnd`, nothing."""
        if self.end is not None:
            return []
        actions: list[Action] = []
        placed: list[NodePlaced] = []
        is_store_silent = False
        for each in observations:
            match each:
                case NodePlaced():
                    placed.append(each)
                case RunIsOver():
                    self._end_run(each.reason, now)
                case StoreSilent():
                    is_store_silent = True
                case EndAsked():
                    self._note_wish(each.wish, now)
                case NodeRefused():
                    self._refuse(each, now)
                case _:
                    self._take(each, now)
        if is_store_silent and not any(node.state in HAS_ACTOR for node in self.nodes):
            self._end_run("no node lives, and the store does not listen", now)
        if self.end is None:
            actions += self._tell_wish(now)
            self.end = self._decide_end(now)
        if self.end is None:
            actions += self._start_placed(placed, now)
        self._note_min()
        return [*actions, self.end] if self.end is not None else actions

    @property
    def is_over(self) -> bool:
        return self.over_at is not None

    def count(self, *states: NodeState) -> int:
        return sum(node.state in states for node in self.nodes)

    # --- observations ---------------------------------------------------------------------------------

    def _is_current(self, node: int, start: int) -> bool:
        return self.nodes[node].start == start and self.nodes[node].state in HAS_ACTOR

    def _take(self, seen: NodeStarted | NodeUnavailable | NodeAnswered | NodeDied | NodeExited, now: float) -> None:
        node = self.nodes[seen.node]
        if not self._is_current(seen.node, seen.start):
            return  # Of an earlier start, or told twice.
        match seen:
            case NodeStarted():
                node.where = seen.where or node.where
                if node.state is not NodeState.RUNNING:
                    self._move(node, NodeState.RUNNING, now)
            case NodeAnswered() if node.state is not NodeState.RUNNING:
                self._move(node, NodeState.RUNNING, now)
            case NodeUnavailable() if node.state is NodeState.RUNNING:
                self._move(node, NodeState.SUSPECT, now)
            case NodeDied():
                self._leave(node, NodeState.LOST, now, seen.reason)
            case NodeExited():
                node.code = seen.code
                state = NodeState.FINISHED if seen.code == 0 else NodeState.FAILED
                self._leave(node, state, now, f"torchrun exited {seen.code}")

    def _refuse(self, seen: NodeRefused, now: float) -> None:
        """A refusal ends a run that has not begun. Later, it is a failure of one node: a bad machine has come."""
        if self._is_current(seen.node, seen.start):
            self._leave(self.nodes[seen.node], NodeState.FAILED, now, seen.reason)
            if not self.has_run:
                self.end = RayEnd(RayOutcome.REFUSED, seen.reason)

    def _leave(self, node: RayNode, state: NodeState, now: float, reason: str) -> None:
        node.short_starts = node.short_starts + 1 if now - node.began_at < SHORT_S else 0
        node.reason = reason
        self._move(node, state, now)

    def _move(self, node: RayNode, state: NodeState, now: float) -> None:
        if state not in TRANSITIONS[node.state]:
            raise ProtocolBug(f"node {node.number} cannot go from {node.state} to {state}")
        node.state, node.since = state, now
        self.has_run = self.has_run or state is NodeState.RUNNING

    def _note_min(self) -> None:
        self.had_min = self.had_min or sum(node.start > 0 for node in self.nodes) >= self.min_nodes

    # --- decisions ------------------------------------------------------------------------------------

    def _note_wish(self, wish: Wish, now: float) -> None:
        if self._wish is Wish.STOP:
            return  # Nothing is stronger.
        self._wish = wish
        self._note_ending(now)
        if wish is Wish.STOP:
            self._end_by(now + STOP_GRACE_S)

    def _tell_wish(self, now: float) -> list[Action]:
        """Tell every node once. An actor that is starting or out of reach passes on no signal, so it is told later."""
        wish = Wish.STOP if self.over_at is not None and now >= self.over_at + LATE_S else self._wish
        if wish is None:
            return []
        action = DrainNode if wish is Wish.DRAIN else StopNode
        listening = [node for node in self.nodes if node.state is NodeState.RUNNING and node.told is not wish]
        for node in listening:
            node.told = wish
        return [action(node.number, node.start) for node in listening]

    def _end_run(self, reason: str, now: float) -> None:
        if not self.is_over:
            self.over_at, self._end_reason = now, reason
            self._note_ending(now)
            self._end_by(now + LEAVE_GRACE_S)

    def _note_ending(self, now: float) -> None:
        self._ending_at = now if self._ending_at is None else self._ending_at

    def _end_by(self, deadline: float) -> None:
        self.stop_by = deadline if self.stop_by is None else min(self.stop_by, deadline)

    def _may_start(self, node: RayNode, now: float) -> bool:
        if self.is_over or self._wish is not None or node.state not in WAITS_FOR_RAY or self.is_given_up(node):
            return False
        pause_s = RESTART_PAUSES_S[min(node.short_starts, len(RESTART_PAUSES_S) - 1)]
        return node.start == 0 or now >= node.since + pause_s

    def is_given_up(self, node: RayNode) -> bool:
        return node.short_starts >= MAX_SHORT_STARTS

    def _start_placed(self, placed: Iterable[NodePlaced], now: float) -> list[Action]:
        actions: list[Action] = []
        for each in placed:
            node = self.nodes[each.node]
            if each.seen_at >= node.since and self._may_start(node, now):
                self._move(node, NodeState.STARTING, now)
                node.start, node.began_at, node.where, node.code = node.start + 1, now, each.machine, None
                actions.append(StartNode(node.number, node.start))
        return actions

    def _decide_end(self, now: float) -> RayEnd | None:
        has_living = any(node.state in HAS_ACTOR for node in self.nodes)
        is_late = self.stop_by is not None and now >= self.stop_by
        if self._ending_at is not None:
            if any(self._is_awaited(node, now - self._ending_at) for node in self.nodes) and not is_late:
                return None
            return RayEnd(RayOutcome.ENDED if self._wish is None else RayOutcome.STOPPED, self._end_reason)
        # A spare that runs alone cannot train: it does not stop the clock.
        if not self.had_min and self._is_pending_too_long(now):
            return RayEnd(RayOutcome.PENDING_TOO_LONG)
        if has_living:
            return None
        usable = sum(node.state is not NodeState.FINISHED and not self.is_given_up(node) for node in self.nodes)
        if self.count(NodeState.FINISHED) and (usable < self.min_nodes or not self.knows_end):
            return RayEnd(RayOutcome.ENDED)  # The exit code 0 says that the run has ended, before its store does.
        if usable < self.min_nodes:
            return RayEnd(RayOutcome.NO_NODE_LEFT, "; ".join(_describe(node) for node in self.nodes if node.reason))
        return None

    def _is_awaited(self, node: RayNode, ending_s: float) -> bool:
        """Whether the end waits for this node. Ray may look for a machine for one that is starting, for ever."""
        return node.state in HAS_ACTOR and (node.state is not NodeState.STARTING or ending_s < LATE_S)

    def _is_pending_too_long(self, now: float) -> bool:
        return self.pending_timeout_s is not None and now >= self.began_at + self.pending_timeout_s


def _describe(node: RayNode) -> str:
    return f"node {node.number}: {node.reason}"
