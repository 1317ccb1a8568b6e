"""What is kept of a run: plain data, changed by `fold` alone.

What an opening makes of everybody's role is not written down, so that it costs the same with ten nodes and with ten
thousand: `role_of` works it out when somebody asks.
"""

from __future__ import annotations

import msgspec

from ft_rendezvous.core.model import AnyWhy, NodesLost, Verdict
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.records import Cycle, Failed, NodeRole, NodeStatus, RunStatus

NS = 1_000_000_000
NODES_LOST = str(NodesLost.__struct_config__.tag)
HISTORY = 100
"""Cycles whose placement is kept, unless a run says otherwise."""


class Member(msgspec.Struct, kw_only=True):
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
    status: NodeStatus = NodeStatus.ALIVE
    status_detail: str = ""
    rank: int | None = None
    """In the world of cycle `seated_in`; None: it was a standby there."""
    seated_in: int = 0
    first_global_rank: int | None = None
    arrived_in: int = 0
    arrived_ns: int | None = None
    silent_since_ns: int | None = None
    is_finished: bool = False
    is_draining: bool = False
    end_ns: int | None = None
    end_role: NodeRole | None = None
    """What it was when it ended."""
    failure_count: int = 0
    failures: list[Failed] = []


class LostTime(msgspec.Struct, kw_only=True):
    times: int = 0
    lost_ns: int = 0


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
    """Why the open cycle is not sealed yet."""
    cycles: list[Cycle] = []
    sealed_in: int = 0
    """The last sealed cycle."""
    members: dict[str, Member] = {}
    live: int = 0
    dead: list[str] = []
    """In the order they ended; the oldest are forgotten."""
    silent_s: float = 0.0
    """How long the longest silent of the lost had been silent, since the last seal."""
    has_lost: bool = False
    """A node of the last world was lost since its seal: whatever opened the cycle followed from that."""
    whole_since_ns: int | None = None
    """Since when the world that trains has been whole."""
    broken_since_ns: int | None = None
    """Since when nobody has trained, once somebody had."""
    trained_ns: int = 0
    lost: dict[str, LostTime] = {}
    looked_ns: int = 0
    operations: int = 0
    oldest_lease_s: float = 0.0
    refused_records: int = 0

    @property
    def cycle(self) -> Cycle | None:
        """The current one, or the last."""
        return self.cycles[-1] if self.cycles else None


def role_of(state: RunState, member: Member) -> NodeRole:
    """What a node is there for, in the current cycle."""
    if member.end_role is not None:
        return member.end_role
    if member.is_finished:
        return NodeRole.FINISHED
    cycle_id = state.cycles[-1].cycle_id if state.cycles else 0
    is_seated = member.seated_in == state.sealed_in > 0
    if state.sealed_in == cycle_id:
        if not is_seated:
            return NodeRole.HOT_SPARE
        return NodeRole.STANDBY if member.rank is None else NodeRole.ACTIVE
    if member.is_draining:
        return NodeRole.AWAITED if is_seated and member.rank is not None else NodeRole.HOT_SPARE
    if member.arrived_in == cycle_id:
        return NodeRole.ARRIVED
    return NodeRole.AWAITED if is_seated and member.rank is not None else NodeRole.HOT_SPARE


def cause_of(why: AnyWhy) -> str:
    """The kind of a reason, as one word."""
    return str(why.__struct_config__.tag)


def cause_of_pause(state: RunState) -> str:
    """Why nobody trains. Workers fail of a lost peer before its lease is over: then the loss is the cause."""
    return NODES_LOST if state.has_lost else cause_of(state.cycles[-1].why)
