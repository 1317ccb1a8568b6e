"""What may follow what, what is kept, and what a cycle is said to have cost."""

from __future__ import annotations

import time
from itertools import product

import pytest

from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.core.effects import FenceCause
from ft_rendezvous.core.lifecycle import NodeStep, Role, roles_after
from ft_rendezvous.core.model import (
    AnyWhy,
    FirstCycle,
    NodesDrain,
    NodesLost,
    Outcome,
    Placement,
    Verdict,
    VerdictKind,
    WorkersFailed,
    WorldGrows,
)
from ft_rendezvous.errors import ProtocolBug
from ft_rendezvous.protocol import journal
from ft_rendezvous.state.model.events import encode_state
from ft_rendezvous.state.model.fold import NODE_FAILURES_KEPT, apply_entry
from ft_rendezvous.state.model.records import (
    CYCLE_STATUS_TABLE,
    GROUP_STATUS_TABLE,
    NODE_STATUS_TABLE,
    RUN_STATUS_TABLE,
    CycleStatus,
    GroupStatus,
    NodeRole,
    NodeStatus,
    RunStatus,
    step,
)
from ft_rendezvous.state.model.run_state import NS, RunState
from ft_rendezvous.state.model.view import has_vanished, view_cycles, view_nodes, view_run, view_vanished


class Story:
    """A run told by hand; time passes when it is told to."""

    def __init__(self, nodes: int = 3, wanted: int = 2, history: int = 100) -> None:
        self.state = RunState(history=history)
        self.now_s = 0.0
        self.names = [f"{number:016x}" for number in range(nodes)]
        settings = {"nnodes": f"{wanted}:{nodes}", "lease_timeout": "5.0"}
        self.tell(journal.RunBegan(run_id="job", epoch="e" * 16, settings=settings, versions={}, host="h pid 1"))

    def tell(self, *entries: journal.Entry, after_s: float = 0.0) -> None:
        self.now_s += after_s
        for entry in entries:
            apply_entry(self.state, self.state.event_id + 1, self.now_ns, entry)

    @property
    def now_ns(self) -> int:
        return round(self.now_s * NS)

    def open(self, cycle_id: int, why: AnyWhy | None = None, after_s: float = 0.0) -> None:
        roles = roles_after(NodeStep.REOPEN)
        self.tell(journal.CycleOpened(cycle_id=cycle_id, why=why or FirstCycle(), roles=roles), after_s=after_s)

    def join(self, *numbers: int) -> None:
        for number in numbers:
            self.tell(
                journal.NodeJoined(
                    cycle_id=1,
                    incarnation=self.names[number],
                    node=f"infra rank {number} at host",
                    is_spare=False,
                    addr="host",
                    pid=number,
                    infra_rank=number,
                    domain="A",
                    unit=None,
                    worker_role="default",
                    workers=4,
                )
            )

    def arrive(self, cycle_id: int, *numbers: int) -> None:
        names = tuple(self.names[number] for number in numbers)
        self.tell(journal.NodesArrived(cycle_id=cycle_id, incarnations=names))

    def seal(self, cycle_id: int, ranks: list[int], standbys: list[int] | None = None, after_s: float = 0.0) -> None:
        placement = Placement(tuple(self.names[n] for n in ranks), tuple(self.names[n] for n in standbys or []))
        entry = journal.CycleSealed(
            cycle_id=cycle_id,
            placement=placement,
            roles=roles_after(NodeStep.PASS_OVER),
            waited_s=after_s,
            master="h:1",
        )
        self.tell(entry, after_s=after_s)

    def lose(self, number: int, silent_s: float = 5.0, after_s: float = 0.0) -> None:
        entry = journal.NodeFenced(
            cycle_id=1,
            incarnation=self.names[number],
            node="n",
            cause=FenceCause.LOST,
            reason="no beat for 5 s",
            silent_s=silent_s,
        )
        self.tell(entry, after_s=after_s)

    def status(self) -> RunStatus:
        return self.state.status

    def role(self, number: int) -> NodeRole:
        return self.state.members[self.names[number]].role


def training(**options: int) -> Story:
    story = Story(**options)
    story.open(1)
    story.join(0, 1, 2)
    story.arrive(1, 0, 1, 2)
    story.seal(1, [0, 1], [2], after_s=1.0)
    return story


