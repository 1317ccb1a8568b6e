"""What was seen in a scenario gets the name it deserves, and a part of a run replaces no results."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.scenarios_c10d import report
from benchmarks.scenarios_c10d.__main__ import JSON, MARKDOWN, parse
from benchmarks.scenarios_c10d.observe import Outcome, Story, Want, classify, describe
from benchmarks.scenarios_c10d.scenarios import SCENARIOS, wanted

WANTS = {"n0": Want.ZERO, "n1": Want.ANY, "spare": Want.NOT_ZERO}
EXITS: dict[str, int | None] = {"n0": 0, "n1": -9, "spare": 1}


@pytest.mark.parametrize(
    ("seen", "outcome"),
    [
        ({}, Outcome.FINE),
        ({"exits": {**EXITS, "spare": -15}}, Outcome.FINE),
        ({"flaws": ["ranks changed"]}, Outcome.FLAWED),
        ({"exits": {**EXITS, "n0": 1}}, Outcome.FAILED),
        ({"exits": {**EXITS, "spare": 0}}, Outcome.FAILED),
        ({"missed": "not seen: n0 trains again", "flaws": ["ranks changed"]}, Outcome.FAILED),
        ({"exits": {**EXITS, "spare": None}, "missed": "not seen: n0 trains again"}, Outcome.HUNG),
        ({"exits": {"n0": 0, "n1": -9}}, Outcome.HUNG),
    ],
)
def test_the_worst_that_was_seen_names_the_outcome(seen: dict[str, object], outcome: Outcome) -> None:
    assert classify(Story(**{"wants": WANTS, "exits": EXITS, **seen})) is outcome  # type: ignore[arg-type]


def test_the_facts_in_one_line() -> None:
    story = Story(WANTS, {**EXITS, "spare": None}, "not seen: spare trains", ["an orphan"], recovery_s=7.25)
    assert describe(story) == ("trained again after 7.2 s; not seen: spare trains; an orphan; exits: n0 0, spare none")


def test_all_scenarios_with_both_backends_replace_the_results() -> None:
    options = parse([])
    assert (options.json, options.markdown) == (JSON, MARKDOWN)
    assert options.only == list(SCENARIOS)
    assert len(SCENARIOS) == 10
    assert {contender.backend for contender in options.contenders.values()} == {"ft", "c10d"}


@pytest.mark.parametrize("part", [["--only", "plain"], ["--backend", "ft"], ["--render", "some.json"]])
def test_a_part_replaces_nothing(part: list[str]) -> None:
    options = parse(part)
    assert (options.json, options.markdown) == (None, None)
    assert parse([*part, "--json", "here.json"]).json == Path("here.json")


def test_one_backend_is_tried_alone() -> None:
    assert list(parse(["--backend", "ft"]).contenders) == ["ft"]
    assert "ft" not in parse(["--backend", "c10d"]).contenders


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    story = Story(WANTS, EXITS, flaws=["an orphan"], recovery_s=1.5, took_s=3.0)
    facts = {"torch": "2.13.0", "python": "3.11.7", "cores": 2, "date": "2026-01-01", "limit_s": 90.0}
    report.write_json(tmp_path / "told.json", facts, {"plain": {"ft": story, "c10d": Story(WANTS)}})
    read_facts, stories = report.read_json(tmp_path / "told.json")
    assert (read_facts, stories["plain"]["ft"]) == (facts, story)
    page = report.page_of(read_facts, stories)
    assert f"| **plain**: {wanted('plain')} | *flawed*: trained again after 1.5 s; an orphan; " in page
    assert "| *hung*: " in page


def test_the_page_is_what_the_results_say() -> None:
    command = f"{report.COMMAND} --render {JSON} --markdown {MARKDOWN}"
    assert MARKDOWN.read_text() == report.page_of(*report.read_json(JSON)), f"run `{command}`"
