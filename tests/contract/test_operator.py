"""An operator on a real store: asked, answered, and nothing left behind."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from ft_rendezvous.cli.explain import Question, explain_placement
from ft_rendezvous.core.model import RequestKind
from ft_rendezvous.core.snapshot import Snapshot
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.node.operator import Operator
from ft_rendezvous.protocol.journal import CycleOpened
from ft_rendezvous.protocol.ops import Check
from tests.contract.live import live_run
from tests.contract.strangers import free_port


def test_an_operator_is_answered_and_the_answer_is_taken_away() -> None:
    with live_run(drain_grace_s=1000.0) as run:
        run.seal(run.node(0, infra_rank=0), run.node(1, infra_rank=1))
        operator = Operator(f"127.0.0.1:{run.port}")
        assert operator.run_id == "live"
        assert not operator.ask(RequestKind.DRAIN, "9").is_granted
        asked = operator.ask(RequestKind.DRAIN, "1")
        assert asked.is_granted
        assert "infra rank 1" in asked.text
        assert not operator.ask(RequestKind.RESTART).is_granted, "nobody could take the place of the node that drains"
        assert asked.request != ""
        assert not run.host._served.perform(Check([run.host.coordinator.keys.answer(asked.request)]))


def test_an_operator_learns_who_is_there_and_who_had_which_rank() -> None:
    with live_run() as run:
        run.seal(run.node(0, infra_rank=4, domain_id="A"), run.node(1, infra_rank=7, domain_id="B"))
        answer = Operator(f"127.0.0.1:{run.port}").ask(RequestKind.ROSTER)
        assert answer.is_granted
        snapshot = msgspec.json.decode(answer.text, type=Snapshot)
        assert (snapshot.run_id, snapshot.cycle_id) == ("live", 1)
        assert snapshot.settings == run.settings.as_dict()
        found = {(node.infra_rank, node.domain, node.rank, node.gone) for node in snapshot.nodes}
        assert found == {(4, "A", 0, False), (7, "B", 1, False)}


def test_a_live_run_is_explained_and_kept_in_a_file(tmp_path: Path) -> None:
    kept = tmp_path / "roster.json"
    with live_run() as run:
        run.seal(run.node(0, infra_rank=4, domain_id="A"), run.node(1, infra_rank=7, domain_id="B"))
        told = list(explain_placement(Question(f"127.0.0.1:{run.port}", {}, ["4"], kept)))
    assert told[0] == "2 of 2 nodes train (--nnodes=2:4)"
    assert [line.split()[-3:] for line in told[3:5]] == [["keeps", "its", "rank"]] * 2
    assert told[-1] == "without 4 (1 node): the run waits: 1 of 2 nodes have arrived"
    assert list(explain_placement(Question(str(kept), {}, ["4"]))) == told


def test_a_live_run_with_groups_is_explained(tmp_path: Path) -> None:
    kept = tmp_path / "roster.json"
    with live_run(group_size=1) as run:
        run.seal(run.node(0, infra_rank=4, domain_id="A"), run.node(1, infra_rank=7, domain_id="B"))
        told = list(explain_placement(Question(f"127.0.0.1:{run.port}", {}, ["4"], kept)))
    assert told[0] == "2 of 2 nodes train in 2 groups of 1 (--nnodes=2:4 group_size=1)"
    assert [line.split()[:2] + line.split()[-3:] for line in told[3:5]] == [
        ["0", "0", "keeps", "its", "rank"],
        ["1", "0", "keeps", "its", "rank"],
    ]
    assert told[6] == "losing a node of group 0: it waits: no spare can take the place; group 1 trains on"
    assert told[-1].startswith("without 4 (1 node): group 0 waits: 0 of 1 nodes have arrived; missing: infra rank 4")
    assert list(explain_placement(Question(str(kept), {}, ["4"]))) == told


def test_an_operator_restarts_one_group_and_the_others_train_on() -> None:
    with live_run(group_size=1) as run:
        first, second = run.node(0, infra_rank=0), run.node(1, infra_rank=1)
        places = {place.group: node for place, node in zip(run.seal(first, second), (first, second), strict=True)}
        operator = Operator(f"127.0.0.1:{run.port}")
        assert not operator.ask(RequestKind.RESTART, "7").is_granted
        answer = operator.ask(RequestKind.RESTART, "1", "new code")
        assert (answer.is_granted, answer.text) == (True, "group 1 restarts, the others train on")
        run.wait_for(lambda: places[1].link.must_stop(1))
        again = places[1].train(places[1].ask())
        assert (again.group, again.cycle_id) == (1, 2)
        assert not places[0].link.must_stop(1)
        (opened,) = (entry for entry in run.told(CycleOpened) if entry.group is not None)
        assert (opened.group, str(opened.why)) == (1, "an operator asked for a restart: new code")


def test_a_run_without_nodes_is_closed_though_its_store_goes_at_once() -> None:
    with live_run() as run:
        assert Operator(f"127.0.0.1:{run.port}").ask(RequestKind.CLOSE, reason="enough").is_granted
        run.wait_for(lambda: run.host.verdict is not None)
        assert str(run.host.verdict) == "cancelled(closed by an operator: enough)"


def test_where_there_is_no_run_an_operator_is_told_so() -> None:
    with pytest.raises(ConfigError, match=r"no run at .*: nothing listens there"):
        Operator(f"127.0.0.1:{free_port()}")
