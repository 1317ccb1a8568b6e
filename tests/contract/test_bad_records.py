"""A live run among junk, strangers and mistakes: it goes on, and whoever is turned away is told why."""

from __future__ import annotations

import threading
import time

import pytest

from ft_rendezvous.core.model import STORE_FORMAT, Arrival, NodeInfo, VerdictKind
from ft_rendezvous.errors import ConfigError, Refused, StoreUnavailable
from ft_rendezvous.host.host import Host
from ft_rendezvous.host.serve import new_id
from ft_rendezvous.node import dialing, session
from ft_rendezvous.protocol import codec, coordinator
from ft_rendezvous.protocol.journal import NodeFenced, RecordRefused
from ft_rendezvous.protocol.ops import Add, Append, Set
from ft_rendezvous.store import raw_client
from ft_rendezvous.store.client import ServedStore
from ft_rendezvous.store.net import listen
from ft_rendezvous.store.raw_client import StoreSocket
from tests.contract.benches import LONG_S
from tests.contract.live import live_run, run_settings
from tests.contract.strangers import Answer, free_port, hang_up, listener, say_nothing, speak_http

SHORT_S = 0.3


def arrival_of(incarnation: str = "f" * 16, **changes: object) -> Arrival:
    """What a node that keeps to the protocol would append."""
    said: dict[str, object] = {
        "cycle_id": 1,
        "incarnation": incarnation,
        "seq": 1,
        "node": NodeInfo(addr="stranger", pid=1),
        "bootstrap_port": 1,
    }
    return Arrival(**{**said, **changes})  # type: ignore[arg-type]


def framed(record: Arrival) -> bytes:
    return codec.encode_record(record)


JUNK = {
    "garbage": (b"\x00\xffgarbage", "does not decode"),
    "no newline": (framed(arrival_of()).strip() + b"x", "does not decode"),
    "other version": (framed(arrival_of(v=1)), f"format 1, this run speaks {STORE_FORMAT}"),
    "oversized": (b"\n" + b"x" * 10_000 + b"\n", "10000 bytes"),
    "other cycle": (framed(arrival_of(cycle_id=7)), "written for cycle 7"),
    "number never given": (framed(arrival_of(seq=999)), "was never given"),
    "nested too deep": (f'\n["arrive",{STORE_FORMAT},'.encode() + b"[" * 4000 + b"\n", "does not decode"),
}


@pytest.mark.parametrize("kind", JUNK)
def test_junk_in_the_log_is_refused_and_the_run_seals_and_finishes(kind: str) -> None:
    junk, reason = JUNK[kind]
    with live_run() as run:
        stranger = run.stranger()
        a, b = run.node(1), run.node(2)
        asked = a.ask()
        for shard in range(16):
            stranger.perform(Append(run.keys.log(1, shard), junk))
        stranger.perform(Set(run.keys.bell, b"1"))
        run.wait_for(lambda: run.host.verdict is not None or len(run.told(RecordRefused)) == 16)
        b.train(b.ask())
        a.train(asked)
        assert run.finish(a, b).kind is VerdictKind.SUCCEEDED
        refused = run.told(RecordRefused)
        assert len(refused) == 16
        assert all(reason in entry.record.reason for entry in refused)


def test_an_arrival_without_a_beat_is_refused_and_holds_nobody_up() -> None:
    with live_run() as run:
        stranger = run.stranger()
        seq = stranger.perform(Add(run.keys.arrived(1), 1))
        record = arrival_of(seq=seq)
        stranger.perform(Append(run.keys.log(1, codec.spread(record.incarnation, 16)), framed(record)))
        a, b = run.node(1), run.node(2)
        run.seal(a, b)
        assert run.finish(a, b).kind is VerdictKind.SUCCEEDED
        (fenced,) = run.told(NodeFenced)
        assert fenced.incarnation == record.incarnation
        assert "without a beat" in fenced.reason


def test_a_node_unlike_the_others_is_refused_where_they_are_said_to_be_alike() -> None:
    """Torch would number its workers wrongly, without a word."""
    with live_run(has_identical_workers=True) as run:
        a, b = run.node(1, role="default", local_world_size=8), run.node(2, role="default", local_world_size=8)
        asked = a.ask()
        run.wait_for(lambda: a.link.has_joined)
        odd = run.node(9, role="default", local_world_size=4)
        with pytest.raises(Refused, match=r"has 4 workers of role default where .* has 8 of role default: make"):
            odd.ask().result(LONG_S)
        b.train(b.ask())
        a.train(asked)
        assert run.finish(a, b).kind is VerdictKind.SUCCEEDED


def test_a_node_with_other_settings_is_told_which_before_it_joins() -> None:
    with live_run() as run, pytest.raises(ConfigError) as caught:
        run.node(1, run=run_settings(lease_s=31.0, max_nodes=5))
    text = str(caught.value)
    assert "lease_timeout (here 31.0, the run has 30.0)" in text
    assert "nnodes (here 2:5, the run has 2:4)" in text
    assert "use the same --nnodes and --rdzv-conf on all nodes" in text
    assert "beat_interval" not in text


def test_a_duplicate_infra_rank_at_another_address_is_refused_and_told_of_both() -> None:
    with live_run() as run:
        a, b = run.node(1, infra_rank=0), run.node(2, infra_rank=1)
        run.seal(a, b)
        with pytest.raises(Refused) as caught:
            run.node(3, infra_rank=1, addr="127.0.0.9").ask().result(LONG_S)
        for fact in ("infra rank 1", "127.0.0.1 pid 102", "127.0.0.9 pid 103", "FT_INFRA_RANK"):
            assert fact in str(caught.value)
        assert run.finish(a, b).kind is VerdictKind.SUCCEEDED


