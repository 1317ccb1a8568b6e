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
    request = Request(cycle_id=3, incarnation="0" * 16, kind=kind, target="" if kind is RESTART else "7")
    answer = decide_request(request, standing)
    assert (answer.request, answer.is_granted) == ("0" * 16, is_granted)
    assert answer.text.startswith(text) or text in answer.text


@pytest.mark.parametrize(
    ("target", "groups", "is_granted", "text"),
    [
        pytest.param("1", {0: "", 1: ""}, True, "group 1 restarts, the others train on", id="one group"),
        pytest.param("1", {0: "", 1: "it waits"}, False, "group 1 cannot restart: it waits", id="it cannot"),
        pytest.param(
            "7", {1: "", 0: "it waits"}, False, "there is no group '7': the run has groups 0, 1", id="no such group"
        ),
        pytest.param("x", {0: ""}, False, "there is no group 'x': the run has group 0", id="not a number"),
        pytest.param("01", {1: ""}, False, "there is no group '01': the run has group 1", id="not as it is written"),
        pytest.param(
            "0", None, False, "this run has one group: restart it without naming a group", id="a run without groups"
        ),
        pytest.param("", {0: "", 1: "it waits"}, True, "all groups restart", id="all groups"),
    ],
)
def test_a_restart_of_one_group(target: str, groups: dict[int, str] | None, is_granted: bool, text: str) -> None:
    request = Request(cycle_id=3, incarnation="0" * 16, kind=RESTART, target=target)
    answer = decide_request(request, Standing(Phase.SEALED, 3, None, None, (), "", groups))
    assert (answer.is_granted, answer.text) == (is_granted, text)


def test_a_group_can_be_restarted_while_a_drain_of_another_is_not_covered() -> None:
    request = Request(cycle_id=3, incarnation="0" * 16, kind=RESTART, target="1")
    assert decide_request(request, Standing(Phase.SEALED, 3, None, UNCOVERED, (), "", {0: "", 1: ""})).is_granted


def test_no_group_is_restarted_while_a_common_cycle_is_open() -> None:
    request = Request(cycle_id=3, incarnation="0" * 16, kind=RESTART, target="0")
    answer = decide_request(request, Standing(Phase.OPEN, 3, None, None, (), "", {}))
    assert (answer.is_granted, answer.text.split(":")[0]) == (False, "cycle 3 is not sealed yet")


@pytest.mark.parametrize("kind", list(RequestKind))
def test_nothing_is_granted_once_the_run_is_closed(kind: RequestKind) -> None:
    request = Request(cycle_id=3, incarnation="0" * 16, kind=kind)
    verdict = Verdict(VerdictKind.SUCCEEDED)
    answer = decide_request(request, run(Phase.CLOSED, found=("a",), verdict=verdict))
    assert (answer.is_granted, answer.text) == (False, "the run is closed: succeeded")
