"""Updates in what is known of a run: totals of the run and of each cycle, and the newest few.

Pure. An update is reported when it is over, so a report may come after its cycle has ended. What is kept is bounded.
"""

from __future__ import annotations

import msgspec

from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.cycle_fold import update_cycle
from ft_rendezvous.state.model.records import RecentUpdate, UpdateTotals
from ft_rendezvous.state.model.run_state import RunState

TROUBLED_KEPT = 20
"""Updates that failed or were retried. Plain ones, of which there may be many more, do not push them out."""
PLAIN_KEPT = 10


def count_updates(state: RunState, time_ns: int, entry: journal.UpdatesReported) -> None:
    """Take in what a node has passed on."""
    state.updates = _add(state.updates, entry)
    cycle = state.find_cycle(entry.cycle_id)
    if cycle is not None:
        update_cycle(state, entry.cycle_id, updates=_add(cycle.updates or UpdateTotals(), entry))
    for update in make_recent(entry, time_ns):
        _keep(state.recent_updates, update)


def make_recent(entry: journal.UpdatesReported, time_ns: int) -> list[RecentUpdate]:
    """The updates that an entry tells singly."""
    return [
        RecentUpdate(time_ns=time_ns, cycle_id=entry.cycle_id, node=entry.node, **msgspec.structs.asdict(told))
        for told in entry.told
    ]


def _add(totals: UpdateTotals, entry: journal.UpdatesReported) -> UpdateTotals:
    return UpdateTotals(
        updates=totals.updates + entry.updates,
        failed=totals.failed + entry.failed,
        retried=totals.retried + entry.retried,
        spent_s=totals.spent_s + entry.spent_s,
        lost_s=totals.lost_s + entry.lost_s,
    )


def _keep(recent: list[RecentUpdate], update: RecentUpdate) -> None:
    recent.append(update)
    alike = [index for index, each in enumerate(recent) if each.is_plain is update.is_plain]
    if len(alike) > (PLAIN_KEPT if update.is_plain else TROUBLED_KEPT):
        del recent[alike[0]]
