"""Requests of operators and workers, and limits in settings: drains, restarts, closes, budgets, quarantine, health."""

from __future__ import annotations

from typing import Any

import pytest

from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.model import Outcome, Request, RequestKind, VerdictKind
from ft_rendezvous.core.node_step import WorkerExit
from ft_rendezvous.errors import Refused
from ft_rendezvous.protocol import codec, moves
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.ops import Get, perform_move
from tests.scenarios.simulated_cluster import EPOCH, Cluster, Node
from tests.sim.store import SimStore


def run_of(active: int, spares: int, **settings: Any) -> Cluster:
    """A run whose nodes n0, n1, ... have come; the last ones are hot spares."""
    given = {"run_id": "r", "min_nodes": active, "max_nodes": active + spares, "crash_loop": 0, **settings}
    cluster = Cluster(RunSettings(**given), SimStore())
    for number in range(active + spares):
        cluster.join(f"n{number}", infra_rank=number)
        cluster.settle()
    assert seats(cluster) == {f"n{rank}": rank for rank in range(active)}
    return cluster


def seats(cluster: Cluster) -> dict[str, int]:
    return {node.name: node.place.rank for node in cluster.training if node.place}


def fail(node: Node, after_s: float, reason: str = "exit code 1") -> None:
    """Its workers fail, and its agent has watched them."""
    node.participant.worker_exit = WorkerExit(reason, rank=0, exit_code=1, after_s=after_s)
    node.fail()


def ask(cluster: Cluster, kind: RequestKind, target: str = "", reason: str = "") -> None:
    """As an operator."""
    request = Request(
        cycle_id=cluster.coordinator.cycle_id,
        incarnation="0123456789abcdef",
        kind=kind,
        target=target,
        reason=reason,
    )
    perform_move(cluster.store, moves.write_record(Keys(EPOCH), cluster.coordinator.view.opened, request))
    cluster.settle()


def drain(cluster: Cluster, name: str) -> None:
    """SIGUSR1."""
    node = cluster.nodes[name]
    perform_move(node.store, node.participant.ask_drain("SIGUSR1"))
    cluster.settle()


# --- drains -----------------------------------------------------------------------------------------


def test_a_drained_node_goes_when_a_spare_has_its_rank() -> None:
    cluster = run_of(2, 1, drain_grace_s=10.0)
    drain(cluster, "n1")
    assert cluster.coordinator.cycle_id == 1, "the workers may save first"
    assert seats(cluster) == {"n0": 0, "n1": 1}
    cluster.advance(9.0)
    assert cluster.coordinator.cycle_id == 1
    cluster.advance(2.0)
    assert seats(cluster) == {"n0": 0, "n2": 1}
    assert cluster.nodes["n1"].outcome == Outcome.DRAINED
    assert cluster.coordinator.membership.ledger.charged == 0


def test_a_drain_opens_the_next_cycle_at_a_checkpoint() -> None:
    cluster = run_of(2, 1, drain_grace_s=1000.0)
    first = cluster.nodes["n0"]
    perform_move(first.store, first.participant.tell_checkpoint(1))
    assert first.participant.told_checkpoint == 0, "no cycle waits for it: it costs nothing"
    drain(cluster, "n1")
    perform_move(first.store, first.participant.tell_checkpoint(1))
    cluster.settle()
    assert seats(cluster) == {"n0": 0, "n2": 1}


def test_a_spare_that_drains_leaves_at_once_and_disturbs_no_other() -> None:
    cluster = run_of(2, 1)
    drain(cluster, "n2")
    assert cluster.nodes["n2"].outcome == Outcome.DRAINED
    assert cluster.coordinator.cycle_id == 1
    cluster.advance(1.0)
    assert set(cluster.coordinator.roster.members) == {
        cluster.nodes[name].participant.incarnation for name in ("n0", "n1")
    }


def test_a_drain_that_leaves_too_few_opens_nothing_and_ends_as_drained() -> None:
    cluster = run_of(2, 1, drain_grace_s=1.0)
    for name in ("n0", "n1", "n2"):
        drain(cluster, name)
    cluster.advance(20.0)
    assert seats(cluster) == {"n0": 0, "n1": 1}
    for node in cluster.training:
        node.finish()
    cluster.settle()
    assert cluster.verdict is not None
    assert (cluster.verdict.kind, cluster.verdict.reason) == (
        VerdictKind.CANCELLED,
        "drained: too few nodes would remain",
    )


