"""The guarantees of PROTOCOL.md, each a class of exactly its name.

Every checker sees the run from outside: what the server performed, what agents did, true time. None of them asks
the coordinator what it thinks. Each keeps only what it needs to judge the next sighting, so that all of them run
after every step.
"""

from __future__ import annotations

from tests.sim.checkers.authority import (
    cycle_ids_are_monotonic,
    drained_are_not_placed,
    one_placement_per_cycle,
    one_verdict,
    ranks_are_exact,
    success_is_earned,
)
from tests.sim.checkers.base import Checker, Violation, event_number
from tests.sim.checkers.blame import charges_are_just, quarantined_are_not_placed
from tests.sim.checkers.bounded import one_long_cycle_is_bounded
from tests.sim.checkers.closes import every_close_is_justified, the_host_stays_while_needed
from tests.sim.checkers.connections import (
    nobody_gives_up_on_a_live_store,
    nobody_waits_for_a_deleted_event,
    resets_cost_nothing,
    worker_stores_are_new,
)
from tests.sim.checkers.ending import converges, nothing_throws
from tests.sim.checkers.groups import (
    groups_restart_for_their_own_sake,
    nodes_are_in_one_group,
    other_groups_train_on,
    restarts_of_a_group_are_bounded,
)
from tests.sim.checkers.hangs import hangs_are_judged_rightly
from tests.sim.checkers.leases import (
    fenced_nodes_stop,
    no_dead_incarnation_placed,
    no_live_node_is_dropped,
    nobody_trains_after_moving_on,
)
from tests.sim.checkers.lifelines import a_hang_up_alone_drops_no_node, the_dead_get_no_rank
from tests.sim.checkers.placement import (
    blocks_belong_together,
    survivors_keep_their_ranks,
    worlds_are_of_allowed_size,
    worlds_grow_for_a_reason,
)
from tests.sim.checkers.store import keys_are_bounded, nothing_said_is_lost
from tests.sim.checkers.updates import updates_are_journaled_once
from tests.sim.checkers.workers import ended_workers_are_seen, workers_keep_to_their_cycle

ALL: tuple[type[Checker], ...] = (
    one_placement_per_cycle,
    ranks_are_exact,
    nobody_trains_after_moving_on,
    no_dead_incarnation_placed,
    fenced_nodes_stop,
    cycle_ids_are_monotonic,
    one_verdict,
    success_is_earned,
    every_close_is_justified,
    charges_are_just,
    quarantined_are_not_placed,
    the_host_stays_while_needed,
    drained_are_not_placed,
    blocks_belong_together,
    worlds_are_of_allowed_size,
    worlds_grow_for_a_reason,
    survivors_keep_their_ranks,
    groups_restart_for_their_own_sake,
    other_groups_train_on,
    nodes_are_in_one_group,
    restarts_of_a_group_are_bounded,
    no_live_node_is_dropped,
    a_hang_up_alone_drops_no_node,
    the_dead_get_no_rank,
    nobody_waits_for_a_deleted_event,
    nobody_gives_up_on_a_live_store,
    resets_cost_nothing,
    worker_stores_are_new,
    ended_workers_are_seen,
    hangs_are_judged_rightly,
    workers_keep_to_their_cycle,
    keys_are_bounded,
    one_long_cycle_is_bounded,
    nothing_said_is_lost,
    updates_are_journaled_once,
    nothing_throws,
    converges,
)

SAFETY = tuple(checker for checker in ALL if checker is not converges)
"""What must hold whatever goes wrong."""

__all__ = ["ALL", "SAFETY", "Checker", "Violation", "event_number"]
