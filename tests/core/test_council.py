"""The rules of the council, by examples. `tests/protocol/test_council_moves.py` runs them against each other."""

from __future__ import annotations

import pytest

from ft_rendezvous.core.council import (
    Ask,
    Ballot,
    Beaten,
    Charter,
    Council,
    CouncilMember,
    Elected,
    Sight,
    accept,
    choose_members,
    decide,
    does_count,
    judge_promises,
    may_ask_for_promises,
    promise,
    succeed,
)
from ft_rendezvous.core.model import Verdict, VerdictKind

A, B, C, D, E = (CouncilMember(name, f"10.0.0.{number}", 1) for number, name in enumerate("abcde"))
THREE, TWO = Council((A, B, C)), Council((A, B))
SUCCEEDED = Verdict(VerdictKind.SUCCEEDED)


# --- examples ---------------------------------------------------------------------------------------


def test_a_ballot_never_goes_back_to_a_lower_term() -> None:
    ballot = promise(Ballot(1, "a", Charter(1, 1, THREE)), 3, "b")
    assert ballot is not None
    assert promise(ballot, 3, "c") is None, "terms are unique: no second candidate has this one"
    assert promise(ballot, 2, "c") is None
    assert accept(ballot, Charter(2, 2, THREE)) is None
    accepted = Charter(3, 2, Council((B, A, C)))
    assert accept(ballot, accepted) == Ballot(3, "b", accepted)


@pytest.mark.parametrize(
    ("council", "former", "accepted_by", "counts"),
    [
        (THREE, None, "ab", True),
        (THREE, None, "a", False),
        (THREE, None, "ade", False),
        (TWO, None, "a", False),
        (TWO, None, "ab", True),
        (Council((A, B, D)), THREE, "ad", False),
        (Council((A, B, D)), THREE, "ab", True),
        (Council((A, B, D)), THREE, "acd", True),
    ],
)
def test_a_charter_counts_with_a_majority_of_both_councils(
    council: Council, former: Council | None, accepted_by: str, counts: bool
) -> None:
    assert does_count(Charter(1, 1, council, former), accepted_by) == counts


def sights(**found: Sight) -> dict[str, Sight]:
    return found


@pytest.mark.parametrize(
    ("council", "found", "may"),
    [
        (THREE, sights(a=Sight.SILENT, b=Sight.OFFERS, c=Sight.OFFERS), True),
        (THREE, sights(a=Sight.SILENT, b=Sight.OFFERS, c=Sight.FOLLOWS), False),
        (THREE, sights(a=Sight.REFUSED, b=Sight.OFFERS, c=Sight.SILENT), False),
        (THREE, sights(a=Sight.REFUSED, b=Sight.OFFERS, c=Sight.REFUSED), False),
        (TWO, sights(a=Sight.SILENT, b=Sight.OFFERS), False),
        (TWO, sights(a=Sight.REFUSED, b=Sight.OFFERS), True),
    ],
)
def test_a_candidate_needs_a_majority_that_has_lost_the_host(
    council: Council, found: dict[str, Sight], may: bool
) -> None:
    assert may_ask_for_promises(Charter(1, 1, council), found) == may


def test_a_candidate_asks_the_newest_council_that_a_promiser_knows() -> None:
    stale, newer = Charter(1, 1, THREE), Charter(1, 5, Council((A, D, E)))
    ballots = {"b": Ballot(2, "b", stale), "c": Ballot(2, "b", newer)}
    assert judge_promises(2, "b", ballots) == Ask((A, D, E))
    ballots |= {"d": Ballot(2, "b", newer), "e": Ballot(2, "b", newer)}
    assert judge_promises(2, "b", ballots) == Elected(newer)
    assert judge_promises(2, "b", {**ballots, "e": Ballot(3, "a", newer)}) == Beaten(3)
    assert judge_promises(2, "b", {**ballots, "e": Ballot(2, "a", newer)}) == Beaten(2)


def test_a_new_host_goes_on_from_what_it_found() -> None:
    newest = decide(Charter(1, 6, THREE), newest_cycle=4, verdict=SUCCEEDED)
    first = succeed(newest, 2, "b", dead={"a"})
    assert first == Charter(2, 8, Council((B, C)), None, 4, SUCCEEDED)
    with pytest.raises(AssertionError):
        decide(first)


def test_successors_are_on_machines_and_in_domains_of_their_own_where_possible() -> None:
    host = CouncilMember("h", "m0", 1, "rack0")
    same, near, far, second = (
        CouncilMember("same", "m0", 2, "rack1"),
        CouncilMember("near", "m1", 1, "rack0"),
        CouncilMember("far", "m2", 1, "rack1"),
        CouncilMember("second", "m3", 1, "rack1"),
    )
    assert [each.name for each in choose_members(host, [same, near, far, second], 2)] == ["h", "far", "near"]
    assert [each.name for each in choose_members(host, [same], 2)] == ["h", "same"]
    assert choose_members(host, [], 2) == (host,)
