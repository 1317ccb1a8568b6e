"""The link: whatever happens to its threads, the agent's own thread hears of it, and nothing else holds it."""

from __future__ import annotations

import gc
import logging
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from ft_rendezvous.core.model import Closed, FirstCycle, Head, NodeInfo, Opened, Outcome, Verdict, VerdictKind, View
from ft_rendezvous.core.node_step import WorkerExit
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.node.lifeline import Lifeline
from ft_rendezvous.node.threads import Connections, Link, NodeConnection
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.node_loop import GOODBYE_TIMEOUT_S
from ft_rendezvous.protocol.ops import CHANGED, Add, Append, Get, Move, Op, Routine
from ft_rendezvous.protocol.participant import Participant
from ft_rendezvous.store.client import ServedStore
from ft_rendezvous.store.net import listen
from tests.contract.benches import LONG_S
from tests.contract.live import live_run
from tests.sim.store import SimStore

SHORT_S = 0.2
EPOCH = "e" * 16
OPENED = Opened(no=1, cycle_id=1, shards=16, ring_at=1, channels=1, why=FirstCycle(), log_id=1)


class Silent:
    """A connection on which no call returns before it is closed, as to a host that hangs."""

    def __init__(self) -> None:
        self._closed = threading.Event()
        self.is_called = threading.Event()

    def perform(self, op: Op) -> Any:
        self.is_called.set()
        self._closed.wait(LONG_S)
        raise StoreUnavailable("silent", f"never answered {op}")

    def close(self) -> None:
        self._closed.set()


class Answering:
    """A connection to a simulated store. It keeps the records that were written over it."""

    def __init__(self, store: SimStore) -> None:
        self._store = store
        self.records: list[bytes] = []

    def perform(self, op: Op) -> Any:
        if isinstance(op, Append):
            self.records.append(op.value)
        return self._store.perform(op)

    def close(self) -> None:
        pass


class NoDialer:
    """Opens no connection."""

    def dial(self) -> Connections:
        raise StoreUnavailable("here:1", "no answer")

    def dial_listener(self) -> NodeConnection:
        raise StoreUnavailable("here:1", "no answer")

    def dial_lifeline(self, incarnation: str) -> Lifeline:  # noqa: ARG002 - a dialer's signature
        raise StoreUnavailable("here:1", "no answer")


def head_of(view: View) -> Head:
    return Head(run_id="r", epoch=EPOCH, settings={}, view=view)


def make_participant() -> Participant:
    return Participant(
        epoch=EPOCH,
        node=NodeInfo(addr="here", pid=1),
        lease_s=LONG_S,
        clock=time.monotonic,
        new_incarnation=lambda: "0" * 16,
        hold_bootstrap=lambda *_: 1,
    )


def training_participant() -> Participant:
    """A participant that trains in cycle 1."""
    participant = make_participant()
    participant.incarnation, participant.view = "0" * 16, View(no=1, opened=OPENED)
    participant.progress.trained_in, participant.placed_in = 1, OPENED
    participant.pulse.alive_until = time.monotonic() + LONG_S
    return participant


def link_to(
    writer: NodeConnection, participant: Participant | None = None, listener: NodeConnection | None = None
) -> Link:
    connections = Connections(writer, listener or Silent(), head_of(View(no=1, opened=OPENED)))
    participant = participant or make_participant()
    return Link(connections, NoDialer(), participant, beat_s=SHORT_S, join_s=LONG_S, endpoint="here:1")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def store() -> SimStore:
    return SimStore()


@pytest.fixture
def link(store: SimStore) -> Iterator[Link]:
    link = link_to(Answering(store))
    yield link
    link.stop()


def count() -> Move[int]:
    counted: int = yield Add("n", 1)
    return counted


class Waiting:
    """A job that waits for ever, and tells when it does."""

    def __init__(self) -> None:
        self.rests = threading.Event()

    def routine(self) -> Routine[None]:
        while True:
            self.rests.set()
            yield CHANGED


# --- what the agent waits for -----------------------------------------------------------------------


def test_a_job_is_carried_to_its_end_and_awaited(link: Link) -> None:
    def move() -> Move[list[int]]:
        first = yield Add("n", 1)
        second = yield Add("n", 1)
        return [first, second]

    assert link.run(move()) == [1, 2]
    assert link.run(move()) == [3, 4]
    assert link.perform(Add("n", 1)) == 5


@pytest.mark.parametrize("error", [StoreUnavailable("x", "y"), OSError("too many open files"), AssertionError("bug")])
def test_what_a_job_raises_reaches_the_agent_and_ends_nothing_else(link: Link, error: Exception) -> None:
    def move() -> Move[None]:
        yield Add("n", 1)
        raise error

    with pytest.raises(type(error)):
        link.run(move())
    assert not link.is_broken
    assert link.run(count()) == 2


