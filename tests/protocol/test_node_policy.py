"""What a node does about a lost connection and at its end: tables, and what holds for all numbers."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.core.model import Outcome, Verdict, VerdictKind
from ft_rendezvous.core.node_step import Progress
from ft_rendezvous.protocol.node_policy import AgentTicks, Outage, decide_outcome, decide_retry, ends_well, is_wedged

LEASE_S, JOIN_S = 10.0, 60.0


# --- how long a node tries again --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lost_s", "refused_s", "may_try", "reason"),
    [
        pytest.param(0.0, None, True, "this node tries again for 60 s", id="silent, at first"),
        pytest.param(11.0, None, True, "this node tries again for 60 s", id="silent for longer than a lease"),
        pytest.param(59.9, None, True, "this node tries again for 60 s", id="silent, nearly as long as a join"),
        pytest.param(60.0, None, False, "for 60.0 s", id="silent for as long as a join may take"),
        pytest.param(0.0, 0.0, True, "this node tries again for 10 s", id="refused, at first"),
        pytest.param(9.9, 9.9, True, "this node tries again for 10 s", id="refused for nearly a lease"),
        pytest.param(10.0, 10.0, False, "for 10.0 s: the run ended with its store", id="refused for a lease"),
        pytest.param(55.0, 9.9, True, "this node tries again for 10 s", id="silent, then refused for nearly a lease"),
        pytest.param(55.0, 10.0, False, "for 55.0 s: the run ended with its store", id="silent, then refused"),
        pytest.param(60.0, 0.0, False, "for 60.0 s", id="refused at the very end"),
    ],
)
def test_a_node_waits_long_for_a_silent_host_and_a_lease_for_one_that_refuses(
    lost_s: float, refused_s: float | None, may_try: bool, reason: str
) -> None:
    now = 1000.0
    outage = Outage(since=now - lost_s, tries=3, refused_since=None if refused_s is None else now - refused_s)
    retry = decide_retry(outage, now, LEASE_S, JOIN_S)
    assert (retry.may_try, retry.reason) == (may_try, reason)


def test_one_attempt_that_is_not_refused_begins_the_count_of_refusals_anew() -> None:
    """A host that falls silent in between was not gone."""
    outage = Outage(since=0.0)
    for is_refused, now in [(True, 1.0), (True, 2.0), (False, 3.0), (True, 4.0), (True, 5.0)]:
        outage = outage.after(is_refused, now)
    assert outage == Outage(since=0.0, tries=5, refused_since=4.0)


# Dyadic fractions: sums of these are exact, so a property cannot fail by rounding.
moments = st.integers(min_value=1, max_value=64 * 100).map(lambda n: n / 64)


@given(
    attempts=st.lists(st.tuples(st.booleans(), moments), min_size=1, max_size=50),
    lease_s=moments,
    more_s=moments,
)
def test_a_node_gives_up_when_a_join_would_and_never_before_a_lease(
    attempts: list[tuple[bool, float]], lease_s: float, more_s: float
) -> None:
    join_s = lease_s + more_s
    outage, now = Outage(since=0.0), 0.0
    for is_refused, gap_s in attempts:
        now += gap_s
        outage = outage.after(is_refused, now)
        may_try = decide_retry(outage, now, lease_s, join_s).may_try
        if now >= join_s:
            assert not may_try
        if now < lease_s or (now < join_s and not is_refused):
            assert may_try
    assert outage.tries == len(attempts)


@given(begun_at=st.just(0.0) | moments, gaps_s=st.lists(moments, min_size=2, max_size=30), lease_s=moments)
def test_a_store_that_refuses_all_the_time_is_given_up_after_a_lease(
    begun_at: float, gaps_s: list[float], lease_s: float
) -> None:
    """From the first refusal on, whatever the clock shows: its zero is any moment."""
    outage, times = Outage(since=begun_at), list(itertools.accumulate(gaps_s, initial=begun_at))
    for now in times:
        outage = outage.after(is_refused=True, now=now)
        assert decide_retry(outage, now, lease_s, join_s=1e9).may_try == (now - times[0] < lease_s)


# --- with which outcome a node leaves ---------------------------------------------------------------

SUCCEEDED, FAILED, CANCELLED = (
    Verdict(kind) for kind in (VerdictKind.SUCCEEDED, VerdictKind.FAILED, VerdictKind.CANCELLED)
)


@pytest.mark.parametrize(
    ("verdict", "trained_in", "finished_in", "is_going", "expected"),
    [
        pytest.param(SUCCEEDED, 1, 1, False, Outcome.SUCCEEDED, id="the run is over"),
        pytest.param(FAILED, 1, 0, False, Outcome.SUCCEEDED, id="a verdict speaks for itself"),
        pytest.param(None, 2, 2, False, Outcome.SUCCEEDED, id="its workers ended well"),
        pytest.param(None, 2, 2, True, Outcome.SUCCEEDED, id="its workers ended well before it went"),
        pytest.param(None, 2, 0, False, Outcome.LEFT, id="it trains"),
        pytest.param(None, 2, 1, False, Outcome.LEFT, id="its workers ended well in an earlier place only"),
        pytest.param(None, 0, 0, False, Outcome.LEFT, id="a spare"),
        pytest.param(None, 0, 0, True, Outcome.DRAINED, id="a spare that was asked to go"),
        pytest.param(None, 2, 0, True, Outcome.DRAINED, id="it was asked to go"),
    ],
)
def test_an_agent_that_ends_without_an_error_has_not_always_succeeded(
    verdict: Verdict | None, trained_in: int, finished_in: int, is_going: bool, expected: Outcome
) -> None:
    progress = Progress(trained_in=trained_in, finished_in=finished_in)
    assert decide_outcome(Outcome.SUCCEEDED, verdict, progress, is_going) is expected


@given(
    outcome=st.sampled_from([outcome for outcome in Outcome if outcome is not Outcome.SUCCEEDED]),
    verdict=st.sampled_from([None, SUCCEEDED, FAILED, CANCELLED]),
    trained_in=st.integers(0, 2),
    finished_in=st.integers(0, 2),
    is_going=st.booleans(),
)
def test_any_other_outcome_is_said_as_it_is(
    outcome: Outcome, verdict: Verdict | None, trained_in: int, finished_in: int, is_going: bool
) -> None:
    progress = Progress(trained_in=trained_in, finished_in=finished_in)
    assert decide_outcome(outcome, verdict, progress, is_going) is outcome


@pytest.mark.parametrize(
    ("verdict", "is_going", "expected"),
    [
        (SUCCEEDED, False, True),
        (SUCCEEDED, True, True),
        (FAILED, False, False),
        (FAILED, True, False),
        (CANCELLED, False, False),
        (CANCELLED, True, True),
    ],
    ids=str,
)
def test_a_node_ends_well_with_its_run_or_if_it_was_asked_to_go(
    verdict: Verdict, is_going: bool, expected: bool
) -> None:
    assert ends_well(verdict, is_going) is expected


# --- an agent that does not come back ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("away_s", "lease_s", "expected"),
    [
        pytest.param(0.0, 10.0, False, id="it trains, or has come back"),
        pytest.param(119.0, 10.0, False, id="it stops workers that ignore SIGTERM"),
        pytest.param(120.0, 10.0, True, id="two minutes"),
        pytest.param(299.0, 30.0, False, id="a long lease makes patient"),
        pytest.param(300.0, 30.0, True, id="ten leases"),
    ],
)
def test_an_agent_is_wedged_after_two_minutes_and_ten_leases(away_s: float, lease_s: float, expected: bool) -> None:
    assert is_wedged(away_s, lease_s, 0.0) is expected


def test_an_agent_that_checks_its_health_is_not_wedged() -> None:
    assert not is_wedged(719.0, 10.0, 600.0)
    assert is_wedged(720.0, 10.0, 600.0)


def ticks_of(interval_s: float, count: int = 5) -> AgentTicks:
    ticks = AgentTicks()
    for _ in range(count):
        ticks.note(1)
        ticks.pass_time(1, interval_s)
    return ticks


@pytest.mark.parametrize(
    ("interval_s", "silent_s", "expected"),
    [(1.0, 118.0, False), (1.0, 119.0, True), (60.0, 539.0, False), (60.0, 540.0, True)],
)
def test_an_agent_that_ticks_no_more_is_wedged(interval_s: float, silent_s: float, expected: bool) -> None:
    """After two minutes, and ten of its usual intervals. The last of these has passed already."""
    ticks = ticks_of(interval_s)
    ticks.pass_time(1, silent_s)
    assert ticks.are_over(lease_s=5.0) is expected


def test_the_lease_of_a_run_prolongs_how_long_an_agent_may_be_silent() -> None:
    ticks = ticks_of(1.0)
    ticks.pass_time(1, 198.0)
    assert not ticks.are_over(lease_s=20.0)
    ticks.pass_time(1, 1.0)
    assert ticks.are_over(lease_s=20.0)


def test_no_tick_is_expected_of_an_agent_that_has_hardly_ticked_or_whose_workers_do_not_train() -> None:
    few = ticks_of(1.0, count=2)
    few.pass_time(1, 1e6)
    assert not few.are_over(lease_s=5.0)
    idle = ticks_of(1.0)
    idle.pass_time(0, 1e6)
    assert not idle.are_over(lease_s=5.0)
    elsewhere = ticks_of(1.0)
    elsewhere.pass_time(2, 1e6)
    assert not elsewhere.are_over(lease_s=5.0), "in a new place it has not ticked yet"
    elsewhere.note(2)
    elsewhere.pass_time(2, 1e6)
    assert not elsewhere.are_over(lease_s=5.0)
