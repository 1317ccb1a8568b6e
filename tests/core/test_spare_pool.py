"""What a pool of spares offers to a group is all that the group can use."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.core import groups
from ft_rendezvous.core.capacity import PlacementRules, Spread
from ft_rendezvous.core.group_placement import choose_spares, fill_group
from ft_rendezvous.core.groups import DissolveGroup, GroupRules, GroupsView, GroupView, decide_groups
from ft_rendezvous.core.model import Arrival, NodesLost
from ft_rendezvous.core.spare_pool import SparePool
from tests.core.worlds import by_name, seat

RULES = PlacementRules(min_nodes=4, max_nodes=64, group_size=4)
LOST = NodesLost(("n",), (0,))
domains = st.sampled_from(["a", "b", "c", "d", None])


@st.composite
def losses(draw: st.DrawFn) -> tuple[list[Arrival], dict[str, Arrival], dict[str, Arrival], set[str], PlacementRules]:
    """The last world of a group, its survivors, the nodes that stand by, which of them are parked, and the rules."""
    rules = replace(RULES, segment=draw(st.sampled_from([1, 2, 4])), spread=draw(st.sampled_from(Spread)))
    last = [seat(number, number, draw(domains)) for number in range(4)]
    survivors = by_name(each for each in last if draw(st.booleans()))
    # A node that is back has the infra rank of one that was lost.
    back = [seat(100 + number, number, draw(domains)) for number in range(4) if draw(st.booleans())]
    others = [seat(200 + number, 200 + number, draw(domains)) for number in range(draw(st.integers(0, 24)))]
    spares = by_name(draw(st.permutations([*back, *others])))
    parked = {name for name in spares if draw(st.integers(0, 3)) == 0}
    return last, survivors, spares, parked, rules


@given(loss=losses())
def test_a_group_is_filled_from_the_offer_as_it_would_be_from_all_spares(
    loss: tuple[list[Arrival], dict[str, Arrival], dict[str, Arrival], set[str], PlacementRules],
) -> None:
    last, survivors, spares, parked, rules = loss

    def fill(given_spares: dict[str, Arrival]) -> tuple[str, ...] | None:
        chosen = choose_spares(0, survivors, given_spares, parked, {0: last}, rules)
        return fill_group(0, survivors, chosen, {0: last}, rules)

    by_offer, by_all = fill(SparePool(spares, parked, rules).offer(last)), fill(spares)
    if by_all is None or parked.isdisjoint(by_all):
        assert by_offer == by_all
    else:
        # Where parked nodes are needed, the offer has the fewest: they come last in it.
        assert by_offer is not None
        assert len(parked.intersection(by_offer)) <= len(parked.intersection(by_all))


def test_a_node_is_offered_until_it_is_given() -> None:
    pool = SparePool(by_name(seat(number, number, "a") for number in range(9)), frozenset(), RULES)
    first = list(pool.offer(()))
    pool.take(first[:2])
    assert len(first) == RULES.group_size
    assert list(pool.offer(()))[:2] == first[2:]
    assert len(pool.left) == 7


def lacking(count: int, lost: int, *, with_domains: bool = False) -> GroupsView:
    """One group trains. All others have lost the first of their nodes."""
    worlds = {
        group: [seat(group * 4 + rank, group * 4 + rank, f"d{group}" if with_domains else None) for rank in range(4)]
        for group in range(count)
    }
    views = [
        GroupView(group, is_open=True, opened_at=0.0, why=LOST, survivors=by_name(worlds[group][lost:]))
        for group in range(1, count)
    ]
    return GroupsView(groups=[GroupView(0, is_open=False), *views], worlds=worlds, spares={})


def rules_for(count: int, segment: int = 1) -> GroupRules:
    placement = replace(RULES, min_nodes=4 * count, max_nodes=8 * count, segment=segment)
    return GroupRules(placement, wanted=count, min_groups=1, last_call_s=1.0, settle_s=0, join_s=99.0, lease_s=5.0)


def test_as_few_groups_are_given_up_as_fill_the_others() -> None:
    """Of 64 groups that lack one node each, every fourth is enough; and each group is tried a few times, not 64."""
    with patch.object(groups, "fill_group", wraps=fill_group) as filled:
        plan = decide_groups(lacking(65, 1), 10.0, rules_for(65))
    assert len(plan.steps) == 16
    assert all(isinstance(step, DissolveGroup) for step in plan.steps)
    assert filled.call_count <= 4 * 64


def test_groups_that_no_other_can_fill_are_not_tried_with_each_other() -> None:
    """Segments bind each group to its own domain."""
    with patch.object(groups, "fill_group", wraps=fill_group) as filled:
        plan = decide_groups(lacking(65, 1, with_domains=True), 10.0, rules_for(65, segment=4))
    assert plan.steps == ()
    assert filled.call_count <= 64