def test_what_a_connection_raises_by_our_mistake_reaches_the_agent_and_ends_the_link(link: Link) -> None:
    """A bug in a thread must not hang an agent for ever."""
    with pytest.raises(Exception, match="blocks on missing"):
        link.perform(Get("missing"))
    assert link.is_broken


def test_a_later_job_takes_the_place_of_one_that_waits(link: Link, pool: ThreadPoolExecutor) -> None:
    """A signal arrives while the agent waits for its place: the goodbye must not wait for it."""
    job = Waiting()
    waiting = pool.submit(link.run, job.routine())
    assert job.rests.wait(LONG_S)
    assert link.run(count()) == 1
    with pytest.raises(StoreUnavailable, match="leaving"):
        waiting.result(LONG_S)


class Alarm(Exception):
    pass


def test_a_signal_that_raises_in_the_wait_leaves_nothing_behind(link: Link) -> None:
    """Torch's handlers raise in the main thread. A logged traceback holds every frame of it."""

    def ring(*_: object) -> None:
        raise Alarm

    job = Waiting()
    former = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, SHORT_S)
    try:
        with pytest.raises(Alarm) as held:
            link.run(job.routine())
    finally:
        signal.signal(signal.SIGALRM, former)
    assert held.tb is not None
    job.rests.clear()
    time.sleep(2 * SHORT_S)  # Two beats, each of which lets a job go on.
    assert not job.rests.is_set()
    assert link.run(count()) == 1


def test_a_signal_is_handled_at_once_while_the_store_is_silent() -> None:
    """The agent's thread is never in a store call."""
    link = link_to(Silent())
    handled: list[float] = []
    former = signal.signal(signal.SIGALRM, lambda *_: handled.append(time.monotonic()))
    due_at = time.monotonic() + SHORT_S
    signal.setitimer(signal.ITIMER_REAL, SHORT_S)
    try:
        with pytest.raises(StoreUnavailable, match=r"no answer for 1\.5 s; its host is stuck or cut off"):
            link.run(count(), timeout_s=1.5)
    finally:
        signal.signal(signal.SIGALRM, former)
        link.stop()
    assert len(handled) == 1
    assert handled[0] - due_at < 1.0


# --- what the agent says without waiting ------------------------------------------------------------


def test_what_is_posted_goes_before_what_waits_in_its_order(store: SimStore, pool: ThreadPoolExecutor) -> None:
    connection, job = Answering(store), Waiting()
    link = link_to(connection, training_participant())
    waiting = pool.submit(link.run, job.routine())
    assert job.rests.wait(LONG_S)
    with link._lock:  # The writer carries nothing before all three are there.
        link.report_exit(1, WorkerExit("exit code 3"))
        link.ask_restart(1, "NaN")
        link.ask_drain("slow")
    assert link.run(count()) == 1
    assert link.has_reported
    for word, record in zip((b"exit code 3", b"NaN", b"slow"), connection.records, strict=True):
        assert word in record
    with pytest.raises(StoreUnavailable, match="leaving"):
        waiting.result(LONG_S)
    link.stop()


def test_a_post_that_fails_is_logged_and_harms_nothing(link: Link, caplog: pytest.LogCaptureFixture) -> None:
    def fail() -> Move[None]:
        yield Add("n", 1)
        raise OSError("no space")

    caplog.set_level(logging.INFO, "ft_rendezvous")
    link._post(lambda _: fail())
    assert link.run(count()) == 2
    assert not link.is_broken
    assert "could not tell the coordinator: no space" in caplog.text