@pytest.mark.parametrize("how", ["terminated", "failed"])
def test_workers_that_are_ended_in_a_drain_end_the_run_as_drained(how: str) -> None:
    cluster = run_of(2, 0, drain_grace_s=1.0)
    for name in ("n0", "n1"):
        drain(cluster, name)
    if how == "terminated":
        cluster.nodes["n1"].leave(Outcome.LEFT, "SIGTERM")
    else:
        fail(cluster.nodes["n1"], 5.0)
    cluster.advance(1.0)
    assert cluster.verdict is not None
    assert cluster.verdict.kind is VerdictKind.CANCELLED
    assert "drained" in cluster.verdict.reason


def test_a_spare_that_comes_later_makes_a_drain_possible() -> None:
    cluster = run_of(2, 0, drain_grace_s=1.0)
    drain(cluster, "n1")
    cluster.advance(5.0)
    assert cluster.coordinator.cycle_id == 1
    cluster.join("late", infra_rank=7)
    cluster.advance(1.0)
    assert seats(cluster) == {"n0": 0, "late": 1}


def test_a_drained_spare_does_not_end_a_run_that_loses_a_node_later() -> None:
    """It had no place. The node that is missing now was lost, and may be replaced."""
    cluster = run_of(2, 1, lease_s=4.0)
    drain(cluster, "n2")
    cluster.nodes["n1"].kill()
    cluster.advance(8.0)
    assert cluster.verdict is None
    cluster.join("new", infra_rank=1, addr="n1")
    cluster.advance(1.0)
    assert seats(cluster) == {"n0": 0, "new": 1}


def test_a_run_that_ends_within_the_grace_of_a_drain_that_is_covered_has_succeeded() -> None:
    cluster = run_of(2, 1, drain_grace_s=100.0)
    drain(cluster, "n1")
    for node in cluster.training:
        node.finish()
    cluster.settle()
    assert str(cluster.verdict) == "succeeded"


def test_a_node_that_asked_to_drain_does_not_come_back_even_if_the_request_is_lost() -> None:
    """It has lost its lease and does not know it yet: its request comes from an incarnation that is over."""
    cluster = run_of(2, 1, lease_s=4.0)
    node = cluster.nodes["n1"]
    node.is_frozen = True
    cluster.advance(6.0)
    assert seats(cluster) == {"n0": 0, "n1": 1, "n2": 1}, "its agent has not looked yet"
    perform_move(node.store, node.participant.ask_drain("SIGUSR1"))
    node.is_frozen = False
    cluster.advance(3.0)
    assert node.outcome == Outcome.DRAINED
    assert seats(cluster) == {"n0": 0, "n2": 1}


def test_a_drain_of_all_that_wait_cancels_the_run() -> None:
    cluster = Cluster(RunSettings(run_id="r", min_nodes=3, max_nodes=3), SimStore())
    for number in range(2):
        cluster.join(f"n{number}", infra_rank=number)
        cluster.settle()
    for name in ("n0", "n1"):
        drain(cluster, name)
    cluster.advance(1.0)
    assert str(cluster.verdict) == "cancelled(every node has left)"


def test_a_survivor_that_drains_while_it_waits_for_a_replacement_cancels_the_run() -> None:
    cluster = run_of(2, 0, lease_s=4.0)
    cluster.nodes["n1"].kill()
    cluster.advance(6.0)
    drain(cluster, "n0")
    cluster.advance(1.0)
    assert cluster.verdict is not None
    assert cluster.verdict.kind is VerdictKind.CANCELLED
    assert "drained" in cluster.verdict.reason


def test_a_draining_agent_that_gives_up_drains_and_does_not_fail() -> None:
    cluster = run_of(2, 0, drain_grace_s=1000.0)
    for name in ("n0", "n1"):
        drain(cluster, name)
    cluster.nodes["n1"].leave(Outcome.FAILED, "worker rank 1 exited with 1")
    cluster.advance(1.0)
    assert cluster.verdict is not None
    assert cluster.verdict.kind is VerdictKind.CANCELLED


def test_the_grace_of_a_drain_begins_with_the_first_that_gives_up_a_place() -> None:
    cluster = run_of(2, 2, drain_grace_s=10.0)
    drain(cluster, "n3")
    cluster.advance(60.0)
    drain(cluster, "n1")
    cluster.advance(5.0)
    assert cluster.coordinator.cycle_id == 1
    cluster.advance(6.0)
    assert seats(cluster) == {"n0": 0, "n2": 1}


# --- operators and workers --------------------------------------------------------------------------


