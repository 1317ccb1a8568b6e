"""Random scenarios, from a seed or from Hypothesis."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.updates.scenario import Act, CallKey, Ends, Scenario, StepShape

DURATIONS_S = (0.2, 1.1, 2.6, 4.3, 7.4, 9.3, 11.2)
"""Around the timeouts of a scenario, and equal to none."""
PARTY_OFFSET_S = 0.01
"""No two parties end at the same moment: which one was first would be chance."""
WHATS = ("action", "action", "abort", "undo", "finish")


@st.composite
def scenarios(draw: DrawFn) -> Scenario:
    parties = tuple(f"gen-{number}" for number in range(draw(st.integers(1, 4))))
    flags = st.tuples(st.booleans(), st.booleans(), st.booleans())
    steps = tuple(StepShape(*drawn) for drawn in draw(st.lists(flags, min_size=1, max_size=4)))
    versions = draw(st.integers(1, 3))
    essential = parties[:1] if len(parties) > 1 and draw(st.booleans()) else ()
    cancel_times = st.lists(st.integers(0, 40).map(lambda half_s: half_s / 2 + 0.0031), min_size=1, max_size=2)
    return Scenario(
        parties=parties,
        steps=steps,
        script=draw(_scripts(parties, len(steps), versions)),
        versions=versions,
        essential=essential,
        min_parties=draw(st.integers(1, max(1, len(parties) - len(essential)))),
        max_party_failures=draw(st.integers(1, 3)),
        cancels=draw(st.dictionaries(st.integers(1, versions), cancel_times.map(tuple), max_size=1)),
        flow_errors=draw(
            st.dictionaries(
                st.tuples(st.integers(1, versions), st.integers(1, 2)), st.integers(0, len(steps) - 1), max_size=1
            )
        ),
        puts=draw(
            st.dictionaries(
                st.integers(1, versions), st.lists(st.sampled_from(parties), unique=True).map(tuple), max_size=2
            )
        ),
    )


@st.composite
def _scripts(draw: DrawFn, parties: tuple[str, ...], steps: int, versions: int) -> dict[CallKey, Act]:
    keys = st.builds(
        CallKey,
        st.integers(1, versions),
        st.integers(1, 2),
        st.integers(0, steps - 1),
        st.sampled_from(WHATS),
        st.sampled_from(parties),
    )
    script = {}
    for key in draw(st.lists(keys, max_size=10, unique=True)):
        script[key] = Act(
            draw(st.sampled_from(Ends)),
            draw(st.sampled_from(DURATIONS_S)) + PARTY_OFFSET_S * parties.index(key.party),
            draw(st.booleans()),
            draw(st.booleans()),
        )
    return script
