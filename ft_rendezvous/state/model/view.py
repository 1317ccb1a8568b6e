"""A state as records for people and programs, as of a given time.

Pure: the time is an argument. The records are copies that no later event changes.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ft_rendezvous.core.model import group_names
from ft_rendezvous.state.model.records import (
    Cycle,
    CycleStatus,
    Group,
    GroupStatus,
    Lost,
    Node,
    NodeKind,
    NodeRole,
    NodeStatus,
    Run,
    RunStatus,
    SlowRank,
)
from ft_rendezvous.state.model.run_state import NS, KnownGroup, KnownNode, RunState
from ft_rendezvous.state.model.time_account import cause_of_pause, count_groups, find_pauses
from ft_rendezvous.text import NAMED, count

SLOWEST_SHOWN = 5
"""How many of the slowest ranks are named."""


def view_run(state: RunState, now_ns: int) -> Run | None:
    """The run; None before anything is known of it."""
    began = state.began
    if began is None:
        return None
    cycle = state.cycle
    passed_ns, sharing = max(0, now_ns - state.counted_ns), max(1, count_groups(state))
    training = sum(group.whole_since_ns is not None for group in state.groups.values())
    lost = {cause: Lost(times=each.times, seconds=each.lost_ns / NS) for cause, each in state.lost.items()}
    for pause in find_pauses(state):
        pause_ns = sum(group.pause_ns for group in pause) + len(pause) * passed_ns / sharing
        if pause_ns:
            known = lost.get(cause_of_pause(pause), Lost(times=0, seconds=0.0))
            lost[cause_of_pause(pause)] = Lost(times=known.times + 1, seconds=known.seconds + pause_ns / NS)
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
        groups=tuple(view_groups(state, now_ns)),
        wanted=wanted_of(state),
        live=state.live,
        nodes=count_nodes(state),
        lost=lost,
        lost_s=sum(each.seconds for each in lost.values()),
        trained_s=(state.trained_ns + training * passed_ns / sharing) / NS,
        operations=state.operations,
        oldest_lease_s=state.oldest_lease_s,
        slowest=tuple(_find_slowest(state)),
        late_after_s=state.late_after_s,
        refused_records=state.refused_records,
        updates=state.updates,
        recent_updates=tuple(state.recent_updates),
    )


def _find_slowest(state: RunState) -> Iterator[SlowRank]:
    """Of each node that trains, the slowest rank; of those, the ones that wait for longest."""
    found = [
        SlowRank(
            rank=member.slowest_rank,
            group=member.group if state.has_groups else None,
            incarnation=member.incarnation,
            node=member.name,
            step=member.step,
            last_progress_ns=member.progress_ns,
        )
        for member in state.members.values()
        if member.progress_ns is not None and member.slowest_rank is not None and is_training(member)
    ]
    slowest = sorted(found, key=lambda each: (each.last_progress_ns, each.step or 0, each.group or 0, each.rank))
    yield from slowest[:SLOWEST_SHOWN]


def is_training(member: KnownNode) -> bool:
    """Whether a node has a place in a sealed world, so that progress is expected of it."""
    return member.role is NodeRole.ACTIVE and member.end_ns is None


def view_groups(state: RunState, now_ns: int) -> Iterator[Group]:
    """The replica groups, by number; none in a run without groups."""
    if not state.has_groups:
        return
    live: dict[int, int] = {}
    for member in state.members.values():
        group = None if member.group is None else state.groups.get(member.group)
        if group is not None and member.placed_in == group.world_id and _is_there(member, group):
            live[group.number] = live.get(group.number, 0) + 1
    passed_ns = max(0, now_ns - state.counted_ns)
    for number, group in sorted(state.groups.items()):
        yield Group(
            group=number,
            status=group.status,
            status_detail=_detail_of_group(state, group, now_ns),
            since_ns=group.since_ns,
            cycle_id=group.cycle_id,
            wanted=state.group_size,
            live=live.get(number, 0),
            restarts=group.restarts,
            why_text=group.why_text,
            trained_s=(group.trained_ns + (0 if group.whole_since_ns is None else passed_ns)) / NS,
            lost_s=(group.lost_ns + (0 if group.broken_since_ns is None else passed_ns)) / NS,
        )


def _is_there(member: KnownNode, group: KnownGroup) -> bool:
    """Whether a node of a group's last world trains, has finished, or is back for the next one."""
    if member.role is NodeRole.FINISHED:
        return True
    return member.end_ns is None and (group.status is not GroupStatus.WAITING or member.role is NodeRole.ARRIVED)


def _detail_of_group(state: RunState, group: KnownGroup, now_ns: int) -> str:
    cycle = state.find_cycle(group.cycle_id)
    if group.status is not GroupStatus.WAITING or cycle is None:
        return group.status_detail
    return describe_wait(state, cycle, now_ns)


def view_cycles(state: RunState, now_ns: int) -> list[Cycle]:
    """All cycles that are remembered, oldest first."""
    cycles = list(state.cycles)
    current = {group.cycle_id for group in state.groups.values()} | {cycle.cycle_id for cycle in cycles[-1:]}
    for cycle_id in current:
        cycle = state.find_cycle(cycle_id)
        if cycle is not None and not cycle.is_terminal():
            is_open = cycle.status is CycleStatus.PENDING
            detail = describe_wait(state, cycle, now_ns) if is_open else _describe_training(state, cycle)
            cycles[cycle_id - cycles[0].cycle_id] = msgspec.structs.replace(cycle, status_detail=detail)
    return cycles


