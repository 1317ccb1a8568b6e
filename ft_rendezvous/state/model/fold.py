"""What is known of a run, as a apply_entry over its events.

Pure: no clock, no file. An event costs its own length; the opening and the seal of a cycle, which change what every
node is, cost one step for each node. What a node is, the coordinator says; nothing here works it out. What is kept is
bounded: old cycles are kept as summaries, then not at all, and so are the dead.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.core.effects import FenceCause
from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.model import (
    AnyWhy,
    NodeLeft,
    NodesLost,
    Outcome,
    Verdict,
    WorkersFailed,
    WorldGrows,
)
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.records import (
    CYCLE_STATUS_TABLE,
    END_OF_RUN,
    NODE_STATUS_TABLE,
    RUN_STATUS_TABLE,
    Cycle,
    CycleStatus,
    Failed,
    NodeRole,
    NodeStatus,
    RunStatus,
    step,
    without_ranks,
)
from ft_rendezvous.state.model.run_state import NS, KnownNode, LostTime, RunState, cause_of, cause_of_pause

LEAST_HISTORY = 2
"""The open cycle and the one before it, whose placement says which nodes are missing."""
SUMMARIES = 10_000
"""Cycles of which anything is kept."""
DEAD_KEPT = 10_000
NODE_FAILURES_KEPT = 5
"""Of one node."""
TRIM = 1_000
"""How many are forgotten at once, so that it costs nothing on the average."""


def apply_entry(state: RunState, event_id: int, time_ns: int, entry: journal.Entry) -> None:
    """Take in one more event. Raises ProtocolBug if it cannot follow."""
    _apply(state, time_ns, entry)
    state.event_id, state.time_ns = event_id, time_ns


# --- one event ----------------------------------------------------------------------------------------


def _apply(state: RunState, time_ns: int, entry: journal.Entry) -> None:
    match entry:
        case journal.NodesArrived():
            _arrive(state, time_ns, entry)
        case journal.NodeJoined():
            _join(state, time_ns, entry)
        case journal.Looked():
            state.looked_ns, state.operations, state.oldest_lease_s = time_ns, entry.operations, entry.oldest_s
        case journal.NodesSilent():
            for incarnation, silent_s in entry.silent_s.items():
                member = state.members[incarnation]
                member.status = step(NODE_STATUS_TABLE, member.status, NodeStatus.SUSPECT)
                member.silent_since_ns = time_ns - round(silent_s * NS)
        case journal.NodesHeard():
            for incarnation in entry.incarnations:
                member = state.members[incarnation]
                member.status = step(NODE_STATUS_TABLE, member.status, NodeStatus.ALIVE)
                member.silent_since_ns = None
        case journal.CycleOpened():
            _open(state, time_ns, entry)
        case journal.CauseCorrected():
            _correct_cause(state, entry)
        case journal.CycleWaits():
            state.waits = entry.reason
        case journal.CycleSealed():
            _seal(state, time_ns, entry)
        case journal.CyclePlaced():
            _update_cycle(state, entry.cycle_id, placement=str(entry))
        case journal.CycleCalled():
            _call(state, entry)
        case journal.WorkersEnded():
            _fail(state, time_ns, entry.failure)
        case journal.CycleSettled():
            if entry.first is not None:
                first = _failed(time_ns, entry.first)
                _update_cycle(state, entry.cycle_id, first_failure=first, first_failure_node=entry.first.node)
        case journal.NodeFinished():
            state.members[entry.incarnation].role = NodeRole.FINISHED
        case journal.NodeFenced():
            _fence(state, time_ns, entry)
        case journal.NodeWent():
            _go(state, time_ns, entry)
        case journal.NodeUnhealthy():
            _stay_away(state, time_ns, entry)
        case journal.NodeParked() | journal.NodeUnparked():
            _park(state, entry)
        case journal.RecordRefused():
            state.refused_records += 1
        case journal.RunBegan():
            state.began, state.start_ns = entry, time_ns
        case journal.RunEnded() | journal.HostLeft():
            _end(state, time_ns, entry.verdict)


def _join(state: RunState, time_ns: int, entry: journal.NodeJoined) -> None:
    if state.status is RunStatus.INITIALIZING:
        state.status = step(RUN_STATUS_TABLE, state.status, RunStatus.SCHEDULING)
    state.members[entry.incarnation] = KnownNode(
        incarnation=entry.incarnation,
        name=entry.node,
        addr=entry.addr,
        pid=entry.pid,
        infra_rank=entry.infra_rank,
        domain=entry.domain,
        unit=entry.unit,
        workers=entry.workers,
        joined_ns=time_ns,
    )
    state.live += 1


def _arrive(state: RunState, time_ns: int, entry: journal.NodesArrived) -> None:
    for incarnation in entry.incarnations:
        member = state.members[incarnation]
        member.role, member.arrived_in, member.arrived_ns = NodeRole.ARRIVED, entry.cycle_id, time_ns
    cycle = state.cycles[-1]
    state.cycles[-1] = msgspec.structs.replace(cycle, arrived=cycle.arrived + len(entry.incarnations))


def _open(state: RunState, time_ns: int, entry: journal.CycleOpened) -> None:
    assert state.began is not None, "a cycle of a run that never began"
    if state.cycles:
        # Also if workers failed because of the loss, and the coordinator read both in one look.
        _stop_training(state, time_ns - round(state.silent_s * NS))
        is_error = isinstance(entry.why, WorkersFailed | NodesLost) or (
            isinstance(entry.why, NodeLeft) and entry.why.outcome is Outcome.FAILED
        )
        _end_cycle(state, time_ns, CycleStatus.ERRORED if is_error else CycleStatus.ABORTED, str(entry.why))
        is_growth = isinstance(entry.why, WorldGrows)
        state.status = step(RUN_STATUS_TABLE, state.status, RunStatus.RESIZING if is_growth else RunStatus.RESTARTING)
    state.waits = ""
    state.status_detail = str(entry.why)
    _change_roles(state, entry.roles)
    state.cycles.append(
        Cycle(
            run_id=state.began.epoch,
            cycle_id=entry.cycle_id,
            status=CycleStatus.PENDING,
            status_detail="",
            why=entry.why,
            why_text=str(entry.why),
            opened_by=_opener_of(entry.why),
            start_time_ns=time_ns,
        )
    )
    _forget_cycles(state)


def _correct_cause(state: RunState, entry: journal.CauseCorrected) -> None:
    """A cycle opened for another cause than the coordinator knew at that time."""
    cycle = _find_cycle(state, entry.cycle_id)
    if cycle is None:
        return
    cause = cause_of(entry.why)
    changes: dict[str, object] = {"why": entry.why, "why_text": str(entry.why), "opened_by": _opener_of(entry.why)}
    if cycle.lost_cause and cycle.lost_cause != cause:
        lost_ns = round(cycle.lost_s * NS)
        _charge(state, cycle.lost_cause, -lost_ns, times=-1)
        _charge(state, cause, lost_ns, times=1)
        changes["lost_cause"] = cause
    _update_cycle(state, entry.cycle_id, **changes)
    # The cycle before ended of this cause.
    _update_cycle(state, entry.cycle_id - 1, status_detail=str(entry.why))
    if cycle.status is CycleStatus.PENDING:
        state.status_detail = str(entry.why)


def _seal(state: RunState, time_ns: int, entry: journal.CycleSealed) -> None:
    ranks, standbys = entry.placement.ranks, entry.placement.standbys
    _change_roles(state, entry.roles)
    first: int | None = 0
    for rank, incarnation in enumerate(ranks):
        member = state.members[incarnation]
        member.role, member.rank, member.first_global_rank = NodeRole.ACTIVE, rank, first
        first = None if first is None or member.workers is None else first + member.workers
    for incarnation in standbys:
        member = state.members[incarnation]
        member.rank, member.first_global_rank = None, None
    lost_ns, cause = _account_lost(state, time_ns)
    state.whole_since_ns, state.waits = time_ns, ""
    state.has_lost, state.silent_s = False, 0.0
    state.status = step(RUN_STATUS_TABLE, state.status, RunStatus.RUNNING)
    state.status_detail = f"{len(ranks)} nodes train in cycle {entry.cycle_id}"
    cycle = state.cycles[-1]
    state.cycles[-1] = msgspec.structs.replace(
        cycle,
        status=step(CYCLE_STATUS_TABLE, cycle.status, CycleStatus.RUNNING),
        seal_time_ns=time_ns,
        time_to_seal_s=entry.waited_s,
        lost_s=lost_ns / NS,
        lost_cause=cause,
        master=entry.master,
        active=len(ranks),
        standby=len(standbys),
        ranks=ranks,
        standbys=standbys,
    )


def _fail(state: RunState, time_ns: int, note: FailureNote) -> None:
    member = state.members[note.incarnation]
    member.failure_count += 1
    member.failures = [*member.failures[1 - NODE_FAILURES_KEPT :], _failed(time_ns, note)]
    cycle = _find_cycle(state, note.cycle_id)
    if cycle is not None:
        _update_cycle(state, note.cycle_id, failure_count=cycle.failure_count + 1)


def _fence(state: RunState, time_ns: int, entry: journal.NodeFenced) -> None:
    member = state.members.get(entry.incarnation)
    if member is None:
        return  # It was refused before it was ever a node of the run.
    if entry.cause is FenceCause.LOST:
        member.silent_since_ns = time_ns - round(entry.silent_s * NS)
        # A node that has finished, or has arrived for the next world, broke nothing.
        if member.role in (NodeRole.ACTIVE, NodeRole.AWAITED):
            state.has_lost, state.silent_s = True, max(state.silent_s, entry.silent_s)
            _stopped_earlier(state, member.silent_since_ns)
    role = NodeRole.QUARANTINED if entry.cause is FenceCause.QUARANTINED else member.role
    _end_member(state, time_ns, member, f"{entry.cause}: {entry.reason}", role)


def _go(state: RunState, time_ns: int, entry: journal.NodeWent) -> None:
    member = state.members[entry.incarnation]
    role = NodeRole.DRAINED if entry.outcome is Outcome.DRAINED else NodeRole(entry.role)
    tail = f": {entry.reason}" if entry.reason else ""
    _end_member(state, time_ns, member, f"went, {entry.outcome}{tail}", role)


def _stay_away(state: RunState, time_ns: int, entry: journal.NodeUnhealthy) -> None:
    member = state.members.get(entry.incarnation)
    # It may never have joined. A fenced node may still say that it is unfit.
    if member is not None and member.status is not NodeStatus.DEAD:
        _end_member(state, time_ns, member, f"unfit: {entry.reason}", member.role)


def _call(state: RunState, entry: journal.CycleCalled) -> None:
    for incarnation, role in zip(entry.incarnations, entry.roles, strict=True):
        member = state.members[incarnation]
        _count_out(state, member)
        member.role = NodeRole(role)
        member.is_draining, member.status_detail = True, f"draining: {entry.reason}"


def _park(state: RunState, entry: journal.NodeParked | journal.NodeUnparked) -> None:
    """Say so at the incarnation that was lost, and at each one that came later."""
    member = state.members.get(entry.incarnation)
    if member is None:
        return  # It ended with very many others, and is forgotten.
    text = f"parked: {entry.reason}" if isinstance(entry, journal.NodeParked) else ""
    if member.status is NodeStatus.DEAD:
        member.status_detail = f"{member.status_detail}; {text}"
    elif not member.is_draining:
        member.status_detail = text


def _end(state: RunState, time_ns: int, verdict: Verdict) -> None:
    run_status = END_OF_RUN[verdict.kind]
    cycle_status = CycleStatus(run_status.value)
    if state.whole_since_ns is not None:
        _stop_training(state, time_ns)
        state.broken_since_ns = None
    else:
        _account_lost(state, time_ns)
    if cycle_status is CycleStatus.FINISHED and state.cycles[-1].status is CycleStatus.PENDING:
        cycle_status = CycleStatus.ABORTED  # The world before it had ended well.
    _end_cycle(state, time_ns, cycle_status, str(verdict))
    state.status = step(RUN_STATUS_TABLE, state.status, run_status)
    state.status_detail, state.verdict, state.end_ns, state.waits = verdict.reason, verdict, time_ns, ""


# --- parts ----------------------------------------------------------------------------------------------


def _change_roles(state: RunState, roles: Mapping[Role, Role]) -> None:
    """What all live nodes are from now on, by what they were."""
    after = {NodeRole(before): NodeRole(role) for before, role in roles.items()}
    for member in state.members.values():
        if member.end_ns is None:
            member.role = after.get(member.role, member.role)


def _end_member(state: RunState, time_ns: int, member: KnownNode, detail: str, role: NodeRole) -> None:
    _count_out(state, member)
    member.role = role
    member.status = step(NODE_STATUS_TABLE, member.status, NodeStatus.DEAD)
    member.status_detail, member.end_ns = detail, time_ns
    state.live -= 1
    state.dead.append(member.incarnation)
    if len(state.dead) >= DEAD_KEPT + TRIM:
        for incarnation in state.dead[:TRIM]:
            del state.members[incarnation]
        del state.dead[:TRIM]


def _count_out(state: RunState, member: KnownNode) -> None:
    """A node that leaves the open cycle after its arrival does not count as arrived any more."""
    cycle = state.cycle
    if cycle is not None and cycle.status is CycleStatus.PENDING and member.role is NodeRole.ARRIVED:
        state.cycles[-1] = msgspec.structs.replace(cycle, arrived=cycle.arrived - 1)


def _stop_training(state: RunState, time_ns: int) -> None:
    """The world that trained has not been whole since this time."""
    if state.whole_since_ns is not None:
        stopped_ns = max(time_ns, state.whole_since_ns)
        state.trained_ns += stopped_ns - state.whole_since_ns
        state.whole_since_ns, state.broken_since_ns = None, stopped_ns


def _stopped_earlier(state: RunState, time_ns: int) -> None:
    """It turns out that the world was broken before its workers noticed."""
    seal_ns = state.cycles[-2].seal_time_ns if len(state.cycles) > 1 else None
    if state.broken_since_ns is not None and seal_ns is not None:
        stopped_ns = max(seal_ns, min(time_ns, state.broken_since_ns))
        state.trained_ns -= state.broken_since_ns - stopped_ns
        state.broken_since_ns = stopped_ns


def _account_lost(state: RunState, time_ns: int) -> tuple[int, str]:
    """No node trained until now: charge it to what opened the cycle. Returns how long that was, and the cause."""
    if state.broken_since_ns is None:
        return 0, ""
    lost_ns, state.broken_since_ns = time_ns - state.broken_since_ns, None
    cause = cause_of_pause(state)
    _charge(state, cause, lost_ns, times=1)
    return lost_ns, cause


def _charge(state: RunState, cause: str, lost_ns: int, times: int) -> None:
    before = state.lost.get(cause, LostTime())
    after = LostTime(times=before.times + times, lost_ns=before.lost_ns + lost_ns)
    if after.times:
        state.lost[cause] = after
    else:
        del state.lost[cause]


def _opener_of(why: AnyWhy) -> str:
    match why:
        case WorkersFailed() | NodeLeft():
            return why.node
        case NodesLost():
            return ", ".join(why.nodes)
    return getattr(why, "by", "the coordinator")


def _end_cycle(state: RunState, time_ns: int, status: CycleStatus, detail: str) -> None:
    if state.cycles:
        cycle = state.cycles[-1]
        state.cycles[-1] = msgspec.structs.replace(
            cycle, status=step(CYCLE_STATUS_TABLE, cycle.status, status), status_detail=detail, end_time_ns=time_ns
        )


def _find_cycle(state: RunState, cycle_id: int) -> Cycle | None:
    index = cycle_id - state.cycles[0].cycle_id if state.cycles else -1
    return state.cycles[index] if 0 <= index < len(state.cycles) else None


def _update_cycle(state: RunState, cycle_id: int, **changes: object) -> None:
    cycle = _find_cycle(state, cycle_id)
    if cycle is not None:
        state.cycles[cycle_id - state.cycles[0].cycle_id] = msgspec.structs.replace(cycle, **changes)


def _forget_cycles(state: RunState) -> None:
    old = len(state.cycles) - 1 - max(state.history, LEAST_HISTORY)
    if old >= 0:
        state.cycles[old] = without_ranks(state.cycles[old])
    if len(state.cycles) >= SUMMARIES + TRIM:
        del state.cycles[:TRIM]


def _failed(time_ns: int, note: FailureNote) -> Failed:
    return Failed(
        cycle_id=note.cycle_id,
        time_ns=time_ns,
        rank=note.rank,
        exit_code=note.exit_code,
        error=note.reason if ": " in note.reason or not note.last_words else f"{note.reason}: {note.last_words}",
        after_s=note.after_s,
        log_path=note.log_path,
    )
