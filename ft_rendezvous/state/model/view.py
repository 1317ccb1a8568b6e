"""A state as records for people and programs, as of a given time.

Pure: the time is an argument. The records are copies that no later event changes.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ft_rendezvous.state.model.records import (
    Cycle,
    CycleStatus,
    Lost,
    Node,
    NodeKind,
    NodeRole,
    NodeStatus,
    Run,
    RunStatus,
)
from ft_rendezvous.state.model.run_state import NS, KnownNode, RunState, cause_of_pause
from ft_rendezvous.text import NAMED


def view_run(state: RunState, now_ns: int) -> Run | None:
    """The run; None before anything is known of it."""
    began = state.began
    if began is None:
        return None
    cycle = state.cycle
    broken_ns = 0 if state.broken_since_ns is None else max(0, now_ns - state.broken_since_ns)
    whole_ns = 0 if state.whole_since_ns is None else max(0, now_ns - state.whole_since_ns)
    lost = {cause: Lost(times=each.times, seconds=each.lost_ns / NS) for cause, each in state.lost.items()}
    if broken_ns and cycle is not None:
        cause = cause_of_pause(state)
        known = lost.get(cause, Lost(times=0, seconds=0.0))
        lost[cause] = Lost(times=known.times + 1, seconds=known.seconds + broken_ns / NS)
    return Run(
        id=began.epoch,
        name=began.run_id,
        event_id=state.event_id,
        status=state.status,
        status_detail=_detail_of(state, now_ns),
        start_time_ns=state.start_ns,
        end_time_ns=state.end_ns,
        settings=dict(began.settings),
        versions=dict(began.versions),
        store_host=began.host,
        verdict=state.verdict,
        cycle_id=0 if cycle is None else cycle.cycle_id,
        wanted=wanted_of(state),
        live=state.live,
        nodes=count_nodes(state),
        lost=lost,
        lost_s=sum(each.seconds for each in lost.values()),
        trained_s=(state.trained_ns + whole_ns) / NS,
        operations=state.operations,
        oldest_lease_s=state.oldest_lease_s,
        refused_records=state.refused_records,
    )


def view_cycles(state: RunState, now_ns: int) -> list[Cycle]:
    """All cycles that are remembered, oldest first."""
    if not state.cycles:
        return []
    last = state.cycles[-1]
    if last.status is CycleStatus.PENDING:
        last = msgspec.structs.replace(last, status_detail=describe_wait(state, now_ns))
    elif last.status is CycleStatus.RUNNING:
        last = msgspec.structs.replace(last, status_detail=state.status_detail)
    return [*state.cycles[:-1], last]


def view_nodes(state: RunState) -> list[Node]:
    """The live nodes in the order they came, then the dead ones that are still kept."""
    return [view_node(state, member) for member in _in_order(state)]


def view_node(state: RunState, member: KnownNode) -> Node:
    ranks: tuple[int, int] | None = None
    if member.first_global_rank is not None and member.workers:
        ranks = member.first_global_rank, member.first_global_rank + member.workers - 1
    last_beat_ns = member.silent_since_ns or member.end_ns or max(state.looked_ns, member.joined_ns)
    return Node(
        incarnation=member.incarnation,
        name=member.name,
        addr=member.addr,
        pid=member.pid,
        infra_rank=member.infra_rank,
        domain=member.domain,
        unit=member.unit,
        role=member.role,
        kind=_kind_of(state, member),
        status=member.status,
        status_detail=member.status_detail,
        group_rank=member.rank,
        global_ranks=ranks,
        joined_ns=member.joined_ns,
        arrived_in=member.arrived_in,
        arrived_ns=member.arrived_ns,
        last_beat_ns=last_beat_ns,
        end_time_ns=member.end_ns,
        failure_count=member.failure_count,
        failures=tuple(member.failures),
    )


def _kind_of(state: RunState, member: KnownNode) -> NodeKind:
    if member.status is NodeStatus.SUSPECT:
        return NodeKind.SUSPECT
    if member.end_ns is None or member.role in (NodeRole.FINISHED, NodeRole.DRAINED, NodeRole.QUARANTINED):
        return NodeKind(member.role)
    is_over = state.end_ns is not None and member.end_ns >= state.end_ns
    return NodeKind.LEFT if is_over else NodeKind.DEAD


def count_nodes(state: RunState) -> dict[str, dict[str, int]]:
    """How many nodes there are, by role and by status within."""
    counts: dict[str, dict[str, int]] = {}
    for member in state.members.values():
        by_status = counts.setdefault(str(member.role), {})
        by_status[str(member.status)] = by_status.get(str(member.status), 0) + 1
    return counts


def wanted_of(state: RunState) -> int:
    """How many nodes a world needs at least."""
    nnodes = state.began.settings.get("nnodes", "0") if state.began is not None else "0"
    return int(nnodes.partition(":")[0])


def describe_wait(state: RunState, now_ns: int) -> str:
    """Why the open cycle is not sealed yet: which nodes are missing, and since when."""
    cycle = state.cycles[-1]
    wanted = wanted_of(state)
    if cycle.arrived >= wanted:
        return state.waits or "about to be sealed"
    groups: dict[str, list[KnownNode]] = {}
    for member in _missing(state, cycle.cycle_id):
        groups.setdefault(_describe_absence(member, now_ns), []).append(member)
    named = "; ".join(f"{_join_names(members)}, {absence}" for absence, members in groups.items())
    return f"waiting for {wanted - cycle.arrived} of {wanted} nodes" + (f": {named}" if named else "")


def has_vanished(state: RunState, now_ns: int) -> bool:
    """Whether a run that has not ended has lost its coordinator, which writes an event at least once per lease."""
    if state.began is None or state.status.is_terminal():
        return False
    lease_s = float(state.began.settings.get("lease_timeout", "5"))
    return now_ns - state.time_ns > 3 * lease_s * NS


def view_vanished(run: Run, last_seen_ns: int) -> Run:
    """A run whose coordinator is gone: it is over."""
    return msgspec.structs.replace(
        run,
        status=RunStatus.ABORTED,
        status_detail=f"its coordinator vanished; before that: {run.status}, {run.status_detail}",
        end_time_ns=last_seen_ns,
    )


def end_last(cycles: list[Cycle], last_seen_ns: int) -> list[Cycle]:
    """The cycles of a run whose coordinator is gone: the last one is over too."""
    if not cycles or cycles[-1].is_terminal():
        return cycles
    last = msgspec.structs.replace(
        cycles[-1],
        status=CycleStatus.ABORTED,
        status_detail="the coordinator vanished",
        end_time_ns=last_seen_ns,
    )
    return [*cycles[:-1], last]


def _detail_of(state: RunState, now_ns: int) -> str:
    cycle = state.cycle
    if cycle is None or cycle.status is not CycleStatus.PENDING:
        return state.status_detail
    wait = describe_wait(state, now_ns)
    return f"{state.status_detail}; {wait}" if cycle.cycle_id > 1 else wait


def _missing(state: RunState, cycle_id: int) -> list[KnownNode]:
    """Nodes of the last world that are not in this cycle yet."""
    ranks = next((each.ranks for each in reversed(state.cycles) if each.ranks is not None), ())
    members = (state.members.get(incarnation) for incarnation in ranks)
    return [member for member in members if member is not None and member.arrived_in != cycle_id]


def _describe_absence(member: KnownNode, now_ns: int) -> str:
    if member.status is NodeStatus.ALIVE:
        return "stopping workers"
    seen_ns = member.silent_since_ns or member.end_ns or now_ns
    return f"last seen {max(0, now_ns - seen_ns) / NS:.0f} s ago"


def _join_names(members: list[KnownNode]) -> str:
    """`infra ranks 5, 7 and 9`; or the nodes' names, where one has no infra rank."""
    ranks = [str(member.infra_rank) for member in members if member.infra_rank is not None]
    has_ranks = len(ranks) == len(members)
    names = ranks if has_ranks else [member.name for member in members]
    *others, last = names[:NAMED] if len(names) <= NAMED else [*names[:NAMED], f"{len(names) - NAMED} more"]
    text = f"{', '.join(others)} and {last}" if others else last
    return f"infra rank{'s' if others else ''} {text}" if has_ranks else text


def _in_order(state: RunState) -> Iterator[KnownNode]:
    for member in state.members.values():
        if member.status is not NodeStatus.DEAD:
            yield member
    for incarnation in state.dead:
        yield state.members[incarnation]
