"""What a node does next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.core.model import (
    AnyEvent,
    Closed,
    FirstCycle,
    Master,
    Opened,
    Sealed,
    Seat,
    Verdict,
    VerdictKind,
    View,
    fold,
)
from ft_rendezvous.core.node_step import (
    Arrive,
    GiveUpPlace,
    Leave,
    NodeDecision,
    Park,
    Progress,
    ReportFailure,
    TakeSeat,
    decide_step,
    find_seals,
    is_superseded,
    watch_from,
)

VERDICT = Verdict(VerdictKind.FAILED, "why")


def opened(cycle_id: int, no: int = 1) -> Opened:
    return Opened(no=no, cycle_id=cycle_id, shards=16, ring_at=2, channels=1, why=FirstCycle(), log_id=cycle_id)


ME = "0123456789abcdef"
PLACED, PASSED_OVER = {ME: Seat(1)}, {ME: Seat(None)}


def sealed(cycle_id: int, no: int = 2, seats: dict[str, Seat] = PLACED) -> Sealed:
    return Sealed(no=no, cycle_id=cycle_id, world_size=2, counted=2, masters={0: Master("a", 1)}, seats=seats)


OPEN_3 = View(no=5, opened=opened(3, no=5))
SEALED_3 = View(no=6, opened=opened(3, no=5), sealed=sealed(3, no=6))
STANDBY_3 = View(no=6, opened=opened(3, no=5), sealed=sealed(3, no=6, seats=PASSED_OVER))
SPARE_3 = View(no=6, opened=opened(3, no=5), sealed=sealed(3, no=6, seats={}))
CLOSED_3 = View(no=7, opened=opened(3, no=5), sealed=sealed(3, no=6), closed=Closed(no=7, verdict=VERDICT))


@pytest.mark.parametrize(
    ("view", "mine", "expected"),
    [
        pytest.param(OPEN_3, Progress(), Arrive(3), id="new in an open cycle"),
        pytest.param(SEALED_3, Progress(), Arrive(3), id="new in a sealed cycle: say that we are here"),
        pytest.param(OPEN_3, Progress(arrived_in=2, trained_in=2), Arrive(3), id="survivor"),
        pytest.param(OPEN_3, Progress(arrived_in=2), Arrive(3), id="standby"),
        pytest.param(OPEN_3, Progress(arrived_in=3), Park(), id="arrived, not sealed yet"),
        pytest.param(SEALED_3, Progress(arrived_in=3), TakeSeat(sealed(3, no=6), Seat(1)), id="placed"),
        pytest.param(STANDBY_3, Progress(arrived_in=3), Park(), id="not placed: wait for the next"),
        pytest.param(SPARE_3, Progress(arrived_in=3), Park(), id="came after the seal: wait for the next"),
        pytest.param(SEALED_3, Progress(3, 3), ReportFailure(3), id="back from training in this very cycle"),
        pytest.param(SEALED_3, Progress(3, 3, 3), Park(), id="reported: wait for the next"),
        pytest.param(OPEN_3, Progress(2, 2, 2), Arrive(3), id="reported, and heard"),
        pytest.param(CLOSED_3, Progress(), Leave(VERDICT), id="closed, for a newcomer"),
        pytest.param(CLOSED_3, Progress(3, 3), Leave(VERDICT), id="closed, for an active"),
    ],
)
def test_decision(view: View, mine: Progress, expected: NodeDecision) -> None:
    assert decide_step(view, mine, ME, is_draining=False) == expected


@pytest.mark.parametrize(
    ("view", "mine", "expected"),
    [
        pytest.param(OPEN_3, Progress(), GiveUpPlace(), id="has no place: go"),
        pytest.param(OPEN_3, Progress(arrived_in=3), GiveUpPlace(), id="waits for its first place: go"),
        pytest.param(SEALED_3, Progress(3, 3), ReportFailure(3), id="its workers failed: say so first"),
        pytest.param(SEALED_3, Progress(3, 3, 3), Park(), id="no other node has its place"),
        pytest.param(OPEN_3, Progress(2, 2), Park(), id="stay until another node has it"),
        pytest.param(SPARE_3, Progress(2, 2), GiveUpPlace(), id="another node has it: leave"),
        pytest.param(CLOSED_3, Progress(2, 2), Leave(VERDICT), id="closed"),
    ],
)
def test_decision_of_a_draining_node(view: View, mine: Progress, expected: NodeDecision) -> None:
    assert decide_step(view, mine, ME, is_draining=True) == expected


@pytest.mark.parametrize(
    ("view", "cycle_id", "expected"),
    [(OPEN_3, 2, True), (SEALED_3, 3, False), (SEALED_3, 2, True), (CLOSED_3, 3, True), (OPEN_3, 3, False)],
)
def test_workers_stop_when_their_cycle_is_over(view: View, cycle_id: int, expected: bool) -> None:
    assert is_superseded(view, cycle_id) is expected


@pytest.mark.parametrize(
    ("head", "arrived_in", "seq", "watched_from"),
    [
        pytest.param(OPEN_3, 3, 2, 5, id="not sealed: hear of the seal"),
        pytest.param(SPARE_3, 3, 2, 5, id="sealed with us in it: read the seal for our seat"),
        pytest.param(SPARE_3, 3, 3, 6, id="sealed before us: the event of the seal is not kept for us"),
        pytest.param(SPARE_3, 2, 1, 6, id="arrived in the cycle before: no seat in this one"),
        pytest.param(CLOSED_3, 3, 1, 7, id="closed: no seat matters"),
    ],
)
def test_where_a_newcomer_begins_to_watch(head: View, arrived_in: int, seq: int, watched_from: int) -> None:
    view = watch_from(head, next(iter(find_seals(head, arrived_in, seq)), None))
    assert view.no == watched_from
    assert view.opened == head.opened
    assert (view.sealed is None) == (watched_from == 5)


def act(decision: NodeDecision, mine: Progress) -> None:
    """The progress after the participant has done what was decided."""
    match decision:
        case Arrive():
            mine.arrived_in = decision.cycle_id
        case TakeSeat():
            mine.trained_in = decision.sealed.cycle_id
        case ReportFailure():
            mine.reported_in = decision.cycle_id


@given(data=st.data())
def test_a_node_does_each_thing_once_per_cycle_and_in_order(data: st.DataObject) -> None:
    view, mine = View(no=1, opened=opened(1)), Progress()
    done: list[NodeDecision] = []
    for _ in range(data.draw(st.integers(0, 30))):
        if data.draw(st.booleans()):
            event: AnyEvent
            if view.sealed is None:
                seats = data.draw(st.sampled_from([PLACED, PASSED_OVER, {}]))
                event = sealed(view.cycle_id, no=view.no + 1, seats=seats)
            else:
                event = opened(view.cycle_id + 1, no=view.no + 1)
            view = fold(view, event)
            continue
        decision = decide_step(view, mine, ME, is_draining=False)
        act(decision, mine)
        if not isinstance(decision, Park):
            assert decision not in done
            done.append(decision)
        if isinstance(decision, TakeSeat):
            assert Arrive(view.cycle_id) in done
        if isinstance(decision, ReportFailure):
            assert mine.trained_in == view.cycle_id
    for _ in range(3):
        act(decide_step(view, mine, ME, is_draining=False), mine)
    assert decide_step(view, mine, ME, is_draining=False) == Park()


def test_a_view_takes_events_in_their_order_only() -> None:
    view = View(no=1, opened=opened(1))
    with pytest.raises(AssertionError, match="event 3 after 1"):
        fold(view, sealed(1, no=3))


def test_an_opening_forgets_the_last_seal() -> None:
    view = fold(SEALED_3, opened(4, no=7))
    assert (view.no, view.cycle_id, view.sealed, view.closed) == (7, 4, None, None)