# --- tables -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("table", "statuses"),
    [
        (RUN_STATUS_TABLE, RunStatus),
        (CYCLE_STATUS_TABLE, CycleStatus),
        (GROUP_STATUS_TABLE, GroupStatus),
        (NODE_STATUS_TABLE, NodeStatus),
    ],
    ids=["run", "cycle", "group", "node"],
)
def test_a_table_says_of_every_pair_whether_it_may_happen(table, statuses) -> None:  # type: ignore[no-untyped-def]
    assert set(table) == set(statuses)
    for before, after in product(statuses, statuses):
        if after in table[before]:
            assert step(table, before, after) is after
        else:
            with pytest.raises(ProtocolBug, match=f"{before} cannot become {after}"):
                step(table, before, after)
    for status in statuses:
        assert status.is_terminal() == (not table[status])


def test_an_event_that_cannot_follow_is_a_bug() -> None:
    story = training()
    with pytest.raises(ProtocolBug):
        story.seal(1, [0, 1])
    story = training()
    story.lose(0)
    with pytest.raises(ProtocolBug):
        story.lose(0)


# --- statuses and roles ---------------------------------------------------------------------------------


def test_a_run_from_its_beginning_to_its_end() -> None:
    story = Story()
    assert story.status() is RunStatus.INITIALIZING
    story.open(1)
    story.join(0)
    assert story.status() is RunStatus.SCHEDULING
    assert story.role(0) is NodeRole.HOT_SPARE
    story.join(1, 2)
    story.arrive(1, 0, 1)
    assert story.role(0) is NodeRole.ARRIVED
    story.arrive(1, 2)
    story.seal(1, [0, 1], [2])
    assert [story.role(number) for number in range(3)] == [NodeRole.ACTIVE, NodeRole.ACTIVE, NodeRole.STANDBY]
    story.open(2, WorkersFailed("n", 0, "exit code 1"))
    assert story.status() is RunStatus.RESTARTING
    assert [story.role(number) for number in range(3)] == [NodeRole.AWAITED, NodeRole.AWAITED, NodeRole.HOT_SPARE]
    story.arrive(2, 0, 1)
    story.seal(2, [0, 1])
    assert story.role(2) is NodeRole.HOT_SPARE
    story.open(3, WorldGrows(2, 3))
    assert story.status() is RunStatus.RESIZING
    story.arrive(3, 0, 1, 2)
    story.seal(3, [0, 1, 2])
    for number in range(3):
        story.tell(journal.NodeFinished(cycle_id=3, incarnation=story.names[number], node="n"))
    assert story.role(0) is NodeRole.FINISHED
    story.tell(journal.RunEnded(verdict=Verdict(VerdictKind.SUCCEEDED)))
    assert story.status() is RunStatus.FINISHED
    statuses = [cycle.status for cycle in story.state.cycles]
    assert statuses == [CycleStatus.ERRORED, CycleStatus.ABORTED, CycleStatus.FINISHED]


@pytest.mark.parametrize(
    ("verdict", "run", "cycle"),
    [
        (Verdict(VerdictKind.FAILED, "x"), RunStatus.ERRORED, CycleStatus.ERRORED),
        (Verdict(VerdictKind.CANCELLED, "x"), RunStatus.ABORTED, CycleStatus.ABORTED),
        (None, RunStatus.ABORTED, CycleStatus.ABORTED),
    ],
    ids=["failed", "cancelled", "the host left"],
)
def test_how_a_run_may_end(verdict: Verdict | None, run: RunStatus, cycle: CycleStatus) -> None:
    story = training()
    story.tell(journal.HostLeft() if verdict is None else journal.RunEnded(verdict=verdict))
    assert (story.state.status, story.state.cycles[-1].status) == (run, cycle)
    told = view_run(story.state, story.now_ns)
    assert told is not None
    assert told.is_terminal()
    assert told.end_time_ns == story.now_ns


