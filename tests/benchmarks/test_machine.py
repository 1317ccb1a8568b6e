"""A run says what reverse lookups did to it, and which samples may contain a pause."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import machine
from benchmarks.report import Row, warnings_of

FAST, SLOW = {"127.0.0.1": 0.0004}, {"127.0.0.1": 0.0004, "::ffff:127.0.0.1": 5.0}
OPTIONS = "timeout:1 attempts:1"


def facts(
    in_run: dict[str, float], plain: dict[str, float] | None, options: str | None = OPTIONS, **more: Any
) -> dict[str, Any]:
    found = {"resolver_options": options, "reverse_dns_s": in_run, "cores": 2, "load_1min": 0.5, **more}
    return found if plain is None else {**found, "plain_reverse_dns_s": plain}


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (facts(FAST, FAST), "no pauses"),
        (facts(FAST, SLOW), f"takes 5.0 s on this machine; removed for this run by RES_OPTIONS='{OPTIONS}'"),
        (facts(SLOW, SLOW, None), "takes 5.0 s with no RES_OPTIONS: every connection"),
        (facts(FAST, FAST, after={"reverse_dns_s": SLOW}), f"takes 5.0 s with RES_OPTIONS='{OPTIONS}'"),
        (facts(FAST, FAST, after={"plain_reverse_dns_s": SLOW}), "removed for this run"),
        (facts(FAST, None), "without was not measured"),
    ],
)
def test_lookups_are_explained(found: dict[str, Any], told: str) -> None:
    assert told in machine.explain_lookups(found)


def test_lookups_are_timed_without_the_runs_resolver_options() -> None:
    found = machine.describe_now()
    assert set(found["plain_reverse_dns_s"]) == set(found["reverse_dns_s"]) == set(machine.ADDRESSES)
    assert all(seconds > 0 for seconds in found["plain_reverse_dns_s"].values())


@pytest.mark.parametrize(
    ("seconds", "count"),
    [
        ([], 0),
        ([0.2], 0),
        ([0.2, 0.2, 0.2, 5.25], 1),
        ([0.2, 0.2, 0.2, 0.2, 5.25, 10.1], 2),
        ([0.2, 0.2, 0.2, 2.7], 0),
        ([0.2, 0.2, 0.2, 1.1], 0),
    ],
    ids=["none", "one", "one pause", "one and two pauses", "half a pause", "less than a second"],
)
def test_samples_with_a_pause_are_counted(seconds: list[float], count: int) -> None:
    assert machine.count_pauses(seconds, pause_s=5.0) == count


def row(*seconds: float) -> Row:
    return Row("form", "8 nodes", "ours", seconds, seconds[0], None, 1.0)


def test_a_pause_is_a_note_and_so_is_a_load() -> None:
    rows = [row(0.1, 0.1, 0.1, 5.1), row(0.1, 0.1, 0.1)]
    (pause,) = warnings_of(facts(FAST, SLOW), rows)
    assert pause.startswith("1 sample may contain a DNS pause, slower than the median by about a multiple of 5.0 s")
    assert pause.endswith(": 1 of ours (form, 8 nodes)")
    assert warnings_of(facts(FAST, FAST), [row(0.1, 0.1, 0.1)]) == []
    assert "load 9.0" in warnings_of(facts(FAST, FAST, after={"load_1min": 9.0}))[0]


@pytest.mark.parametrize(
    ("options", "pause_s"), [(OPTIONS, "1.0 s"), (None, "5.0 s"), ("timeout:0", "5.0 s"), ("rotate", "5.0 s")]
)
def test_a_pause_nobody_measured_lasts_as_long_as_the_resolver_waits(options: str | None, pause_s: str) -> None:
    samples = [("ours", (0.1, 0.1, 0.1, 10.1))]
    assert f"multiple of {pause_s}" in machine.explain_pauses(facts(FAST, FAST, options), samples)
