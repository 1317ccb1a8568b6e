"""What is kept of a run: plain data, changed by `fold` alone."""

from __future__ import annotations

import msgspec

from ft_rendezvous.core.model import AnyWhy, NodesLost, Verdict
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.records import (
    Cycle,
    Failed,
    GroupStatus,
    NodeRole,
    NodeStatus,
    RecentUpdate,
    RunStatus,
    UpdateTotals,
)

NS = 1_000_000_000
NODES_LOST = str(NodesLost.__struct_config__.tag)
HISTORY = 100
"""Cycles whose placement is kept, unless a run says otherwise."""


class KnownNode(msgspec.Struct, kw_only=True):
    """A node, live or dead."""

    incarnation: str
    name: str
    addr: str
    pid: int
    infra_rank: int | None
    domain: str | None
    unit: str | None
    workers: int | None
    joined_ns: int
    role: NodeRole = NodeRole.HOT_SPARE
    """As the coordinator said last; of a dead node, what it was in the end."""
    status: NodeStatus = NodeStatus.ALIVE
    status_detail: str = ""
    rank: int | None = None
    """In the last world that it was in; None: it was a standby there, or never in one."""
    first_global_rank: int | None = None
    group: int | None = None
    """The group of that world; None since it has no place there any more."""
    placed_in: int = 0
    """The cycle in which that world was sealed; 0: it was never in one."""
    arrived_in: int = 0
    arrived_ns: int | None = None
    silent_since_ns: int | None = None
    step: int | None = None
    """The last step of its slowest worker, if it says so."""
    slowest_rank: int | None = None
    """The global rank of that worker."""
    progress_ns: int | None = None
    """When that worker made progress; None: that is not watched."""
    is_draining: bool = False
    end_ns: int | None = None
    failure_count: int = 0
    failures: list[Failed] = []


class LostTime(msgspec.Struct, kw_only=True):
    times: int = 0
    lost_ns: int = 0


class KnownGroup(msgspec.Struct, kw_only=True):
    """A replica group. A run without groups is one group with the number 0, which is not shown."""

    number: int
    status: GroupStatus = GroupStatus.WAITING
    status_detail: str = ""
    since_ns: int = 0
    """Since when it has had this status."""
    cycle_id: int = 0
    """Its current cycle, or its last."""
    world_id: int = 0
    """The cycle in which its last world was sealed."""
    sealed_ns: int = 0
    """When that was."""
    unfinished: int = 0
    """Nodes of that world that have not finished."""
    waits: str = ""
    """Why its own open cycle is not sealed yet."""
    restarts: int = 0
    cause: str = ""
    """The kind of the reason for which its current cycle was opened."""
    why_text: str = ""
    silent_s: float = 0.0
    """How long the longest silent of its lost nodes had been silent, since its last seal."""
    has_lost: bool = False
    """A node of its last world was lost since the seal: that loss is the cause of what opened the next cycle."""
    whole_since_ns: int | None = None
    """Since when its world has been whole."""
    broken_since_ns: int | None = None
    """Since when it does not train; None while it does, before its first world, and while there is no such group."""
    pause_ns: int = 0
    """What the run has lost by that so far."""
    trained_ns: int = 0
    lost_ns: int = 0

    @property
    def is_counted(self) -> bool:
        """Whether the time that passes is its time, too."""
        return self.whole_since_ns is not None or self.broken_since_ns is not None


class RunState(msgspec.Struct, kw_only=True):
    """A run as of event `event_id`."""

    event_id: int = 0
    time_ns: int = 0
    """Of that event."""
    history: int = HISTORY
    began: journal.RunBegan | None = None
    start_ns: int = 0
    end_ns: int | None = None
    status: RunStatus = RunStatus.INITIALIZING
    status_detail: str = ""
    verdict: Verdict | None = None
    waits: str = ""
    """Why the open common cycle is not sealed yet."""
    cycles: list[Cycle] = []
    common_id: int = 0
    """The last common cycle. In a run without groups every cycle is a common one."""
    groups: dict[int, KnownGroup] = {}
    """All groups that there were since the first seal, by number."""
    members: dict[str, KnownNode] = {}
    live: int = 0
    dead: list[str] = []
    """In the order they ended; the oldest are forgotten."""
    counted_ns: int = 0
    """Until when `trained_ns`, and what the groups have lost, are counted."""
    trained_ns: int = 0
    lost: dict[str, LostTime] = {}
    looked_ns: int = 0
    operations: int = 0
    oldest_lease_s: float = 0.0
    has_progress: bool = False
    """Whether nodes said how far they are, when the coordinator last looked."""
    late_after_s: int | None = None
    """The age of progress at which a rank is late, as the nodes said last."""
    refused_records: int = 0
    updates: UpdateTotals = UpdateTotals()
    recent_updates: list[RecentUpdate] = []

    @property
    def cycle(self) -> Cycle | None:
        """The newest."""
        return self.cycles[-1] if self.cycles else None

    @property
    def group_size(self) -> int:
        """Nodes of a replica group; 0: the run has no groups."""
        return int(self.began.settings.get("group_size", "0")) if self.began is not None else 0

    @property
    def has_groups(self) -> bool:
        return self.group_size > 0

    def find_cycle(self, cycle_id: int) -> Cycle | None:
        """A cycle that is remembered. Their ids have no gaps."""
        index = cycle_id - self.cycles[0].cycle_id if self.cycles else -1
        return self.cycles[index] if 0 <= index < len(self.cycles) else None


def cause_of(why: AnyWhy) -> str:
    """The kind of a reason, as one word."""
    return str(why.__struct_config__.tag)