# --- the end ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [StoreUnavailable("x", "it is refused", is_refused=True), AssertionError("event 3 after 1")],
    ids=lambda error: type(error).__name__,
)
def test_a_listener_that_fails_for_good_breaks_the_link_instead_of_leaving_a_deaf_node(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    with live_run(min_nodes=1, lease_s=1.0, beat_s=0.1) as run:
        node = run.node(1)
        node.train(node.ask())
        assert not node.link.must_stop(1)
        listening = node.link._listener.connection
        assert listening is not None

        def fail(*_: object) -> Any:
            raise error

        monkeypatch.setattr(type(listening), "_get", fail)
        monkeypatch.setattr(node.link._dialer, "dial", fail)
        node.ask()  # Its workers fail, the next cycle opens: the listener reads once more, and fails.
        run.wait_for(lambda: node.link.is_broken)
        assert node.link.must_stop(1)
        assert "the connection to the store is lost" in node.link.why_stop()


def test_a_store_that_dies_stops_the_workers_of_every_node() -> None:
    with live_run(beat_s=0.1, lease_s=1.0) as run:
        nodes = [run.node(number) for number in range(2)]
        run.seal(*nodes)
        assert not any(node.link.must_stop(1) for node in nodes)
        run.host.stop()
        run.wait_for(lambda: all(node.link.must_stop(1) for node in nodes))
        run.wait_for(lambda: all(node.link.is_broken for node in nodes))
        for node in nodes:
            assert "the run ended with its store" in node.link.why_stop()
            with pytest.raises(StoreUnavailable, match=r"nothing listens there, for .* the run ended with its store"):
                node.ask().result(LONG_S)
            node.leave()


def _lapse(participant: Participant) -> None:
    participant.has_lapsed = True


def _expire(participant: Participant) -> None:
    participant.pulse.alive_until = float("-inf")


def _fence(participant: Participant) -> None:
    participant.pulse.is_fenced = True


@pytest.mark.parametrize(
    ("lose", "why"),
    [
        (_lapse, "this node missed an event of the run"),
        (_expire, "this node could not renew its lease for .* s: the store was silent, or this node stood still"),
        (_fence, "the coordinator has fenced this node"),
    ],
)
def test_a_node_that_lost_its_lease_says_so(lose: Callable[[Participant], None], why: str) -> None:
    participant = training_participant()
    link = link_to(Silent(), participant)
    assert not link.must_stop(1)
    with link._lock:
        lose(participant)
    assert link.must_stop(1)
    assert re.match(why, link.why_stop())
    link.stop()


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


def test_leaving_a_store_that_is_silent_is_bounded(pool: ThreadPoolExecutor) -> None:
    connection = Silent()
    link = link_to(connection, training_participant())
    asked = pool.submit(link.run, count())
    assert connection.is_called.wait(LONG_S)
    began = time.monotonic()
    link.leave(Outcome.LEFT, "")
    assert time.monotonic() - began < GOODBYE_TIMEOUT_S + 1.0
    with pytest.raises(StoreUnavailable):
        asked.result(LONG_S)
    assert not any(thread.is_alive() for thread in (link._writer, link._listener.thread))


def test_a_goodbye_to_a_store_that_has_long_been_silent_takes_no_time() -> None:
    connection = Silent()
    link = link_to(connection, training_participant())
    assert connection.is_called.wait(LONG_S)
    time.sleep(GOODBYE_TIMEOUT_S + 0.1)
    began = time.monotonic()
    link.leave(Outcome.LEFT, "")
    assert time.monotonic() - began < 1.0


def test_leaving_never_raises_even_by_our_mistake(monkeypatch: pytest.MonkeyPatch, link: Link) -> None:
    def fail(*_: object) -> Move[None]:
        raise AssertionError("a bug")

    monkeypatch.setattr(Participant, "goodbye", fail)
    link.leave(Outcome.LEFT, "")


def test_nothing_can_be_asked_of_a_link_that_has_stopped(link: Link) -> None:
    link.stop()
    with pytest.raises(StoreUnavailable, match="said goodbye"):
        link.run(count())


def test_a_process_ends_although_its_link_waits_on_a_store() -> None:
    """No thread is in native code, where the end of the interpreter would abort the process (exit code 134)."""
    served = ServedStore(listen())
    code = f"""
        import threading, time
        from tests.contract.test_node_threads import *
        from ft_rendezvous.store.raw_client import StoreSocket

        writer, listener = (StoreSocket("127.0.0.1", {served.port}) for _ in range(2))
        link = link_to(writer, training_participant(), listener)
        with link._lock:
            link._listen_anew()
        threading.Thread(target=lambda: link.perform(Get("never")), daemon=True).start()
        time.sleep(0.3)
        print("over", flush=True)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=LONG_S, check=False
    )
    served.stop()
    assert (done.returncode, done.stdout) == (0, "over\n"), done.stderr


def test_a_fenced_node_in_the_exit_barrier_still_hears_the_verdict(store: SimStore, pool: ThreadPoolExecutor) -> None:
    """It does not beat any more, and nothing else would make it look at the head again."""
    participant, verdict = training_participant(), Verdict(VerdictKind.SUCCEEDED)
    participant.pulse.is_fenced, participant.progress.finished_in = True, 1
    store.data[codec.HEAD_KEY] = codec.encode(head_of(View(no=1, opened=OPENED)))
    link = link_to(Answering(store), participant)
    waiting = pool.submit(link.await_verdict)
    time.sleep(2 * SHORT_S)
    assert not waiting.done()
    closed = View(no=2, opened=OPENED, closed=Closed(no=2, verdict=verdict))
    store.data[codec.HEAD_KEY] = codec.encode(head_of(closed))
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
