"""Who is suspected, for how long, and what proves that a node lives."""

from __future__ import annotations

import random

import pytest

from ft_rendezvous.core.suspects import LifelineNews, LifelineSign, SuspectTable

GRACE_S = 0.2
MEMBERS = {"a", "b", "c"}


def table(*signs: tuple[str, LifelineSign], now: float = 0.0) -> SuspectTable:
    suspects = SuspectTable(GRACE_S)
    suspects.take([LifelineNews(name, sign) for name, sign in signs], now)
    return suspects


def look(suspects: SuspectTable, beats: dict[str, int], now: float) -> list[str]:
    """One look, as the coordinator takes it."""
    due = suspects.due(MEMBERS, now)
    return suspects.judge({name: beats[name] for name in due}, now)


def test_a_node_that_stays_silent_for_a_grace_is_dead() -> None:
    suspects = table(("a", LifelineSign.HUNG_UP))
    assert look(suspects, {"a": 7}, 0.0) == []
    assert suspects.next_judgement() == pytest.approx(GRACE_S)
    assert look(suspects, {"a": 7}, 0.1) == []
    assert look(suspects, {"a": 7}, 0.2) == ["a"]


def test_a_node_that_beats_lives() -> None:
    suspects = table(("a", LifelineSign.HUNG_UP))
    look(suspects, {"a": 7}, 0.0)
    assert look(suspects, {"a": 8}, 0.2) == []
    assert suspects.suspects == {}


@pytest.mark.parametrize("sign", [LifelineSign.CONNECTED, LifelineSign.GOODBYE])
def test_a_node_that_connects_or_says_goodbye_is_not_suspected_any_more(sign: LifelineSign) -> None:
    suspects = table(("a", LifelineSign.HUNG_UP), ("a", sign))
    assert look(suspects, {"a": 7}, 5.0) == []
    assert suspects.next_judgement() == float("inf")


def test_a_reapers_word_needs_no_grace() -> None:
    assert look(table(("a", LifelineSign.DEAD)), {"a": 7}, 0.0) == ["a"]
    assert look(table(("a", LifelineSign.HUNG_UP), ("a", LifelineSign.DEAD)), {"a": 7}, 0.0) == ["a"]


def test_a_second_hang_up_does_not_prolong_the_suspicion() -> None:
    suspects = table(("a", LifelineSign.HUNG_UP))
    look(suspects, {"a": 7}, 0.0)
    suspects.take([LifelineNews("a", LifelineSign.HUNG_UP)], 0.1)
    assert look(suspects, {"a": 7}, 0.2) == ["a"]


def test_a_late_look_begins_the_suspicion_anew() -> None:
    """While the host stood still, a new lifeline may have come that it has not seen yet."""
    suspects = table(("a", LifelineSign.HUNG_UP))
    look(suspects, {"a": 7}, 0.0)
    assert look(suspects, {"a": 7}, 3.0) == []
    assert look(suspects, {"a": 7}, 3.2) == ["a"]


def test_a_late_look_that_shows_a_beat_ends_the_suspicion() -> None:
    suspects = table(("a", LifelineSign.HUNG_UP))
    look(suspects, {"a": 7}, 0.0)
    assert look(suspects, {"a": 8}, 3.0) == []
    assert suspects.suspects == {}


def test_a_newcomer_whose_arrival_is_read_a_moment_later_is_judged_and_a_stranger_is_forgotten() -> None:
    suspects = table(("new", LifelineSign.HUNG_UP), ("stranger", LifelineSign.HUNG_UP))
    assert suspects.due({"a"}, 0.0) == []
    assert suspects.due({"a", "new"}, 0.2) == ["new"]
    assert suspects.judge({"new": 1}, 0.2) == []
    assert set(suspects.suspects) == {"new"}
    assert suspects.due({"a", "new"}, 0.4) == ["new"]
    assert suspects.judge({"new": 1}, 0.4) == ["new"]


def test_nodes_that_die_together_are_judged_together() -> None:
    suspects = SuspectTable(GRACE_S)
    names = [f"n{number}" for number in range(1000)]
    suspects.take([LifelineNews(name, LifelineSign.HUNG_UP) for name in names], 0.0)
    beats = dict.fromkeys(names, 3)
    assert suspects.judge({name: beats[name] for name in suspects.due(beats, 0.0)}, 0.0) == []
    assert suspects.judge({name: beats[name] for name in suspects.due(beats, 0.2)}, 0.2) == names


def test_find_names_only_the_suspected() -> None:
    suspects = table(("a", LifelineSign.HUNG_UP), ("b", LifelineSign.CONNECTED))
    assert suspects.find({"a", "b", "c"}) == ["a"]
    suspects.forget("a")
    assert suspects.find(MEMBERS) == []


@pytest.mark.parametrize("seed", range(200))
def test_random_runs_agree_with_a_naive_judge(seed: int) -> None:
    """A node that beats or connects at least once per half a grace is never dropped; a silent one is, within two."""
    rng = random.Random(seed)
    suspects, beats, now = SuspectTable(GRACE_S), {"a": 0, "b": 0}, 0.0
    died_at: float | None = None
    dropped: dict[str, float] = {}
    while now < 5.0:
        now += rng.uniform(0.01, GRACE_S / 4)
        beats["a"] += 1
        if rng.random() < 0.3:
            suspects.take([LifelineNews("a", rng.choice((LifelineSign.HUNG_UP, LifelineSign.CONNECTED)))], now)
        if died_at is None and now > 2.0:
            died_at = now
            suspects.take([LifelineNews("b", LifelineSign.HUNG_UP)], now)
        for name in look(suspects, beats, now):
            dropped.setdefault(name, now)
            suspects.forget(name)
    assert "a" not in dropped
    assert died_at is not None
    assert died_at + GRACE_S <= dropped["b"] <= died_at + 2 * GRACE_S
