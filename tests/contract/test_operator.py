"""An operator on a real store: asked, answered, and nothing left behind."""

from __future__ import annotations

import pytest

from ft_rendezvous.core.model import RequestKind
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.operator import Operator
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
        store = run.host._served._store
        assert store is not None
        assert not [key for key in store.list_keys() if "/answer/" in key]


def test_a_run_without_nodes_is_closed_though_its_store_goes_at_once() -> None:
    with live_run() as run:
        assert Operator(f"127.0.0.1:{run.port}").ask(RequestKind.CLOSE, reason="enough").is_granted
        run.wait_for(lambda: run.host.verdict is not None)
        assert str(run.host.verdict) == "cancelled(closed by an operator: enough)"


def test_where_there_is_no_run_an_operator_is_told_so() -> None:
    with pytest.raises(ConfigError, match=r"no run at .*: nothing listens there"):
        Operator(f"127.0.0.1:{free_port()}")
