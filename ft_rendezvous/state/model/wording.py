"""A run in words: a sentence for every event, local times, causes. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.update_notes import ReportedUpdate
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.events import AnyEntry, Event, StateTold
from ft_rendezvous.state.model.records import Cycle, UpdateTotals
from ft_rendezvous.state.model.run_state import NS
from ft_rendezvous.text import clean, count, duration, listing

CAUSE_WORDS = {
    "first": "the beginning",
    "workers_failed": "workers failed",
    "workers_hang": "workers hung",
    "nodes_lost": "nodes lost",
    "node_left": "nodes left",
    "restart_requested": "restarts asked for",
    "nodes_drain": "drains",
    "world_grows": "growing",
    "no_group_trains": "no group trained",
    "group_fails_again": "a group that failed again and again",
    "group_forms": "new groups",
}
"""Why a cycle was opened, by the kind of its cause."""


def describe(event: Event, names: Mapping[str, str] | None = None) -> str:
    """One sentence about an event. `names` has the nodes' names by incarnation, as far as they are known."""
    return clean(_describe(event.event, names or {}))


def names_in(event: Event) -> Iterable[tuple[str, str]]:
    """Incarnations and names that are in an event."""
    match event.event:
        case journal.NodeJoined():
            yield event.event.incarnation, event.event.node
        case StateTold():
            for member in event.event.state.members.values():
                yield member.incarnation, member.name


def _describe(entry: AnyEntry, names: Mapping[str, str]) -> str:
    match entry:
        case journal.RunBegan():
            return f"run {entry.run_id} begins on {entry.host}, for {entry.settings.get('nnodes', 'some')} nodes"
        case journal.Looked():
            return f"{count(entry.live, 'node')} alive, the longest silent for {duration(entry.oldest_s)}"
        case journal.RecordRefused():
            return f"a record was refused: {entry.record.reason}: {entry.record.excerpt}"
        case journal.RunEnded():
            return f"the run ended: {entry.verdict}"
        case journal.HostLeft():
            return "the store host was ended, and the run with it"
        case journal.CycleOpened():
            return f"{_cycle(entry)} opens: {entry.why}"
        case journal.CauseCorrected():
            return f"the cause of cycle {entry.cycle_id} is corrected: {entry.why}"
        case journal.CycleWaits():
            return f"{_cycle(entry)} waits: {entry.reason}"
        case journal.CycleSealed():
            active, standby = len(entry.placement.ranks), len(entry.placement.standbys)
            groups = f" in {len(entry.placement.groups):,} groups" if len(entry.placement.groups) > 1 else ""
            spares = f", {standby:,} stand by" if standby else ""
            return (
                f"{_cycle(entry)} is sealed after {duration(entry.waited_s)}: {count(active, 'node')} "
                f"train{'s' if active == 1 else ''}{groups}{spares}; master {entry.master}"
            )
        case journal.GroupDissolved():
            stands = "stands" if len(entry.changed) == 1 else "stand"
            return f"group {entry.group} is dissolved: {entry.reason}; {count(len(entry.changed), 'node')} {stands} by"
        case journal.CyclePlaced():
            return f"cycle {entry.cycle_id} is placed: {entry}"
        case journal.CycleCalled(nodes=()):
            return f"cycle {entry.cycle_id + 1} is called at the next checkpoint: {entry.reason}"
        case journal.CycleCalled():
            return f"{listing(entry.nodes)} must give up {_places(len(entry.nodes))}: {entry.reason}"
        case journal.CycleSettled() if entry.first is not None:
            return f"cycle {entry.cycle_id} is settled: {entry.failures:,} failed, first {entry.first.node}"
        case journal.CycleSettled():
            tail = f" for {count(entry.failures, 'failure')}" if entry.failures else ""
            return f"cycle {entry.cycle_id} is settled: no node is charged{tail}"
        case journal.NodeJoined():
            where = f", domain {entry.domain}" if entry.domain else ""
            return f"{entry.node} joins{' as a spare' if entry.is_spare else ''}{where}"
        case journal.NodesArrived(role=Role.STANDBY):
            return f"{_who(entry.incarnations, names, 'stands', 'stand')} by for any group"
        case journal.NodesArrived():
            return f"{_who(entry.incarnations, names, 'is', 'are')} ready for cycle {entry.cycle_id}"
        case journal.NodesSilent():
            longest = duration(max(entry.silent_s.values(), default=0.0))
            return f"{_who(entry.silent_s, names, 'has', 'have')} been silent for {longest}"
        case journal.NodesHeard():
            return f"{_who(entry.incarnations, names, 'is', 'are')} heard again"
        case journal.NodeFenced():
            return f"{entry.node} is fenced, {entry.cause}: {entry.reason}"
        case journal.NodeFinished():
            return f"{entry.node} has finished"
        case journal.NodeWent():
            return f"{entry.node} went, {entry.outcome}" + (f": {entry.reason}" if entry.reason else "")
        case journal.NodeUnhealthy():
            return f"{entry.node} is not fit to train: {entry.reason}"
        case journal.NodeParked():
            return f"{entry.node} is parked for {duration(entry.for_s)}: {entry.reason}"
        case journal.NodeUnparked():
            return f"{entry.node} is not parked any more"
        case journal.WorkersEnded():
            failure = entry.failure
            after = "" if failure.after_s is None else f" after {duration(failure.after_s)}"
            log = f" (log: {failure.log_path})" if failure.log_path else ""
            return f"workers failed{after} on {failure}{log}"
        case journal.UpdatesReported():
            return _describe_updates(entry)
        case journal.RankLate():
            return f"rank {entry.rank} on {entry.node} is late: {entry.text}"
        case journal.HangDenied():
            return f"rank {entry.rank} is late, and there is no hang: {entry.reason}"
        case journal.HangFound():
            blamed = f"; {entry.node} is blamed" if entry.node else "; no node is blamed"
            step = "" if entry.step is None else f" at step {entry.step}"
            return f"workers hang{step}: {entry.reason}{blamed}"
        case StateTold():
            state = entry.state
            cycle = f" in cycle {state.cycles[-1].cycle_id}" if state.cycles else ""
            return f"events before this are missing; by now: {state.status}{cycle}, {count(state.live, 'node')} alive"