def test_a_newer_start_at_the_same_address_replaces_the_older_and_gets_its_rank() -> None:
    with live_run() as run:
        a, b = run.node(1, infra_rank=0), run.node(2, infra_rank=1)
        run.seal(a, b)
        again = run.node(3, infra_rank=1)
        asked = again.ask()
        run.wait_for(lambda: a.link.must_stop(1) and b.link.must_stop(1))
        assert a.link.why_stop() == "lost infra rank 1 at 127.0.0.1 pid 102 (rank 1)"
        back = b.ask()
        a.train(a.ask())
        assert again.train(asked).rank == 1
        with pytest.raises(Refused, match=r"pid 103 is a newer start of infra rank 1 at 127.0.0.1 pid 102"):
            back.result(LONG_S)
        assert run.finish(a, again).kind is VerdictKind.SUCCEEDED


# --- at the door ------------------------------------------------------------------------------------


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers are waited for as long as a test can afford."""
    monkeypatch.setattr(session, "STRANGER_TIMEOUT_S", SHORT_S)


@pytest.mark.usefixtures("impatient")
def test_a_port_that_another_program_has_is_a_mistake_that_is_told() -> None:
    with listener(speak_http) as port, live_run() as run:
        run.port = port
        with pytest.raises(ConfigError) as caught:
            run.node(1)
    assert f"127.0.0.1:{port}: another program listens there" in str(caught.value)
    assert "choose another port in --rdzv-endpoint" in str(caught.value)


@pytest.mark.usefixtures("impatient")
def test_the_store_of_a_c10d_rendezvous_is_a_mistake_that_is_told() -> None:
    served = ServedStore(listen())
    served.perform(Set("/torch.rendezvous.live", b"a pickle"))
    with live_run() as run:
        run.port = served.port
        with pytest.raises(ConfigError) as caught:
            run.node(1)
    served.stop()
    assert "a store is there, but no ft run has begun in it" in str(caught.value)
    assert "choose another port in --rdzv-endpoint" in str(caught.value)


@pytest.mark.parametrize(
    ("answer", "fact"),
    [
        pytest.param(say_nothing, "the port accepts connections, but no store answers", id="silent"),
        pytest.param(hang_up, "something listens there and hangs up", id="hangs up"),
        pytest.param("nothing", "nothing listens there", id="nothing"),
    ],
)
def test_what_may_yet_become_the_store_is_waited_for_and_then_named(
    monkeypatch: pytest.MonkeyPatch, answer: Answer | str, fact: str
) -> None:
    """A busy host is silent for a while, and one that is starting hangs up: neither is a mistake of the user."""
    monkeypatch.setattr(raw_client, "GREETING_TIMEOUT_S", SHORT_S if answer is say_nothing else LONG_S)
    with listener(None if isinstance(answer, str) else answer) as port, live_run() as run:
        run.port = free_port() if isinstance(answer, str) else port
        with pytest.raises(StoreUnavailable, match=f"store 127.0.0.1:{run.port}: {fact}"):
            run.node(1, run=run_settings(join_s=0.7))


@pytest.mark.usefixtures("impatient")
def test_the_port_of_another_run_is_a_mistake_that_names_both() -> None:
    with live_run() as run, pytest.raises(ConfigError) as caught:
        run.node(1, run=run_settings(run_id="mine"))
    assert "serves run 'live', not 'mine'" in str(caught.value)
    assert "choose another port" in str(caught.value)


def test_a_node_that_waited_long_for_its_host_does_not_mistake_it_for_a_stranger(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Start order does not matter: a host answers as a store for a moment before it has published its head."""
    timeout_s, began = 1.5, time.monotonic()
    monkeypatch.setattr(session, "STRANGER_TIMEOUT_S", timeout_s)
    has_waited, was_anonymous = threading.Event(), threading.Event()

    def dial(host: str, port: int, *timeouts_s: float | None) -> StoreSocket:
        if time.monotonic() > began + 1.2 * timeout_s:
            has_waited.set()
        return StoreSocket(host, port, *timeouts_s)

    def read_head(store: object) -> object:
        found = read_really(store)  # type: ignore[arg-type]
        if found is None:
            was_anonymous.set()
        return found

    read_really = dialing._read_head
    monkeypatch.setattr(dialing, "StoreSocket", dial)
    monkeypatch.setattr(dialing, "_read_head", read_head)
    settings = run_settings(join_s=LONG_S)
    with live_run(join_s=LONG_S) as run:
        run.port = free_port()
        asked = run.do(lambda: run.node(1))
        assert has_waited.wait(LONG_S)
        served = ServedStore(listen(run.port))
        assert was_anonymous.wait(LONG_S)
        host = Host(served, settings, new_id(), lambda _: None)
        try:
            asked.result(LONG_S)
        finally:
            host.stop()


# --- our own mistakes -------------------------------------------------------------------------------


def test_an_exception_in_the_coordinator_closes_the_run_and_everybody_hears_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with live_run(store_grace_s=0.2) as run:
        a, b, spare = run.node(1), run.node(2), run.node(3)
        run.seal(a, b)
        parked = spare.ask()

        def fail(*_: object) -> object:
            raise RuntimeError("boom")

        monkeypatch.setattr(coordinator, "decide_move", fail)
        verdict = parked.result(LONG_S)
        assert str(verdict) == "failed(the coordinator failed: RuntimeError: boom)"
        for node in (a, b):
            run.wait_for(lambda link=node.link: link.verdict is not None)  # type: ignore[misc]
            assert node.link.must_stop(1)
            assert node.link.why_stop() == f"the run is over: {verdict}"
            assert str(node.link.verdict) == str(verdict)
        assert run.host.wait(LONG_S)
