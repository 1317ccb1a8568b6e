"""The records of a run: the run, its cycles, its nodes. Typed, and with a version.

Each kind has a status, and each status a table of what may follow; a pair that is not in it is our bug.

    run     INITIALIZING ─▶ SCHEDULING ─▶ RUNNING ◀─▶ RESTARTING, RESIZING
            any of them ─▶ ERRORED, ABORTED            all but the first two ─▶ FINISHED
    cycle   PENDING ─▶ RUNNING ─▶ FINISHED             PENDING, RUNNING ─▶ ERRORED, ABORTED
    node    ALIVE ◀─▶ SUSPECT ─▶ DEAD                  ALIVE ─▶ DEAD
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.model import GROUP, AnyWhy, Verdict, VerdictKind
from ft_rendezvous.errors import ProtocolBug

SCHEMA_VERSION: Final = 1
"""Of the records and of the events. A field that an older version does not have gets its default."""


class RunStatus(StrEnum):
    INITIALIZING = "INITIALIZING"
    """The store is there, no node has come yet."""
    SCHEDULING = "SCHEDULING"
    """Nodes gather for the first time."""
    RUNNING = "RUNNING"
    RESTARTING = "RESTARTING"
    """A world has ended, and the next one is not sealed yet."""
    RESIZING = "RESIZING"
    """The same; the next world will be larger."""
    FINISHED = "FINISHED"
    ERRORED = "ERRORED"
    ABORTED = "ABORTED"
    """Cancelled, or its coordinator vanished."""

    def is_terminal(self) -> bool:
        return self in (RunStatus.FINISHED, RunStatus.ERRORED, RunStatus.ABORTED)


class CycleStatus(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    ERRORED = "ERRORED"
    """Workers failed or nodes were lost."""
    ABORTED = "ABORTED"
    """An operator, a drain or a larger world ended it."""

    def is_terminal(self) -> bool:
        return self in (CycleStatus.FINISHED, CycleStatus.ERRORED, CycleStatus.ABORTED)


class NodeStatus(StrEnum):
    ALIVE = "ALIVE"
    SUSPECT = "SUSPECT"
    """It has not beaten for half a lease."""
    DEAD = "DEAD"
    """Its lease is over, or it has left: this incarnation never counts again."""

    def is_terminal(self) -> bool:
        return self is NodeStatus.DEAD


_ENDS = frozenset({RunStatus.ERRORED, RunStatus.ABORTED})
RUN_STATUS_TABLE: dict[RunStatus, frozenset[RunStatus]] = {
    RunStatus.INITIALIZING: _ENDS | {RunStatus.SCHEDULING},
    RunStatus.SCHEDULING: _ENDS | {RunStatus.RUNNING},
    RunStatus.RUNNING: _ENDS | {RunStatus.RESTARTING, RunStatus.RESIZING, RunStatus.FINISHED},
    # All nodes may have ended well while the coordinator opened the next cycle.
    RunStatus.RESTARTING: _ENDS | {RunStatus.RUNNING, RunStatus.FINISHED},
    RunStatus.RESIZING: _ENDS | {RunStatus.RUNNING, RunStatus.FINISHED},
    RunStatus.FINISHED: frozenset(),
    RunStatus.ERRORED: frozenset(),
    RunStatus.ABORTED: frozenset(),
}
CYCLE_STATUS_TABLE: dict[CycleStatus, frozenset[CycleStatus]] = {
    CycleStatus.PENDING: frozenset({CycleStatus.RUNNING, CycleStatus.ERRORED, CycleStatus.ABORTED}),
    CycleStatus.RUNNING: frozenset({CycleStatus.FINISHED, CycleStatus.ERRORED, CycleStatus.ABORTED}),
    CycleStatus.FINISHED: frozenset(),
    CycleStatus.ERRORED: frozenset(),
    CycleStatus.ABORTED: frozenset(),
}
NODE_STATUS_TABLE: dict[NodeStatus, frozenset[NodeStatus]] = {
    NodeStatus.ALIVE: frozenset({NodeStatus.SUSPECT, NodeStatus.DEAD}),
    NodeStatus.SUSPECT: frozenset({NodeStatus.ALIVE, NodeStatus.DEAD}),
    NodeStatus.DEAD: frozenset(),
}

END_OF_RUN = {
    VerdictKind.SUCCEEDED: RunStatus.FINISHED,
    VerdictKind.FAILED: RunStatus.ERRORED,
    VerdictKind.CANCELLED: RunStatus.ABORTED,
}
"""How a run with such a verdict has ended; its last cycle has, in the same word."""

S = TypeVar("S", RunStatus, CycleStatus, NodeStatus)


def step(table: dict[S, frozenset[S]], before: S, after: S) -> S:
    """The status that follows; raises ProtocolBug if it cannot."""
    if after not in table[before]:
        raise ProtocolBug(f"a {type(before).__name__} of {before} cannot become {after}")
    return after


class NodeRole(StrEnum):
    """What a node does in the run, in the words of `core.lifecycle`; two more words say how it ended."""

    HOT_SPARE = Role.HOT_SPARE.value
    ARRIVED = Role.ARRIVED.value
    ACTIVE = Role.ACTIVE.value
    STANDBY = Role.STANDBY.value
    AWAITED = Role.AWAITED.value
    FINISHED = Role.FINISHED.value
    DRAINED = "drained"
    QUARANTINED = "quarantined"


class NodeKind(StrEnum):
    """A node at a glance, in one word: its role while it is well, and else what is wrong with it."""

    HOT_SPARE = NodeRole.HOT_SPARE.value
    ARRIVED = NodeRole.ARRIVED.value
    ACTIVE = NodeRole.ACTIVE.value
    STANDBY = NodeRole.STANDBY.value
    AWAITED = NodeRole.AWAITED.value
    FINISHED = NodeRole.FINISHED.value
    DRAINED = NodeRole.DRAINED.value
    QUARANTINED = NodeRole.QUARANTINED.value
    SUSPECT = "suspect"
    DEAD = "dead"
    LEFT = "left"
    """It went when the run was over."""


# --- records ----------------------------------------------------------------------------------------


class Failed(msgspec.Struct, frozen=True, kw_only=True):
    """Workers of a node ended badly."""

    cycle_id: int
    time_ns: int
    rank: int
    """Of the worker that was the first to end on that node."""
    exit_code: int | None
    error: str
    """How it ended, and the first line of its error if it left one."""
    after_s: float | None
    log_path: str


class Node(msgspec.Struct, frozen=True, kw_only=True):
    """One incarnation of a node, and its workers."""

    incarnation: str
    name: str
    addr: str
    pid: int
    infra_rank: int | None
    domain: str | None
    unit: str | None
    role: NodeRole
    """Of a dead node: what it was in the end."""
    kind: NodeKind
    status: NodeStatus
    status_detail: str
    group_rank: int | None
    """Its rank in the last world it was in."""
    global_ranks: tuple[int, int] | None
    """First and last global rank of its workers; local ranks count from 0 in the same order."""
    joined_ns: int
    arrived_in: int
    """The newest cycle it arrived in; 0: in none yet."""
    arrived_ns: int | None
    last_beat_ns: int
    """When it was last known to beat; of a node that is well, no older than a lease."""
    end_time_ns: int | None
    failure_count: int
    failures: tuple[Failed, ...]
    """The newest few."""

    def is_terminal(self) -> bool:
        return self.status.is_terminal()


class Cycle(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to train."""

    run_id: str
    cycle_id: int
    group: str = GROUP
    status: CycleStatus
    status_detail: str
    why: AnyWhy
    """Why it was opened, as far as it is known by now: a later event may correct it."""
    why_text: str
    opened_by: str
    """The node, the operator or the coordinator that made it necessary."""
    start_time_ns: int
    seal_time_ns: int | None = None
    end_time_ns: int | None = None
    time_to_seal_s: float | None = None
    lost_s: float = 0.0
    """How long no node trained before the seal, counted from when the world before was last known to be whole."""
    lost_cause: str = ""
    """What that time is charged to, as in `Run.lost`; empty where none was lost."""
    master: str = ""
    active: int = 0
    standby: int = 0
    arrived: int = 0
    failure_count: int = 0
    first_failure: Failed | None = None
    first_failure_node: str = ""
    placement: str = ""
    """What the placement changed and what the spares cover, in one line."""
    ranks: tuple[str, ...] | None = None
    """Incarnations by group rank; None in old cycles, of which only the summary is kept."""
    standbys: tuple[str, ...] | None = None

    def is_terminal(self) -> bool:
        return self.status.is_terminal()


