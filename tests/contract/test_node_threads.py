"""The link: whatever happens to its threads, the agent's own thread hears of it."""

from __future__ import annotations

import gc
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest

from ft_rendezvous.core.model import Closed, FirstCycle, Head, NodeInfo, Opened, Outcome, Verdict, VerdictKind, View
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.node import threads as link_module
from ft_rendezvous.node.threads import Link
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.ops import Add, Append, Get, Move, Op
from ft_rendezvous.protocol.participant import CHANGED, Flow, Participant
from tests.contract.benches import LONG_S
from tests.contract.live import live_run
from tests.sim.store import SimStore

SHORT_S = 0.2


class Ear:
    """A connection that hears nothing until it is closed, or is made to fail."""

    def __init__(self) -> None:
        self._ended = threading.Event()
        self.error: Exception = StoreUnavailable("ear", "closed")

    def perform(self, _: Op) -> Any:
        self._ended.wait(LONG_S)
        raise self.error

    def fail(self, error: Exception) -> None:
        self.error = error
        self._ended.set()

    def close(self) -> None:
        self._ended.set()


class SilentStore:
    """A store whose host is stopped: no call comes back before the test ends."""

    def __init__(self) -> None:
        self.ended = threading.Event()

    def perform(self, op: Op) -> Any:
        self.ended.wait(LONG_S)
        raise StoreUnavailable("silent", f"never answered {op}")


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def link_to(store: Any, ear: Ear) -> Link:
    participant = Participant(
        epoch="e" * 16,
        node=NodeInfo(addr="here", pid=1),
        lease_s=LONG_S,
        clock=time.monotonic,
        new_incarnation=lambda: "0" * 16,
        hold_bootstrap=lambda _: 1,
        on_enlisted=lambda: None,
    )
    return Link(store, lambda: ear, participant, beat_s=1.0, endpoint="here:1")  # type: ignore[arg-type,return-value]


@pytest.fixture
def link(ear: Ear) -> Iterator[Link]:
    link = link_to(SimStore(), ear)
    yield link
    link.stop()


def test_a_flow_is_carried_to_its_end(link: Link) -> None:
    def flow() -> Flow[list[int]]:
        first = yield Add("n", 1)
        second = yield Add("n", 1)
        return [first, second]

    assert link.run(flow()) == [1, 2]
    assert link.run(flow()) == [3, 4]


@pytest.mark.parametrize("error", [StoreUnavailable("x", "y"), OSError("too many open files"), AssertionError("bug")])
def test_whatever_a_flow_raises_reaches_whoever_waits_and_ends_nothing_else(link: Link, error: Exception) -> None:
    """A socket that cannot be opened for lack of file descriptors must not hang an agent for ever."""

    def flow() -> Flow[None]:
        yield Add("n", 1)
        raise error

    with pytest.raises(type(error)):
        link.run(flow())
    assert not link.is_broken
    assert link.run(count()) == 2


def count() -> Flow[int]:
    counted: int = yield Add("n", 1)
    return counted


def test_what_is_posted_goes_before_what_waits_and_nobody_waits_for_it(link: Link, pool: ThreadPoolExecutor) -> None:
    waiting = pool.submit(lambda: link.run(wait_for_changes()))
    while link._line.is_stirred:
        time.sleep(0.001)
    with link._changed:
        # Nothing is carried before both are there.
        link.post(append_letter(b"a"))
        link.post(append_letter(b"b"))
    assert link.run(read_letters()) == b"ab"
    with pytest.raises(StoreUnavailable, match="leaving"):
        waiting.result(LONG_S)


def test_a_post_that_fails_is_logged_and_harms_nobody(link: Link, caplog: pytest.LogCaptureFixture) -> None:
    def post() -> Flow[None]:
        yield Add("n", 1)
        raise OSError("no space")

    link.post(post())  # type: ignore[arg-type]
    assert link.run(count()) == 2
    assert not link.is_broken
    assert "could not tell the coordinator: no space" in caplog.text


class Alarm(Exception):
    pass


def test_a_signal_that_raises_in_the_wait_leaves_nothing_behind(link: Link) -> None:
    """Torch's handlers raise in the main thread; whoever logs the traceback holds every frame of it."""

    def ring(*_: object) -> None:
        raise Alarm

    former = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SHORT_S)
    try:
        with pytest.raises(Alarm) as held:
            link.run(wait_for_changes())
    finally:
        signal.signal(signal.SIGALRM, former)
    assert held.tb is not None
    assert link._line.errand is None
    assert link.run(count()) == 1


def wait_for_changes() -> Flow[None]:
    while True:
        yield CHANGED


def append_letter(letter: bytes) -> Move[None]:
    yield Append("letters", letter)


def read_letters() -> Flow[bytes]:
    letters: bytes = yield Get("letters")
    return letters


def test_a_later_flow_takes_the_place_of_one_that_waits(link: Link, pool: ThreadPoolExecutor) -> None:
    """A signal arrives while the agent waits for its place: the goodbye must not wait for it."""

    def waits() -> Flow[None]:
        while True:
            yield CHANGED

    waiting: Future[None] = pool.submit(lambda: link.run(waits()))
    while link._line.errand is None:
        time.sleep(0.001)
    assert link.run(count()) == 1
    with pytest.raises(StoreUnavailable, match="leaving"):
        waiting.result(LONG_S)


def test_a_store_that_falls_silent_holds_the_agent_no_longer_than_its_patience(
    ear: Ear, pool: ThreadPoolExecutor
) -> None:
    store = SilentStore()
    link = link_to(store, ear)
    asked = pool.submit(lambda: link.run(count(), patience_s=SHORT_S))
    with pytest.raises(StoreUnavailable, match=r"no answer for 0.2 s; its host is stuck or cut off"):
        asked.result(LONG_S)
    store.ended.set()
    link.stop()