def test_nodes_fall_silent_are_heard_again_or_die() -> None:
    story = training()
    name = story.names[0]
    story.tell(journal.NodesSilent(cycle_id=1, silent_s={name: 2.5}), after_s=10.0)
    (node, *_) = view_nodes(story.state)
    assert (node.status, node.last_beat_ns) == (NodeStatus.SUSPECT, story.now_ns - round(2.5 * NS))
    story.tell(journal.NodesHeard(cycle_id=1, incarnations=(name,)))
    assert view_nodes(story.state)[0].status is NodeStatus.ALIVE
    story.lose(0, after_s=5.0)
    dead = view_nodes(story.state)[-1]
    assert (dead.status, dead.role, dead.last_beat_ns) == (NodeStatus.DEAD, NodeRole.ACTIVE, story.now_ns - 5 * NS)
    assert "no beat" in dead.status_detail


def parking(story: Story, number: int) -> journal.NodeParked:
    return journal.NodeParked(
        cycle_id=1, incarnation=story.names[number], node="n", losses=3, within_s=600.0, for_s=590.0
    )


def test_a_parked_node_says_so_until_it_is_an_ordinary_node_again() -> None:
    story = training()
    story.tell(parking(story, 0))
    assert view_nodes(story.state)[0].status_detail == "parked: lost 3 times within 10 min 00 s"
    assert story.role(0) is NodeRole.ACTIVE, "too few others are there"
    story.tell(journal.NodeUnparked(cycle_id=1, incarnation=story.names[0], node="n"))
    assert view_nodes(story.state)[0].status_detail == ""


def test_an_incarnation_that_was_lost_says_that_its_node_is_parked() -> None:
    story = training()
    story.lose(0, after_s=5.0)
    story.tell(parking(story, 0))
    assert view_nodes(story.state)[-1].status_detail == "lost: no beat for 5 s; parked: lost 3 times within 10 min 00 s"


def test_a_parked_node_that_drains_says_that_it_drains() -> None:
    story = training()
    name = story.names[0]
    story.tell(parking(story, 0))
    called = journal.CycleCalled(cycle_id=1, incarnations=(name,), roles=(Role.ACTIVE,), nodes=("n",), reason="SIGUSR1")
    story.tell(called)
    story.tell(journal.NodeUnparked(cycle_id=1, incarnation=name, node="n"))
    assert view_nodes(story.state)[0].status_detail == "draining: SIGUSR1"


def test_quarantined_drained_and_refused() -> None:
    story = training()
    fence = journal.NodeFenced(
        cycle_id=1,
        incarnation=story.names[0],
        node="n",
        cause=FenceCause.QUARANTINED,
        reason="failed too often",
        silent_s=0.0,
    )
    story.tell(fence)
    assert story.role(0) is NodeRole.QUARANTINED
    called = journal.CycleCalled(
        cycle_id=1, incarnations=(story.names[1],), roles=(Role.ACTIVE,), nodes=("n",), reason="SIGUSR1"
    )
    story.tell(called)
    assert "draining: SIGUSR1" in view_nodes(story.state)[0].status_detail
    went = journal.NodeWent(
        cycle_id=1,
        incarnation=story.names[1],
        node="n",
        role=Role.ACTIVE,
        outcome=Outcome.DRAINED,
        reason="asked to go",
    )
    story.tell(went)
    assert story.role(1) is NodeRole.DRAINED
    stranger = journal.NodeFenced(
        cycle_id=1, incarnation="f" * 16, node="n", cause=FenceCause.REFUSED, reason="other settings", silent_s=0.0
    )
    story.tell(stranger)
    assert "f" * 16 not in story.state.members


def test_failures_are_kept_with_code_error_and_log() -> None:
    story = training()
    note = FailureNote(
        cycle_id=1,
        key="k",
        incarnation=story.names[0],
        node="n0",
        rank=3,
        exit_code=1,
        after_s=2.0,
        reason="exit code 1",
        log_path="/logs/3/stderr.log",
        last_words="RuntimeError: boom",
    )
    for _ in range(NODE_FAILURES_KEPT + 2):
        story.tell(journal.WorkersEnded(failure=note))
    story.tell(journal.CycleSettled(cycle_id=1, failures=1, first=note))
    node = view_nodes(story.state)[0]
    assert (node.failure_count, len(node.failures)) == (NODE_FAILURES_KEPT + 2, NODE_FAILURES_KEPT)
    failed = node.failures[0]
    assert (failed.exit_code, failed.rank, failed.log_path) == (1, 3, "/logs/3/stderr.log")
    assert failed.error == "exit code 1: RuntimeError: boom"
    cycle = view_cycles(story.state, story.now_ns)[0]
    assert cycle.first_failure is not None
    assert cycle.first_failure_node == "n0"


