"""The run as the server shows it: the folded state, and whether the coordinator is still there."""

from __future__ import annotations

from collections.abc import Hashable

from ft_rendezvous.state.model import view
from ft_rendezvous.state.model.records import Cycle, Run
from ft_rendezvous.state.model.run_state import NS, RunState
from ft_rendezvous.state.web.live_run import LiveRun
from ft_rendezvous.state.web.routes import Health


def see_run(live_run: LiveRun, now_ns: int) -> Run | None:
    """The run. It is over if its coordinator is gone without a verdict."""

    def see(state: RunState) -> Run | None:
        run = view.view_run(state, now_ns)
        if run is not None and has_lost_coordinator(state, live_run.is_ended, now_ns):
            return view.view_vanished(run, state.time_ns)
        return run

    return live_run.read(see)


def see_cycles(live_run: LiveRun, now_ns: int) -> list[Cycle]:
    """Its cycles. Those that are not over are if the coordinator is gone."""

    def see(state: RunState) -> list[Cycle]:
        if has_lost_coordinator(state, live_run.is_ended, now_ns):
            return view.end_last(view.view_cycles(state, state.time_ns), state.time_ns)
        return view.view_cycles(state, now_ns)

    return live_run.read(see)


def has_lost_coordinator(state: RunState, is_ended: bool, now_ns: int) -> bool:
    """Whether the run has not ended and has no coordinator any more."""
    is_open = state.began is not None and not state.status.is_terminal()
    return is_open and (is_ended or view.has_vanished(state, now_ns))


def stamp_run(live_run: LiveRun, now_ns: int) -> Hashable:
    """The same value as long as the run looks the same. A run that is not over looks different every second."""
    is_over = live_run.read(lambda state: state.began is None or state.status.is_terminal())
    return live_run.version, None if is_over else now_ns // NS


def stamp_cycles(live_run: LiveRun, now_ns: int) -> Hashable:
    """The same value as long as the cycles look the same. An open cycle shows how long it has waited."""

    def stamp(state: RunState) -> Hashable:
        if has_lost_coordinator(state, live_run.is_ended, now_ns):
            return "vanished"
        return now_ns // NS if view.has_open_cycle(state) else None

    return live_run.version, live_run.read(stamp)


def see_health(live_run: LiveRun, now_ns: int, followers: int) -> Health:
    def see(state: RunState) -> Health:
        silent_s = max(0, now_ns - state.time_ns) / NS if state.event_id else None
        coordinator = _see_coordinator(state, live_run.is_ended, now_ns)
        is_well = live_run.problem is None and coordinator not in ("silent", "gone")
        return Health(
            status="ok" if is_well else "degraded",
            coordinator=coordinator,
            silent_s=silent_s,
            event_id=state.event_id,
            missed=live_run.missed,
            problem=live_run.problem,
            followers=followers,
        )

    return live_run.read(see)


def _see_coordinator(state: RunState, is_ended: bool, now_ns: int) -> str:
    if state.status.is_terminal():
        return "ended"
    if is_ended:
        return "gone"
    if state.began is None:
        return "unknown"
    return "silent" if view.has_vanished(state, now_ns) else "heard"