def test_an_operator_drains_a_node_by_its_infra_rank() -> None:
    cluster = run_of(2, 1, drain_grace_s=0.0)
    ask(cluster, RequestKind.DRAIN, target="0")
    cluster.advance(1.0)
    assert seats(cluster) == {"n2": 0, "n1": 1}
    ask(cluster, RequestKind.DRAIN, target="unknown")
    assert cluster.coordinator.view.called is None


def test_an_operator_restarts_and_closes() -> None:
    cluster = run_of(2, 1, max_cycles=1)
    ask(cluster, RequestKind.RESTART, reason="new code")
    assert cluster.coordinator.cycle_id == 2
    assert seats(cluster) == {"n0": 0, "n1": 1}
    assert str(cluster.coordinator.view.opened.why) == "an operator asked for a restart: new code"
    ask(cluster, RequestKind.CLOSE, reason="enough")
    assert str(cluster.verdict) == "cancelled(closed by an operator: enough)"
    assert {node.is_gone for node in cluster.nodes.values()} == {True}


def test_a_restart_that_would_end_the_run_is_refused() -> None:
    cluster = run_of(2, 0)
    drain(cluster, "n1")
    ask(cluster, RequestKind.RESTART)
    assert cluster.verdict is None
    answer = codec.decode_answer(cluster.store.perform(Get(Keys(EPOCH).answer("0123456789abcdef"))))
    assert not answer.is_granted
    assert "would end the run" in answer.text


def test_the_verdict_is_told_before_it_is_announced_and_a_loss_is_no_workers_failure() -> None:
    cluster = run_of(2, 0, lease_s=4.0, join_s=20.0)
    verdicts: list[tuple[str, object, bool]] = []
    cluster.coordinator.on_close = lambda verdict, _cycle_id, first: verdicts.append(
        (verdict.kind, first, cluster.coordinator.view.closed is None)
    )
    cluster.nodes["n1"].kill()
    fail(cluster.nodes["n0"], 5.0, "connection reset")
    cluster.advance(40.0)
    assert verdicts == [(VerdictKind.FAILED, None, True)]


def test_a_worker_restarts_the_group_and_no_node_is_blamed() -> None:
    cluster = run_of(2, 0, max_cycles=1)
    node = cluster.nodes["n1"]
    perform_move(node.store, node.participant.ask(RequestKind.RESTART, "NaN"))
    cluster.settle()
    assert cluster.coordinator.cycle_id == 2
    assert cluster.coordinator.membership.ledger.charged == 0


def test_a_node_cannot_close_the_run() -> None:
    cluster = run_of(2, 0)
    node = cluster.nodes["n1"]
    perform_move(node.store, node.participant.ask(RequestKind.CLOSE, ""))
    cluster.settle()
    assert cluster.verdict is None


def test_no_node_is_charged_for_failures_after_a_requested_restart() -> None:
    """Workers fail because their peers are being stopped."""
    cluster = run_of(2, 0, max_cycles=1, crash_loop=1)
    for node in cluster.nodes.values():
        node.is_busy = True
    ask(cluster, RequestKind.RESTART)
    assert cluster.coordinator.cycle_id == 2
    node = cluster.nodes["n1"]
    node.participant.worker_exit = WorkerExit("connection reset", rank=1, exit_code=1, after_s=1.0)
    perform_move(node.store, node.participant.report_failure(1))
    for node in cluster.nodes.values():
        node.is_busy = False
    cluster.advance(1.0)
    assert seats(cluster) == {"n0": 0, "n1": 1}
    assert cluster.coordinator.membership.ledger.charged == 0


def test_a_reason_that_is_no_text_is_told_as_far_as_it_is() -> None:
    """A file name that is not UTF-8 in an error message."""
    cluster = run_of(2, 0)
    fail(cluster.nodes["n1"], 5.0, "no such file: caf\udce9\nsecond line")
    cluster.advance(1.0)
    assert cluster.coordinator.cycle_id == 2


# --- budgets ----------------------------------------------------------------------------------------


def test_the_runs_budget_is_spent_by_failures_and_told_with_the_first_of_them() -> None:
    cluster = run_of(2, 0, max_cycles=2)
    fail(cluster.nodes["n0"], 5.0)
    cluster.advance(1.0)
    assert cluster.coordinator.cycle_id == 2
    fail(cluster.nodes["n1"], 5.0, "exit code 17")
    fail(cluster.nodes["n0"], 5.5, "connection reset")
    cluster.advance(1.0)
    assert str(cluster.verdict) == (
        "failed(max_cycles=2: this many cycles ended because workers failed; "
        "first failure: infra rank 1 at n1 pid 2 (rank 0) in cycle 2: exit code 17)"
    )


