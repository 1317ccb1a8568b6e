"""A late rank, an inquiry and its answers, over the real link and a real TCPStore."""

from __future__ import annotations

from dataclasses import astuple
from functools import partial
from pathlib import Path

import msgspec
import pytest

from ft_rendezvous.core.leases import WorkersProgress
from ft_rendezvous.core.model import WorkersHang
from ft_rendezvous.core.progress import LateRank
from ft_rendezvous.core.stacks import Frame, RankStack, Stack
from ft_rendezvous.host.verdict_file import VerdictReport
from ft_rendezvous.protocol import journal, membership
from tests.contract.benches import LONG_S
from tests.contract.counting import BEAT, Tally, counted
from tests.contract.live import LiveNode, LiveRun, live_run

MAIN = Frame("main", "train.py", 41, False)
WAITING: Stack = (Frame("all_reduce", "torch/distributed/distributed_c10d.py", 7, True), MAIN)
LOADING: Stack = (Frame("fetch", "train.py", 12, False), MAIN)
LATE = LateRank(rank=0, step=6, late_s=30.0, timeout_s=30.0, is_starting=False)


def answers(node: LiveNode, stack: Stack = WAITING, paused: str = "", moves: bool = False) -> None:
    """Let a node answer inquiries at once. It has two workers, of which the first one may be elsewhere."""
    assert node.place is not None
    first = 2 * node.place.rank

    def answer(cycle_id: int, no: int) -> None:
        stacks = [RankStack((first,), (5,), stack), RankStack((first + 1,), (6,), WAITING)]
        told = [(first, paused)] if paused else []
        node.link.tell_stacks(cycle_id, no, stacks, told, [first] if moves else [])

    node.link.on_inquiry(answer)


def trained(run: LiveRun, count: int = 3) -> list[LiveNode]:
    nodes = [run.node(number, infra_rank=number) for number in range(count)]
    run.seal(*nodes)
    return sorted(nodes, key=lambda node: node.place.rank if node.place is not None else -1)


def test_the_odd_node_is_blamed_and_the_verdict_has_step_rank_and_stack(tmp_path: Path) -> None:
    with live_run(min_nodes=3, max_nodes=3, max_cycles=1) as run:
        run.host._verdict_path = tmp_path / "verdict.json"
        nodes = trained(run)
        for node in nodes:
            answers(node, LOADING if node is nodes[2] else WAITING)
        nodes[0].link.tell_late(1, LATE, 31.0)
        run.wait_for(lambda: all(node.link.must_stop(1) for node in nodes))
        (why,) = [entry.why for entry in run.told(journal.CycleOpened) if entry.cycle_id == 2]
        assert isinstance(why, WorkersHang)
        assert (why.rank, why.is_blamed) == (4, True)
        assert "5 ranks wait in all_reduce, called at train.py:41, rank 4 is in fetch (train.py:12)" in why.reason
        (found,) = run.told(journal.HangFound)
        assert found.stacks["4"] == "fetch (train.py:12) < main (train.py:41)"
        asked = [node.ask() for node in nodes]
        for future in asked:
            assert "max_cycles=1" in str(future.result(LONG_S))
        report = msgspec.json.decode((tmp_path / "verdict.json").read_bytes(), type=VerdictReport)
        first = report.first_failure
        assert first is not None
        assert (first.rank, first.exit_code, first.cycle) == (4, None, 1)
        assert first.last_words == "step 5: fetch (train.py:12) < main (train.py:41)"
        assert run.host.coordinator.membership.ledger.failures == {"infra rank " + str(_infra_rank(nodes[2])): 1}
        for node in nodes:
            node.leave()


def _infra_rank(node: LiveNode) -> int | None:
    return node.participant.node.infra_rank


def test_no_node_is_blamed_where_all_wait_at_one_place() -> None:
    with live_run(min_nodes=3, max_nodes=3) as run:
        nodes = trained(run)
        for node in nodes:
            answers(node)
        nodes[1].link.tell_late(1, LATE, 31.0)
        run.wait_for(lambda: all(node.link.must_stop(1) for node in nodes))
        run.seal(*nodes)
        assert run.host.coordinator.membership.ledger.failures == {}
        assert run.host.coordinator.membership.ledger.charged == 1
        run.finish(*nodes)


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"paused": "checkpoint"}, "a pause was announced, rank 2: checkpoint"),
        ({"moves": True}, "other ranks make progress: 2"),
    ],
)
def test_a_pause_or_progress_on_another_node_is_no_hang(how: dict[str, object], reason: str) -> None:
    with live_run(min_nodes=2, max_nodes=2) as run:
        nodes = trained(run, 2)
        answers(nodes[0])
        answers(nodes[1], **how)  # type: ignore[arg-type]
        for _ in range(2):
            nodes[0].link.tell_late(1, LATE, 31.0)
            count = len(run.told(journal.HangDenied)) + 1
            run.wait_for(lambda count=count: len(run.told(journal.HangDenied)) == count)  # type: ignore[misc]
        assert {entry.reason for entry in run.told(journal.HangDenied)} == {reason}
        assert not any(node.link.must_stop(1) for node in nodes)
        run.finish(*nodes)