def without_ranks(cycle: Cycle) -> Cycle:
    """The summary of a cycle. In a large run the ranks of the nodes are nearly all of its size."""
    return msgspec.structs.replace(cycle, ranks=None, standbys=None)


class Lost(msgspec.Struct, frozen=True, kw_only=True):
    """Time that a cause has cost."""

    times: int
    seconds: float


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """A run: one life of one store."""

    id: str
    """The store's epoch: another start under the same name is another run."""
    name: str
    """Its --rdzv-id."""
    schema_version: int = SCHEMA_VERSION
    event_id: int
    """Of the newest event that counts in this."""
    status: RunStatus
    status_detail: str
    start_time_ns: int
    end_time_ns: int | None
    """None until the run is over."""
    settings: dict[str, str]
    versions: dict[str, str]
    store_host: str
    verdict: Verdict | None
    cycle_id: int
    """The current cycle, or the last."""
    wanted: int
    """How many nodes a world needs at least."""
    live: int
    nodes: dict[str, dict[str, int]]
    """How many by role, and by status within."""
    lost: dict[str, Lost]
    """Time in which no node trained, by cause."""
    lost_s: float
    trained_s: float
    """Time in which a sealed world was whole, as far as the coordinator knew."""
    operations: int
    oldest_lease_s: float
    refused_records: int

    def is_terminal(self) -> bool:
        return self.status.is_terminal()
