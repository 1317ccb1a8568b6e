"""When a sealed world stays, gives way to the next cycle, or ends the run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ft_rendezvous.core.model import (
    NAMED,
    AnyWhy,
    NodeLeft,
    NodesDrain,
    NodesLost,
    Outcome,
    Verdict,
    VerdictKind,
    WorkersFailed,
)
from ft_rendezvous.core.moving import Close, Drain, OpenNext, Stay, decide_move

FAILED = WorkersFailed("a", 0, "exit 1")
LEFT = NodeLeft("b", 1, Outcome.LEFT, "SIGTERM")
LOST_C = NodesLost(("c",), (2,))
LOST_D = NodesLost(("d",), (3,))
SUCCESS = Close(Verdict(VerdictKind.SUCCEEDED))


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
        pytest.param(4, [LOST_C, LOST_D], OpenNext(NodesLost(("c", "d"), (2, 3), 2)), id="losses are told together"),
        pytest.param(
            4, [LOST_C, FAILED, LOST_D], OpenNext(NodesLost(("c", "d"), (2, 3), 2)), id="also around another trouble"
        ),
        pytest.param(4, [FAILED, LOST_C, LOST_D], OpenNext(FAILED), id="losses after the cause are not it"),
    ],
)
def test_decision(unfinished: int, troubles: list[AnyWhy], expected: object) -> None:
    assert decide_move(unfinished, troubles, None, 0.0) == expected


def draining(is_at_checkpoint: bool = False, is_covered: bool = True, is_total: bool = False) -> Drain:
    return Drain(("a", "b"), 100.0, is_at_checkpoint, is_covered, is_total)


DRAINED = Close(Verdict(VerdictKind.CANCELLED, "drained: too few nodes would remain"))
DRAINS = OpenNext(NodesDrain(("a", "b"), 2))


@pytest.mark.parametrize(
    ("unfinished", "troubles", "drain", "now", "expected"),
    [
        pytest.param(4, [], draining(), 99.0, Stay(), id="the grace is not over"),
        pytest.param(4, [], draining(), 100.0, DRAINS, id="the grace is over"),
        pytest.param(4, [], draining(is_at_checkpoint=True), 1.0, DRAINS, id="a checkpoint was written"),
        pytest.param(4, [FAILED], draining(), 1.0, OpenNext(FAILED), id="a trouble does not wait"),
        pytest.param(4, [], draining(True, is_covered=False), 200.0, Stay(), id="too few remain: nothing is opened"),
        pytest.param(0, [], draining(), 1.0, SUCCESS, id="all finished in the grace"),
        pytest.param(0, [], draining(is_covered=False), 1.0, SUCCESS, id="all finished, and enough of them may stay"),
        pytest.param(0, [], draining(is_covered=False, is_total=True), 1.0, DRAINED, id="all ended: to be continued"),
        pytest.param(4, [], Drain((), 0.0, True, True, False), 1.0, Stay(), id="whoever drains has finished"),
    ],
)
def test_decision_while_draining(
    unfinished: int, troubles: list[AnyWhy], drain: Drain, now: float, expected: object
) -> None:
    assert decide_move(unfinished, troubles, drain, now) == expected


@given(unfinished=st.integers(1, 10), troubles=st.lists(st.sampled_from([FAILED, LEFT, LOST_C, LOST_D])))
def test_a_run_with_an_unfinished_active_never_succeeds(unfinished: int, troubles: list[AnyWhy]) -> None:
    decision = decide_move(unfinished, troubles, None, 0.0)
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
        (NodesLost(("c", "d"), (2, 3), 1000), "lost c (rank 2), d (rank 3) and 998 more"),
    ],
)
def test_every_reason_to_open_a_cycle_reads_as_a_sentence(why: AnyWhy, text: str) -> None:
    assert str(why) == text


def test_a_loss_of_thousands_names_a_few_and_counts_the_rest() -> None:
    """Every live node reads the reason, so it must stay small."""
    decision = decide_move(5000, [NodesLost((f"node{rank}",), (rank,)) for rank in range(3000)], None, 0.0)
    assert isinstance(decision, OpenNext)
    assert str(decision.why).endswith(f"node{NAMED - 1} (rank {NAMED - 1}) and {3000 - NAMED} more")
