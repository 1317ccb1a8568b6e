"""When a sealed world continues, when the next cycle opens, and when the run ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.core.model import (
    AnyWhy,
    NodeLeft,
    NodesDrain,
    NodesLost,
    Outcome,
    Verdict,
    VerdictKind,
    WorkersFailed,
    WorldGrows,
)
from ft_rendezvous.core.next_cycle import Call, Close, DrainState, Grow, Growth, OpenNext, Stay, World, decide_move
from ft_rendezvous.text import NAMED

FAILED = WorkersFailed("a", 0, "exit 1")
LEFT = NodeLeft("b", 1, Outcome.LEFT, "SIGTERM")
LOST_C = NodesLost(("c",), (2,))
LOST_D = NodesLost(("d",), (3,))
SUCCESS = Close(Verdict(VerdictKind.SUCCEEDED))


def world(
    unfinished: int = 4,
    troubles: Sequence[AnyWhy] = (),
    drain: DrainState | None = None,
    growth: Growth | None = None,
    is_at_checkpoint: bool = False,
) -> World:
    return World(unfinished, troubles, drain, growth, is_at_checkpoint)


@pytest.mark.parametrize(
    ("unfinished", "troubles", "expected"),
    [
        pytest.param(4, [], Stay(), id="all train"),
        pytest.param(1, [], Stay(), id="one still trains"),
        pytest.param(0, [], SUCCESS, id="all have finished"),
        pytest.param(0, [LOST_C], SUCCESS, id="all have finished; what happened to one of them before does not matter"),
        pytest.param(4, [FAILED], OpenNext(FAILED), id="workers failed"),
        pytest.param(4, [LEFT], OpenNext(LEFT), id="a node left"),
        pytest.param(4, [FAILED, LOST_C, LEFT], OpenNext(FAILED), id="the first trouble names the cause"),
        pytest.param(4, [LOST_C, LOST_D], OpenNext(NodesLost(("c", "d"), (2, 3), 2)), id="losses are named together"),
        pytest.param(
            4, [LOST_C, FAILED, LOST_D], OpenNext(NodesLost(("c", "d"), (2, 3), 2)), id="also around another trouble"
        ),
        pytest.param(4, [FAILED, LOST_C, LOST_D], OpenNext(FAILED), id="losses after the cause are not it"),
    ],
)
def test_decision(unfinished: int, troubles: list[AnyWhy], expected: object) -> None:
    assert decide_move(world(unfinished, troubles), 0.0, Grow.NOW) == expected


def draining(is_covered: bool = True, is_total: bool = False) -> DrainState:
    return DrainState(("a", "b"), 100.0, is_covered, is_total)


DRAINED = Close(Verdict(VerdictKind.CANCELLED, "drained: too few nodes would remain", is_retryable=True))
DRAINS = OpenNext(NodesDrain(("a", "b"), 2))


@pytest.mark.parametrize(
    ("world", "now", "expected"),
    [
        pytest.param(world(drain=draining()), 99.0, Stay(), id="the grace is not over"),
        pytest.param(world(drain=draining()), 100.0, DRAINS, id="the grace is over"),
        pytest.param(world(drain=draining(), is_at_checkpoint=True), 1.0, DRAINS, id="a checkpoint was written"),
        pytest.param(world(troubles=[FAILED], drain=draining()), 1.0, OpenNext(FAILED), id="a trouble does not wait"),
        pytest.param(
            world(drain=draining(is_covered=False), is_at_checkpoint=True),
            200.0,
            Stay(),
            id="too few remain: nothing is opened",
        ),
        pytest.param(world(0, drain=draining()), 1.0, SUCCESS, id="all finished in the grace"),
        pytest.param(
            world(0, drain=draining(is_covered=False)), 1.0, SUCCESS, id="all finished, and enough of them may stay"
        ),
        pytest.param(
            world(0, drain=draining(is_covered=False, is_total=True)), 1.0, DRAINED, id="all ended: to be continued"
        ),
        pytest.param(
            world(drain=DrainState((), 0.0, True, False), is_at_checkpoint=True),
            1.0,
            Stay(),
            id="the draining node has finished",
        ),
    ],
)
def test_decision_while_draining(world: World, now: float, expected: object) -> None:
    assert decide_move(world, now, Grow.NOW) == expected


LARGER = WorldGrows(3, 4)
CAN_GROW, IS_CALLED = Growth(3, 4, 1.0, is_called=False), Growth(3, 4, 1.0, is_called=True)


@pytest.mark.parametrize(
    ("grow", "world", "expected"),
    [
        pytest.param(Grow.NOW, world(growth=CAN_GROW), OpenNext(LARGER), id="now"),
        pytest.param(Grow.NOW, world(growth=Growth(3, 4, 1.1, is_called=False)), Stay(), id="more may come"),
        pytest.param(Grow.NOW, world(0, growth=CAN_GROW), SUCCESS, id="all have finished"),
        pytest.param(Grow.NOW, world(troubles=[FAILED], growth=CAN_GROW), OpenNext(FAILED), id="a trouble comes first"),
        pytest.param(Grow.NEXT, world(growth=CAN_GROW, is_at_checkpoint=True), Stay(), id="next: nothing is opened"),
        pytest.param(Grow.CHECKPOINT, world(growth=CAN_GROW), Call(str(LARGER)), id="the workers are asked first"),
        pytest.param(
            Grow.CHECKPOINT,
            world(growth=CAN_GROW, is_at_checkpoint=True),
            Call(str(LARGER)),
            id="a checkpoint for an earlier call is old",
        ),
        pytest.param(Grow.CHECKPOINT, world(growth=IS_CALLED), Stay(), id="no checkpoint yet"),
        pytest.param(
            Grow.CHECKPOINT, world(growth=IS_CALLED, is_at_checkpoint=True), OpenNext(LARGER), id="at a checkpoint"
        ),
        pytest.param(
            Grow.CHECKPOINT,
            world(drain=draining(), growth=IS_CALLED, is_at_checkpoint=True),
            DRAINS,
            id="a drain takes the growth along",
        ),
    ],
)
def test_decision_when_the_world_can_grow(grow: Grow, world: World, expected: object) -> None:
    assert decide_move(world, 1.0, grow) == expected


@given(unfinished=st.integers(1, 10), troubles=st.lists(st.sampled_from([FAILED, LEFT, LOST_C, LOST_D])))
def test_a_run_with_an_unfinished_active_never_succeeds(unfinished: int, troubles: list[AnyWhy]) -> None:
    decision = decide_move(world(unfinished, troubles), 0.0, Grow.NOW)
    assert not isinstance(decision, Close)
    assert isinstance(decision, OpenNext) == bool(troubles)


@pytest.mark.parametrize(
    ("why", "text"),
    [
        (FAILED, "workers failed on a (rank 0): exit 1"),
        (LEFT, "b (rank 1) went, left: SIGTERM"),
        (NodeLeft("b", 1, Outcome.FAILED, ""), "b (rank 1) went, failed"),
        (LOST_C, "lost c (rank 2)"),
        (NodesLost(("c", "d"), (2, 3), 2), "lost c (rank 2), d (rank 3)"),
        (LARGER, "the world can grow from 3 to 4 nodes"),
        (NodesLost(("c", "d"), (2, 3), 1000), "lost c (rank 2), d (rank 3) and 998 more"),
    ],
)
def test_every_reason_to_open_a_cycle_reads_as_a_sentence(why: AnyWhy, text: str) -> None:
    assert str(why) == text


def test_a_loss_of_thousands_names_a_few_and_counts_the_rest() -> None:
    """Every live node reads the reason, so it must stay small."""
    lost = [NodesLost((f"node{rank}",), (rank,)) for rank in range(3000)]
    decision = decide_move(world(5000, lost), 0.0, Grow.NOW)
    assert isinstance(decision, OpenNext)
    assert str(decision.why).endswith(f"node{NAMED - 1} (rank {NAMED - 1}) and {3000 - NAMED} more")
