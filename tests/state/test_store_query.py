"""A live run, asked how it stands through its own store."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from ft_rendezvous.core.model import VerdictKind
from ft_rendezvous.errors import ConfigError, StoreUnavailable
from ft_rendezvous.protocol.codec import Keys
from ft_rendezvous.protocol.ops import Add, Check, Set
from ft_rendezvous.state.model.events import decode_line
from ft_rendezvous.state.model.records import NodeRole, RunStatus
from ft_rendezvous.state.model.view import view_cycles, view_nodes, view_run
from ft_rendezvous.state.read.store_query import VALUE_PART_BYTES, QueryClient, QueryServer, _split
from ft_rendezvous.store.client import ServedStore
from ft_rendezvous.store.net import listen
from tests.contract.live import live_run
from tests.state.test_export_log import wait_for


def test_a_live_run_tells_how_it_stands() -> None:
    with live_run() as run:
        client = QueryClient(f"127.0.0.1:{run.port}")
        assert client.look(0).state.status is RunStatus.INITIALIZING
        a, b = run.node(1, infra_rank=1), run.node(2, infra_rank=2)
        run.seal(a, b)
        wait_for(lambda: client.look(0).state.status is RunStatus.RUNNING)
        glimpse = client.look(0)
        state = glimpse.state
        assert [member.role for member in state.members.values()] == [NodeRole.ACTIVE, NodeRole.ACTIVE]
        told = view_run(state, state.time_ns)
        assert told is not None
        assert (told.name, told.live, told.wanted) == (run.settings.run_id, 2, 2)
        assert {node.global_ranks for node in view_nodes(state)} == {(0, 1), (2, 3)}
        assert view_cycles(state, state.time_ns)[0].active == 2
        assert [decode_line(line).event_id for line in glimpse.lines] == list(range(1, state.event_id + 1))
        assert client.look(state.event_id - 1).lines[0] == glimpse.lines[-1]
        assert run.finish(a, b).kind is VerdictKind.SUCCEEDED
        wait_for(lambda: client.look(0).state.status is RunStatus.FINISHED)


def test_many_ask_at_once_and_leave_nothing_behind() -> None:
    with live_run() as run, ThreadPoolExecutor(8) as pool:
        clients = [QueryClient(f"127.0.0.1:{run.port}") for _ in range(8)]
        wait_for(lambda: clients[0].look(0).state.began is not None)
        glimpses = list(pool.map(lambda client: [client.look(0) for _ in range(5)], clients))
        assert all(glimpse.state.began is not None for each in glimpses for glimpse in each)
        store = run.stranger()
        for number in range(1, 42):
            assert not store.perform(Check([run.keys.window_answer(number, 0)]))
            assert not store.perform(Check([run.keys.window_ask(number)]))


def test_who_counts_and_never_asks_and_who_asks_nonsense_disturb_nobody() -> None:
    with live_run() as run:
        stranger = run.stranger()
        stranger.perform(Add(run.keys.window_count, 1))
        number = stranger.perform(Add(run.keys.window_count, 1))
        stranger.perform(Set(run.keys.window_ask(number), b"\xff nonsense"))
        stranger.perform(Set(run.keys.window_bell, b"1"))
        client = QueryClient(f"127.0.0.1:{run.port}")
        wait_for(lambda: client.look(0).state.began is not None)


def test_who_counts_to_a_quintillion_takes_neither_memory_nor_time() -> None:
    with live_run() as run:
        stranger = run.stranger()
        client = QueryClient(f"127.0.0.1:{run.port}")
        wait_for(lambda: client.look(0).state.began is not None)
        stranger.perform(Add(run.keys.window_count, 1 << 60))
        stranger.perform(Set(run.keys.window_bell, b"1"))
        assert client.look(0).state.began is not None


def test_an_answer_larger_than_the_store_takes_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ft_rendezvous.state.read.store_query.VALUE_PART_BYTES", 100)
    assert VALUE_PART_BYTES < 8 << 20
    with live_run() as run:
        client = QueryClient(f"127.0.0.1:{run.port}")
        wait_for(lambda: client.look(0).state.began is not None)
        assert len(_split(b"x" * 250)) == 3


def test_a_host_that_is_gone_is_said_to_be() -> None:
    with live_run() as run:
        client = QueryClient(f"127.0.0.1:{run.port}")
        endpoint = f"127.0.0.1:{run.port}"
    with pytest.raises(StoreUnavailable):
        client.look(0)
    with pytest.raises(ConfigError, match="no run at"):
        QueryClient(endpoint)


def test_a_store_of_another_program_is_no_run() -> None:
    served = ServedStore(listen())
    with pytest.raises(ConfigError, match="another program"):
        QueryClient(f"127.0.0.1:{served.port}")
    served.stop()


def test_a_run_that_cannot_answer_queries_goes_on(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_args: object) -> QueryServer:
        raise StoreUnavailable("localhost:1", "the connection failed")

    monkeypatch.setattr("ft_rendezvous.host.host.QueryServer", refuse)
    with live_run() as run:
        a, b = run.node(1), run.node(2)
        run.seal(a, b)
        assert run.finish(a, b).kind is VerdictKind.SUCCEEDED
    assert "ftr status" in caplog.text


def test_closing_a_window_ends_its_thread() -> None:
    served = ServedStore(listen())
    window = QueryServer(lambda _after: (b"", []), Keys("0" * 16), served.port)
    window.close()
    assert "ft-window" not in {thread.name for thread in threading.enumerate()}
    served.stop()