def test_ranks_of_workers_follow_from_the_seats() -> None:
    nodes = {node.infra_rank: node for node in view_nodes(training().state)}
    assert [nodes[number].global_ranks for number in range(3)] == [(0, 3), (4, 7), None]
    assert [nodes[number].group_rank for number in range(3)] == [0, 1, None]


# --- what is told of time -------------------------------------------------------------------------------


def test_time_lost_is_charged_to_its_cause_from_when_the_lost_node_was_last_heard_of() -> None:
    story = training()
    story.lose(0, silent_s=5.0, after_s=100.0)
    story.open(2, NodesLost(("n",), (0,)))
    story.arrive(2, 1, 2)
    open_run = view_run(story.state, story.now_ns + 2 * NS)
    assert open_run is not None
    assert open_run.lost["nodes_lost"].seconds == pytest.approx(7.0)
    story.seal(2, [2, 1], after_s=3.0)
    run = view_run(story.state, story.now_ns)
    assert run is not None
    assert run.lost["nodes_lost"].times == 1
    assert run.lost_s == pytest.approx(8.0)
    assert run.trained_s == pytest.approx(95.0)
    assert story.state.cycles[-1].lost_s == pytest.approx(8.0)
    story.open(3, NodesDrain(("n",), 1), after_s=10.0)
    story.arrive(3, 1, 2)
    story.seal(3, [1, 2], after_s=1.0)
    run = view_run(story.state, story.now_ns + 4 * NS)
    assert run is not None
    assert run.lost["nodes_drain"].seconds == pytest.approx(1.0)
    assert run.trained_s == pytest.approx(109.0)


def test_workers_that_fail_of_a_lost_node_are_the_losss_cost() -> None:
    """They notice first; the lease tells later what it was."""
    story = training()
    story.open(2, WorkersFailed("n1", 1, "connection reset"), after_s=100.0)
    story.arrive(2, 1, 2)
    story.lose(0, silent_s=5.0, after_s=3.0)
    story.seal(2, [2, 1])
    run = view_run(story.state, story.now_ns)
    assert run is not None
    assert {cause: lost.seconds for cause, lost in run.lost.items()} == {"nodes_lost": pytest.approx(5.0)}
    assert run.trained_s == pytest.approx(98.0)


def test_a_wait_says_who_is_missing_and_when_it_was_last_seen() -> None:
    story = training()
    story.lose(0, after_s=10.0)
    story.open(2, NodesLost(("n",), (0,)))
    run = view_run(story.state, story.now_ns + 7 * NS)
    assert run is not None
    assert "waiting for 2 of 2 nodes: infra rank 0, last seen 12 s ago; infra rank 1, stopping" in run.status_detail
    story.lose(1, silent_s=5.0)
    run = view_run(story.state, story.now_ns + 7 * NS)
    assert run is not None
    assert run.status_detail.endswith("waiting for 2 of 2 nodes: infra ranks 0 and 1, last seen 12 s ago")
    assert view_cycles(story.state, story.now_ns)[-1].status_detail.startswith("waiting for 2 of 2 nodes")


def test_a_loss_that_is_told_with_the_failure_it_caused_costs_the_same() -> None:
    story = training()
    story.lose(0, silent_s=5.0, after_s=100.0)
    story.open(2, WorkersFailed("n1", 1, "connection reset"))
    story.seal(2, [2, 1], after_s=1.0)
    run = view_run(story.state, story.now_ns)
    assert run is not None
    assert {cause: lost.seconds for cause, lost in run.lost.items()} == {"nodes_lost": pytest.approx(6.0)}
    assert run.trained_s == pytest.approx(95.0)


def test_workers_failed_and_a_node_is_lost_that_had_come_for_the_next_world() -> None:
    """It was whole when the workers failed, so the pause is theirs."""
    story = training()
    story.open(2, WorkersFailed("n1", 1, "exit code 1"), after_s=100.0)
    story.arrive(2, 0, 1, 2)
    story.lose(0, silent_s=5.0, after_s=6.0)
    story.seal(2, [2, 1])
    run = view_run(story.state, story.now_ns)
    assert run is not None
    assert {cause: lost.seconds for cause, lost in run.lost.items()} == {"workers_failed": pytest.approx(6.0)}


