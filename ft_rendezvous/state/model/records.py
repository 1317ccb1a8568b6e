"""The records of a run: the run, its groups, its cycles, its nodes. Typed, and with a version.

Each kind has a status, and each status a table of what may follow; a pair that is not in it is our bug.

    run     INITIALIZING ─▶ SCHEDULING ─▶ RUNNING ◀─▶ RESTARTING, RESIZING
            any of them ─▶ ERRORED, ABORTED            all but the first two ─▶ FINISHED
    cycle   PENDING ─▶ RUNNING ─▶ FINISHED             PENDING, RUNNING ─▶ ERRORED, ABORTED
    group   WAITING ◀─▶ RUNNING ─▶ FINISHED            WAITING ◀─▶ DISSOLVED       all but the last ─▶ ERRORED, ABORTED
    node    ALIVE ◀─▶ SUSPECT ─▶ DEAD                  ALIVE ─▶ DEAD
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final, TypeVar

import msgspec

from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.model import AnyWhy, Verdict, VerdictKind
from ft_rendezvous.core.update_notes import ReportedUpdate
from ft_rendezvous.errors import ProtocolBug

SCHEMA_VERSION: Final = 3
"""Of the records and of the events. A new field with a default needs no new version. A new kind of event does: an older
program cannot fold it. So does a field that is removed, renamed, or of another type; that also needs a conversion of
what older versions wrote: see `version_one`. Version 3 has one kind of event more than version 2."""


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


class GroupStatus(StrEnum):
    WAITING = "WAITING"
    """Its next cycle is open: its own, or a common one."""
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    """All of its nodes have finished."""
    DISSOLVED = "DISSOLVED"
    """It lacked nodes and was given up. It may be formed again."""
    ERRORED = "ERRORED"
    """The run failed."""
    ABORTED = "ABORTED"
    """The run was cancelled, or its coordinator vanished."""

    def is_terminal(self) -> bool:
        return self in (GroupStatus.ERRORED, GroupStatus.ABORTED)


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
_GROUP_ENDS = frozenset({GroupStatus.FINISHED, GroupStatus.ERRORED, GroupStatus.ABORTED})
GROUP_STATUS_TABLE: dict[GroupStatus, frozenset[GroupStatus]] = {
    # A common cycle may open while a group waits, and its seal may leave groups out.
    GroupStatus.WAITING: _GROUP_ENDS | {GroupStatus.WAITING, GroupStatus.RUNNING, GroupStatus.DISSOLVED},
    GroupStatus.RUNNING: _GROUP_ENDS | {GroupStatus.WAITING},
    # All groups may be restarted while one has finished.
    GroupStatus.FINISHED: _GROUP_ENDS | {GroupStatus.WAITING},
    GroupStatus.DISSOLVED: frozenset({GroupStatus.WAITING, GroupStatus.RUNNING}),
    GroupStatus.ERRORED: frozenset(),
    GroupStatus.ABORTED: frozenset(),
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

S = TypeVar("S", RunStatus, CycleStatus, GroupStatus, NodeStatus)


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
    group: int | None = None
    """The replica group that it trains in, or is to train in again; of a dead node, its last one. None: it is in no
    group, or the run has no groups."""
    group_rank: int | None
    """Its rank in the last world it was in: that of its group, if the run has groups."""
    global_ranks: tuple[int, int] | None
    """First and last global rank of its workers, within its group if the run has groups; local ranks count from 0 in
    the same order."""
    joined_ns: int
    arrived_in: int
    """The newest cycle it arrived in; 0: in none yet."""
    arrived_ns: int | None
    last_beat_ns: int
    """When it was last known to beat; of a node that is well, no older than a lease."""
    step: int | None = None
    """The last step of its slowest worker; None: not known, or hangs are not looked for. Of more than 64 nodes, those
    that are not among the slowest have come at least so far."""
    slowest_rank: int | None = None
    """The global rank of that worker, within its group if the run has groups; None: not known."""
    last_progress_ns: int | None = None
    """When that worker last made progress, as known when the coordinator last looked."""
    end_time_ns: int | None
    failure_count: int
    failures: tuple[Failed, ...]
    """The newest few."""

    def is_terminal(self) -> bool:
        return self.status.is_terminal()


class SlowRank(msgspec.Struct, frozen=True, kw_only=True):
    """The slowest rank of a node, which is one of the slowest of the run."""

    rank: int
    """Global; within its group, if the run has groups."""
    group: int | None = None
    incarnation: str
    node: str
    """Its name."""
    step: int | None
    last_progress_ns: int


class UpdateTotals(msgspec.Struct, frozen=True, kw_only=True):
    """Updates that workers have reported, all together."""

    updates: int = 0
    failed: int = 0
    retried: int = 0
    """Those that needed more than one attempt, and were completed or not."""
    spent_s: float = 0.0
    """Time in updates."""
    lost_s: float = 0.0
    """The part of it in attempts that failed. It is not in the `lost_s` of a run: its workers may train meanwhile."""


class RecentUpdate(ReportedUpdate, frozen=True, kw_only=True):
    """One update, and where it was reported."""

    time_ns: int
    """When the coordinator heard of it."""
    cycle_id: int
    """The cycle of the workers that reported it."""
    node: str


class Cycle(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt to train."""

    run_id: str
    cycle_id: int
    group: int | None = None
    """The replica group that it is of. None: it is of all groups (a common cycle), or the run has no groups."""
    groups: tuple[int, ...] = ()
    """The groups that its seal placed; empty before the seal, and in a run without groups."""
    left: dict[int, CycleStatus] = {}
    """How it ended for the groups that have left it. A common cycle ends when the last of its groups has left it."""
    previous_id: int | None = None
    """The cycle from which its nodes came. None: the first cycle, a new group, or groups of different cycles."""
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
    stop_time_ns: int | None = None
    """When the world before was last known to be whole: since then no node of its group trained, or of all groups."""
    lost_s: float = 0.0
    """How long no node trained before the seal, counted from then. In a run with groups, time in which one of N groups
    did not train counts as its N-th part."""
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
    updates: UpdateTotals | None = None
    """Of its workers; None if they reported none."""
    ranks: tuple[str, ...] | None = None
    """Incarnations by rank, those of a common cycle one group after the other; None in old cycles, of which only the
    summary is kept."""
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


