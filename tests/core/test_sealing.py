"""When a cycle is sealed: every decision once, then what must hold of all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.core.capacity import PlacementRules
from ft_rendezvous.core.model import NAMED, VerdictKind
from ft_rendezvous.core.sealing import (
    AwaitsSurvivors,
    CountsDisagree,
    GiveUp,
    NeedsNodes,
    Seal,
    SealRules,
    SealView,
    Settles,
    Wait,
    decide_seal,
)
from tests.core.build import arrival, arrivals, node

RULES = SealRules(
    placement=PlacementRules(min_nodes=3, max_nodes=5), settle_s=2.0, last_call_s=45.0, join_s=600.0, lease_s=5.0
)
WANTED = 3
OPENED_AT = 100.0


def view_of(arrived: int, **changes: object) -> SealView:
    """An open cycle with nodes 1..arrived, enough of them since the opening."""
    view = SealView(
        opened_at=OPENED_AT,
        arrived=arrivals(range(1, arrived + 1)),
        awaited={},
        world=(),
        alive=arrivals(range(1, arrived + 1)),
        fit=arrived,
        joinable_fit=arrived,
        finished_count=0,
        spent_count=0,
        left_count=0,
        drained_count=0,
        unhealthy=(),
        enough_since=OPENED_AT if arrived >= WANTED else None,
        disagrees_since=None,
    )
    return replace(view, **changes)  # type: ignore[arg-type]


def waits(reason: object, until: float) -> Wait:
    return Wait(reason, until)  # type: ignore[arg-type]


SURVIVOR = AwaitsSurvivors(1, ("host9 pid 109",))

TABLE = [
    pytest.param(view_of(3), OPENED_AT + 2.0, Seal(WANTED), id="enough, settled"),
    pytest.param(view_of(5), OPENED_AT + 2.0, Seal(WANTED), id="more than enough, settled"),
    pytest.param(view_of(3), OPENED_AT + 1.9, waits(Settles(), OPENED_AT + 2.0), id="enough, still settling"),
    pytest.param(
        view_of(3, enough_since=OPENED_AT + 30), OPENED_AT + 31, waits(Settles(), OPENED_AT + 32), id="settle from then"
    ),
    pytest.param(view_of(0), OPENED_AT, waits(NeedsNodes(0, 3, ()), OPENED_AT + 600), id="nobody yet"),
    pytest.param(view_of(2), OPENED_AT + 599, waits(NeedsNodes(2, 3, ()), OPENED_AT + 600), id="one too few"),
    pytest.param(
        view_of(2, world=(arrival(1), arrival(9), arrival(2))),
        OPENED_AT,
        waits(NeedsNodes(2, 3, ("host9 pid 109 (rank 1)",)), OPENED_AT + 600),
        id="one of the last world is missing",
    ),
    pytest.param(
        view_of(3, awaited=arrivals([9])), OPENED_AT + 44.9, waits(SURVIVOR, OPENED_AT + 45), id="a survivor is awaited"
    ),
    pytest.param(view_of(3, awaited=arrivals([9])), OPENED_AT + 45, Seal(WANTED), id="last call is over"),
    pytest.param(
        view_of(3, disagrees_since=OPENED_AT + 1),
        OPENED_AT + 5.9,
        waits(CountsDisagree(), OPENED_AT + 6),
        id="an arrival without its record",
    ),
    pytest.param(
        view_of(3, disagrees_since=OPENED_AT + 1), OPENED_AT + 6, Seal(WANTED), id="the records are the truth"
    ),
    pytest.param(
        view_of(2, disagrees_since=OPENED_AT),
        OPENED_AT,
        waits(NeedsNodes(2, 3, ()), OPENED_AT + 600),
        id="too few explains more than a disagreement",
    ),
]


@pytest.mark.parametrize(("view", "now", "expected"), TABLE)
def test_decision(view: SealView, now: float, expected: object) -> None:
    assert decide_seal(view, now, RULES) == expected


@pytest.mark.parametrize(
    ("view", "now", "told"),
    [
        pytest.param(
            view_of(2, world=(arrival(1), arrival(2), arrival(9, info=node(9, infra_rank=7)))),
            OPENED_AT + 600,
            ["join_timeout of 600 s is over", "2 of 3 nodes", "infra rank 7 at host9 pid 109 (rank 2)"],
            id="join_timeout names who is missing",
        ),
        pytest.param(
            view_of(2, finished_count=1),
            OPENED_AT,
            ["1 node finished", "2 others cannot form a world of 3"],
            id="a finished node cannot come back",
        ),
        pytest.param(
            view_of(2, spent_count=1),
            OPENED_AT,
            ["1 agent spent all restarts", "--max-restarts", "2 others cannot form a world of 3"],
            id="an agent has given up",
        ),
        pytest.param(
            view_of(1, finished_count=1, spent_count=2),
            OPENED_AT,
            ["1 node finished", " and 2 agents spent", "1 other cannot"],
            id="both facts",
        ),
    ],
)
def test_giving_up_tells_the_facts(view: SealView, now: float, told: list[str]) -> None:
    decision = decide_seal(view, now, RULES)
    assert isinstance(decision, GiveUp)
    assert decision.kind is VerdictKind.FAILED
    for fact in told:
        assert fact in decision.reason


def test_a_run_that_everybody_has_left_is_cancelled_and_waits_for_nobody() -> None:
    view = view_of(0, left_count=2, world=tuple(arrivals([1, 2, 3]).values()))
    assert decide_seal(view, OPENED_AT, RULES) == GiveUp(VerdictKind.CANCELLED, "every node has left")


def test_a_run_that_some_have_left_waits_for_others_to_come() -> None:
    view = view_of(1, left_count=2)
    assert decide_seal(view, OPENED_AT, RULES) == waits(NeedsNodes(1, 3, ()), OPENED_AT + 600)


@pytest.mark.parametrize("field", ["finished_count", "spent_count", "left_count"])
def test_a_loss_that_the_others_can_make_good_ends_nothing(field: str) -> None:
    view = view_of(2, joinable_fit=3, **{field: 1})
    assert decide_seal(view, OPENED_AT, RULES) == waits(NeedsNodes(2, 3, ()), OPENED_AT + 600)


def test_reasons_name_a_few_nodes_and_count_the_rest() -> None:
    awaited = decide_seal(view_of(3, awaited=arrivals(range(10, 40))), OPENED_AT, RULES)
    assert isinstance(awaited, Wait)
    assert isinstance(awaited.reason, AwaitsSurvivors)
    assert awaited.reason.count == 30
    assert len(awaited.reason.first) == NAMED
    needs = decide_seal(view_of(2, world=tuple(arrivals(range(10, 40)).values())), OPENED_AT, RULES)
    assert isinstance(needs, Wait)
    assert isinstance(needs.reason, NeedsNodes)
    assert len(needs.reason.missing) == NAMED


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (NeedsNodes(2, 3, ()), "2 of 3 nodes have arrived"),
        (NeedsNodes(2, 3, ("x (rank 1)",)), "2 of 3 nodes have arrived; missing: x (rank 1)"),
        (SURVIVOR, "1 survivor is stopping workers: host9 pid 109"),
        (Settles(), "enough nodes have arrived; settle_s lets more come"),
        (CountsDisagree(), "an arrival was counted and its record is not there yet"),
    ],
)
def test_every_reason_to_wait_reads_as_a_sentence(reason: object, text: str) -> None:
    assert str(reason) == text


# --- properties -------------------------------------------------------------------------------------

seconds = st.floats(min_value=0, max_value=1000, allow_nan=False)
moments = seconds.map(lambda s: OPENED_AT + s)


@st.composite
def views(draw: st.DrawFn) -> SealView:
    arrived = draw(st.integers(min_value=0, max_value=6))
    awaited = draw(st.integers(min_value=0, max_value=3))
    return view_of(
        arrived,
        awaited=arrivals(range(50, 50 + awaited)),
        world=tuple(arrivals(draw(st.lists(st.integers(1, 9), unique=True, max_size=3))).values()),
        joinable_fit=arrived + awaited + draw(st.integers(0, 3)),
        finished_count=draw(st.integers(0, 2)),
        spent_count=draw(st.integers(0, 2)),
        left_count=draw(st.integers(0, 2)),
        enough_since=draw(moments) if arrived >= WANTED else None,
        disagrees_since=draw(st.none() | moments),
    )


@given(view=views(), now=moments, later_s=seconds)
def test_time_alone_never_takes_a_final_decision_back(view: SealView, now: float, later_s: float) -> None:
    decision = decide_seal(view, now, RULES)
    if not isinstance(decision, Wait):
        assert decide_seal(view, now + later_s, RULES) == decision


@given(view=views(), now=moments)
def test_a_wait_says_exactly_when_it_ends(view: SealView, now: float) -> None:
    """Until then the answer stays, so nobody needs to ask; then it is another, so nobody asks in vain."""
    decision = decide_seal(view, now, RULES)
    if isinstance(decision, Wait):
        assert decision.until > now
        between = now + (decision.until - now) / 2
        if between < decision.until:
            assert decide_seal(view, between, RULES) == decision
        after = decide_seal(view, decision.until, RULES)
        assert not (isinstance(after, Wait) and type(after.reason) is type(decision.reason))


@given(view=views(), now=moments)
def test_waiting_ends_by_the_last_of_all_deadlines(view: SealView, now: float) -> None:
    """Asked again at the end of every wait, four waits are all there can be."""
    decision = decide_seal(view, now, RULES)
    for _ in range(4):
        if isinstance(decision, Wait):
            decision = decide_seal(view, decision.until, RULES)
    assert not isinstance(decision, Wait)


@given(view=views(), now=moments)
def test_a_seal_is_never_early(view: SealView, now: float) -> None:
    if decide_seal(view, now, RULES) == Seal(WANTED):
        assert len(view.arrived) >= WANTED
        assert not view.awaited or now >= view.opened_at + RULES.last_call_s
        assert view.enough_since is not None
        assert now >= view.enough_since + RULES.settle_s
        assert view.disagrees_since is None or now >= view.disagrees_since + RULES.lease_s


@given(view=views(), now=moments, is_survivor=st.booleans())
def test_one_more_arrival_never_makes_a_cycle_worse(view: SealView, now: float, is_survivor: bool) -> None:
    more = replace(
        view, arrived={**view.arrived, **arrivals([99])}, fit=view.fit + 1, joinable_fit=view.joinable_fit + 1
    )
    if is_survivor and view.awaited:
        back = next(iter(view.awaited))
        more = replace(
            view,
            arrived={**view.arrived, back: view.awaited[back]},
            fit=view.fit + 1,
            awaited={name: value for name, value in view.awaited.items() if name != back},
        )
    if len(more.arrived) == WANTED:
        more = replace(more, enough_since=now)
    before, after = decide_seal(view, now, RULES), decide_seal(more, now, RULES)
    if before == Seal(WANTED):
        assert after == Seal(WANTED)
    if not isinstance(before, GiveUp):
        assert not isinstance(after, GiveUp)


@given(view=views(), now=moments)
def test_enough_arrivals_are_never_given_up(view: SealView, now: float) -> None:
    if len(view.arrived) >= WANTED:
        assert not isinstance(decide_seal(view, now, RULES), GiveUp)
