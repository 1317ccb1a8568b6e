"""Runs in which nodes are lost again and again: the other guarantees hold, and parked nodes are the last choice."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import pytest

from ft_rendezvous.core import roster as roster_module
from ft_rendezvous.core.capacity import PlacementRules, Policy
from ft_rendezvous.core.next_cycle import Grow
from ft_rendezvous.core.roster import Roster
from tests.sim.checkers import SAFETY
from tests.sim.checkers.ending import converges
from tests.sim.checkers.parking import parked_nodes_are_the_last_choice
from tests.sim.checkers.placement import survivors_keep_their_ranks, worlds_are_of_allowed_size
from tests.sim.world import Result, World

SEEDS = range(60)
VARIANT_SEEDS = range(300)
FOCUS = ("crash", "restart", "pause", "start_another")
ELASTIC = {"policy": Policy.ELASTIC, "grow": Grow.NOW}

OF_ALL_NODES = (worlds_are_of_allowed_size, survivors_keep_their_ranks, converges)
"""They say what holds when no node is parked."""
CHECKS = (*(checker for checker in SAFETY if checker not in OF_ALL_NODES), parked_nodes_are_the_last_choice)


def run(seed: int, **rules: Any) -> tuple[Result, int]:
    """A run with faults, and how often a parked node had arrived when a cycle was sealed."""
    world = World(
        seed, checks=CHECKS, rules={"max_node_losses": 1 + seed % 2, "quarantine_s": 3600.0, **rules}, focus=FOCUS
    )
    result = world.run()
    (checker,) = (one for one in world.eyes.checkers if isinstance(one, parked_nodes_are_the_last_choice))
    return result, checker.parked_seen


@pytest.mark.parametrize(
    "rules",
    [ELASTIC, {**ELASTIC, "segment": 2}, {**ELASTIC, "unit_size": 2}, {"policy": Policy.FIXED}],
    ids=["elastic", "elastic segments", "elastic units", "fixed"],
)
def test_parked_nodes_are_the_last_choice_whatever_goes_wrong(rules: Mapping[str, Any]) -> None:
    parked_seen = 0
    for seed in SEEDS:
        result, seen = run(seed, **rules)
        assert result.violation is None, "\n".join([f"seed {seed}: {result.violation}", *result.transcript])
        parked_seen += seen
    assert parked_seen >= 5, "such runs say nothing"


def all_are_candidates() -> AbstractContextManager[Any]:
    return patch.object(roster_module, "choose_candidates", lambda arrivals, _parked, _rules: arrivals)


def grows_for_parked_nodes() -> AbstractContextManager[Any]:
    def ready_fit(self: Roster, rules: PlacementRules, since: int) -> int:
        return roster_module._fit(self._joinable(since), rules)

    return patch.object(Roster, "ready_fit", ready_fit)


def losses_are_not_counted() -> AbstractContextManager[Any]:
    return patch.object(Roster, "_counts_as_loss", lambda *_: False)


@pytest.mark.parametrize("broken", [all_are_candidates, grows_for_parked_nodes, losses_are_not_counted])
def test_a_broken_choice_is_caught(broken: Any) -> None:
    with broken():
        violations = (run(seed, **ELASTIC)[0].violation for seed in VARIANT_SEEDS)
        found = next((violation for violation in violations if violation is not None), None)
    assert found is not None
    assert found.checker == "parked_nodes_are_the_last_choice"
