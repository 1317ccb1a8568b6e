"""Torch's own event records: whoever listens to them hears of our rendezvous as of any other backend's."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
from torch.distributed.elastic import events
from torch.distributed.elastic.events import NodeState, RdzvEvent
from torch.distributed.elastic.events import handlers as event_handlers
from torch.distributed.elastic.rendezvous.api import RendezvousGracefulExitError, RendezvousInfo, RendezvousStoreInfo

from ft_rendezvous.agent.handler import FtRendezvousHandler
from ft_rendezvous.agent.torch_events import record_rendezvous
from ft_rendezvous.config.settings import NodeSettings, Settings
from tests.contract.live import live_run

LONG_S = 30.0


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.heard: list[RdzvEvent] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(RdzvEvent.deserialize(record.getMessage()))


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    """Plugged in where sites plug theirs in."""
    listener = Listener()
    monkeypatch.setitem(event_handlers._log_handlers, "dynamic_rendezvous", listener)
    monkeypatch.setattr(events, "_events_loggers", {})
    yield listener
    logging.getLogger("torchelastic-events-dynamic_rendezvous").handlers.clear()


def test_a_run_is_told_from_the_wish_for_a_place_to_the_goodbye(listener: Listener) -> None:
    with live_run(min_nodes=1, max_nodes=1) as run:
        node = NodeSettings(endpoint_host="127.0.0.1", endpoint_port=run.port, is_host=False)
        handler = FtRendezvousHandler(Settings(run=run.settings, node=node))
        info = run.do(handler.next_rendezvous).result(LONG_S)
        handler.shutdown()
    assert [event.node_state for event in listener.heard] == [NodeState.INIT, NodeState.RUNNING, NodeState.SUCCEEDED]
    wish, place, goodbye = listener.heard
    assert (place.rank, place.run_id) == (0, run.settings.run_id)
    assert info.bootstrap_store_info is not None
    assert place.master_endpoint.endswith(str(info.bootstrap_store_info.master_port))
    assert "FtRendezvousHandler.next_rendezvous" in wish.name
    assert "leaves" in goodbye.message


def test_what_ends_a_rendezvous_is_told_and_goes_on(listener: Listener) -> None:
    def fail() -> RendezvousInfo:
        raise ValueError("no place")

    def leave() -> RendezvousInfo:
        raise RendezvousGracefulExitError("the run is over")

    with pytest.raises(ValueError, match="no place"):
        record_rendezvous("job", fail)
    with pytest.raises(RendezvousGracefulExitError):
        record_rendezvous("job", leave)
    assert [event.node_state for event in listener.heard][1::2] == [NodeState.FAILED, NodeState.SUCCEEDED]
    assert "ValueError: no place" in listener.heard[1].message
    assert "no place" in listener.heard[1].error_trace


def test_nothing_is_put_together_where_nobody_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RdzvEvent, "__init__", lambda *_args, **_kwargs: pytest.fail("somebody put an event together"))
    store_info = RendezvousStoreInfo("localhost", 1)
    assert record_rendezvous("job", lambda: RendezvousInfo(None, 0, 1, store_info)).rank == 0  # type: ignore[arg-type]
