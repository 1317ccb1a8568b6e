"""What is known of a run, as a fold over its events.

Pure: no clock, no file. An event costs its own length; the opening and the seal of a cycle, which change what every
node is, cost one step for each node. What a node is, the coordinator says; nothing here works it out. What is kept is
bounded: old cycles are kept as summaries, then not at all, and so are the dead.

`cycle_fold` has the cycles and the groups, this module the run and its nodes.
"""

from __future__ import annotations

from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.core.effects import FenceCause
from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.model import Outcome, Verdict
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.cycle_fold import (
    correct_cause,
    count_arrived,
    count_finished,
    describe_failure,
    dissolve_group,
    end_cycles,
    find_home,
    find_open_cycle,
    note_wait,
    open_cycle,
    seal_cycle,
    settle_cycle,
    update_cycle,
)
from ft_rendezvous.state.model.records import (
    END_OF_RUN,
    NODE_STATUS_TABLE,
    RUN_STATUS_TABLE,
    CycleStatus,
    NodeRole,
    NodeStatus,
    RunStatus,
    step,
)
from ft_rendezvous.state.model.run_state import NS, KnownNode, RunState
from ft_rendezvous.state.model.time_account import stop_earlier
from ft_rendezvous.state.model.update_fold import count_updates

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
            _look(state, time_ns, entry)
        case journal.NodesSilent():
            for incarnation, silent_s in entry.silent_s.items():
                member = state.members[incarnation]
                member.status = step(NODE_STATUS_TABLE, member.status, NodeStatus.SUSPECT)
                member.silent_since_ns = time_ns - round(silent_s * NS)
        case journal.NodesHeard():
            _hear(state, entry)
        case journal.CycleOpened():
            open_cycle(state, time_ns, entry)
        case journal.CauseCorrected():
            correct_cause(state, entry)
        case journal.CycleWaits():
            note_wait(state, entry)
        case journal.CycleSealed():
            seal_cycle(state, time_ns, entry)
        case journal.GroupDissolved():
            dissolve_group(state, time_ns, entry)
        case journal.CyclePlaced():
            update_cycle(state, entry.cycle_id, placement=str(entry))
        case journal.CycleCalled():
            _call(state, entry)
        case journal.WorkersEnded():
            _fail(state, time_ns, entry.failure)
        case journal.CycleSettled():
            settle_cycle(state, time_ns, entry)
        case journal.NodeFinished():
            _finish(state, time_ns, state.members[entry.incarnation])
        case journal.NodeFenced():
            _fence(state, time_ns, entry)
        case journal.NodeWent():
            _go(state, time_ns, entry)
        case journal.NodeUnhealthy():
            _stay_away(state, time_ns, entry)
        case journal.NodeParked() | journal.NodeUnparked():
            _park(state, entry)
        case journal.UpdatesReported():
            count_updates(state, time_ns, entry)
        case journal.RecordRefused():
            state.refused_records += 1
        case journal.RunBegan():
            state.began, state.start_ns = entry, time_ns
        case journal.RunEnded() | journal.HostLeft():
            _end(state, time_ns, entry.verdict)


def _look(state: RunState, time_ns: int, entry: journal.Looked) -> None:
    state.looked_ns, state.operations, state.oldest_lease_s = time_ns, entry.operations, entry.oldest_s
    state.late_after_s = entry.late_after_s
    if not entry.progress and not state.has_progress:
        return  # As in every run that does not look for hangs.
    state.has_progress = bool(entry.progress)
    for incarnation, member in state.members.items():
        progress = entry.progress.get(incarnation)
        if progress is None and member.role is NodeRole.ACTIVE and member.end_ns is None:
            progress = entry.others
        if progress is not None:
            member.step, member.slowest_rank = progress.step, progress.rank
            member.progress_ns = time_ns - progress.age_s * NS
        elif member.progress_ns is not None:
            # It has a new place, or none. What it had done in the last one is not its progress.
            member.step = member.slowest_rank = member.progress_ns = None


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
    """Nodes of several groups may arrive together: each arrives in the open cycle that concerns it."""
    role, arrived = NodeRole(entry.role), dict[int, int]()
    for incarnation in entry.incarnations:
        member = state.members[incarnation]
        cycle_id = find_open_cycle(state, member) if role is NodeRole.ARRIVED else entry.cycle_id
        member.role, member.arrived_in, member.arrived_ns = role, cycle_id, time_ns
        arrived[cycle_id] = arrived.get(cycle_id, 0) + 1
    if role is NodeRole.ARRIVED:
        for cycle_id, number in arrived.items():
            count_arrived(state, cycle_id, number)


def _hear(state: RunState, entry: journal.NodesHeard) -> None:
    for incarnation in entry.incarnations:
        member = state.members[incarnation]
        member.status = step(NODE_STATUS_TABLE, member.status, NodeStatus.ALIVE)
        member.silent_since_ns = None


def _fail(state: RunState, time_ns: int, note: FailureNote) -> None:
    member = state.members[note.incarnation]
    member.failure_count += 1
    member.failures = [*member.failures[1 - NODE_FAILURES_KEPT :], describe_failure(time_ns, note)]
    cycle = state.find_cycle(note.cycle_id)
    if cycle is not None:
        update_cycle(state, note.cycle_id, failure_count=cycle.failure_count + 1)


def _finish(state: RunState, time_ns: int, member: KnownNode) -> None:
    member.role = NodeRole.FINISHED
    count_finished(state, time_ns, member)


def _fence(state: RunState, time_ns: int, entry: journal.NodeFenced) -> None:
    member = state.members.get(entry.incarnation)
    if member is None:
        return  # It was refused before it was ever a node of the run.
    if entry.cause is FenceCause.LOST:
        member.silent_since_ns = time_ns - round(entry.silent_s * NS)
        # A node that has finished, or has arrived for the next world, broke nothing.
        group = find_home(state, member)
        if group is not None and member.role in (NodeRole.ACTIVE, NodeRole.AWAITED):
            group.has_lost, group.silent_s = True, max(group.silent_s, entry.silent_s)
            stop_earlier(state, group, member.silent_since_ns)
    role = NodeRole.QUARANTINED if entry.cause is FenceCause.QUARANTINED else member.role
    _end_member(state, time_ns, member, f"{entry.cause}: {entry.reason}", role)


def _go(state: RunState, time_ns: int, entry: journal.NodeWent) -> None:
    member = state.members[entry.incarnation]
    if entry.role is Role.FINISHED and member.role is not NodeRole.FINISHED:
        _finish(state, time_ns, member)
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
    end_cycles(state, time_ns, verdict)
    state.status = step(RUN_STATUS_TABLE, state.status, END_OF_RUN[verdict.kind])
    state.status_detail, state.verdict, state.end_ns, state.waits = verdict.reason, verdict, time_ns, ""


# --- parts ----------------------------------------------------------------------------------------------


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
    cycle = state.find_cycle(member.arrived_in)
    if cycle is not None and cycle.status is CycleStatus.PENDING and member.role is NodeRole.ARRIVED:
        count_arrived(state, cycle.cycle_id, -1)