@pytest.mark.parametrize("is_sealed", [False, True], ids=["before the seal", "after the seal"])
def test_a_corrected_cause_replaces_the_first_one(is_sealed: bool) -> None:
    story = training()
    story.open(2, WorkersFailed("n1", 1, "connection reset"), after_s=100.0)
    story.arrive(2, 1, 2)
    lost = NodesLost(("n0",), (0,))
    correction = journal.CauseCorrected(cycle_id=2, why=lost)
    if is_sealed:
        story.seal(2, [2, 1], after_s=3.0)
        story.tell(correction)
    else:
        story.tell(correction)
        assert story.state.status_detail == "lost n0 (rank 0)"
        story.seal(2, [2, 1], after_s=3.0)
    first, second = view_cycles(story.state, story.now_ns)
    assert (second.why, second.why_text, second.opened_by) == (lost, "lost n0 (rank 0)", "n0")
    assert second.lost_s == pytest.approx(3.0)
    assert second.lost_cause == "nodes_lost"
    assert first.status_detail == "lost n0 (rank 0)"
    run = view_run(story.state, story.now_ns)
    assert run is not None
    assert {cause: each.times for cause, each in run.lost.items()} == {"nodes_lost": 1}
    assert run.lost["nodes_lost"].seconds == pytest.approx(3.0)
    assert run.status_detail == "2 nodes train in cycle 2"