@pytest.mark.parametrize("error", [StoreUnavailable("x", "lost"), AssertionError("event 3 after 1")])
def test_an_ear_that_fails_breaks_the_link_instead_of_leaving_a_deaf_node(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_run(min_nodes=1) as run:
        node = run.node(1)
        node.train(node.ask())
        assert not node.link.must_stop(1)
        listening = node.link._ear
        assert listening.socket is not None

        def fail(_: Op) -> Any:
            raise error

        monkeypatch.setattr(listening.socket, "perform", fail)
        run.stranger().perform(Add("wake", 1))
        node.ask()  # Its workers fail, the next cycle opens: the ear reads once more, and fails.
        run.wait_for(lambda: node.link.is_broken)
        assert node.link.must_stop(1)
        assert node.link.why_stop() == f"the connection to the store is lost: {error}"


def test_a_store_that_dies_stops_the_workers_of_every_node() -> None:
    with live_run(beat_s=0.1) as run:
        nodes = [run.node(number) for number in range(2)]
        run.seal(*nodes)
        assert not any(node.link.must_stop(1) for node in nodes)
        nodes[0].link.participant.has_lapsed = True
        assert nodes[0].link.why_stop() == "this node lost its lease, or may have: its place is given away"
        run.host.stop()
        run.wait_for(lambda: all(node.link.must_stop(1) for node in nodes))
        assert all("the connection is lost" in node.link.why_stop() for node in nodes)
        for node in nodes:
            with pytest.raises(StoreUnavailable, match="the connection is lost"):
                node.ask().result(LONG_S)
            node.leave()


def test_leaving_ends_the_threads_and_is_no_error_the_second_time() -> None:
    before = set(threading.enumerate())
    with live_run() as run:
        nodes = [run.node(number) for number in range(2)]
        run.seal(*nodes)
        for node in nodes:
            node.leave(Outcome.LEFT)
            node.leave(Outcome.LEFT)
        assert run.host.wait(LONG_S)
        assert str(run.host.verdict) == "cancelled(every node has left)"
    ours = [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("ft-")]
    assert ours == []


def test_leaving_a_store_that_is_silent_does_not_take_for_ever(
    monkeypatch: pytest.MonkeyPatch, ear: Ear, pool: ThreadPoolExecutor
) -> None:
    monkeypatch.setattr(link_module, "FAREWELL_S", SHORT_S)
    store = SilentStore()
    link = link_to(store, ear)
    with pytest.raises(StoreUnavailable, match="no answer"):
        link.run(count(), patience_s=SHORT_S)  # The voice is held by the store from now on.
    pool.submit(lambda: link.leave(Outcome.LEFT, "")).result(LONG_S)
    store.ended.set()


def test_nothing_can_be_asked_of_a_link_that_has_stopped(link: Link) -> None:
    link.stop()
    with pytest.raises(StoreUnavailable, match="said goodbye"):
        link.run(count())


def head_of(view: View | None) -> bytes:
    assert view is not None
    return codec.encode(Head(run_id="r", epoch="e", settings={}, view=view))


def test_a_fenced_node_in_the_exit_barrier_still_hears_the_verdict(ear: Ear, pool: ThreadPoolExecutor) -> None:
    """It does not beat any more, and nothing else would make it look at the head again."""
    store = SimStore()
    link = link_to(store, ear)
    participant, opened = link.participant, Opened(no=1, cycle_id=1, shards=16, ring_at=1, channels=1, why=FirstCycle())
    verdict = Verdict(VerdictKind.SUCCEEDED)
    with link._changed:
        participant.incarnation, participant.view = "0" * 16, View(no=1, opened=opened)
        participant.pulse.is_fenced, participant.progress.finished_in = True, 1
    store.data[codec.HEAD_KEY] = head_of(participant.view)
    waiting = pool.submit(lambda: link.run(participant.await_verdict()))
    while link._line.is_stirred:
        time.sleep(0.001)
    store.data[codec.HEAD_KEY] = head_of(View(no=2, opened=opened, closed=Closed(no=2, verdict=verdict)))
    assert waiting.result(LONG_S) == verdict
    link.stop()


def test_no_arrival_is_lost_where_an_opening_takes_many_packets() -> None:
    """Prepared for 10,000 nodes, an event has 156 copies: whoever hears it first must not be forgotten by the rest."""
    with live_run(min_nodes=2, max_nodes=10_000, crash_loop=0, max_node_failures=0) as run:
        nodes = [run.node(0, infra_rank=0), run.node(1, infra_rank=1)]
        run.seal(*nodes)
        for cycle_id in range(1, 21):
            failing, other = nodes[cycle_id % 2], nodes[(cycle_id + 1) % 2]
            asked = [failing.ask()]
            run.wait_for(lambda other=other, c=cycle_id: other.link.must_stop(c))  # type: ignore[misc]
            asked.append(other.ask())
            for node, future in zip((failing, other), asked, strict=True):
                assert node.train(future).cycle_id == cycle_id + 1


def test_a_host_keeps_full_collections_from_torchs_objects_while_it_hosts() -> None:
    """In the thread that seals, one takes a tenth of a second."""
    gc.unfreeze()
    with live_run():
        assert gc.get_freeze_count() > 100_000
    assert gc.get_freeze_count() == 0
    gc.freeze()
    with live_run():
        pass
    assert gc.get_freeze_count() > 100_000, "somebody else's"
    gc.unfreeze()
