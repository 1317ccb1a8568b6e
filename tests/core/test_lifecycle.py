"""Both state machines, every pair of them."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import TypeVar

import pytest

from ft_rendezvous.core.lifecycle import (
    ROLE_TABLE,
    RUN_TABLE,
    NodeStep,
    Phase,
    Role,
    RunStep,
    next_phase,
    next_role,
)
from ft_rendezvous.errors import ProtocolBug

State = TypeVar("State")
Step = TypeVar("Step")


@pytest.mark.parametrize(("phase", "step"), list(product(Phase, RunStep)))
def test_a_run_changes_as_the_table_says_or_not_at_all(phase: Phase, step: RunStep) -> None:
    if (phase, step) in RUN_TABLE:
        assert next_phase(phase, step) is RUN_TABLE[phase, step]
    else:
        with pytest.raises(ProtocolBug, match=f"a run that is {phase} cannot {step}"):
            next_phase(phase, step)


@pytest.mark.parametrize(("role", "step"), list(product(Role, NodeStep)))
def test_a_node_changes_as_the_table_says_or_not_at_all(role: Role, step: NodeStep) -> None:
    if (role, step) in ROLE_TABLE:
        assert next_role(role, step) is ROLE_TABLE[role, step]
    else:
        with pytest.raises(ProtocolBug, match=f"a node that is {role} cannot {step}"):
            next_role(role, step)


def reachable(table: Mapping[tuple[State, Step], State], start: State) -> set[State]:
    """Everything a table leads to, the start included."""
    seen, frontier = {start}, [start]
    while frontier:
        here = frontier.pop()
        for (origin, _), target in table.items():
            if origin is here and target not in seen:
                seen.add(target)
                frontier.append(target)
    return seen


def test_every_phase_and_every_role_can_be_reached() -> None:
    assert reachable(RUN_TABLE, Phase.OPEN) == set(Phase)
    assert reachable(ROLE_TABLE, Role.HOT_SPARE) == set(Role)


def test_a_closed_run_stays_closed() -> None:
    assert reachable(RUN_TABLE, Phase.CLOSED) == {Phase.CLOSED}


def test_a_finished_node_never_trains_again() -> None:
    assert reachable(ROLE_TABLE, Role.FINISHED) == {Role.FINISHED}


def test_only_an_arrival_leads_into_a_world() -> None:
    """A standby has arrived, too. With groups, its arrival stands."""
    into_a_world = {(Role.ARRIVED, NodeStep.PLACE), (Role.STANDBY, NodeStep.PLACE)}
    assert {pair for pair, target in ROLE_TABLE.items() if target is Role.ACTIVE} == into_a_world


def test_only_nodes_that_can_have_trained_can_finish() -> None:
    """A hot spare can: a survivor that missed the seal becomes one, and its finish may be read after that."""
    can_finish = {role for role, step in ROLE_TABLE if step is NodeStep.FINISH}
    assert can_finish == {Role.ACTIVE, Role.AWAITED, Role.HOT_SPARE}


def test_a_seal_and_an_opening_find_every_node_in_a_role_that_knows_them() -> None:
    """A seal finds no active and no standby (the opening has moved them), an opening none that has arrived."""
    can_be_sealed = {role for role, step in ROLE_TABLE if step in (NodeStep.PLACE, NodeStep.PASS_OVER)}
    can_be_reopened = {role for role, step in ROLE_TABLE if step is NodeStep.REOPEN}
    after_opening = {target for (_, step), target in ROLE_TABLE.items() if step is NodeStep.REOPEN}
    after_seal = {target for (_, step), target in ROLE_TABLE.items() if step in (NodeStep.PLACE, NodeStep.PASS_OVER)}
    assert after_opening | {Role.ARRIVED} <= can_be_sealed
    assert after_seal <= can_be_reopened
