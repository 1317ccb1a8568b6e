"""What failures cost in a run with replica groups: each group has an account of its own, the run has one budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.core.blame import BlameRules, FailureNote, Ledger, Settlement
from ft_rendezvous.core.model import AnyWhy, GroupFailsAgain, NoGroupTrains, RestartRequested

RULES = BlameRules(
    max_cycles=0, max_node_failures=0, quarantine_s=60.0, crash_loop=0, crash_loop_s=10.0, max_group_failures=3
)
SOON, LATE = 2.0, 100.0
"""Less and more than `crash_loop_s`."""


def note(group: int, who: str = "", after_s: float | None = SOON, cycle_id: int = 1, reason: str = "x") -> FailureNote:
    who = who or f"n{group}"
    return FailureNote(
        group=group,
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
    ledger: Ledger, group: int, *, trained_s: float = SOON, is_excused: bool = False, reason: str = "x"
) -> Settlement:
    """A node of a group fails after so long, and the group is sealed again."""
    ledger.note(note(group, after_s=trained_s, reason=reason))
    return ledger.settle_group(group, 0.0, is_excused, lambda _note: True, trained_s)


def settle_all(ledger: Ledger, *, is_excused: bool = False, why: AnyWhy | None = None) -> Settlement:
    """A common cycle is sealed."""
    settlement = ledger.settle(0.0, is_excused, lambda _note: True)
    ledger.restart_all(why or NoGroupTrains((0, 1), "x"))
    return settlement


# --- false starts -----------------------------------------------------------------------------------


def test_a_group_that_fails_three_times_soon_after_its_start_is_told() -> None:
    ledger = Ledger(RULES)
    assert [fail(ledger, 1, reason=reason).false_starts for reason in "abcd"] == [0, 0, 3, 4]


@pytest.mark.parametrize(
    ("between", "told"),
    [
        pytest.param(lambda ledger: fail(ledger, 1, trained_s=LATE), [0, 0, 3], id="training for long"),
        pytest.param(
            lambda ledger: ledger.settle_group(1, 0.0, False, lambda _: True, LATE), [0, 0, 3], id="without a failure"
        ),
        pytest.param(lambda ledger: fail(ledger, 1, trained_s=10.0), [0, 0, 3], id="training just long enough"),
        pytest.param(settle_all, [0, 0, 3], id="a restart of all groups"),
        pytest.param(lambda ledger: fail(ledger, 1, is_excused=True), [3, 4, 5], id="a loss: neither way"),
        pytest.param(lambda ledger: fail(ledger, 0), [3, 4, 5], id="a failure of another group: nothing"),
    ],
)
def test_what_forgets_false_starts(between: Callable[[Ledger], object], told: list[int]) -> None:
    ledger = Ledger(RULES)
    assert [fail(ledger, 1).false_starts for _ in range(2)] == [0, 0]
    between(ledger)
    assert [fail(ledger, 1).false_starts for _ in range(3)] == told


def test_a_limit_of_zero_is_no_limit() -> None:
    ledger = Ledger(replace(RULES, max_group_failures=0))
    assert [fail(ledger, 1).false_starts for _ in range(9)] == [0] * 9


# --- crash loops ------------------------------------------------------------------------------------

LOOP = replace(RULES, crash_loop=5)


def test_a_crash_loop_of_one_group_goes_on_after_the_restart_of_all_that_it_caused() -> None:
    """Three false starts restart all groups. Two more with the same error are a crash loop of five."""
    ledger = Ledger(LOOP)
    assert [(fail(ledger, 1).false_starts, ledger.charged) for _ in range(3)] == [(0, 1), (0, 2), (3, 3)]
    assert settle_all(ledger, why=GroupFailsAgain(1, 3)) == Settlement(), "its failures are charged already"
    found = [fail(ledger, 1) for _ in range(2)]
    assert [(one.loop, one.false_starts) for one in found] == [(0, 0), (5, 0)]
    assert ledger.explain_end(found[-1]).startswith("crash loop: 5 cycles in a row failed within 10 s")


@pytest.mark.parametrize(
    "why",
    [
        pytest.param(NoGroupTrains((0, 1), "x"), id="all groups failed"),
        pytest.param(GroupFailsAgain(0, 3), id="another group failed again"),
        pytest.param(RestartRequested("an operator", ""), id="asked for"),
    ],
)
def test_a_crash_loop_of_one_group_ends_with_another_restart_of_all(why: AnyWhy) -> None:
    """The group may have trained for hours before that."""
    ledger = Ledger(LOOP)
    for _ in range(4):
        fail(ledger, 1)
    settle_all(ledger, why=why)
    assert fail(ledger, 1).loop == 0


def test_groups_do_not_add_up_to_a_crash_loop() -> None:
    ledger = Ledger(replace(LOOP, max_group_failures=0))
    assert [fail(ledger, group).loop for _ in range(4) for group in (0, 1, 2)] == [0] * 12
    assert fail(ledger, 2).loop == 5


def test_common_worlds_that_fail_at_their_start_are_a_crash_loop() -> None:
    ledger = Ledger(replace(LOOP, crash_loop=3))
    loops = []
    for cycle_id in (1, 2, 3):
        for group in (0, 1):
            ledger.note(note(group, cycle_id=cycle_id))
        loops.append(settle_all(ledger).loop)
    assert loops == [0, 0, 3]


# --- the run's budget -------------------------------------------------------------------------------


def test_the_budget_of_the_run_counts_the_cycles_of_all_groups() -> None:
    ledger = Ledger(replace(RULES, max_cycles=3))
    assert [fail(ledger, group, trained_s=LATE).is_spent for group in (0, 1, 0)] == [False, False, True]


def test_a_common_cycle_settles_what_all_groups_have_reported_as_one() -> None:
    ledger = Ledger(replace(RULES, max_cycles=9))
    for group in (0, 1, 2):
        ledger.note(note(group))
    assert ledger.count_notes() == 3
    assert settle_all(ledger).is_charged
    assert (ledger.charged, ledger.count_notes()) == (1, 0)


def test_a_group_settles_its_own_failures_only() -> None:
    ledger = Ledger(RULES)
    for group in (0, 1):
        ledger.note(note(group))
    assert ledger.settle_group(0, 0.0, False, lambda _: True, SOON).is_charged
    assert (ledger.count_notes(0), ledger.count_notes(1), ledger.charged) == (0, 1, 1)


@pytest.mark.parametrize("is_excused", [False, True])
def test_a_group_without_a_failure_costs_nothing(is_excused: bool) -> None:
    ledger = Ledger(replace(RULES, max_cycles=1, max_group_failures=1))
    ledger.note(note(0))
    assert ledger.settle_group(1, 0.0, is_excused, lambda _: True, SOON) == Settlement()


# --- which was first --------------------------------------------------------------------------------


def test_the_first_failure_of_a_group_is_known_though_another_group_failed_later() -> None:
    """A verdict and the journal name it."""
    ledger = Ledger(RULES)
    ledger.note(note(0, "a", after_s=5.0))
    ledger.note(note(0, "b", after_s=4.0))
    ledger.note(note(1, "c", after_s=6.0))
    ledger.settle_group(0, 0.0, False, lambda _: True, SOON)
    assert ledger.last is not None
    assert ledger.last.node == "b"


def test_a_node_is_quarantined_for_failures_in_several_groups() -> None:
    ledger = Ledger(replace(RULES, max_node_failures=2))
    found = []
    for group in (0, 1):
        ledger.note(note(group, "a", after_s=LATE))
        found.append(ledger.settle_group(group, 0.0, False, lambda _: True, LATE).quarantined)
    assert [one and one.node for one in found] == [None, "a"]


def test_of_groups_that_were_sealed_at_different_times_no_node_is_the_first() -> None:
    """The times of failures are since the seal: those of two cycles cannot be compared."""
    ledger = Ledger(replace(RULES, max_node_failures=1))
    ledger.note(note(0, "a", after_s=10_000.0, cycle_id=1))
    ledger.note(note(1, "b", after_s=LATE, cycle_id=7))
    assert settle_all(ledger).quarantined is None
    ledger.note(note(0, "a", after_s=LATE + 1, cycle_id=8))
    ledger.note(note(1, "b", after_s=LATE, cycle_id=8))
    found = settle_all(ledger).quarantined
    assert found is not None
    assert found.node == "b", "of one common cycle they can"


# --- many groups at once ----------------------------------------------------------------------------


@given(st.lists(st.tuples(st.sampled_from(["soon", "late", "lost", "all"]), st.integers(0, 2)), max_size=30))
def test_false_starts_are_counted_as_a_naive_reader_would(steps: list[tuple[str, int]]) -> None:
    ledger = Ledger(RULES)
    counts = dict.fromkeys(range(3), 0)
    charged = 0
    for what, group in steps:
        if what == "all":
            settle_all(ledger)
            counts = dict.fromkeys(range(3), 0)
            continue
        found = fail(ledger, group, trained_s=LATE if what == "late" else SOON, is_excused=what == "lost")
        charged += what != "lost"
        counts[group] = {"soon": counts[group] + 1, "late": 0, "lost": counts[group]}[what]
        assert found.false_starts == (counts[group] if counts[group] >= 3 else 0)
    assert ledger.charged == charged
