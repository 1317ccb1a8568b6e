"""Which nodes were lost so often that they are parked, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.core import losses
from ft_rendezvous.core.losses import LossBook, LossRules

RULES = LossRules(max_node_losses=3, window_s=100.0)


def book_of(*times: float, rules: LossRules = RULES) -> LossBook:
    """A book in which node `a` was lost at these times."""
    book = LossBook(rules)
    for time in times:
        book.note("a", time)
    return book


@pytest.mark.parametrize(
    ("times", "until"),
    [
        pytest.param((0.0, 1.0), None, id="too few"),
        pytest.param((0.0, 1.0, 2.0), 102.0, id="the third loss parks it"),
        pytest.param((0.0, 99.0, 101.0), None, id="the first is too long ago"),
        pytest.param((0.0, 50.0, 100.0), None, id="the first is just too long ago"),
        pytest.param((0.0, 50.0, 99.9), 199.9, id="the first is just within the window"),
        pytest.param((0.0, 1.0, 2.0, 80.0), 180.0, id="a further loss parks it for longer"),
        pytest.param((0.0, 98.0, 99.0, 198.5), 199.0, id="a further loss that is alone does not"),
    ],
)
def test_a_node_is_parked_from_the_last_of_its_losses_on(times: tuple[float, ...], until: float | None) -> None:
    assert book_of(*times).until.get("a") == until


def test_a_node_is_told_to_be_parked_by_the_loss_that_parks_it() -> None:
    book = LossBook(RULES)
    assert [book.note("a", time) for time in (0.0, 1.0, 2.0, 3.0)] == [False, False, True, True]


def test_a_parked_node_is_an_ordinary_node_when_its_time_is_over_and_begins_anew() -> None:
    book = book_of(0.0, 1.0, 2.0)
    assert book.next_end() == 102.0
    assert set(book.parked(101.9)) == {"a"}
    assert set(book.parked(102.0)) == set()
    assert book.next_end() == float("inf")
    assert [book.note("a", time) for time in (103.0, 104.0, 105.0)] == [False, False, True]


def test_losses_of_other_nodes_do_not_count() -> None:
    book = LossBook(RULES)
    assert not any(book.note(key, float(time)) for time, key in enumerate("abcabc"))
    assert book.note("b", 7.0)
    assert set(book.parked(7.0)) == {"b"}


def test_without_a_limit_no_node_is_parked_and_nothing_is_kept() -> None:
    book = book_of(*map(float, range(50)), rules=LossRules(max_node_losses=0, window_s=100.0))
    assert book == LossBook(book.rules)


def test_a_limit_of_one_parks_at_every_loss() -> None:
    assert book_of(0.0, rules=LossRules(max_node_losses=1, window_s=100.0)).until == {"a": 100.0}


def test_the_book_forgets_nodes_whose_losses_are_over() -> None:
    book = LossBook(RULES)
    for number in range(1_000):
        book.note(f"node {number}", float(number))
    assert len(book._times) == 100


def test_the_book_is_bounded_also_when_very_many_nodes_are_lost_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(losses, "NODES_REMEMBERED", 5)
    book = LossBook(LossRules(max_node_losses=1, window_s=100.0))
    for number in range(20):
        book.note(f"node {number}", 1.0)
    assert set(book.until) == set(book._times) == {f"node {number}" for number in range(15, 20)}


@given(
    said=st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 60)), max_size=40),
    limit=st.integers(0, 4),
    window_s=st.integers(0, 200),
)
def test_the_book_agrees_with_a_list_of_all_losses(said: list[tuple[str, int]], limit: int, window_s: int) -> None:
    """A node is parked if at one of its losses within the last window it had `limit` losses within a window."""
    book, now = LossBook(LossRules(limit, window_s)), 0
    losses_of: dict[str, list[int]] = {key: [] for key in "abc"}
    for key, gap_s in said:
        now += gap_s
        losses_of[key].append(now)
        book.note(key, now)
        for each, times in losses_of.items():
            parks = [
                time
                for index, time in enumerate(times)
                if limit and sum(time - other < window_s for other in times[: index + 1]) >= limit
            ]
            assert (each in book.parked(now)) == any(now - time < window_s for time in parks)


@given(gaps=st.lists(st.integers(1, 80), max_size=60), limit=st.integers(1, 4))
def test_a_node_that_is_lost_only_while_it_is_not_parked_is_lost_at_most_so_often_in_any_window(
    gaps: list[int], limit: int
) -> None:
    """What a world pays for a node that it can do without: it is in the world only while it is not parked."""
    book, now, paid = LossBook(LossRules(limit, 100)), 0, []
    for gap_s in gaps:
        now += gap_s
        if "a" not in book.parked(now):
            book.note("a", now)
            paid.append(now)
    assert all(sum(start <= time < start + 100 for time in paid) <= limit for start in paid)
