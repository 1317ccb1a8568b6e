"""Where the time of a run went: which groups trained, which did not, and what that is charged to.

Pure. A run without groups has one, and its time is the run's. Of N groups, each has the N-th part of the run's time:
so time trained and time lost add up to the time since the first seal. A group that has finished counts as one that
trains, because nothing is lost there. A group that was dissolved does not count.
"""

from __future__ import annotations

from collections.abc import Sequence

from ft_rendezvous.state.model.run_state import NODES_LOST, KnownGroup, LostTime, RunState


def count_time(state: RunState, time_ns: int) -> None:
    """Give the time that has passed to the groups and the run. Called before a group begins, stops, or is given up."""
    passed_ns, number = max(0, time_ns - state.counted_ns), count_groups(state)
    for group in state.groups.values():
        if group.whole_since_ns is not None:
            group.trained_ns += passed_ns
            state.trained_ns += passed_ns // number
        elif group.broken_since_ns is not None:
            group.lost_ns += passed_ns
            group.pause_ns += passed_ns // number
    state.counted_ns = max(state.counted_ns, time_ns)


def count_groups(state: RunState) -> int:
    """How many groups share the run's time now."""
    return sum(group.is_counted for group in state.groups.values())


def begin_training(group: KnownGroup, time_ns: int) -> None:
    """A group is sealed. Its pause, if there was one, has been charged."""
    group.whole_since_ns, group.broken_since_ns, group.pause_ns = time_ns, None, 0
    group.has_lost, group.silent_s = False, 0.0


def stop_training(state: RunState, group: KnownGroup, time_ns: int) -> None:
    """A group's world has not been whole since this time. It may have been counted as training since."""
    if group.whole_since_ns is not None:
        stopped_ns = max(time_ns, group.whole_since_ns)
        group.whole_since_ns, group.broken_since_ns = None, stopped_ns
        _move_to_pause(state, group, state.counted_ns - stopped_ns)


def stop_earlier(state: RunState, group: KnownGroup, time_ns: int) -> None:
    """It turns out that a world was broken before its workers noticed."""
    if group.broken_since_ns is not None:
        stopped_ns = max(group.sealed_ns, min(time_ns, group.broken_since_ns))
        _move_to_pause(state, group, group.broken_since_ns - stopped_ns)
        group.broken_since_ns = stopped_ns


def leave_count(group: KnownGroup) -> None:
    """A group is no more, or the run is over: no time is its time any more."""
    group.whole_since_ns, group.broken_since_ns, group.pause_ns = None, None, 0
    group.has_lost, group.silent_s = False, 0.0


def charge_pause(state: RunState, groups: Sequence[KnownGroup]) -> tuple[int | None, int, str]:
    """Charge the pause of groups that share a cycle to what opened it. A new one begins.

    Returns when the first of them stopped, what the run has lost, and the cause; None, 0 and "" if all trained.
    """
    broken = [group for group in groups if group.broken_since_ns is not None]
    if not broken:
        return None, 0, ""
    stop_ns = min(group.broken_since_ns or 0 for group in broken)
    lost_ns, cause = sum(group.pause_ns for group in broken), cause_of_pause(broken)
    charge(state, cause, lost_ns, times=1)
    for group in broken:
        group.broken_since_ns, group.pause_ns = state.counted_ns, 0
        group.has_lost, group.silent_s = False, 0.0
    return stop_ns, lost_ns, cause


def charge(state: RunState, cause: str, lost_ns: int, times: int) -> None:
    before = state.lost.get(cause, LostTime())
    after = LostTime(times=before.times + times, lost_ns=before.lost_ns + lost_ns)
    if after.times:
        state.lost[cause] = after
    else:
        del state.lost[cause]


def cause_of_pause(groups: Sequence[KnownGroup]) -> str:
    """Why groups that share a cycle do not train.

    Workers fail because of a lost peer before its lease is over: then the loss is the cause.
    """
    return NODES_LOST if any(group.has_lost for group in groups) else groups[0].cause


def find_pauses(state: RunState) -> list[list[KnownGroup]]:
    """The groups that do not train, together where they share a cycle."""
    found: dict[int, list[KnownGroup]] = {}
    for group in state.groups.values():
        if group.broken_since_ns is not None:
            found.setdefault(group.cycle_id, []).append(group)
    return list(found.values())


def losing_since(state: RunState) -> int | None:
    """Since when no group has trained; None while one does, and before the first did."""
    if any(group.whole_since_ns is not None for group in state.groups.values()):
        return None
    broken = [group.broken_since_ns for group in state.groups.values() if group.broken_since_ns is not None]
    return max(broken, default=None)


def _move_to_pause(state: RunState, group: KnownGroup, moved_ns: int) -> None:
    """Time that was counted as trained was lost."""
    if moved_ns > 0:
        share_ns = min(state.trained_ns, moved_ns // count_groups(state))
        group.trained_ns -= moved_ns
        group.lost_ns += moved_ns
        group.pause_ns += share_ns
        state.trained_ns -= share_ns
