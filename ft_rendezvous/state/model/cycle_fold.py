"""Cycles and groups of a run, as its events open, seal and end them.

In a run with replica groups, several cycles are current at once: each group has one. A common cycle is of all groups.
A run without groups is folded as one group that has only common cycles.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.model import (
    AnyWhy,
    GroupForms,
    NodeLeft,
    NodesLost,
    NoGroupTrains,
    Outcome,
    Verdict,
    WorkersFailed,
    WorkersHang,
    WorldGrows,
)
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.records import (
    CYCLE_STATUS_TABLE,
    END_OF_RUN,
    GROUP_STATUS_TABLE,
    RUN_STATUS_TABLE,
    Cycle,
    CycleStatus,
    Failed,
    GroupStatus,
    NodeRole,
    RunStatus,
    step,
    without_ranks,
)
from ft_rendezvous.state.model.run_state import NS, KnownGroup, KnownNode, RunState, cause_of
from ft_rendezvous.state.model.time_account import (
    begin_training,
    charge,
    charge_pause,
    count_time,
    find_pauses,
    leave_count,
    stop_training,
)
from ft_rendezvous.text import count

LEAST_HISTORY = 2
"""The open cycle and the one before it."""
SUMMARIES = 10_000
"""Cycles of which anything is kept."""
TRIM = 1_000
"""How many are forgotten at once, so that it costs nothing on the average."""


def open_cycle(state: RunState, time_ns: int, entry: journal.CycleOpened) -> None:
    assert state.began is not None, "a cycle of a run that never began"
    count_time(state, time_ns)
    why = _reason_to_open(state, entry)
    if entry.group is None:
        previous_id = _open_all(state, time_ns, entry.cycle_id, why)
        _change_roles(state, entry.roles)
    else:
        previous_id = _open_one(state, time_ns, entry.cycle_id, entry.group, why)
        _change_members(state, entry.changed)
    state.cycles.append(
        Cycle(
            run_id=state.began.epoch,
            cycle_id=entry.cycle_id,
            group=entry.group,
            previous_id=previous_id,
            status=CycleStatus.PENDING,
            status_detail="",
            why=why,
            why_text=str(why),
            opened_by=_opener_of(why),
            start_time_ns=time_ns,
        )
    )
    _forget_cycles(state)


def _reason_to_open(state: RunState, entry: journal.CycleOpened) -> AnyWhy:
    """The reason that counts: an open cycle may be opened anew under another number, and its cause was corrected."""
    group = None if entry.group is None else state.groups.get(entry.group)
    before = None if group is None else state.find_cycle(group.cycle_id)
    if before is not None and before.group == entry.group and before.status is CycleStatus.PENDING:
        return before.why
    return entry.why


def _open_all(state: RunState, time_ns: int, cycle_id: int, why: AnyWhy) -> int | None:
    """The current cycles of all groups end. Returns the one before, if there was only one."""
    groups = [group for group in state.groups.values() if group.status is not GroupStatus.DISSOLVED]
    before = {group.cycle_id for group in groups}
    for pause in find_pauses(state):
        # These groups have waited for nodes until now, and did not get them. From here on all groups wait together.
        _charge_cycle(state, pause[0].cycle_id, pause)
    for group in groups:
        _leave_cycle(state, time_ns, group, why)
        _stop_world(state, time_ns, group, cycle_id, why)
    if state.cycles:
        _set_run(state, RunStatus.RESIZING if isinstance(why, WorldGrows) else RunStatus.RESTARTING)
    state.common_id, state.waits, state.status_detail = cycle_id, "", str(why)
    return before.pop() if len(before) == 1 else None


def _open_one(state: RunState, time_ns: int, cycle_id: int, number: int, why: AnyWhy) -> int | None:
    """The current cycle of a group ends for this group, and other groups stay in theirs. Returns the one before."""
    group = state.groups.setdefault(number, KnownGroup(number=number))
    previous_id = None if isinstance(why, GroupForms) else group.cycle_id
    if previous_id is not None:
        _leave_cycle(state, time_ns, group, why)
    _stop_world(state, time_ns, group, cycle_id, why)
    _judge_run(state)
    return previous_id


def _stop_world(state: RunState, time_ns: int, group: KnownGroup, cycle_id: int, why: AnyWhy) -> None:
    """A group waits in a new cycle. It stopped when the first of its lost nodes fell silent.

    That also holds if workers failed because of the loss, and the coordinator read both in one look.
    """
    stop_training(state, group, time_ns - round(group.silent_s * NS))
    group.restarts += group.status in (GroupStatus.RUNNING, GroupStatus.FINISHED)
    group.cycle_id, group.waits = cycle_id, ""
    group.cause, group.why_text = cause_of(why), str(why)
    _set_group(group, GroupStatus.WAITING, time_ns)


def correct_cause(state: RunState, entry: journal.CauseCorrected) -> None:
    """A cycle opened for another cause than the coordinator knew at that time."""
    cycle = state.find_cycle(entry.cycle_id)
    if cycle is None:
        return
    cause = cause_of(entry.why)
    changes: dict[str, object] = {"why": entry.why, "why_text": str(entry.why), "opened_by": _opener_of(entry.why)}
    if cycle.lost_cause and cycle.lost_cause != cause:
        lost_ns = round(cycle.lost_s * NS)
        charge(state, cycle.lost_cause, -lost_ns, times=-1)
        charge(state, cause, lost_ns, times=1)
        changes["lost_cause"] = cause
    update_cycle(state, entry.cycle_id, **changes)
    for group in state.groups.values():
        if group.cycle_id == entry.cycle_id:
            group.cause, group.why_text = cause, str(entry.why)
    # The cycle before ended of this cause, unless it is a common one that other groups have left since.
    before = None if cycle.previous_id is None else state.find_cycle(cycle.previous_id)
    if before is not None and before.status_detail == cycle.why_text:
        update_cycle(state, before.cycle_id, status_detail=str(entry.why))
    if cycle.status is CycleStatus.PENDING and cycle.group is None:
        state.status_detail = str(entry.why)


def note_wait(state: RunState, entry: journal.CycleWaits) -> None:
    if entry.group is None:
        state.waits = entry.reason
    else:
        state.groups[entry.group].waits = entry.reason


def seal_cycle(state: RunState, time_ns: int, entry: journal.CycleSealed) -> None:
    count_time(state, time_ns)
    _change_roles(state, entry.roles)
    _release(state, entry)
    waiting = _waiting_in(state, entry.cycle_id)
    _charge_cycle(state, entry.cycle_id, waiting)
    for number, ranks in entry.placement.by_group():
        group = state.groups.setdefault(number, KnownGroup(number=number, why_text=_why_of(state, entry.cycle_id)))
        _seal_group(state, time_ns, group, ranks, entry.cycle_id)
    for group in waiting:
        if group.number not in entry.placement.groups:
            _give_up(group, time_ns, f"there were no nodes for it in cycle {entry.cycle_id}")
    ranks, standbys = entry.placement.ranks, entry.placement.standbys
    if entry.group is None:
        state.waits = ""
        _set_run(state, RunStatus.RUNNING)
        where = count(len(entry.placement.groups), "group") if state.has_groups else f"cycle {entry.cycle_id}"
        state.status_detail = f"{len(ranks)} nodes train in {where}"
    else:
        _judge_run(state)
    cycle = state.find_cycle(entry.cycle_id)
    assert cycle is not None, "a cycle is sealed that never opened"
    update_cycle(
        state,
        entry.cycle_id,
        status=step(CYCLE_STATUS_TABLE, cycle.status, CycleStatus.RUNNING),
        groups=entry.placement.groups if state.has_groups else (),
        seal_time_ns=time_ns,
        time_to_seal_s=entry.waited_s,
        master=entry.master,
        active=len(ranks),
        standby=len(standbys),
        ranks=ranks,
        standbys=standbys,
    )


def _seal_group(state: RunState, time_ns: int, group: KnownGroup, ranks: Sequence[str], cycle_id: int) -> None:
    """Ranks, also those of workers, begin at 0 in each group."""
    first: int | None = 0
    for rank, incarnation in enumerate(ranks):
        member = state.members[incarnation]
        member.role, member.rank, member.first_global_rank = NodeRole.ACTIVE, rank, first
        member.group, member.placed_in = group.number, cycle_id
        first = None if first is None or member.workers is None else first + member.workers
    begin_training(group, time_ns)
    group.cycle_id = group.world_id = cycle_id
    group.sealed_ns, group.unfinished, group.waits = time_ns, len(ranks), ""
    _set_group(group, GroupStatus.RUNNING, time_ns)


def _release(state: RunState, entry: journal.CycleSealed) -> None:
    """Nodes that a seal leaves without a rank are in no group any more."""
    for incarnation in entry.placement.standbys:
        member = state.members[incarnation]
        member.rank, member.first_global_rank = None, None
    if entry.group is not None:
        _change_members(state, entry.changed, is_released=True)
    elif state.has_groups:
        for member in state.members.values():
            if member.end_ns is None and member.role in (NodeRole.STANDBY, NodeRole.HOT_SPARE):
                member.group, member.rank, member.first_global_rank = None, None, None


def dissolve_group(state: RunState, time_ns: int, entry: journal.GroupDissolved) -> None:
    count_time(state, time_ns)
    group = state.groups[entry.group]
    _charge_cycle(state, entry.cycle_id, [group])
    _end_cycle(state, time_ns, entry.cycle_id, CycleStatus.ABORTED, f"group {entry.group} dissolved: {entry.reason}")
    _change_members(state, entry.changed, is_released=True)
    _give_up(group, time_ns, entry.reason)
    _judge_run(state)


def settle_cycle(state: RunState, time_ns: int, entry: journal.CycleSettled) -> None:
    """Groups that were in one common cycle are settled one by one: the first failure counts."""
    cycle = state.find_cycle(entry.cycle_id)
    if entry.first is not None and cycle is not None and cycle.first_failure is None:
        first = describe_failure(time_ns, entry.first)
        update_cycle(state, entry.cycle_id, first_failure=first, first_failure_node=entry.first.node)


def count_finished(state: RunState, time_ns: int, member: KnownNode) -> None:
    """A node has finished, and with the last of its nodes its group."""
    group = find_home(state, member)
    if group is not None:
        group.unfinished -= 1
        if group.unfinished == 0 and group.status is GroupStatus.RUNNING:
            _set_group(group, GroupStatus.FINISHED, time_ns)
            _judge_run(state)


def end_cycles(state: RunState, time_ns: int, verdict: Verdict) -> None:
    """The run is over, and with it all cycles and groups."""
    count_time(state, time_ns)
    for pause in find_pauses(state):
        charge_pause(state, pause)
    status = CycleStatus(END_OF_RUN[verdict.kind].value)
    for cycle in _current_cycles(state):
        # A cycle that is open when the run has succeeded was not needed: the world before it had ended well.
        is_needless = status is CycleStatus.FINISHED and cycle.status is CycleStatus.PENDING
        after = CycleStatus.ABORTED if is_needless else status
        _end_cycle(state, time_ns, cycle.cycle_id, after, str(verdict))
    for group in state.groups.values():
        leave_count(group)
        if group.status not in (GroupStatus.DISSOLVED, GroupStatus.FINISHED):
            _set_group(group, GroupStatus(status.value), time_ns)


# --- parts ----------------------------------------------------------------------------------------------


def _change_roles(state: RunState, roles: Mapping[Role, Role]) -> None:
    """What all live nodes are from now on, by what they were."""
    after = {NodeRole(before): NodeRole(role) for before, role in roles.items()}
    for member in state.members.values():
        if member.end_ns is None:
            member.role = after.get(member.role, member.role)


def _change_members(state: RunState, changed: Mapping[str, Role], is_released: bool = False) -> None:
    """What single nodes are from now on. `is_released`: they are in no group any more."""
    for incarnation, role in changed.items():
        member = state.members[incarnation]
        member.role = NodeRole(role)
        if is_released:
            member.group, member.rank, member.first_global_rank = None, None, None


def count_arrived(state: RunState, cycle_id: int, number: int) -> None:
    cycle = state.find_cycle(cycle_id)
    assert cycle is not None, "a node arrives in a cycle that never opened"
    update_cycle(state, cycle_id, arrived=cycle.arrived + number)


def find_open_cycle(state: RunState, member: KnownNode) -> int:
    """The cycle that a node arrives in: the common one if it is open, else that of its group."""
    common = state.find_cycle(state.common_id)
    if common is not None and common.status is CycleStatus.PENDING:
        return state.common_id
    group = find_home(state, member)
    return state.common_id if group is None else group.cycle_id


def find_home(state: RunState, member: KnownNode) -> KnownGroup | None:
    """The group in whose last world a node is; None if it is in none."""
    group = None if member.group is None else state.groups.get(member.group)
    return group if group is not None and group.world_id == member.placed_in else None


def _current_cycles(state: RunState) -> list[Cycle]:
    ids = {group.cycle_id for group in state.groups.values()} | {cycle.cycle_id for cycle in state.cycles[-1:]}
    return [cycle for cycle in map(state.find_cycle, sorted(ids)) if cycle is not None]


def _charge_cycle(state: RunState, cycle_id: int, groups: Sequence[KnownGroup]) -> None:
    """Charge the pause of groups that wait in this cycle, and note it there."""
    stop_ns, lost_ns, cause = charge_pause(state, groups)
    update_cycle(state, cycle_id, stop_time_ns=stop_ns, lost_s=lost_ns / NS, lost_cause=cause)


def _waiting_in(state: RunState, cycle_id: int) -> list[KnownGroup]:
    groups = state.groups.values()
    return [group for group in groups if group.cycle_id == cycle_id and group.status is GroupStatus.WAITING]


def _set_group(group: KnownGroup, status: GroupStatus, time_ns: int) -> None:
    if status is not group.status or not group.since_ns:
        group.since_ns = time_ns
    group.status, group.status_detail = step(GROUP_STATUS_TABLE, group.status, status), ""


def _give_up(group: KnownGroup, time_ns: int, reason: str) -> None:
    leave_count(group)
    _set_group(group, GroupStatus.DISSOLVED, time_ns)
    group.status_detail = reason


def _set_run(state: RunState, status: RunStatus) -> None:
    if status is not state.status:
        state.status = step(RUN_STATUS_TABLE, state.status, status)


def _judge_run(state: RunState) -> None:
    """A run with groups runs as long as one of them trains."""
    statuses = {group.status for group in state.groups.values()}
    if GroupStatus.RUNNING in statuses:
        _set_run(state, RunStatus.RUNNING)
    elif GroupStatus.WAITING in statuses:
        _set_run(state, RunStatus.RESTARTING)


def _why_of(state: RunState, cycle_id: int) -> str:
    cycle = state.find_cycle(cycle_id)
    return "" if cycle is None else cycle.why_text


def _opener_of(why: AnyWhy) -> str:
    match why:
        case WorkersFailed() | WorkersHang() | NodeLeft():
            return why.node
        case NodesLost():
            return ", ".join(why.nodes)
    return getattr(why, "by", "the coordinator")


def _leave_cycle(state: RunState, time_ns: int, group: KnownGroup, why: AnyWhy) -> None:
    """A cycle is over for one group. A common cycle ends with the last of its groups, as badly as the worst of them."""
    cycle = state.find_cycle(group.cycle_id)
    if cycle is None or cycle.is_terminal():
        return
    left = {**cycle.left, group.number: _status_after(cycle, group, why)}
    if len(cycle.groups) > 1:
        update_cycle(state, cycle.cycle_id, left=left)
    others = (each for each in state.groups.values() if each is not group and each.cycle_id == cycle.cycle_id)
    if all(each.status is GroupStatus.DISSOLVED for each in others):
        _end_cycle(state, time_ns, cycle.cycle_id, max(left.values(), key=_BADNESS.index), str(why))


_BADNESS = (CycleStatus.FINISHED, CycleStatus.ABORTED, CycleStatus.ERRORED)


def _status_after(cycle: Cycle, group: KnownGroup, why: AnyWhy) -> CycleStatus:
    """How a cycle has ended for a group whose next one opens for this reason. An open one has not failed."""
    if group.status is GroupStatus.FINISHED:
        return CycleStatus.FINISHED
    is_left_failed = isinstance(why, NodeLeft) and why.outcome is Outcome.FAILED
    is_error = isinstance(why, WorkersFailed | WorkersHang | NodesLost | NoGroupTrains) or is_left_failed
    return CycleStatus.ERRORED if is_error and cycle.status is CycleStatus.RUNNING else CycleStatus.ABORTED


def _end_cycle(state: RunState, time_ns: int, cycle_id: int, status: CycleStatus, detail: str) -> None:
    """A cycle is over for all groups that are in it."""
    cycle = state.find_cycle(cycle_id)
    if cycle is not None and not cycle.is_terminal():
        after = step(CYCLE_STATUS_TABLE, cycle.status, status)
        update_cycle(state, cycle_id, status=after, status_detail=detail, end_time_ns=time_ns)


def update_cycle(state: RunState, cycle_id: int, **changes: object) -> None:
    cycle = state.find_cycle(cycle_id)
    if cycle is not None:
        state.cycles[cycle_id - state.cycles[0].cycle_id] = msgspec.structs.replace(cycle, **changes)


def _forget_cycles(state: RunState) -> None:
    old = len(state.cycles) - 1 - max(state.history, LEAST_HISTORY)
    if old >= 0:
        state.cycles[old] = without_ranks(state.cycles[old])
    if len(state.cycles) >= SUMMARIES + TRIM:
        del state.cycles[:TRIM]


def describe_failure(time_ns: int, note: FailureNote) -> Failed:
    return Failed(
        cycle_id=note.cycle_id,
        time_ns=time_ns,
        rank=note.rank,
        exit_code=note.exit_code,
        error=note.reason if ": " in note.reason or not note.last_words else f"{note.reason}: {note.last_words}",
        after_s=note.after_s,
        log_path=note.log_path,
    )
