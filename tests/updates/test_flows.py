"""Random flows, faults and durations, in simulated time: a fleet does what a naive model of the same rules says."""

from __future__ import annotations

from hypothesis import given, settings

from tests.updates.drawing import scenarios
from tests.updates.naive_model import NaiveModel
from tests.updates.scenario import Scenario, Stage


@given(scenarios())
@settings(max_examples=250)
def test_a_fleet_does_what_the_rules_say(scenario: Scenario) -> None:
    for seen, expected in zip(Stage(scenario).run(), NaiveModel(scenario).run(), strict=True):
        assert seen == expected