def has_open_cycle(state: RunState) -> bool:
    """Whether a cycle waits to be sealed."""
    newest = state.cycle
    if newest is not None and newest.status is CycleStatus.PENDING:
        return True
    return any(group.status is GroupStatus.WAITING for group in state.groups.values())


def _describe_training(state: RunState, cycle: Cycle) -> str:
    if not state.has_groups:
        return state.status_detail
    groups = [group for group in state.groups.values() if group.cycle_id == cycle.cycle_id]
    numbers = sorted(group.number for group in groups if group.status is GroupStatus.RUNNING)
    finished = sorted(group.number for group in groups if group.status is GroupStatus.FINISHED)
    texts = [f"{group_names(numbers)} train{'s' if len(numbers) == 1 else ''} in it"] if numbers else []
    texts += [f"{group_names(finished)} ha{'s' if len(finished) == 1 else 've'} finished"] if finished else []
    return "; ".join(texts)


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
        group=member.group if state.has_groups else None,
        group_rank=member.rank,
        global_ranks=ranks,
        joined_ns=member.joined_ns,
        arrived_in=member.arrived_in,
        arrived_ns=member.arrived_ns,
        last_beat_ns=last_beat_ns,
        step=member.step,
        slowest_rank=member.slowest_rank,
        last_progress_ns=member.progress_ns,
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


def least_of(state: RunState, cycle: Cycle) -> int:
    """How many nodes the seal of a cycle needs at least. After the first seal, some groups may still lack nodes."""
    assert state.began is not None
    if cycle.group is not None:
        return state.group_size
    is_later = state.has_groups and bool(state.groups)
    return int(state.began.settings.get("min_groups", "1")) * state.group_size if is_later else wanted_of(state)


def describe_wait(state: RunState, cycle: Cycle, now_ns: int) -> str:
    """Why an open cycle is not sealed yet: which nodes are missing, and since when."""
    wanted = least_of(state, cycle)
    waits = state.waits if cycle.group is None else state.groups[cycle.group].waits
    if cycle.arrived >= wanted:
        return waits or "about to be sealed"
    absent: dict[str, list[KnownNode]] = {}
    for member in _missing(state, cycle):
        absent.setdefault(_describe_absence(member, now_ns), []).append(member)
    named = "; ".join(f"{_join_names(members)}, {absence}" for absence, members in absent.items())
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
        groups=tuple(_view_vanished_group(group) for group in run.groups),
    )


def _view_vanished_group(group: Group) -> Group:
    if group.status not in (GroupStatus.RUNNING, GroupStatus.WAITING):
        return group
    detail = f"before that: {group.status}" + (f", {group.status_detail}" if group.status_detail else "")
    return msgspec.structs.replace(group, status=GroupStatus.ABORTED, status_detail=detail)


def end_last(cycles: list[Cycle], last_seen_ns: int) -> list[Cycle]:
    """The cycles of a run whose coordinator is gone: the current ones are over too."""
    changes = {
        "status": CycleStatus.ABORTED,
        "status_detail": "the coordinator vanished",
        "end_time_ns": last_seen_ns,
    }
    return [cycle if cycle.is_terminal() else msgspec.structs.replace(cycle, **changes) for cycle in cycles]


def _detail_of(state: RunState, now_ns: int) -> str:
    if state.status.is_terminal():
        return state.status_detail
    common = state.find_cycle(state.common_id)
    if common is not None and common.status is CycleStatus.PENDING:
        wait = describe_wait(state, common, now_ns)
        return f"{state.status_detail}; {wait}" if common.cycle_id > 1 else wait
    return _describe_groups(state, now_ns) if state.groups and state.has_groups else state.status_detail


def _describe_groups(state: RunState, now_ns: int) -> str:
    """How many groups train, and what the others wait for."""
    groups = [group for _, group in sorted(state.groups.items()) if group.status is not GroupStatus.DISSOLVED]
    training = [group for group in groups if group.status is GroupStatus.RUNNING]
    finished = [group for group in groups if group.status is GroupStatus.FINISHED]
    waiting = [group for group in groups if group.status is GroupStatus.WAITING]
    of = f" of {len(groups)}" if len(training) < len(groups) else ""
    nodes = len(training) * state.group_size
    trains = f"{count(nodes, 'node')} train{'s' if nodes == 1 else ''}" if training else "no node trains"
    texts = [f"{trains}, in {len(training)}{of} group{'s' if len(groups) != 1 else ''}" if training else trains]
    if finished:
        numbers = [group.number for group in finished]
        texts.append(f"{group_names(numbers)} ha{'s' if len(finished) == 1 else 've'} finished")
    texts += [
        f"group {group.number} restarts, {group.why_text}; {_detail_of_group(state, group, now_ns)}"
        for group in waiting[:NAMED]
    ]
    return "; ".join(texts)


def _missing(state: RunState, cycle: Cycle) -> list[KnownNode]:
    """Nodes of the last world of a group, or of all groups, that are not in this cycle yet; by rank."""
    worlds = {
        group.number: group.world_id
        for group in state.groups.values()
        if cycle.group in (None, group.number) and group.status is not GroupStatus.DISSOLVED
    }
    found = [
        member
        for member in state.members.values()
        if member.group is not None
        and worlds.get(member.group) == member.placed_in
        and member.arrived_in != cycle.cycle_id
    ]
    return sorted(found, key=lambda member: (member.group, member.rank))


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
