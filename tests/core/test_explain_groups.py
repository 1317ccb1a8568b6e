"""What becomes of groups after a loss: the same steps as the coordinator's, and a sentence that says so."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from ft_rendezvous.core.capacity import PlacementRules, Policy
from ft_rendezvous.core.explain_groups import (
    GroupedNodes,
    GroupRulebook,
    GroupsOutlook,
    after_placement,
    explain_losses,
    foresee_groups,
    tell_cost,
)
from ft_rendezvous.core.groups import GroupRules
from tests.core.build import arrivals, incarnation

SIZE = 2


def rulebook(wanted: int = 3, min_groups: int = 1, policy: Policy = Policy.FIXED) -> GroupRulebook:
    rules = PlacementRules(min_nodes=wanted * SIZE, max_nodes=20, group_size=SIZE, policy=policy)
    later = PlacementRules(
        min_nodes=min_groups * SIZE, max_nodes=20, largest=wanted * SIZE, group_size=SIZE, policy=Policy.ELASTIC
    )
    single = GroupRules(
        placement=rules, wanted=wanted, min_groups=min_groups, last_call_s=0, settle_s=0, join_s=0, lease_s=0
    )
    return GroupRulebook(single, later)


def placed(nodes: int, rules: GroupRulebook) -> tuple[GroupedNodes, GroupsOutlook]:
    """So many nodes in their first world."""
    arrived = GroupedNodes(arrivals(range(nodes)), {})
    outlook = foresee_groups(arrived, rules)
    return after_placement(arrived, outlook), outlook


def lose(nodes: int, numbers: Sequence[int], rules: GroupRulebook | None = None) -> tuple[GroupsOutlook, str]:
    rules = rules or rulebook()
    now, outlook = placed(nodes, rules)
    after = foresee_groups(now, rules, {incarnation(number) for number in numbers})
    return after, tell_cost(outlook, after)


def test_the_first_world_has_all_groups() -> None:
    _, outlook = placed(7, rulebook())
    assert {group: [seat.incarnation for seat in seats] for group, seats in outlook.worlds.items()} == {
        group: [incarnation(2 * group), incarnation(2 * group + 1)] for group in range(3)
    }
    assert (outlook.trains, outlook.spares) == (6, 1)


def test_too_few_nodes_for_the_first_world() -> None:
    outlook = foresee_groups(GroupedNodes(arrivals(range(5)), {}), rulebook())
    assert str(outlook.lack) == "5 of 6 nodes have arrived"
    assert outlook.worlds == {}


@pytest.mark.parametrize(
    ("nodes", "lost", "cost"),
    [
        pytest.param(
            7, [2], "group 1 restarts; host6 pid 106 takes the place; the others train on", id="a spare takes the place"
        ),
        pytest.param(
            6,
            [2],
            "group 1 waits: 1 of 2 nodes have arrived; missing: host2 pid 102 (rank 0); the others train on",
            id="no spare",
        ),
        pytest.param(7, [6], "no group restarts", id="a spare is lost"),
        pytest.param(
            6,
            [0, 2],
            "group 0 restarts; host3 pid 103 takes the place; group 1 is dissolved: group 0 needs its nodes, and no "
            "others come; group 2 trains on",
            id="two groups lack a node",
        ),
        pytest.param(
            8,
            [0, 1],
            "group 0 restarts; host6 pid 106, host7 pid 107 take the place; the others train on",
            id="a whole group is replaced",
        ),
    ],
)
def test_what_a_loss_costs(nodes: int, lost: list[int], cost: str) -> None:
    assert lose(nodes, lost)[1] == cost


def test_if_no_group_trains_any_more_all_restart_together() -> None:
    after, cost = lose(7, [0, 2, 4])
    assert cost.startswith("all groups restart together: no group trains any more: groups 0, 1, 2 ended")
    assert cost.endswith("; without group 2")
    assert sorted(after.worlds) == [0, 1]


def test_too_few_nodes_for_any_group() -> None:
    assert lose(6, [0, 1, 2, 3, 4])[1] == "the run waits: 1 of 2 nodes have arrived"


def test_groups_to_which_the_same_happens_share_a_line() -> None:
    now, outlook = placed(7, rulebook())
    assert list(explain_losses(now, outlook, rulebook())) == [
        "losing a node of groups 0, 1, 2: it restarts; host6 pid 106 takes the place; the others train on"
    ]
    now, outlook = placed(6, rulebook())
    assert list(explain_losses(now, outlook, rulebook())) == [
        "losing a node of groups 0, 1, 2: it waits: no spare can take the place; the others train on"
    ]


def test_a_group_that_has_finished_loses_nothing() -> None:
    now, outlook = placed(6, rulebook())
    finished = {incarnation(2), incarnation(3)}
    here = {name: each for name, each in now.arrived.items() if name not in finished}
    nodes = GroupedNodes(here, now.worlds, finished)
    outlook = foresee_groups(nodes, rulebook())
    assert (outlook.waits, outlook.restarts) == ({}, ())
    assert list(explain_losses(nodes, outlook, rulebook())) == [
        "losing a node of groups 0, 2: it waits: no spare can take the place; the others train on"
    ]


def test_spares_form_a_group_that_is_wanted() -> None:
    rules = rulebook(wanted=2)
    now, _ = placed(4, rules)
    more = GroupedNodes(arrivals(range(6)), now.worlds)
    outlook = foresee_groups(more, rulebook(wanted=3))
    assert outlook.formed == (2,)
    assert outlook.trains == 6
