"""Which requests of operators are granted, and the answers."""

from __future__ import annotations

import pytest

from ft_rendezvous.core.lifecycle import Phase
from ft_rendezvous.core.model import Request, RequestKind, Verdict, VerdictKind
from ft_rendezvous.core.next_cycle import DrainState
from ft_rendezvous.core.requests import Standing, decide_request

RESTART, DRAIN, CLOSE, ROSTER = RequestKind.RESTART, RequestKind.DRAIN, RequestKind.CLOSE, RequestKind.ROSTER
COVERED = DrainState(("n1",), 100.0, is_covered=True, is_total=False)
UNCOVERED = DrainState(("n1",), 100.0, is_covered=False, is_total=True)


def run(
    phase: Phase = Phase.SEALED,
    drain: DrainState | None = None,
    found: tuple[str, ...] = (),
    verdict: Verdict | None = None,
    roster: str = "",
) -> Standing:
    return Standing(phase, 3, verdict, drain, found, roster)


@pytest.mark.parametrize(
    ("kind", "standing", "is_granted", "text"),
    [
        pytest.param(RESTART, run(), True, "cycle 3 ends, the next one opens", id="restart"),
        pytest.param(RESTART, run(Phase.OPEN), False, "cycle 3 is not sealed yet", id="nothing to restart"),
        pytest.param(RESTART, run(drain=COVERED), True, "cycle 3 ends", id="restart with a drain that is covered"),
        pytest.param(RESTART, run(drain=UNCOVERED), False, "would end the run", id="restart that would end the run"),
        pytest.param(DRAIN, run(found=("a", "b")), True, "asked to go: a, b", id="drain"),
        pytest.param(DRAIN, run(Phase.OPEN, found=("a",)), True, "asked to go: a", id="drain before the seal"),
        pytest.param(DRAIN, run(), False, "no live node '7' that is not draining", id="drain of an unknown node"),
        pytest.param(ROSTER, run(roster="{}"), True, "{}", id="roster"),
        pytest.param(
            ROSTER,
            run(roster="x" * (8 << 20)),
            False,
            "larger than one value of the store may be",
            id="roster of too many",
        ),
        pytest.param(CLOSE, run(), True, "closed", id="close"),
        pytest.param(CLOSE, run(Phase.OPEN), True, "closed", id="close before the seal"),
    ],
)
def test_decision(kind: RequestKind, standing: Standing, is_granted: bool, text: str) -> None:
    request = Request(cycle_id=3, incarnation="0" * 16, kind=kind, target="7")
    answer = decide_request(request, standing)
    assert (answer.request, answer.is_granted) == ("0" * 16, is_granted)
    assert answer.text.startswith(text) or text in answer.text


@pytest.mark.parametrize("kind", list(RequestKind))
def test_nothing_is_granted_once_the_run_is_closed(kind: RequestKind) -> None:
    request = Request(cycle_id=3, incarnation="0" * 16, kind=kind)
    verdict = Verdict(VerdictKind.SUCCEEDED)
    answer = decide_request(request, run(Phase.CLOSED, found=("a",), verdict=verdict))
    assert (answer.is_granted, answer.text) == (False, "the run is closed: succeeded")
