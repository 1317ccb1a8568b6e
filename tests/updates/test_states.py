"""The table of a party's states, its picture in the docs, and what a fleet knows of its parties."""

from __future__ import annotations

import re
from itertools import product

import pytest

from ft_rendezvous.errors import ConfigError, ProtocolBug
from ft_rendezvous.updates import Fleet, Party, PartyDead, PartyState
from ft_rendezvous.updates.membership import FleetMembership
from ft_rendezvous.updates.states import PARTY_TABLE, TAKES_PART, PartyStep, next_party_state
from tests.support.doc_pages import ROOT

PAGE = (ROOT / "docs" / "updates.md").read_text()
HEALTHY, SUSPECT, DEAD = PartyState.HEALTHY, PartyState.SUSPECT, PartyState.DEAD
RESTARTING, STALE = PartyState.RESTARTING, PartyState.STALE


@pytest.mark.parametrize(("state", "step"), list(product(PartyState, PartyStep)))
def test_a_party_changes_as_the_table_says_or_not_at_all(state: PartyState, step: PartyStep) -> None:
    if (state, step) in PARTY_TABLE:
        assert next_party_state(state, step) is PARTY_TABLE[state, step]
    else:
        with pytest.raises(ProtocolBug, match=f"a party that is {state} cannot {step}"):
            next_party_state(state, step)


def test_only_an_update_makes_a_party_healthy() -> None:
    assert {step for (_, step), after in PARTY_TABLE.items() if after is HEALTHY} == {PartyStep.COMPLETE}
    assert {state for state, step in PARTY_TABLE if step is PartyStep.COMPLETE} == TAKES_PART


def test_a_party_that_comes_back_is_stale_from_every_state() -> None:
    assert {PARTY_TABLE[state, PartyStep.RETURN] for state in PartyState} == {STALE}


def test_the_picture_shows_the_table() -> None:
    drawn = set(re.findall(r"^ +([A-Z]+) --> ([A-Z]+):", PAGE, re.MULTILINE))
    changes = {(before.name, after.name) for (before, _), after in PARTY_TABLE.items() if before is not after}
    assert {edge for edge in drawn if edge[0] != edge[1]} == changes


def test_the_page_says_who_takes_part_and_who_serves() -> None:
    rows = dict(re.findall(r"^\| ([A-Z]+) \| (yes|no) \|", PAGE, re.MULTILINE))
    assert rows == {state.name: "yes" if state in TAKES_PART else "no" for state in PartyState}


# --- membership ---------------------------------------------------------------------------------------


def membership(*names: str, max_failures: int = 3) -> FleetMembership:
    return FleetMembership([Party(name, object()) for name in names], max_failures)


def test_a_party_is_dead_after_so_many_failures_in_a_row() -> None:
    members = membership("a", max_failures=2)
    members.fail(members["a"], is_dead=False)
    assert members["a"].state is SUSPECT
    members.complete([members["a"]], 1)
    members.fail(members["a"], is_dead=False)
    assert (members["a"].state, members["a"].failures) == (SUSPECT, 1)
    members.fail(members["a"], is_dead=False)
    assert members["a"].state is DEAD


def test_what_happens_to_a_former_life_changes_nothing() -> None:
    members = membership("a", "b")
    former = members["a"]
    members.put(Party("a", object()))
    assert members.complete([former, members["b"]], 1) == ("b",)
    members.fail(former, is_dead=True)
    members.die(former)
    assert (members["a"].state, members["a"].version) == (STALE, None)


def test_a_failure_outside_keeps_the_update_under_way_from_making_it_healthy() -> None:
    fleet = Fleet([Party("a", object())])
    members = fleet._membership
    taking_part = members.taking_part()
    fleet.mark_failed("a", ValueError())
    assert members.complete(taking_part, 1) == ()
    assert members["a"].state is SUSPECT
    assert fleet.serving() == ()


def test_a_party_that_restarts_takes_no_part_until_it_is_put() -> None:
    fleet = Fleet([Party("a", object())])
    fleet.mark_failed("a", PartyDead())
    assert fleet.parties[0].state is DEAD
    fleet.mark_restarting("a")
    assert fleet.parties[0].state is RESTARTING
    fleet.mark_failed("a", ValueError())  # A call that was under way. It says nothing about the replacement.
    assert fleet.parties[0].state is RESTARTING
    assert fleet._membership.taking_part() == ()
    fleet.mark_failed("a", PartyDead())
    assert fleet.parties[0].state is DEAD
    fleet.put(Party("a", object()))
    assert fleet.parties[0].state is STALE


def test_serving_asks_for_health_and_version() -> None:
    members = FleetMembership([Party("a", 1), Party("b", 2), Party("t", 3, essential=True)], 3)
    assert members.serving(None) == ()
    members.complete([members["a"], members["t"]], 5)
    assert [party.name for party in members.serving(5)] == ["a"]
    assert members.serving(6) == ()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"min_parties": 0}, "min_parties is 0"),
        ({"max_party_failures": 0}, "max_party_failures is 0"),
        ({"step_timeout_s": 0}, "step_timeout_s is 0"),
        ({"abort_timeout_s": float("inf")}, "abort_timeout_s is inf"),
        ({"cleanup_timeout_s": -1}, "cleanup_timeout_s is -1"),
        ({"on_unrecoverable": "explode"}, "'raise', 'restart' or a function"),
    ],
)
def test_a_wrong_setting_is_refused(settings: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Fleet([Party("a", object())], **settings)  # type: ignore[arg-type]


def test_names_are_unique_and_known() -> None:
    with pytest.raises(ConfigError, match="two parties are named 'a'"):
        membership("a", "a")
    with pytest.raises(ConfigError, match="no party 'c': it has a, b"):
        membership("a", "b")["c"]