class Group(msgspec.Struct, frozen=True, kw_only=True):
    """A replica group of a run: nodes that seal and restart together."""

    group: int
    """Its number."""
    status: GroupStatus
    status_detail: str
    """What it waits for, or why it was dissolved."""
    since_ns: int
    """Since when it has had this status."""
    cycle_id: int
    """Its current cycle, or its last: its own, or a common one."""
    wanted: int
    """How many nodes it needs."""
    live: int
    """How many of its nodes are there: those that train or have finished, or those that are back while it waits."""
    restarts: int
    """How often its world ended and its next cycle opened, together with all other groups or alone."""
    why_text: str
    """Why its current cycle was opened."""
    trained_s: float
    """Time in which its sealed world was whole."""
    lost_s: float
    """Time in which it did not train, after it first did. `Run.lost_s` counts a part of it."""

    def is_terminal(self) -> bool:
        return self.status.is_terminal()


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
    """The current cycle, or the last: with groups, the newest of all."""
    groups: tuple[Group, ...] = ()
    """Its replica groups, by number; empty in a run without groups, and before the first seal."""
    wanted: int
    """How many nodes a world needs at least."""
    live: int
    nodes: dict[str, dict[str, int]]
    """How many by role, and by status within."""
    lost: dict[str, Lost]
    """Time in which no node trained, by cause. Time in which one of N groups did not train counts as its N-th part."""
    lost_s: float
    trained_s: float
    """Time in which a sealed world was whole, as far as the coordinator knew; that of one of N groups counts as its
    N-th part."""
    operations: int
    oldest_lease_s: float
    slowest: tuple[SlowRank, ...] = ()
    """The slowest ranks, at most one of each node, slowest first; none if hangs are not looked for."""
    late_after_s: int | None = None
    """The age of progress at which a rank is late: of the nodes, which may have learned it, the longest."""
    refused_records: int
    updates: UpdateTotals = UpdateTotals()
    """What its workers have reported of updates."""
    recent_updates: tuple[RecentUpdate, ...] = ()
    """The newest that failed or were retried, and the newest of the others; oldest first."""

    def is_terminal(self) -> bool:
        return self.status.is_terminal()
