"""What is forgotten, in which order, and that a forgotten incarnation cannot come back."""

from __future__ import annotations

import pytest

from ft_rendezvous.core import recent
from ft_rendezvous.core.model import Finish, Request, RequestKind
from ft_rendezvous.core.recent import RecentNames, RecentNumbers
from tests.core.build import arrival, incarnation, node, roster_of


def test_the_oldest_name_is_forgotten_first() -> None:
    names = RecentNames(most=3)
    assert [names.add(name) for name in "abcad"] == [True, True, True, False, True]
    assert [name in names for name in "abcd"] == [False, True, True, True]
    assert len(names) == 3


def test_a_number_counts_once_under_a_name_and_the_oldest_name_is_forgotten_first() -> None:
    numbers = RecentNumbers(most=2)
    assert [numbers.advance("a", number) for number in (1, 1, 3, 2, 4)] == [True, False, True, False, True]
    assert [numbers.advance(name, 1) for name in "bab"] == [True, False, False]
    assert numbers.advance("c", 1)
    assert len(numbers) == 2
    assert numbers.advance("a", 1), "it is forgotten"


def test_any_number_of_refused_starts_is_remembered_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recent, "MOST_REMEMBERED", 10)
    roster = roster_of([1])
    roster.take(arrival(2, info=node(2, infra_rank=7)), 1, is_open=True)
    for number in range(3, 1003):
        assert roster.take(arrival(number, info=node(number, infra_rank=7)), 1, is_open=True)
    assert len(roster.refused) == 10
    assert len(roster.fenced) == 0
    assert len(roster.members) == 2


def test_refused_starts_do_not_make_the_coordinator_forget_a_node_that_was_in_the_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may have been cut off, and may write a request when it is back: no operator has asked for that."""
    monkeypatch.setattr(recent, "MOST_REMEMBERED", 10)
    roster = roster_of([1, 2])
    roster.drop(incarnation(1))
    for number in range(3, 1003):
        roster.refuse(incarnation(number))
    late = Request(cycle_id=1, incarnation=incarnation(1), kind=RequestKind.RESTART)
    assert roster.take(late, 1, is_open=True) == []
    assert roster.take(Finish(cycle_id=1, incarnation=incarnation(1)), 1, is_open=True) == []