def _describe_updates(entry: journal.UpdatesReported) -> str:
    """What went wrong first; if nothing did, the newest update."""
    by = f"of cycle {entry.cycle_id} on {entry.node}"
    told = next((each for each in entry.told if entry.is_plain or not each.is_plain), None)
    if entry.updates == 1 and told is not None:
        return f"an update {by}: {told}"
    bad = f", {entry.failed:,} failed, {entry.retried:,} retried, {duration(entry.lost_s)} lost"
    what = "the newest" if entry.is_plain else "first"
    return f"{count(entry.updates, 'update')} {by} in {duration(entry.spent_s)}{'' if entry.is_plain else bad}" + (
        "" if told is None else f"; {what}: {told}"
    )


def _cycle(entry: journal.CycleOpened | journal.CycleWaits | journal.CycleSealed) -> str:
    return f"cycle {entry.cycle_id}" if entry.group is None else f"cycle {entry.cycle_id} of group {entry.group}"


def _who(incarnations: Iterable[str], names: Mapping[str, str], one: str, many: str) -> str:
    known = [names.get(each, each) for each in incarnations]
    return f"{known[0]} {one}" if len(known) == 1 else f"{count(len(known), 'node')} ({listing(known)}) {many}"


def _places(number: int) -> str:
    return "its place" if number == 1 else "their places"


def name_group(cycle: Cycle) -> str:
    """The group that a cycle is of, in a run with groups."""
    return "all" if cycle.group is None else str(cycle.group)


def list_steps(update: ReportedUpdate) -> str:
    """`pause 12 ms, transfer 1.2 s`."""
    return ", ".join(f"{step.name} {duration(step.duration_s)}" for step in update.steps)


def sum_up_updates(totals: UpdateTotals) -> str:
    """All updates in one line."""
    bad = f", {totals.failed:,} failed, {totals.retried:,} retried" if totals.failed or totals.retried else ""
    lost = f", of that {duration(totals.lost_s)} in attempts that failed" if totals.lost_s else ""
    return f"{totals.updates:,} in {duration(totals.spent_s)}{lost}{bad}"


# --- amounts --------------------------------------------------------------------------------------------


def local_time(time_ns: int, form: str = "%Y-%m-%d %H:%M:%S") -> str:
    try:
        return datetime.fromtimestamp(time_ns / NS).strftime(form)
    except (OverflowError, ValueError, OSError):
        return f"{time_ns} ns"  # A damaged log may say anything.


def cause_in_words(cause: str) -> str:
    return CAUSE_WORDS.get(cause, cause.replace("_", " "))
