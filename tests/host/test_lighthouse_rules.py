"""Torchft's timeouts fit the lease, and what a user sets against it is said."""

from __future__ import annotations

import pytest

from ft_rendezvous.host.lighthouse_rules import (
    CONNECT_TIMEOUT,
    QUORUM_RETRIES,
    QUORUM_TIMEOUT,
    RETRY_PAUSE_S,
    TIMEOUT,
    derive_rules,
    derive_timeouts,
)

NAMES = {TIMEOUT, QUORUM_TIMEOUT, CONNECT_TIMEOUT, QUORUM_RETRIES}
LEASES_S = (0.5, 5.0, 7.3, 60.0)


@pytest.mark.parametrize("lease_s", LEASES_S)
def test_what_is_derived_can_be_parsed_and_contradicts_nothing(lease_s: float) -> None:
    timeouts = derive_timeouts(lease_s, {"PATH": "/bin"})
    assert timeouts.values.keys() == NAMES
    assert timeouts.warnings == ()
    again = derive_timeouts(lease_s, timeouts.values)
    assert (again.values, again.warnings) == ({}, ())
    numbers = {name: int(text) for name, text in timeouts.values.items()}
    assert lease_s < numbers[TIMEOUT] <= numbers[QUORUM_TIMEOUT]
    assert numbers[QUORUM_TIMEOUT] / (numbers[QUORUM_RETRIES] + 1) == pytest.approx(RETRY_PAUSE_S, rel=0.1)


@pytest.mark.parametrize("lease_s", LEASES_S)
def test_a_silent_manager_does_not_count_before_its_lease_ends(lease_s: float) -> None:
    rules = derive_rules(lease_s, 2)
    assert rules.min_replicas == 2
    assert 10 * rules.tick_s <= rules.heartbeat_timeout_s < rules.silence_timeout_s
    if lease_s > 2:
        assert rules.silence_timeout_s < lease_s


def test_what_the_user_sets_is_kept() -> None:
    timeouts = derive_timeouts(5.0, {TIMEOUT: "90", CONNECT_TIMEOUT: "3"})
    assert timeouts.values.keys() == {QUORUM_TIMEOUT, QUORUM_RETRIES}
    assert timeouts.warnings == ()


def test_the_pause_between_retries_follows_the_users_timeout() -> None:
    assert derive_timeouts(5.0, {QUORUM_TIMEOUT: "3600"}).values[QUORUM_RETRIES] == "3599"


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({TIMEOUT: "1.5"}, "TORCHFT_TIMEOUT_SEC=1.5 is not a whole number"),
        ({TIMEOUT: "4"}, "TORCHFT_TIMEOUT_SEC=4 is not more than the lease of 5 s"),
        ({QUORUM_TIMEOUT: "30"}, "TORCHFT_QUORUM_TIMEOUT_SEC=30 is less than TORCHFT_TIMEOUT_SEC=60"),
        ({TIMEOUT: "900"}, "TORCHFT_QUORUM_TIMEOUT_SEC=300 is less than TORCHFT_TIMEOUT_SEC=900"),
        ({QUORUM_RETRIES: "0"}, "every worker fails if the lighthouse restarts"),
    ],
)
def test_a_contradiction_is_said(environ: dict[str, str], said: str) -> None:
    (warning,) = derive_timeouts(5.0, environ).warnings
    assert said in warning