def test_a_lost_node_is_not_charged_though_its_peers_failed_of_it() -> None:
    cluster = run_of(2, 1, max_cycles=1, lease_s=4.0)
    cluster.nodes["n1"].kill()
    fail(cluster.nodes["n0"], 5.0, "connection reset")
    cluster.advance(8.0)
    assert seats(cluster) == {"n0": 0, "n2": 1}
    assert cluster.coordinator.membership.ledger.charged == 0


@pytest.mark.parametrize(("stall_s", "charged"), [(4.0, 0), (3.0, 0), (1.5, 1)])
def test_no_node_is_charged_for_failures_when_the_host_stalled_for_a_lease(stall_s: float, charged: int) -> None:
    """The leases of nodes end at different moments. The first node that stops its workers makes the others fail."""
    cluster = run_of(2, 0, lease_s=4.0, beat_s=1.0)
    cluster.advance(5.0)
    cluster.clock.now += stall_s
    fail(cluster.nodes["n1"], 9.0, "connection reset")
    cluster.advance(1.0)
    assert seats(cluster) == {"n0": 0, "n1": 1}
    assert cluster.coordinator.cycle_id == 2
    assert cluster.coordinator.membership.ledger.charged == charged
    fail(cluster.nodes["n1"], 5.0)
    cluster.advance(1.0)
    assert cluster.coordinator.membership.ledger.charged == charged + 1, "the stall is over"


def test_a_node_that_leaves_in_between_is_not_charged_either() -> None:
    cluster = run_of(2, 1, max_cycles=1)
    fail(cluster.nodes["n0"], 5.0, "connection reset")
    cluster.nodes["n1"].leave(Outcome.LEFT, "SIGTERM")
    cluster.advance(1.0)
    assert seats(cluster) == {"n0": 0, "n2": 1}


def test_a_crash_loop_ends_the_run() -> None:
    cluster = run_of(2, 0, crash_loop=3)
    for cycle_id in (1, 2, 3):
        assert cluster.coordinator.cycle_id == cycle_id
        fail(cluster.nodes["n0"], 1.0, "exit code 3: no such file")
        fail(cluster.nodes["n1"], 1.0, "exit code 3: no such file")
        cluster.advance(1.0)
    assert cluster.verdict is not None
    assert cluster.verdict.reason.startswith("crash loop: 3 cycles in a row failed within 30 s")


# --- quarantine -------------------------------------------------------------------------------------


def quarantined() -> Cluster:
    cluster = run_of(2, 1, max_node_failures=2, quarantine_s=100.0)
    for _ in range(2):
        fail(cluster.nodes["n1"], 50.0)
        cluster.advance(2.0)
    return cluster


def test_a_node_that_fails_first_again_and_again_makes_room_for_a_spare() -> None:
    cluster = quarantined()
    assert seats(cluster) == {"n0": 0, "n2": 1}
    bad = cluster.nodes["n1"]
    assert isinstance(bad.outcome, Refused)
    assert "quarantined for 100 s" in str(bad.outcome)
    assert cluster.verdict is None


def test_a_quarantined_node_may_return_later_and_not_before() -> None:
    cluster = quarantined()
    early = cluster.join("again", infra_rank=1, addr="n1")
    cluster.advance(2.0)
    assert isinstance(early.outcome, Refused)
    assert "in quarantine for another" in str(early.outcome)
    cluster.advance(100.0)
    late = cluster.join("later", infra_rank=1, addr="n1")
    cluster.advance(1.0)
    assert late.outcome is None
    assert late.participant.incarnation in cluster.coordinator.roster.members


@pytest.mark.parametrize("has_infra_ranks", [True, False])
def test_a_blamed_node_that_is_back_under_a_new_incarnation_is_quarantined_too(has_infra_ranks: bool) -> None:
    """Its agent gave up, and was started again before the next world is sealed."""
    cluster = Cluster(RunSettings(run_id="r", min_nodes=2, max_nodes=3, crash_loop=0, max_node_failures=1), SimStore())
    for number in range(3):
        cluster.join(f"n{number}", infra_rank=number if has_infra_ranks else None)
        cluster.settle()
    cluster.nodes["n0"].is_busy = True
    fail_and_give_up(cluster, "n1")
    again = cluster.join("again", infra_rank=1 if has_infra_ranks else None, addr="n1")
    cluster.settle()
    assert again.participant.incarnation in cluster.coordinator.roster.arrived
    cluster.nodes["n0"].is_busy = False
    cluster.advance(2.0)
    assert seats(cluster) == {"n0": 0, "n2": 1}
    assert isinstance(again.outcome, Refused)
    assert "quarantined for 3600 s: its workers were the first to fail in 1 cycles" in str(again.outcome)