def test_many_nodes_that_wait_for_a_pause_are_one_question_now_and_one_later() -> None:
    """They find themselves late one after another. A question to all nodes for each of them would swamp the store."""
    with live_run(min_nodes=6, max_nodes=6) as run:
        nodes = trained(run, 6)
        for node in nodes:
            answers(node, paused="checkpoint" if node is nodes[0] else "")
        nodes[1].link.tell_late(1, LATE, 31.0)
        run.wait_for(lambda: len(run.told(journal.HangDenied)) == 1)
        for node in nodes[2:]:
            node.link.tell_late(1, LATE, 31.0)
            run.wait_for(lambda: not node.link._loop._posts)  # noqa: B023 - it is called at once.
        run.wait_for(lambda: len(run.told(journal.HangDenied)) == 2)
        run.finish(*nodes)
        assert len(run.told(journal.RankLate)) == 2


def test_a_node_that_does_not_answer_is_not_waited_for_for_ever() -> None:
    with live_run(min_nodes=2, max_nodes=2) as run:
        nodes = trained(run, 2)
        answers(nodes[0])
        nodes[0].link.tell_late(1, LATE, 31.0)
        run.wait_for(lambda: all(node.link.must_stop(1) for node in nodes))
        (found,) = run.told(journal.HangFound)
        assert "2 ranks did not answer" in found.reason
        assert found.node is None
        run.seal(*nodes)
        run.finish(*nodes)


def test_every_beat_says_how_far_the_workers_are_and_the_journal_hears_of_it() -> None:
    with live_run(min_nodes=2, max_nodes=2, lease_s=2.0, beat_s=0.1, hang_timeout="60") as run:
        nodes = trained(run, 2)
        nodes[0].link.show_progress(lambda: WorkersProgress(41, 3, 1, 60))
        name = nodes[0].participant.incarnation
        told = {name: journal.ToldProgress(41, 3, 1)}
        run.wait_for(lambda: any(entry.progress == told for entry in run.told(journal.Looked)))
        looked = next(entry for entry in run.told(journal.Looked) if entry.progress == told)
        assert (looked.others, looked.late_after_s) == (None, 60)
        run.finish(*nodes)


def test_of_many_nodes_the_slowest_are_named_and_the_others_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(membership, "PROGRESS_SHOWN", 1)
    with live_run(min_nodes=3, max_nodes=3, lease_s=2.0, beat_s=0.1, hang_timeout="auto") as run:
        nodes = trained(run)
        told = WorkersProgress(41, 30, 1, 55), WorkersProgress(44, 2, 2, 300), WorkersProgress(43, 1, 5, 42)
        for node, progress in zip(nodes, told, strict=True):
            node.link.show_progress(partial(WorkersProgress, *astuple(progress)))
        slowest = {nodes[0].participant.incarnation: journal.ToldProgress(41, 30, 1)}
        others = journal.ToldProgress(43, 2)
        run.wait_for(
            lambda: any(
                (entry.progress, entry.others, entry.late_after_s) == (slowest, others, 300)
                for entry in run.told(journal.Looked)
            )
        )
        nodes[2].link.show_progress(lambda: None)
        seen = len(run.told(journal.Looked))
        run.wait_for(lambda: any(not entry.others and entry.progress for entry in run.told(journal.Looked)[seen:]))
        run.finish(*nodes)


def test_a_suspected_hang_costs_a_node_three_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """And two more the node that says so. Hearing of the next cycle is one of its cycle's own."""
    tally = Tally(phase="before")
    with live_run(min_nodes=3, max_nodes=3, beat_s=5.0) as run:
        nodes: list[LiveNode] = []
        for number in range(3):
            with counted(monkeypatch, tally, f"n{number}"):
                nodes.append(run.node(number, infra_rank=number))
        run.seal(*nodes)
        for node in nodes:
            answers(node)
        tally.phase = "hang"
        nodes[1].link.tell_late(1, LATE, 31.0)
        run.wait_for(lambda: all(node.link.must_stop(1) for node in nodes))
        run.wait_for(
            lambda: all(kinds["get"] >= 2 for kinds in tally.of("hang").values()) and len(tally.of("hang")) == 3
        )
        spent = {name: {k: n for k, n in kinds.items() if k != BEAT} for name, kinds in tally.of("hang").items()}
        assert spent["n0"] == spent["n2"] == {"get": 2, "append": 1, "set": 1}
        assert spent["n1"] == {"get": 2, "append": 2, "set": 2}
        run.seal(*nodes)
        run.finish(*nodes)
