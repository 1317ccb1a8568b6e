"""What is kept of a run: plain data, changed by `fold` alone."""

from __future__ import annotations

import msgspec

from ft_rendezvous.core.model import AnyWhy, NodesLost, Verdict
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.records import Cycle, Failed, NodeRole, NodeStatus, RunStatus

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
    arrived_in: int = 0
    arrived_ns: int | None = None
    silent_since_ns: int | None = None
    is_draining: bool = False
    end_ns: int | None = None
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
    members: dict[str, KnownNode] = {}
    live: int = 0
    dead: list[str] = []
    """In the order they ended; the oldest are forgotten."""
    silent_s: float = 0.0
    """How long the longest silent of the lost had been silent, since the last seal."""
    has_lost: bool = False
    """A node of the last world was lost since its seal: that loss is the cause of what opened the cycle."""
    whole_since_ns: int | None = None
    """Since when the world that trains has been whole."""
    broken_since_ns: int | None = None
    """Since when no node trains; None while a world trains, and before the first one."""
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


def cause_of(why: AnyWhy) -> str:
    """The kind of a reason, as one word."""
    return str(why.__struct_config__.tag)


def cause_of_pause(state: RunState) -> str:
    """Why no node trains. Workers fail because of a lost peer before its lease is over: then the loss is the cause."""
    return NODES_LOST if state.has_lost else cause_of(state.cycles[-1].why)