def test_a_correction_moves_the_time_of_its_own_cycle_alone() -> None:
    story = training()
    for cycle_id in (2, 3):
        story.open(cycle_id, WorkersFailed("n1", 1, "connection reset"), after_s=100.0)
        story.arrive(cycle_id, 1, 2)
        story.seal(cycle_id, [2, 1], after_s=float(cycle_id))
    story.tell(journal.CauseCorrected(cycle_id=2, why=NodesLost(("n0",), (0,))))
    assert {cause: (each.times, each.lost_ns // NS) for cause, each in story.state.lost.items()} == {
        "nodes_lost": (1, 2),
        "workers_failed": (1, 3),
    }


def test_a_finished_node_that_is_lost_broke_nothing() -> None:
    story = training()
    story.tell(journal.NodeFinished(cycle_id=1, incarnation=story.names[0], node="n"), after_s=10.0)
    story.lose(0, after_s=5.0)
    story.open(2, WorkersFailed("n1", 1, "exit code 1"), after_s=100.0)
    story.seal(2, [1, 2], after_s=1.0)
    run = view_run(story.state, story.now_ns)
    assert run is not None
    assert {cause: lost.seconds for cause, lost in run.lost.items()} == {"workers_failed": pytest.approx(1.0)}


def test_who_had_arrived_and_goes_is_waited_for_again() -> None:
    story = Story(nodes=4, wanted=4)
    story.open(1)
    story.join(0, 1, 2, 3)
    story.arrive(1, 0, 1, 2)
    assert view_cycles(story.state, story.now_ns)[-1].status_detail == "waiting for 1 of 4 nodes"
    story.lose(0)
    names = (story.names[1],)
    roles = (Role.HOT_SPARE,)
    story.tell(journal.CycleCalled(cycle_id=1, incarnations=names, roles=roles, nodes=names, reason="maintenance"))
    story.lose(1)  # Counted out once.
    story.lose(3)  # It never was counted in.
    cycle = view_cycles(story.state, story.now_ns)[-1]
    assert (cycle.arrived, cycle.status_detail) == (1, "waiting for 3 of 4 nodes")
    story.tell(journal.RunEnded(verdict=Verdict(VerdictKind.CANCELLED, "enough")))
    story.lose(2)
    assert story.state.cycles[-1].arrived == 1


def test_a_node_that_was_fenced_may_still_say_that_it_is_unfit() -> None:
    story = training()
    story.lose(0)
    before = encode_state(story.state)
    entry = journal.NodeUnhealthy(cycle_id=1, incarnation=story.names[0], node="n", reason="no GPU")
    story.tell(entry)
    story.state.event_id -= 1
    assert encode_state(story.state) == before


def test_a_coordinator_that_vanished_leaves_an_aborted_run() -> None:
    story = training()
    assert not has_vanished(story.state, story.now_ns + 10 * NS)
    assert has_vanished(story.state, story.now_ns + 16 * NS)
    run = view_run(story.state, story.now_ns)
    assert run is not None
    gone = view_vanished(run, story.state.time_ns)
    assert (gone.status, gone.end_time_ns) == (RunStatus.ABORTED, story.state.time_ns)
    assert "RUNNING" in gone.status_detail
    story.tell(journal.RunEnded(verdict=Verdict(VerdictKind.SUCCEEDED)))
    assert not has_vanished(story.state, story.now_ns + 1000 * NS)


def test_before_anything_is_known_there_is_no_run() -> None:
    assert view_run(RunState(), 0) is None
    assert view_cycles(RunState(), 0) == []
    assert view_nodes(RunState()) == []


# --- limits ---------------------------------------------------------------------------------------------


def cycles_of_a_crowd(story: Story, first: int, last: int) -> None:
    everybody = range(len(story.names))
    for cycle_id in range(first, last + 1):
        story.open(cycle_id, None if cycle_id == 1 else WorkersFailed("n", 0, "exit code 1"), after_s=10.0)
        if cycle_id == 1:
            story.join(*everybody)
        story.arrive(cycle_id, *everybody)
        story.seal(cycle_id, list(everybody))


def test_a_thousand_cycles_of_ten_thousand_nodes_are_kept_in_bounded_memory() -> None:
    """Of old cycles a summary of less than a kilobyte is kept, whatever the number of nodes."""
    story = Story(nodes=10_000, wanted=10_000, history=10)
    cycles_of_a_crowd(story, 1, 20)
    early = len(encode_state(story.state))
    cycles_of_a_crowd(story, 21, 1_000)
    late = len(encode_state(story.state))
    assert late - early < 980 * 1_000
    assert sum(cycle.ranks is not None for cycle in story.state.cycles) <= 11


@pytest.mark.parametrize("history", [0, 1, 2])
def test_however_little_is_kept_it_is_bounded_and_names_who_is_missing(history: int) -> None:
    story = training(history=history)
    for cycle_id in range(2, 9):
        story.open(cycle_id, WorkersFailed("n", 0, "exit code 1"))
        assert "infra ranks 0 and 1, stopping workers" in view_cycles(story.state, story.now_ns)[-1].status_detail
        story.arrive(cycle_id, 0, 1, 2)
        story.seal(cycle_id, [0, 1], [2])
    assert sum(cycle.ranks is not None for cycle in story.state.cycles) == 2


def test_the_dead_are_forgotten_in_the_end() -> None:
    story = Story(nodes=1)
    story.open(1)
    for number in range(25_000):
        story.names = [f"{number:016x}"]
        story.join(0)
        story.lose(0)
    assert len(story.state.members) < 12_000
    assert len(story.state.dead) == len(story.state.members)


def test_folding_one_event_costs_the_same_however_many_nodes_there_are() -> None:
    """As a ratio of the best of several, for events that neither open nor seal a cycle."""

    def cost(nodes: int) -> float:
        story = Story(nodes=nodes, wanted=nodes)
        cycles_of_a_crowd(story, 1, 2)
        best = float("inf")
        for turn in range(60):
            began = time.perf_counter()
            story.tell(journal.CycleWaits(cycle_id=2, reason="x"))
            story.tell(journal.NodesSilent(cycle_id=2, silent_s={story.names[0]: 2.5}))
            story.tell(journal.NodesHeard(cycle_id=2, incarnations=(story.names[0],)))
            story.tell(journal.Looked(cycle_id=2, live=nodes, oldest_s=0.1, operations=turn))
            best = min(best, time.perf_counter() - began)
        return best

    assert cost(10_000) < 20 * cost(10)


def test_opening_a_cycle_costs_no_more_than_the_arrivals_and_the_seal_before_it() -> None:
    story = Story(nodes=10_000, wanted=10_000)
    cycles_of_a_crowd(story, 1, 1)
    everybody = range(len(story.names))
    opening_s = sealing_s = float("inf")
    for cycle_id in range(2, 12):
        began = time.perf_counter()
        story.open(cycle_id, WorkersFailed("n", 0, "exit code 1"))
        opened = time.perf_counter()
        story.arrive(cycle_id, *everybody)
        story.seal(cycle_id, list(everybody))
        opening_s, sealing_s = min(opening_s, opened - began), min(sealing_s, time.perf_counter() - opened)
    assert opening_s < sealing_s
