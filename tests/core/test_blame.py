"""Which node failed first, and what it costs the node and the run."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.core.blame import TIE_WINDOW_S, BlameRules, FailureNote, Ledger, Settlement, first_failure

RULES = BlameRules(max_cycles=0, max_node_failures=0, quarantine_s=60.0, crash_loop=0, crash_loop_s=10.0)


def note(who: str, after_s: float | None, cycle_id: int = 1, reason: str = "exit code 1") -> FailureNote:
    return FailureNote(
        cycle_id=cycle_id,
        key=f"infra rank {who}",
        incarnation=who,
        node=who,
        rank=0,
        exit_code=1,
        after_s=after_s,
        reason=reason,
    )


def fail(
    ledger: Ledger, *notes: FailureNote, is_excused: bool = False, can_lose: bool = True, now: float = 0.0
) -> Settlement:
    for one in notes:
        ledger.note(one)
    return ledger.settle(now, is_excused, lambda _note: can_lose)


# --- which was first ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("times", "first"),
    [
        pytest.param({}, None, id="no failure"),
        pytest.param({"a": 1.0}, "a", id="one"),
        pytest.param({"a": None}, "a", id="one that was not watched"),
        pytest.param({"a": 2.0, "b": 1.0, "c": 1.5}, "b", id="the earliest, in any order of reading"),
        pytest.param({"a": 1.0, "b": 1.0 + TIE_WINDOW_S / 2}, None, id="a tie blames no node"),
        pytest.param({"a": 1.0, "b": 2.0, "c": 2.0}, "a", id="a tie for the second place is none"),
        pytest.param({"a": 1.0, "b": None}, None, id="one that was not watched may have been the first"),
    ],
)
def test_first_failure(times: dict[str, float | None], first: str | None) -> None:
    found = first_failure([note(who, after_s) for who, after_s in times.items()])
    assert (found and found.node) == first


@given(times=st.lists(st.floats(0.0, 1000.0), min_size=1, max_size=8))
def test_the_blamed_node_was_earlier_than_all_others_by_more_than_a_tie(times: list[float]) -> None:
    notes = [note(str(index), after_s) for index, after_s in enumerate(times)]
    found = first_failure(notes)
    if found is not None:
        assert all(other is found or (other.after_s or 0.0) - (found.after_s or 0.0) >= TIE_WINDOW_S for other in notes)


# --- the run's budget -------------------------------------------------------------------------------


def test_a_budget_of_three_is_spent_by_the_third_cycle_that_fails() -> None:
    ledger = Ledger(replace(RULES, max_cycles=3))
    spent = [fail(ledger, note("a", 50.0, cycle_id)).is_spent for cycle_id in (1, 2, 3, 4)]
    assert spent == [False, False, True, True]


def test_losses_and_quiet_ends_cost_nothing() -> None:
    ledger = Ledger(replace(RULES, max_cycles=1, max_node_failures=1, crash_loop=1))
    assert fail(ledger, note("a", 1.0), is_excused=True) == Settlement()
    assert fail(ledger) == Settlement()
    assert ledger.charged == 0


def test_several_failures_of_one_world_are_one_charge() -> None:
    ledger = Ledger(replace(RULES, max_cycles=2))
    assert not fail(ledger, note("a", 50.0), note("b", 51.0)).is_spent
    assert ledger.charged == 1


def test_a_failure_told_twice_is_noted_once() -> None:
    ledger = Ledger(RULES)
    assert ledger.note(note("a", 1.0))
    assert not ledger.note(note("a", None))
    assert ledger.last == note("a", 1.0)


@given(
    st.lists(st.tuples(st.sampled_from("abcdef"), st.none() | st.floats(0, 0.1)), min_size=1, max_size=8),
)
def test_the_ledger_finds_the_first_failure_note_by_note(said: list[tuple[str, float | None]]) -> None:
    """Ten thousand nodes may fail at once: the ledger does not look at all notes again for each of them."""
    ledger = Ledger(RULES)
    kept: dict[str, FailureNote] = {}
    for who, after_s in said:
        assert ledger.note(note(who, after_s)) == (who not in kept)
        kept.setdefault(who, note(who, after_s))
        assert ledger.last == (first_failure(list(kept.values())) or next(iter(kept.values())))


def test_what_a_user_wants_to_know_at_the_end_is_the_first_failure_of_the_last_world() -> None:
    ledger = Ledger(RULES)
    fail(ledger, note("a", 1.0))
    fail(ledger, note("c", 3.0, 2), note("b", 2.0, 2))
    assert ledger.last == note("b", 2.0, 2)
    fail(ledger, note("a", 1.0, 3), note("b", 1.0, 3))
    assert ledger.last == note("a", 1.0, 3), "of a tie, the one that was read first"


# --- quarantine -------------------------------------------------------------------------------------


def test_the_third_time_a_node_is_first_it_is_quarantined_and_may_return_later() -> None:
    ledger = Ledger(replace(RULES, max_node_failures=3))
    peer = note("b", 2.0, reason="connection reset")
    blamed = [fail(ledger, note("a", 1.0), peer, now=100.0).quarantined for _ in range(3)]
    assert [one and one.node for one in blamed] == [None, None, "a"]
    assert ledger.quarantined_for("infra rank a", 101.0) == 59.0
    assert ledger.quarantined_for("infra rank b", 101.0) == 0.0
    assert ledger.quarantined_for("infra rank a", 160.0) == 0.0
    assert ledger.until == {}, "forgotten"
    assert fail(ledger, note("a", 1.0), now=200.0).quarantined is None, "it begins anew"


def test_no_node_is_quarantined_if_no_other_can_take_over() -> None:
    ledger = Ledger(replace(RULES, max_node_failures=2))
    assert [fail(ledger, note("a", 1.0), can_lose=False).quarantined for _ in range(4)] == [None] * 4
    assert fail(ledger, note("a", 1.0)).quarantined is not None, "until another node can take over"


def test_a_script_that_fails_everywhere_at_its_start_is_no_nodes_fault() -> None:
    ledger = Ledger(replace(RULES, max_node_failures=1))
    assert fail(ledger, note("a", 1.0), note("b", 1.5)).quarantined is None
    assert fail(ledger, note("a", 50.0), note("b", 51.0)).quarantined is not None, "after the start, the first is"


def test_ties_blame_no_node() -> None:
    ledger = Ledger(replace(RULES, max_node_failures=1))
    assert fail(ledger, note("a", 1.0), note("b", 1.0)).quarantined is None
    assert ledger.charged == 1, "but the run is charged"


# --- crash loops ------------------------------------------------------------------------------------


def streak(*cycles: tuple[float | None, str]) -> list[int]:
    ledger = Ledger(replace(RULES, crash_loop=3))
    return [fail(ledger, note(str(no), after_s, no, reason)).loop for no, (after_s, reason) in enumerate(cycles)]


def test_three_starts_in_a_row_that_fail_on_one_error_are_a_loop() -> None:
    assert streak((1.0, "x"), (2.0, "x"), (3.0, "x")) == [0, 0, 3]


@pytest.mark.parametrize(
    "between",
    [
        pytest.param((50.0, "x"), id="one that trained for a while"),
        pytest.param((2.0, "y"), id="another error"),
        pytest.param((None, "x"), id="one that was not watched"),
    ],
)
def test_what_breaks_a_loop(between: tuple[float | None, str]) -> None:
    assert streak((1.0, "x"), (1.0, "x"), between, (1.0, "x"), (1.0, "x")) == [0, 0, 0, 0, 0]


def test_a_loss_breaks_a_loop() -> None:
    ledger = Ledger(replace(RULES, crash_loop=2))
    assert fail(ledger, note("a", 1.0)).loop == 0
    assert fail(ledger, note("a", 1.0), is_excused=True).loop == 0
    assert fail(ledger, note("a", 1.0)).loop == 0
    assert fail(ledger, note("a", 1.0)).loop == 2


def test_a_world_that_ended_without_a_failure_breaks_a_loop() -> None:
    ledger = Ledger(replace(RULES, crash_loop=2))
    assert fail(ledger, note("a", 1.0)).loop == 0
    assert fail(ledger).loop == 0
    assert fail(ledger, note("a", 1.0)).loop == 0


def test_failures_of_others_later_in_the_cycle_do_not_matter() -> None:
    """Peers of the node that failed first end with errors of their own, each with another address in it."""
    ledger = Ledger(replace(RULES, crash_loop=2))
    assert fail(ledger, note("a", 1.0, reason="x"), note("b", 1.2, reason="reset by 10.0.0.1")).loop == 0
    assert fail(ledger, note("a", 1.0, reason="x"), note("b", 1.2, reason="reset by 10.0.0.2")).loop == 2
