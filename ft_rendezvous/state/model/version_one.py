"""States and cycles of schema version 1, as they were written, and how they become those of now.

Version 1 knows no replica groups. Its run has one world at a time, and notes at the run what a `KnownGroup` has now.
Its events need no conversion, but for a `StateTold`: what they lack has a default.

Pure. The types here never change: they are what old logs hold. They refuse a field that version 1 did not have.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from ft_rendezvous.core.model import AnyWhy, Verdict
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.records import (
    Cycle,
    CycleStatus,
    Failed,
    GroupStatus,
    NodeRole,
    NodeStatus,
    RunStatus,
)
from ft_rendezvous.state.model.run_state import HISTORY, NS, KnownGroup, KnownNode, LostTime, RunState, cause_of

ONLY_GROUP = 0
"""The number of the one group that a run without groups has."""
Seconds = Annotated[float, msgspec.Meta(gt=-1e18, lt=1e18)]
"""A number that is also finite in nanoseconds: one flipped bit may make it huge."""


class CycleOne(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `Cycle` of version 1."""

    run_id: str
    cycle_id: int
    group: Literal["0"] = "0"
    status: CycleStatus
    status_detail: str
    why: AnyWhy
    why_text: str
    opened_by: str
    start_time_ns: int
    seal_time_ns: int | None = None
    end_time_ns: int | None = None
    time_to_seal_s: float | None = None
    lost_s: Seconds = 0.0
    lost_cause: str = ""
    master: str = ""
    active: int = 0
    standby: int = 0
    arrived: int = 0
    failure_count: int = 0
    first_failure: Failed | None = None
    first_failure_node: str = ""
    placement: str = ""
    ranks: tuple[str, ...] | None = None
    standbys: tuple[str, ...] | None = None


class KnownNodeOne(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `KnownNode` of version 1."""

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
    status: NodeStatus = NodeStatus.ALIVE
    status_detail: str = ""
    rank: int | None = None
    first_global_rank: int | None = None
    arrived_in: int = 0
    arrived_ns: int | None = None
    silent_since_ns: int | None = None
    is_draining: bool = False
    end_ns: int | None = None
    failure_count: int = 0
    failures: list[Failed] = []


class RunStateOne(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A `RunState` of version 1."""

    event_id: int = 0
    time_ns: int = 0
    history: int = HISTORY
    began: journal.RunBegan | None = None
    start_ns: int = 0
    end_ns: int | None = None
    status: RunStatus = RunStatus.INITIALIZING
    status_detail: str = ""
    verdict: Verdict | None = None
    waits: str = ""
    cycles: list[CycleOne] = []
    members: dict[str, KnownNodeOne] = {}
    live: int = 0
    dead: list[str] = []
    silent_s: float = 0.0
    has_lost: bool = False
    whole_since_ns: int | None = None
    broken_since_ns: int | None = None
    trained_ns: int = 0
    """Without the time since `whole_since_ns`."""
    lost: dict[str, LostTime] = {}
    """Without the time since `broken_since_ns`."""
    looked_ns: int = 0
    operations: int = 0
    oldest_lease_s: float = 0.0
    refused_records: int = 0


def convert_cycle(old: CycleOne) -> Cycle:
    """The same cycle: one of a run without groups."""
    stop_ns: int | None = None
    if old.lost_cause and old.seal_time_ns is not None:
        stop_ns = old.seal_time_ns - round(old.lost_s * NS)
    fields = msgspec.structs.asdict(old) | {
        "group": None,
        "previous_id": old.cycle_id - 1 if old.cycle_id > 1 else None,
        "stop_time_ns": stop_ns,
    }
    return Cycle(**fields)


def convert_state(old: RunStateOne) -> RunState:
    """The state that the events of the same log give when they are folded now."""
    kept = {name: getattr(old, name) for name in RunStateOne.__struct_fields__ if name in RunState.__struct_fields__}
    group = _make_group(old)
    fields = kept | {
        "cycles": [convert_cycle(cycle) for cycle in old.cycles],
        "common_id": old.cycles[-1].cycle_id if old.cycles else 0,
        "groups": {} if group is None else {group.number: group},
        "members": _convert_members(old),
        "counted_ns": _counted_until(old),
    }
    return RunState(**fields)


def _convert_members(old: RunStateOne) -> dict[str, KnownNode]:
    """A node has its place in the newest world that it was in, as far as placements are kept."""
    placed_in = {name: cycle.cycle_id for cycle in old.cycles for name in cycle.ranks or ()}
    return {
        name: KnownNode(
            **msgspec.structs.asdict(member),
            group=ONLY_GROUP if name in placed_in else None,
            placed_in=placed_in.get(name, 0),
        )
        for name, member in old.members.items()
    }


def _make_group(old: RunStateOne) -> KnownGroup | None:
    """The world of the run as its only group; None before the first seal."""
    # Version 1 never opened a cycle while another was open: the last world is at most one cycle back.
    world = next((cycle for cycle in reversed(old.cycles[-2:]) if cycle.seal_time_ns is not None), None)
    if world is None or world.seal_time_ns is None:
        return None
    current, ranks = old.cycles[-1], world.ranks or ()
    members = (old.members.get(name) for name in ranks)
    unfinished = len(ranks) - sum(member is not None and member.role is NodeRole.FINISHED for member in members)
    is_over, counted_ns = old.end_ns is not None, _counted_until(old)
    pause_ns = 0 if old.broken_since_ns is None else max(0, counted_ns - old.broken_since_ns)
    return KnownGroup(
        number=ONLY_GROUP,
        status=_judge_group(old, current, unfinished),
        since_ns=counted_ns,
        cycle_id=current.cycle_id,
        world_id=world.cycle_id,
        sealed_ns=world.seal_time_ns,
        unfinished=unfinished,
        restarts=current.cycle_id - 1,
        cause=cause_of(current.why),
        why_text=current.why_text,
        silent_s=0.0 if is_over else old.silent_s,
        has_lost=old.has_lost and not is_over,
        whole_since_ns=old.whole_since_ns,
        broken_since_ns=old.broken_since_ns,
        pause_ns=pause_ns,
        trained_ns=old.trained_ns,
        lost_ns=sum(each.lost_ns for each in old.lost.values()) + pause_ns,
    )


def _judge_group(old: RunStateOne, current: CycleOne, unfinished: int) -> GroupStatus:
    is_open = current.seal_time_ns is None
    if unfinished == 0 and not is_open:
        return GroupStatus.FINISHED
    if old.status.is_terminal():
        return GroupStatus(old.status.value)
    return GroupStatus.WAITING if is_open else GroupStatus.RUNNING


def _counted_until(old: RunStateOne) -> int:
    """When a cycle was last opened or sealed, or the run ended: version 1 notes the time since then apart."""
    if old.end_ns is not None or not old.cycles:
        return old.end_ns or 0
    return old.cycles[-1].seal_time_ns or old.cycles[-1].start_time_ns
