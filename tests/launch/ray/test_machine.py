"""The life of the nodes of a run on Ray, step by step and without Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ft_rendezvous.errors import ProtocolBug
from ft_rendezvous.launch.ray import machine as machine_module
from ft_rendezvous.launch.ray.machine import (
    HAS_ACTOR,
    LATE_S,
    LEAVE_GRACE_S,
    MAX_SHORT_STARTS,
    RESTART_PAUSES_S,
    SHORT_S,
    STOP_GRACE_S,
    TRANSITIONS,
    WAITS_FOR_RAY,
    Action,
    DrainNode,
    EndAsked,
    NodeAnswered,
    NodeDied,
    NodeExited,
    NodePlaced,
    NodeRefused,
    NodeStarted,
    NodeState,
    NodeUnavailable,
    Observation,
    RayEnd,
    RayMachine,
    RayOutcome,
    RunIsOver,
    StartNode,
    StopNode,
    StoreSilent,
    Wish,
)

PENDING, STARTING, RUNNING, SUSPECT = NodeState.PENDING, NodeState.STARTING, NodeState.RUNNING, NodeState.SUSPECT
LOST, FINISHED, FAILED = NodeState.LOST, NodeState.FINISHED, NodeState.FAILED
BEGIN = 1000.0
LATER = BEGIN + 1.5
"""When a node that has failed once may start again."""


def new_machine(
    least: int = 1, count: int = 1, pending_timeout_s: float | None = None, knows_end: bool = True
) -> RayMachine:
    return RayMachine(least, count, BEGIN, pending_timeout_s, knows_end)


def states(machine: RayMachine) -> list[NodeState]:
    return [node.state for node in machine.nodes]


def placed(*nodes: int) -> list[Observation]:
    return [NodePlaced(node, f"machine-{node}") for node in nodes]


def started(*nodes: int, start: int = 1) -> list[Observation]:
    return [NodeStarted(node, start, f"machine-{node} pid {node}") for node in nodes]


def running_machine(
    least: int, count: int, pending_timeout_s: float | None = None, knows_end: bool = True
) -> RayMachine:
    """A machine of which all nodes run since BEGIN."""
    machine = new_machine(least, count, pending_timeout_s, knows_end)
    machine.step(placed(*range(count)), BEGIN)
    machine.step(started(*range(count)), BEGIN)
    return machine


# --- every state and every observation ----------------------------------------------------------------

WAYS: dict[NodeState, list[Observation]] = {
    PENDING: [],
    STARTING: [NodePlaced(0, "a")],
    RUNNING: [NodePlaced(0, "a"), NodeStarted(0, 1)],
    SUSPECT: [NodePlaced(0, "a"), NodeStarted(0, 1), NodeUnavailable(0, 1)],
    LOST: [NodePlaced(0, "a"), NodeStarted(0, 1), NodeDied(0, 1)],
    FINISHED: [NodePlaced(0, "a"), NodeStarted(0, 1), NodeExited(0, 1, 0)],
    FAILED: [NodePlaced(0, "a"), NodeStarted(0, 1), NodeExited(0, 1, 1)],
}
"""How a node comes into each state, one observation per step."""

SEEN: dict[str, Observation] = {
    "placed": NodePlaced(0, "b"),
    "started": NodeStarted(0, 1),
    "refused": NodeRefused(0, 1, "why"),
    "unavailable": NodeUnavailable(0, 1),
    "answered": NodeAnswered(0, 1),
    "died": NodeDied(0, 1, "why"),
    "exited 0": NodeExited(0, 1, 0),
    "exited 3": NodeExited(0, 1, 3),
    "run ended": RunIsOver("why"),
    "store silent": StoreSilent(),
    "drain": EndAsked(Wish.DRAIN),
    "stop": EndAsked(Wish.STOP),
}

ENDED, STOPPED = RayEnd(RayOutcome.ENDED, "why"), RayEnd(RayOutcome.STOPPED)
SILENT = RayEnd(RayOutcome.ENDED, "no node lives, and the store does not listen")
DRAIN_1, STOP_1 = DrainNode(0, 1), StopNode(0, 1)

# The machine has another node that runs, and of which nothing is seen: so nothing but a wish or an end is said of it.
TABLE: dict[NodeState, dict[str, tuple[NodeState, list[Action]]]] = {
    PENDING: {
        "placed": (STARTING, [StartNode(0, 1)]),
        "started": (PENDING, []),
        "refused": (PENDING, []),
        "unavailable": (PENDING, []),
        "answered": (PENDING, []),
        "died": (PENDING, []),
        "exited 0": (PENDING, []),
        "exited 3": (PENDING, []),
        "run ended": (PENDING, []),
        "store silent": (PENDING, []),
        "drain": (PENDING, []),
        "stop": (PENDING, []),
    },
    STARTING: {
        "placed": (STARTING, []),
        "started": (RUNNING, []),
        "refused": (FAILED, []),
        "unavailable": (STARTING, []),
        "answered": (RUNNING, []),
        "died": (LOST, []),
        "exited 0": (FINISHED, []),
        "exited 3": (FAILED, []),
        "run ended": (STARTING, []),
        "store silent": (STARTING, []),
        "drain": (STARTING, []),
        "stop": (STARTING, []),
    },
    RUNNING: {
        "placed": (RUNNING, []),
        "started": (RUNNING, []),
        "refused": (FAILED, []),
        "unavailable": (SUSPECT, []),
        "answered": (RUNNING, []),
        "died": (LOST, []),
        "exited 0": (FINISHED, []),
        "exited 3": (FAILED, []),
        "run ended": (RUNNING, []),
        "store silent": (RUNNING, []),
        "drain": (RUNNING, [DRAIN_1]),
        "stop": (RUNNING, [STOP_1]),
    },
    SUSPECT: {
        "placed": (SUSPECT, []),
        "started": (RUNNING, []),
        "refused": (FAILED, []),
        "unavailable": (SUSPECT, []),
        "answered": (RUNNING, []),
        "died": (LOST, []),
        "exited 0": (FINISHED, []),
        "exited 3": (FAILED, []),
        "run ended": (SUSPECT, []),
        "store silent": (SUSPECT, []),
        "drain": (SUSPECT, []),
        "stop": (SUSPECT, []),
    },
    LOST: {
        "placed": (STARTING, [StartNode(0, 2)]),
        "started": (LOST, []),
        "refused": (LOST, []),
        "unavailable": (LOST, []),
        "answered": (LOST, []),
        "died": (LOST, []),
        "exited 0": (LOST, []),
        "exited 3": (LOST, []),
        "run ended": (LOST, []),
        "store silent": (LOST, []),
        "drain": (LOST, []),
        "stop": (LOST, []),
    },
    FINISHED: {
        "placed": (FINISHED, []),
        "started": (FINISHED, []),
        "refused": (FINISHED, []),
        "unavailable": (FINISHED, []),
        "answered": (FINISHED, []),
        "died": (FINISHED, []),
        "exited 0": (FINISHED, []),
        "exited 3": (FINISHED, []),
        "run ended": (FINISHED, []),
        "store silent": (FINISHED, []),
        "drain": (FINISHED, []),
        "stop": (FINISHED, []),
    },
    FAILED: {
        "placed": (STARTING, [StartNode(0, 2)]),
        "started": (FAILED, []),
        "refused": (FAILED, []),
        "unavailable": (FAILED, []),
        "answered": (FAILED, []),
        "died": (FAILED, []),
        "exited 0": (FAILED, []),
        "exited 3": (FAILED, []),
        "run ended": (FAILED, []),
        "store silent": (FAILED, []),
        "drain": (FAILED, []),
        "stop": (FAILED, []),
    },
}

ENDS_ALONE: dict[str, RayEnd] = {"run ended": ENDED, "store silent": SILENT, "drain": STOPPED, "stop": STOPPED}
"""How a node without an actor ends the run if it is the only one."""


def test_the_table_is_complete() -> None:
    assert TABLE.keys() == set(NodeState)
    assert all(row.keys() == SEEN.keys() for row in TABLE.values())
    assert {type(seen) for seen in SEEN.values()} == set(Observation.__args__)


def machine_in(state: NodeState, count: int) -> RayMachine:
    """Node 0 is in this state. All others run."""
    machine = new_machine(1, count)
    machine.step(placed(*range(1, count)), BEGIN)
    machine.step(started(*range(1, count)), BEGIN)
    for seen in WAYS[state]:
        machine.step([seen], BEGIN)
    assert machine.nodes[0].state is state
    return machine


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("state", NodeState)
def test_every_state_with_every_observation(state: NodeState, seen: str) -> None:
    machine = machine_in(state, 2)
    expected, actions = TABLE[state][seen]
    others: dict[str, Action] = {"drain": DrainNode(1, 1), "stop": StopNode(1, 1)}
    with_others = [*actions, others[seen]] if seen in others else actions
    assert machine.step([SEEN[seen]], LATER) == with_others
    assert states(machine) == [expected, RUNNING]


@pytest.mark.parametrize("seen", ENDS_ALONE)
@pytest.mark.parametrize("state", sorted(WAITS_FOR_RAY))
def test_without_an_actor_every_wish_and_every_end_is_the_end(state: NodeState, seen: str) -> None:
    assert machine_in(state, 1).step([SEEN[seen]], LATER) == [ENDS_ALONE[seen]]


@pytest.mark.parametrize("target", NodeState)
@pytest.mark.parametrize("state", NodeState)
def test_a_transition_that_is_not_in_the_table_is_a_bug(state: NodeState, target: NodeState) -> None:
    machine = new_machine()
    machine.nodes[0].state = state
    if target in TRANSITIONS[state]:
        machine._move(machine.nodes[0], target, LATER)
        assert machine.nodes[0].state is target
        assert machine.nodes[0].since == LATER
    else:
        with pytest.raises(ProtocolBug, match=f"node 0 cannot go from {state} to {target}"):
            machine._move(machine.nodes[0], target, LATER)


def test_a_node_has_an_actor_waits_for_one_or_is_done() -> None:
    assert HAS_ACTOR | WAITS_FOR_RAY | {FINISHED} == set(NodeState)
    assert not HAS_ACTOR & WAITS_FOR_RAY
    assert not TRANSITIONS[FINISHED]


# --- starts -------------------------------------------------------------------------------------------


def test_a_run_starts_at_min_and_grows() -> None:
    machine = new_machine(2, 4)
    assert machine.step([], BEGIN) == []
    assert machine.step(placed(0, 1), BEGIN + 1) == [StartNode(0, 1), StartNode(1, 1)]
    assert machine.step(placed(0, 1), BEGIN + 2) == [], "each has its actor"
    machine.step(started(0, 1), BEGIN + 3)
    assert states(machine) == [RUNNING, RUNNING, PENDING, PENDING]
    assert machine.step(placed(3), BEGIN + 500) == [StartNode(3, 1)]
    assert machine.step(placed(2), BEGIN + 600) == [StartNode(2, 1)]
    machine.step(started(2, 3), BEGIN + 601)
    assert machine.count(RUNNING) == 4


def test_a_lost_machine_that_returns_has_its_node_again() -> None:
    machine = running_machine(2, 3)
    now = BEGIN + SHORT_S
    assert machine.step([NodeUnavailable(1, 1)], now) == []
    assert machine.step([NodeDied(1, 1, "the machine is gone")], now + 10) == []
    assert states(machine) == [RUNNING, LOST, RUNNING]
    assert machine.nodes[1].reason == "the machine is gone"
    assert machine.step([], now + 500) == [], "it starts where Ray has placed it, and nowhere else"
    assert machine.step(placed(1), now + 500) == [StartNode(1, 2)]
    machine.step(started(1, start=2), now + 501)
    assert states(machine) == [RUNNING, RUNNING, RUNNING]


@pytest.mark.parametrize("loss", [NodeDied(0, 1), NodeExited(0, 1, 3)], ids=["lost", "failed"])
def test_a_placement_that_was_seen_before_the_loss_starts_nothing(loss: Observation) -> None:
    """Ray said that before it knew of the loss: an actor would wait there for a machine that is gone."""
    machine = running_machine(1, 2)
    now = BEGIN + SHORT_S
    machine.step([loss], now)
    assert machine.step([NodePlaced(0, "machine-0", seen_at=now - 0.5)], now + 0.1) == []
    assert machine.step([NodePlaced(0, "machine-0", seen_at=now)], now + 0.2) == [StartNode(0, 2)]


def test_an_actor_that_is_out_of_reach_for_a_moment_stays() -> None:
    machine = running_machine(1, 1)
    assert machine.step([NodeUnavailable(0, 1), *placed(0)], BEGIN + 1) == []
    assert states(machine) == [SUSPECT]
    assert machine.step([NodeAnswered(0, 1)], BEGIN + 6) == []
    assert states(machine) == [RUNNING]
    assert machine.nodes[0].start == 1


def test_a_node_that_has_finished_is_never_started_again() -> None:
    machine = running_machine(1, 2)
    assert machine.step([NodeExited(0, 1, 0)], BEGIN + 100) == []
    for now in range(200, 2000, 100):
        assert machine.step(placed(0, 1), BEGIN + now) == []
    assert states(machine) == [FINISHED, RUNNING]
    assert machine.nodes[0].code == 0


def test_a_node_that_fails_soon_is_started_again_with_pauses_and_then_no_more() -> None:
    machine = running_machine(1, 2)
    now, pauses, short_start_s = BEGIN, [], 5.0
    for start in range(1, MAX_SHORT_STARTS + 1):
        now += short_start_s
        machine.step([NodeExited(0, start, 3)], now)
        assert machine.nodes[0].code == 3
        failed_at = now
        while not machine.step(placed(0), now) and now < failed_at + 1000:
            now += 0.5
        if now < failed_at + 1000:
            pauses.append(now - failed_at)
            machine.step(started(0, start=start + 1), now)
    assert pauses == list(RESTART_PAUSES_S[1:])
    assert machine.nodes[0].start == MAX_SHORT_STARTS
    assert states(machine) == [FAILED, RUNNING], "the others go on"


def test_a_start_that_lasted_is_forgiven() -> None:
    machine = running_machine(1, 2)
    now = BEGIN
    for start in range(1, 3 * MAX_SHORT_STARTS):
        now += SHORT_S
        machine.step([NodeExited(0, start, 3)], now)
        assert machine.step(placed(0), now) == [StartNode(0, start + 1)], "at once"
        machine.step(started(0, start=start + 1), now)


def test_answers_of_earlier_starts_are_ignored() -> None:
    machine = running_machine(1, 2)
    machine.step([NodeDied(0, 1)], BEGIN + SHORT_S)
    machine.step(placed(0), BEGIN + SHORT_S)
    machine.step(started(0, start=2), BEGIN + SHORT_S)
    late: list[Observation] = [
        NodeStarted(0, 1, "elsewhere"),
        NodeUnavailable(0, 1),
        NodeRefused(0, 1, "why"),
        NodeDied(0, 1),
        NodeExited(0, 1, 3),
        NodeAnswered(0, 1),
    ]
    assert machine.step(late, BEGIN + 100) == []
    assert states(machine) == [RUNNING, RUNNING]
    assert machine.nodes[0].where == "machine-0 pid 0"
    assert machine.nodes[0].code is None


def test_an_adopted_actor_answers_or_is_replaced() -> None:
    machine = new_machine(2, 3)
    machine.adopt(0, 4, BEGIN)
    machine.adopt(1, 2, BEGIN)
    assert machine.step(placed(0, 1, 2), BEGIN) == [StartNode(2, 1)], "the other two have actors"
    machine.step([NodeAnswered(0, 4), NodeDied(1, 2)], BEGIN + 1)
    assert states(machine) == [RUNNING, LOST, STARTING]
    assert machine.step(placed(1), BEGIN + 10) == [StartNode(1, 3)]


def test_an_actor_is_adopted_once() -> None:
    machine = new_machine()
    machine.adopt(0, 1, BEGIN)
    with pytest.raises(ProtocolBug):
        machine.adopt(0, 2, BEGIN)


# --- ends ---------------------------------------------------------------------------------------------


def test_a_refusal_ends_a_run_that_has_not_begun() -> None:
    machine = new_machine(1, 2)
    machine.step(placed(0, 1), BEGIN)
    refusal = NodeRefused(1, 1, "there is no train.py on b")
    assert machine.step([refusal], BEGIN + 1) == [RayEnd(RayOutcome.REFUSED, "there is no train.py on b")]
    assert machine.step([*placed(0, 1), RunIsOver()], BEGIN + 2) == []


def test_a_refusal_in_a_run_that_trains_is_a_failure_of_one_node() -> None:
    machine = new_machine(1, 2)
    machine.step(placed(0, 1), BEGIN)
    machine.step(started(0), BEGIN + 1)
    assert machine.step([NodeRefused(1, 1, "a bad machine has come")], BEGIN + 1) == []
    assert states(machine) == [RUNNING, FAILED]


def test_a_run_that_has_ended_waits_for_its_nodes() -> None:
    machine = running_machine(2, 2)
    assert machine.step([RunIsOver("closed")], BEGIN + 100) == []
    assert machine.step([NodeExited(0, 1, 0), *placed(0, 1)], BEGIN + 101) == []
    assert machine.step([NodeExited(1, 1, 1)], BEGIN + 102) == [RayEnd(RayOutcome.ENDED, "closed")]


def test_no_node_starts_in_a_run_that_has_ended() -> None:
    machine = running_machine(1, 3)
    machine.step([NodeDied(0, 1), NodeExited(1, 1, 3)], BEGIN + SHORT_S)
    assert machine.step([*placed(0, 1), RunIsOver()], BEGIN + 200) == []
    assert states(machine) == [LOST, FAILED, RUNNING]


def test_a_node_that_hangs_after_the_end_does_not_hold_it_up() -> None:
    machine = running_machine(2, 2)
    machine.step([RunIsOver("closed"), NodeExited(0, 1, 0)], BEGIN)
    assert machine.stop_by == BEGIN + LEAVE_GRACE_S
    assert machine.step([], BEGIN + LATE_S - 0.1) == []
    assert machine.step([], BEGIN + LATE_S) == [StopNode(1, 1)], "it waits for a store that is gone"
    assert machine.step([], BEGIN + LEAVE_GRACE_S - 0.1) == []
    assert machine.step([], BEGIN + LEAVE_GRACE_S) == [RayEnd(RayOutcome.ENDED, "closed")]


def test_a_drain_and_then_a_stop() -> None:
    machine = running_machine(2, 3)
    assert machine.step([EndAsked(Wish.DRAIN)], BEGIN) == [DrainNode(node, 1) for node in range(3)]
    assert machine.step([EndAsked(Wish.DRAIN)], BEGIN + 1) == [], "once is enough"
    assert machine.step([NodeExited(0, 1, 0), NodeDied(1, 1)], BEGIN + 5) == []
    assert machine.step(placed(0, 1, 2), BEGIN + 500) == [], "nothing starts, and the drain may take its time"
    assert machine.step([EndAsked(Wish.STOP)], BEGIN + 600) == [StopNode(2, 1)]
    assert machine.step([EndAsked(Wish.STOP), EndAsked(Wish.DRAIN)], BEGIN + 601) == []
    assert machine.step([NodeExited(2, 1, -15)], BEGIN + 602) == [RayEnd(RayOutcome.STOPPED)]


def test_nodes_that_do_not_stop_are_left_after_a_grace() -> None:
    machine = running_machine(1, 1)
    assert machine.step([EndAsked(Wish.STOP)], BEGIN) == [StopNode(0, 1)]
    assert machine.stop_by == BEGIN + STOP_GRACE_S
    assert machine.step([EndAsked(Wish.STOP)], BEGIN + STOP_GRACE_S - 0.1) == []
    assert machine.step([EndAsked(Wish.STOP)], BEGIN + STOP_GRACE_S) == [RayEnd(RayOutcome.STOPPED)]


@pytest.mark.parametrize("first", [RunIsOver(), EndAsked(Wish.STOP)], ids=["run ended", "stop"])
def test_a_second_reason_to_end_gives_no_more_time(first: Observation) -> None:
    machine = running_machine(1, 1)
    machine.step([first], BEGIN)
    end_at = machine.stop_by
    assert end_at is not None
    machine.step([EndAsked(Wish.STOP), RunIsOver()], end_at - 1)
    assert machine.stop_by == end_at
    assert machine.step([], end_at) == [RayEnd(RayOutcome.STOPPED)]


@pytest.mark.parametrize(("wish", "told"), [(Wish.DRAIN, DrainNode(0, 1)), (Wish.STOP, StopNode(0, 1))])
def test_a_node_that_is_starting_is_told_once_it_runs(wish: Wish, told: Action) -> None:
    """Its actor has no process yet to which it could pass on a signal."""
    machine = new_machine(1, 1)
    machine.step(placed(0), BEGIN)
    assert machine.step([EndAsked(wish)], BEGIN + 1) == []
    assert machine.step(started(0), BEGIN + 2) == [told]
    assert machine.step([NodeUnavailable(0, 1)], BEGIN + 3) == []
    assert machine.step([NodeAnswered(0, 1), EndAsked(wish)], BEGIN + 4) == [], "once"


@pytest.mark.parametrize(
    ("reason", "outcome"),
    [
        (RunIsOver(), RayOutcome.ENDED),
        (EndAsked(Wish.DRAIN), RayOutcome.STOPPED),
        (EndAsked(Wish.STOP), RayOutcome.STOPPED),
    ],
    ids=["run ended", "drain", "stop"],
)
def test_a_node_that_is_starting_does_not_hold_up_the_end(reason: Observation, outcome: RayOutcome) -> None:
    """Ray may be looking for a machine for its actor. It has nothing to save, and the driver removes it."""
    machine = running_machine(1, 2)
    machine.step([NodeDied(1, 1)], BEGIN + SHORT_S)
    assert machine.step(placed(1), BEGIN + SHORT_S) == [StartNode(1, 2)]
    now = BEGIN + SHORT_S + 100
    machine.step([reason], now)
    assert machine.step([reason], now + LATE_S) != [RayEnd(outcome)], "node 0 runs"
    assert machine.step([NodeExited(0, 1, 0), reason], now + LATE_S) == [RayEnd(outcome)]


def test_a_node_that_is_starting_has_a_moment_to_start_at_the_end() -> None:
    machine = running_machine(1, 2)
    machine.step([NodeDied(1, 1)], BEGIN + SHORT_S)
    machine.step(placed(1), BEGIN + SHORT_S)
    machine.step([EndAsked(Wish.STOP), NodeExited(0, 1, 0)], BEGIN + 100)
    assert machine.step([EndAsked(Wish.STOP)], BEGIN + 100 + LATE_S - 0.1) == []
    assert machine.step([EndAsked(Wish.STOP)], BEGIN + 100 + LATE_S) == [RayEnd(RayOutcome.STOPPED)]


def test_a_node_that_is_out_of_reach_is_told_once_it_answers() -> None:
    machine = running_machine(1, 1)
    machine.step([NodeUnavailable(0, 1)], BEGIN)
    assert machine.step([EndAsked(Wish.DRAIN)], BEGIN + 1) == []
    assert machine.step([NodeAnswered(0, 1)], BEGIN + 2) == [DrainNode(0, 1)]


def test_an_operator_who_stops_before_anything_starts_waits_for_nothing() -> None:
    assert new_machine(2, 3).step([*placed(0, 1), EndAsked(Wish.DRAIN)], BEGIN) == [RayEnd(RayOutcome.STOPPED)]


def test_nodes_that_are_pending_too_long_end_the_run() -> None:
    machine = new_machine(2, 3, pending_timeout_s=30.0)
    assert machine.step([], BEGIN + 29.9) == []
    assert machine.step([], BEGIN + 30) == [RayEnd(RayOutcome.PENDING_TOO_LONG)]


def test_a_spare_that_waits_alone_does_not_stop_the_clock() -> None:
    machine = new_machine(2, 3, pending_timeout_s=30.0)
    machine.step(placed(2), BEGIN)
    machine.step(started(2), BEGIN + 1)
    assert machine.step([], BEGIN + 29.9) == []
    assert machine.step([], BEGIN + 30) == [RayEnd(RayOutcome.PENDING_TOO_LONG)]


def test_a_run_that_once_had_min_nodes_may_wait_for_others_for_ever() -> None:
    machine = running_machine(2, 3, pending_timeout_s=30.0)
    machine.step([NodeDied(node, 1) for node in range(3)], BEGIN + SHORT_S)
    assert machine.step([], BEGIN + 100_000) == []


def test_a_later_driver_knows_that_a_run_once_had_min_nodes() -> None:
    machine = new_machine(2, 3, pending_timeout_s=30.0)
    machine.resume(has_run=True, had_min=True)
    machine.adopt(1, 4, BEGIN)
    assert machine.step([NodeAnswered(1, 4)], BEGIN + 1) == []
    assert machine.step([], BEGIN + 100_000) == [], "the other nodes were lost while no driver was there"
    assert machine.step([*placed(0), NodeDied(1, 4)], BEGIN + 100_001) == [StartNode(0, 1)]
    machine.step([NodeRefused(0, 1, "why")], BEGIN + 100_002)
    assert machine.end is None, "the run has begun"


def test_without_a_later_word_a_new_driver_waits_for_min_nodes() -> None:
    machine = new_machine(2, 3, pending_timeout_s=30.0)
    machine.resume(has_run=False, had_min=False)
    machine.adopt(1, 4, BEGIN)
    machine.step([NodeAnswered(1, 4)], BEGIN + 1)
    assert machine.step([], BEGIN + 30) == [RayEnd(RayOutcome.PENDING_TOO_LONG)]
    enough = new_machine(2, 3, pending_timeout_s=0.0)
    enough.adopt(0, 1, BEGIN)
    enough.adopt(1, 1, BEGIN)
    assert enough.step([], BEGIN) == []


def test_without_a_timeout_nodes_may_be_pending_for_ever() -> None:
    machine = new_machine(2, 3)
    assert machine.step([], BEGIN + 100_000) == []


def fail_for_good(machine: RayMachine, nodes: Iterable[int]) -> list[Action]:
    """Let these nodes fail as often as it takes. Returns what the machine does in the last step."""
    now, actions = BEGIN, list[Action]()
    for start in range(1, MAX_SHORT_STARTS + 1):
        machine.step(placed(*nodes), now)
        actions = machine.step([NodeExited(node, start, 3) for node in nodes], now + 1)
        now += 20
    return actions


def test_a_run_whose_nodes_all_fail_for_good_ends() -> None:
    machine = new_machine(2, 2)
    (end,) = fail_for_good(machine, (0, 1))
    assert end == RayEnd(RayOutcome.NO_NODE_LEFT, "node 0: torchrun exited 3; node 1: torchrun exited 3")


def test_nodes_that_are_too_few_to_train_do_not_keep_a_run() -> None:
    """MIN nodes fail for good. The spare would wait alone, once there is room for it."""
    (end,) = fail_for_good(new_machine(2, 3), (0, 1))
    assert isinstance(end, RayEnd)
    assert end.outcome is RayOutcome.NO_NODE_LEFT


def test_nodes_that_are_enough_to_train_are_waited_for() -> None:
    machine = new_machine(2, 4)
    assert fail_for_good(machine, (0, 1)) == []
    assert machine.step(placed(2, 3), BEGIN + 10_000) == [StartNode(2, 1), StartNode(3, 1)]


def test_when_all_nodes_have_finished_the_run_has_ended_whether_its_store_says_so_or_not() -> None:
    machine = running_machine(2, 3)
    assert machine.step([NodeExited(0, 1, 0), NodeDied(2, 1)], BEGIN + 100) == []
    assert machine.step([NodeExited(1, 1, 0)], BEGIN + 101) == [RayEnd(RayOutcome.ENDED)]


@pytest.mark.parametrize("last", [NodeExited(1, 1, 1), NodeDied(1, 1)], ids=["exited", "died"])
def test_with_a_store_elsewhere_an_exit_code_of_0_says_that_the_run_has_ended(last: Observation) -> None:
    machine = running_machine(1, 2, knows_end=False)
    assert machine.step([NodeExited(0, 1, 0)], BEGIN + 100) == [], "the other one may be slower"
    assert machine.step([last], BEGIN + 101) == [RayEnd(RayOutcome.ENDED)]


def test_with_a_store_elsewhere_nodes_that_fail_are_started_again() -> None:
    machine = running_machine(1, 2, knows_end=False)
    assert machine.step([NodeExited(0, 1, 1), NodeExited(1, 1, 1)], BEGIN + 100) == []
    assert machine.step(placed(0, 1), BEGIN + 100) == [StartNode(0, 2), StartNode(1, 2)]


def test_with_a_store_elsewhere_its_silence_is_the_end_when_no_node_lives() -> None:
    machine = running_machine(1, 2, knows_end=False)
    assert machine.step([NodeExited(0, 1, 1), StoreSilent()], BEGIN + 100) == [], "the other node may reach it"
    assert machine.step([NodeExited(1, 1, 1), StoreSilent()], BEGIN + 101) == [SILENT]
    together = running_machine(1, 2, knows_end=False)
    exits: list[Observation] = [NodeExited(0, 1, 1), StoreSilent(), NodeExited(1, 1, 1), StoreSilent()]
    assert together.step(exits, BEGIN + 100) == [SILENT]


# --- any sequence of observations ---------------------------------------------------------------------

COUNT = 3
NODES = range(COUNT)


@dataclass
class Watch:
    """A naive account of what the machine did, and of which actors live. It looks into no machine."""

    starts: dict[int, list[float]] = field(default_factory=lambda: {node: [] for node in NODES})
    numbers: dict[int, list[int]] = field(default_factory=lambda: {node: [] for node in NODES})
    living: dict[int, int] = field(default_factory=dict)
    """The newest start of the nodes that have an actor."""
    finished: set[int] = field(default_factory=set)
    shorts: dict[int, int] = field(default_factory=lambda: dict.fromkeys(NODES, 0))
    is_ending: bool = False
    is_done: bool = False

    def see(self, seen: Observation, now: float) -> None:
        match seen:
            case NodeDied(node, start) | NodeExited(node, start) | NodeRefused(node, start):
                if self.living.get(node) == start:
                    del self.living[node]
                    self.shorts[node] = self.shorts[node] + 1 if now - self.starts[node][-1] < SHORT_S else 0
                    if isinstance(seen, NodeExited) and seen.code == 0:
                        self.finished.add(node)
            case RunIsOver() | EndAsked():
                self.is_ending = True

    def check(self, actions: Iterable[Action], now: float) -> None:
        for action in actions:
            assert not self.is_done, f"{action} after the end"
            match action:
                case RayEnd():
                    self.is_done = True
                case StartNode(node, start):
                    assert not self.is_ending, f"{action} in a run that ends"
                    assert node not in self.living, f"node {node} has two actors"
                    assert node not in self.finished, f"node {node} had finished"
                    assert self.shorts[node] < MAX_SHORT_STARTS, f"node {node} fails again and again"
                    self.living[node] = start
                    self.starts[node].append(now)
                    self.numbers[node].append(start)
                case DrainNode(node, start) | StopNode(node, start):
                    assert self.is_ending, f"{action}, and no one has asked for the end"
                    assert self.living.get(node) == start, f"{action}, and that start does not live"
        for numbers in self.numbers.values():
            assert all(earlier < later for earlier, later in pairwise([0, *numbers])), f"starts {numbers}"

    def step(self, machine: RayMachine, seen: Iterable[Observation], now: float) -> None:
        observations = list(seen)
        for each in observations:
            self.see(each, now)
        if StoreSilent() in observations and not self.living:
            self.is_ending = True
        self.check(machine.step(observations, now), now)


@dataclass(frozen=True)
class Answer:
    """An observation of a node, but for the start that it is of: 0 is the newest, -1 the one before."""

    node: int
    back: int
    make: Callable[[int, int], Observation]

    def of(self, start: int) -> Observation:
        return self.make(self.node, max(0, start + self.back))


def exited(code: int) -> Callable[[int, int], Observation]:
    return lambda node, start: NodeExited(node, start, code)


def refused(node: int, start: int) -> Observation:
    return NodeRefused(node, start, "why")


Script = list[tuple[list[Answer | Observation], float]]
"""What each step sees, and how much time passes before it."""

MAKERS = (NodeStarted, NodeStarted, NodeUnavailable, NodeAnswered, NodeDied, NodeDied, exited(3), exited(3), exited(0))
answers = st.builds(Answer, st.sampled_from(NODES), st.sampled_from([0, 0, 0, -1, -2]), st.sampled_from(MAKERS))
refusals = st.builds(Answer, st.sampled_from(NODES), st.just(0), st.just(refused))
placements = st.builds(NodePlaced, st.sampled_from(NODES), st.just("m"))
ends: st.SearchStrategy[Observation] = st.sampled_from([EndAsked(Wish.STOP), RunIsOver("why")])
wishes = st.one_of(ends, st.just(EndAsked(Wish.DRAIN)), st.just(StoreSilent()))
pauses = st.sampled_from([0.0, 0.5, 3.0, 70.0])
scripts: st.SearchStrategy[Script] = st.lists(
    st.tuples(st.lists(st.one_of(placements, placements, answers), max_size=4), pauses), max_size=20
)
endings: st.SearchStrategy[Script] = st.lists(
    st.tuples(st.lists(st.one_of(placements, answers, refusals, wishes), max_size=4), pauses), max_size=10
)
machines = st.builds(
    RayMachine,
    st.integers(1, COUNT),
    st.just(COUNT),
    st.just(BEGIN),
    st.sampled_from([None, None, 100.0]),
    st.booleans(),
)


def play(machine: RayMachine, watch: Watch, script: Script) -> float:
    """Step the machine through a script, and check all that it does. Returns the time at the end."""
    now = BEGIN
    for seen, pause_s in script:
        now += pause_s
        newest = [node.start for node in machine.nodes]
        watch.step(machine, [each.of(newest[each.node]) if isinstance(each, Answer) else each for each in seen], now)
    return now


def check_safety(machine: RayMachine, script: Script, ending: Script) -> None:
    """No node has two actors, none that is done starts again, and after the end nothing is done."""
    watch = Watch()
    play(machine, watch, [*script, *ending])
    for node, state in enumerate(states(machine)):
        assert watch.is_done or (state in HAS_ACTOR) == (node in watch.living)
    assert (machine.end is not None) == watch.is_done


def check_bound(machine: RayMachine, codes: list[int]) -> None:
    """Nodes that end soon after every start are started a few times, and then the run ends."""
    watch = Watch()
    for number, code in enumerate(codes):
        now = BEGIN + 20.0 * number
        watch.step(machine, placed(*NODES), now)
        watch.step(machine, [exited(code)(node, machine.nodes[node].start) for node in NODES], now + 1)
    assert all(len(starts) <= MAX_SHORT_STARTS for starts in watch.starts.values())
    assert watch.is_done


def check_end(machine: RayMachine, script: Script, end: Observation) -> None:
    """Once the run has ended or must stop, all is over in time, whatever the nodes do."""
    watch = Watch()
    now = play(machine, watch, script)
    watch.step(machine, [end], now)
    late = now + max(STOP_GRACE_S, LEAVE_GRACE_S)
    while not watch.is_done and now < late:
        now += 10.0
        watch.step(machine, placed(*NODES), now)
    assert watch.is_done


codes = st.lists(st.sampled_from([3, 1, -9]), min_size=2 * MAX_SHORT_STARTS, max_size=2 * MAX_SHORT_STARTS)


@given(machines, scripts, endings)
def test_whatever_is_seen_no_rule_is_broken(machine: RayMachine, script: Script, ending: Script) -> None:
    check_safety(machine, script, ending)


@given(machines, codes)
def test_starts_without_a_long_run_are_bounded(machine: RayMachine, codes: list[int]) -> None:
    check_bound(machine, codes)


@given(machines, scripts, ends)
def test_a_run_that_has_ended_or_must_stop_is_over_in_time(
    machine: RayMachine, script: Script, end: Observation
) -> None:
    check_end(machine, script, end)


# --- broken machines ----------------------------------------------------------------------------------


def patch_impatient(patch: pytest.MonkeyPatch) -> None:
    """A suspect node counts as lost."""
    more: Mapping[NodeState, frozenset[NodeState]] = {**TRANSITIONS, SUSPECT: TRANSITIONS[SUSPECT] | {STARTING}}
    patch.setattr(machine_module, "TRANSITIONS", more)
    patch.setattr(machine_module, "WAITS_FOR_RAY", WAITS_FOR_RAY | {SUSPECT})


def patch_revived(patch: pytest.MonkeyPatch) -> None:
    """A finished node starts again."""
    patch.setattr(machine_module, "TRANSITIONS", {**TRANSITIONS, FINISHED: frozenset({STARTING})})
    patch.setattr(machine_module, "WAITS_FOR_RAY", WAITS_FOR_RAY | {FINISHED})


def patch_stubborn(patch: pytest.MonkeyPatch) -> None:
    """No node is given up."""
    patch.setattr(machine_module, "MAX_SHORT_STARTS", 1_000)


def patch_deluded(patch: pytest.MonkeyPatch) -> None:
    """Answers of earlier starts count."""
    patch.setattr(RayMachine, "_is_current", lambda self, node, _: self.nodes[node].state in HAS_ACTOR)


def patch_forgetful(patch: pytest.MonkeyPatch) -> None:
    """Start numbers begin anew with every failure."""
    leave = RayMachine._leave

    def forget(self: RayMachine, node: machine_module.RayNode, state: NodeState, now: float, reason: str) -> None:
        leave(self, node, state, now, reason)
        node.start = 0

    patch.setattr(RayMachine, "_leave", forget)


def patch_patient(patch: pytest.MonkeyPatch) -> None:
    """Nodes that hang are waited for."""
    patch.setattr(RayMachine, "_end_by", lambda *_: None)


def patch_deaf(patch: pytest.MonkeyPatch) -> None:
    """Nodes start although the run ends."""
    patch.setattr(RayMachine, "_may_start", lambda _, node, __: node.state in WAITS_FOR_RAY)


def patch_restless(patch: pytest.MonkeyPatch) -> None:
    """The end is no end."""
    step = RayMachine.step

    def go_on(self: RayMachine, observations: Iterable[Observation], now: float) -> list[Action]:
        self.end = None
        return step(self, observations, now)

    patch.setattr(RayMachine, "step", go_on)


PATCHES = (
    patch_impatient,
    patch_revived,
    patch_stubborn,
    patch_deluded,
    patch_forgetful,
    patch_patient,
    patch_deaf,
    patch_restless,
)


def is_any_rule_broken() -> bool:
    """Whether the rules find a fault. They do not look for its smallest example."""
    quick = settings(max_examples=200, phases=[Phase.generate], report_multiple_bugs=False, print_blob=False)
    rules: list[Callable[[], None]] = [
        quick(given(machines, scripts, endings)(check_safety)),
        quick(given(machines, codes)(check_bound)),
        quick(given(machines, scripts, ends)(check_end)),
    ]
    for rule in rules:
        try:
            rule()
        except AssertionError:
            return True
    return False


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.__name__)
def test_a_broken_machine_is_caught(
    patch: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    patch(monkeypatch)
    assert is_any_rule_broken()