def test_a_quarantine_does_not_end_the_count_of_a_crash_loop() -> None:
    """The world of the bad node is settled before the quarantine, and not once more after it."""
    cluster = run_of(2, 1, max_node_failures=1, crash_loop=2)
    fail(cluster.nodes["n1"], 1.0)
    cluster.advance(1.0)
    ledger = cluster.coordinator.membership.ledger
    assert list(ledger.until) == ["infra rank 1"]
    assert (ledger.charged, ledger.streak) == (1, 1)


def test_a_blamed_node_that_is_away_at_the_seal_is_refused_when_it_comes_back() -> None:
    cluster = run_of(2, 1, max_node_failures=1)
    fail_and_give_up(cluster, "n1")
    cluster.advance(1.0)
    assert seats(cluster) == {"n0": 0, "n2": 1}
    again = cluster.join("again", infra_rank=1, addr="n1")
    cluster.advance(2.0)
    assert isinstance(again.outcome, Refused)
    assert "in quarantine for another" in str(again.outcome)


def test_a_new_incarnation_of_the_blamed_node_is_not_one_of_those_that_can_take_over() -> None:
    """Without a spare the run keeps its nodes, also a bad one that was started again."""
    cluster = run_of(2, 0, max_node_failures=1, max_nodes=3)
    cluster.nodes["n0"].is_busy = True
    fail_and_give_up(cluster, "n1")
    cluster.join("again", infra_rank=1, addr="n1")
    cluster.settle()
    cluster.nodes["n0"].is_busy = False
    cluster.advance(2.0)
    assert seats(cluster) == {"n0": 0, "again": 1}
    assert cluster.coordinator.membership.ledger.until == {}, "it may come back at any time"


def fail_and_give_up(cluster: Cluster, name: str) -> None:
    """Its workers fail, and its agent has no restarts left."""
    node = cluster.nodes[name]
    assert node.place is not None
    node.participant.worker_exit = WorkerExit("exit code 1", rank=0, exit_code=1, after_s=50.0)
    perform_move(node.store, node.participant.report_failure(node.place.cycle_id))
    node.leave(Outcome.FAILED, "exit code 1")
    cluster.settle()


# --- unfit nodes ------------------------------------------------------------------------------------


def test_an_unfit_node_does_not_join_and_a_member_leaves() -> None:
    cluster = run_of(2, 2)
    stranger = cluster.join("stranger", infra_rank=9)
    perform_move(stranger.store, stranger.participant.withdraw("GPU 3 is gone"))
    stranger.kill()
    cluster.advance(1.0)
    assert cluster.coordinator.roster.unhealthy == {}, "there are MAX nodes without it"
    fail(cluster.nodes["n0"], 50.0)
    cluster.advance(1.0)
    assert len(seats(cluster)) == 2, "a node that is not needed does not matter"
    member = cluster.nodes["n1"]
    perform_move(member.store, member.participant.withdraw("NIC down"))
    member.kill()
    cluster.settle()
    assert seats(cluster) == {"n0": 0, "n2": 1}


def test_a_replacement_that_is_read_together_with_the_withdrawal_is_admitted() -> None:
    cluster = run_of(2, 2)
    member = cluster.nodes["n1"]
    perform_move(member.store, member.participant.withdraw("NIC down"))
    member.kill()
    cluster.join("elsewhere", infra_rank=member.participant.node.infra_rank)
    cluster.settle()
    assert cluster.coordinator.roster.unhealthy == {}
    assert "elsewhere" in seats(cluster)


def test_too_many_unfit_nodes_end_the_run() -> None:
    cluster = Cluster(RunSettings(run_id="r", min_nodes=2, max_nodes=3), SimStore())
    for number in range(2):
        node = cluster.join(f"bad{number}", infra_rank=number)
        perform_move(node.store, node.participant.withdraw("no GPU"))
        node.kill()
    cluster.join("good", infra_rank=2)
    cluster.settle()
    assert cluster.verdict is not None
    assert cluster.verdict.kind is VerdictKind.FAILED
    assert "2 nodes of at most 3 unhealthy, 1 can remain and 2 are needed" in cluster.verdict.reason
