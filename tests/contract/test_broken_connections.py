"""Connections that break, and stores that hang, vanish or are replaced: real links to a real store, through a proxy."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from ft_rendezvous.config.settings import NodeSettings, Settings
from ft_rendezvous.core.model import NodeInfo, Outcome, VerdictKind
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.node.session import open_session
from ft_rendezvous.protocol import journal
from ft_rendezvous.protocol.ops import Get
from ft_rendezvous.protocol.participant import Place
from ft_rendezvous.store import raw_client
from tests.contract.benches import LONG_S
from tests.contract.live import LiveRun, live_run, run_settings
from tests.support.proxy import LISTENER, WRITER, Fate, Proxy

BEAT_S, LEASE_S = 0.1, 1.0
SLACK_S = 3.0
"""How much later than promised something may happen on a busy machine."""
BOTH = b""
CONNECTIONS = [pytest.param(BOTH, id="both"), pytest.param(WRITER, id="writer"), pytest.param(LISTENER, id="listener")]


class Stage:
    """A run of two nodes, of which one reaches the store through a proxy."""

    def __init__(self, run: LiveRun, proxy: Proxy) -> None:
        self.run, self.proxy = run, proxy
        self.near = run.node(1, infra_rank=1)
        self.far = run.node(0, infra_rank=0, port=proxy.port)

    def seal(self) -> None:
        self.run.seal(self.far, self.near)

    def await_beats(self, count: int = 2) -> None:
        """Wait until the far node has renewed its lease: it is in touch with the store."""
        wanted = self.far.participant.pulse.counter + count
        self.run.wait_for(lambda: self.far.participant.pulse.counter >= wanted)

    def cut(self, which: bytes) -> None:
        """Reset connections of the far node, and wait until it has new ones."""
        accepted = self.proxy.accepted
        self.run.wait_for(lambda: self.proxy.cut(which) > 0)
        self.run.wait_for(lambda: self.proxy.accepted >= accepted + 2)

    def assert_unharmed(self, cycle_id: int = 1) -> None:
        """No node was lost, none came twice, and no cycle was opened."""
        assert self.run.told(journal.NodeFenced) == []
        names = [entry.incarnation for entry in self.run.told(journal.NodeJoined)]
        assert len(names) == len(set(names)) == len(self.run.nodes)
        assert self.far.participant.incarnation in names
        assert self.run.host.coordinator.cycle_id == cycle_id
        assert not self.far.link.is_broken

    def finish(self) -> None:
        assert self.run.finish(self.far, self.near).kind is VerdictKind.SUCCEEDED


@contextmanager
def staged(**changes: Any) -> Iterator[Stage]:
    with live_run(**{"beat_s": BEAT_S, **changes}) as run, Proxy(run.port) as proxy:
        yield Stage(run, proxy)


# --- resets in every state --------------------------------------------------------------------------


@pytest.mark.parametrize("which", CONNECTIONS)
def test_a_reset_costs_a_node_nothing_while_it_trains(which: bytes) -> None:
    with staged() as stage:
        stage.seal()
        stage.cut(which)
        stage.await_beats()
        assert not stage.far.link.must_stop(1)
        stage.assert_unharmed()
        stage.finish()


@pytest.mark.parametrize("which", CONNECTIONS)
def test_a_reset_costs_a_spare_nothing(which: bytes) -> None:
    with staged() as stage:
        other = stage.run.node(2, infra_rank=2)
        stage.run.seal(stage.near, other)
        parked = stage.far.ask()
        stage.run.wait_for(lambda: stage.far.link.has_joined)
        stage.cut(which)
        stage.await_beats()
        stage.assert_unharmed()
        assert not parked.done()
        other.leave(Outcome.LEFT)
        stage.run.wait_for(lambda: stage.near.link.must_stop(1))
        asked = stage.near.ask()
        assert stage.far.train(parked).cycle_id == 2
        stage.near.train(asked)
        stage.finish()


@pytest.mark.parametrize("which", CONNECTIONS)
def test_a_reset_costs_a_node_nothing_while_it_waits_for_the_seal(which: bytes) -> None:
    with staged() as stage:
        asked = stage.far.ask()
        stage.run.wait_for(lambda: stage.far.link.has_joined)
        stage.cut(which)
        stage.await_beats()
        stage.near.train(stage.near.ask())
        stage.far.train(asked)
        stage.assert_unharmed()
        stage.finish()


@pytest.mark.parametrize("which", CONNECTIONS)
def test_a_reset_costs_a_node_nothing_in_the_exit_barrier(which: bytes) -> None:
    with staged() as stage:
        stage.seal()
        waiting = stage.far.finish()
        stage.run.wait_for(lambda: stage.run.host.coordinator.roster.finished_count == 1)
        stage.cut(which)
        stage.await_beats()
        stage.assert_unharmed()
        assert not waiting.done()
        stage.near.finish().result(LONG_S)
        waiting.result(LONG_S)
        assert stage.far.link.verdict == stage.near.link.verdict
        assert str(stage.far.link.verdict) == "succeeded"


def test_a_hundred_resets_in_a_row_cost_a_node_nothing() -> None:
    with staged() as stage:
        stage.seal()
        for _ in range(100):
            stage.cut(BOTH)
        stage.await_beats()
        assert not stage.far.link.must_stop(1)
        stage.assert_unharmed()
        stage.finish()


def test_a_reset_while_the_machine_has_no_thread_left_costs_a_node_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    refused: list[threading.Thread] = []

    def refuse_some(thread: threading.Thread) -> None:
        if thread.name == "ft-listener" and len(refused) < 3:
            refused.append(thread)
            raise RuntimeError("can't start new thread")
        start(thread)

    with staged() as stage:
        stage.seal()
        monkeypatch.setattr(threading.Thread, "start", refuse_some)
        stage.cut(BOTH)
        stage.run.wait_for(lambda: len(refused) == 3)
        stage.await_beats()
        assert not stage.far.link.must_stop(1)
        stage.assert_unharmed()
        stage.finish()


# --- a reset in the middle of an operation ----------------------------------------------------------

OPERATIONS = [
    pytest.param(b"/beat/", id="the first beat"),
    pytest.param(b"/arrived", id="the count"),
    pytest.param(b'"arrive"', id="the arrival"),
    pytest.param(b"/bell", id="the bell"),
    pytest.param(b"/head", id="the head"),
    pytest.param(b"/event/", id="the first event"),
]
FATES = pytest.mark.parametrize("fate", Fate, ids=lambda fate: fate.name.lower())


@FATES
@pytest.mark.parametrize("request_", OPERATIONS)
def test_a_reset_on_the_way_into_a_run_delays_the_seal_by_a_lease_at_most(request_: bytes, fate: Fate) -> None:
    with staged(lease_s=LEASE_S) as stage:
        asked = stage.near.ask()
        stage.run.wait_for(lambda: stage.near.link.has_joined)
        stage.proxy.reset_at(request_, fate)
        began = time.monotonic()
        stage.far.train(stage.far.ask())
        assert time.monotonic() - began < LEASE_S + SLACK_S
        stage.near.train(asked)
        stage.run.wait_for(lambda: stage.proxy.has_sprung)
        stage.await_beats()
        stage.assert_unharmed()
        stage.finish()


@FATES
def test_an_arrival_written_twice_is_counted_once(fate: Fate) -> None:
    """Where it was lost, it is written again; where it was not, the second one changes nothing."""
    with staged(min_nodes=3) as stage:
        stage.proxy.reset_at(b'"arrive"', fate)
        asked = [stage.far.ask(), stage.near.ask()]
        stage.run.wait_for(lambda: stage.far.link.has_joined and stage.near.link.has_joined)
        stage.await_beats(5)
        roster = stage.run.host.coordinator.roster
        stage.run.wait_for(lambda: len(roster.members) == 2)
        stage.assert_unharmed()
        assert not any(future.done() for future in asked), "two nodes are no world of three"
        third = stage.run.node(2, infra_rank=2)
        assert third.train(third.ask()).world_size == 3


@FATES
def test_a_beat_is_performed_once_in_effect(fate: Fate) -> None:
    with staged() as stage:
        stage.seal()
        stranger = stage.run.stranger()
        for _ in range(20):
            stage.proxy.reset_at(WRITER, fate)
            stage.run.wait_for(lambda: stage.proxy.has_sprung)
            stage.await_beats(1)
        with stage.far.link._lock:
            stage.run.wait_for(lambda: stage.far.link._loop._calling_since is None)
            counter = stage.far.participant.pulse.counter
            kept = int(stranger.perform(Get(stage.run.keys.beat(stage.far.participant.incarnation))))
        assert counter <= kept <= counter + 1, "one beat may be under way"
        stage.assert_unharmed()
        stage.finish()


@FATES
def test_a_failure_reaches_the_coordinator(fate: Fate) -> None:
    with staged() as stage:
        stage.seal()
        stage.proxy.reset_at(b'"fail"', fate)
        failing = stage.far.ask()
        stage.run.wait_for(lambda: stage.near.link.must_stop(1))
        again = stage.near.ask()
        assert stage.far.train(failing).cycle_id == stage.near.train(again).cycle_id == 2
        assert stage.proxy.has_sprung
        assert len(stage.run.told(journal.WorkersEnded)) == 1
        stage.assert_unharmed(cycle_id=2)
        stage.finish()


@FATES
def test_an_end_reaches_the_coordinator(fate: Fate) -> None:
    """The barrier of all nodes would wait for it without end."""
    with staged() as stage:
        stage.seal()
        stage.proxy.reset_at(b'"finish"', fate)
        stage.finish()
        assert stage.proxy.has_sprung


# --- the store itself -------------------------------------------------------------------------------


def test_a_store_that_is_gone_breaks_the_link_after_a_lease() -> None:
    with staged(lease_s=LEASE_S) as stage:
        stage.seal()
        began = time.monotonic()
        stage.proxy.refuse()
        with pytest.raises(StoreUnavailable, match=r"nothing listens there, for .* the run ended with its store"):
            stage.far.finish().result(LONG_S)
        assert LEASE_S - BEAT_S <= time.monotonic() - began < LEASE_S + SLACK_S
        assert stage.far.link.is_broken
        assert stage.far.link.must_stop(1)


def test_a_store_of_another_epoch_at_the_same_port_breaks_the_link_at_once() -> None:
    with staged() as stage, live_run(beat_s=BEAT_S) as other:
        stage.seal()
        began = time.monotonic()
        stage.proxy.target_port = other.port
        stage.proxy.cut()
        stage.run.wait_for(lambda: stage.far.link.is_broken)
        assert time.monotonic() - began < SLACK_S
        assert "the store is a new one; this run ended with the old" in stage.far.link.why_stop()
        assert other.host.coordinator.roster.members == {}, "nothing was written there"


def test_a_store_that_is_silent_for_less_than_a_lease_costs_nothing() -> None:
    with staged(lease_s=3.0) as stage:
        stage.seal()
        stage.proxy.fall_silent()
        time.sleep(1.0)
        stage.proxy.speak_again()
        stage.await_beats()
        assert not stage.far.link.must_stop(1)
        stage.assert_unharmed()
        stage.finish()


def test_a_store_that_is_slow_to_answer_new_connections_is_reached_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that gave up each of them after the same time would only keep the store busy."""
    monkeypatch.setattr(raw_client, "GREETING_TIMEOUT_S", 0.2)
    with staged() as stage:
        stage.seal()
        stage.proxy.accept_delay_s = 0.5
        stage.proxy.cut()
        stage.await_beats()
        stage.assert_unharmed()
        stage.finish()


@contextmanager
def serving_process(**changes: Any) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A host in a process of its own, which can be stopped without stopping this one."""
    code = f"""
        from ft_rendezvous.host.serve import serve
        from tests.contract.live import run_settings

        host = serve(run_settings(**{changes!r}), 0, lambda entry: print(type(entry).__name__, flush=True))
        print(f"port {{host._served.port}}\\n", end="", flush=True)
        host.wait()
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        line = next(line for line in process.stdout if line.startswith("port"))
        yield process, int(line.split()[1])
    finally:
        process.kill()
        process.wait(LONG_S)


def test_a_host_that_is_stopped_for_longer_than_a_lease_stops_the_workers_and_loses_no_node() -> None:
    changes: dict[str, Any] = {"min_nodes": 1, "lease_s": LEASE_S, "beat_s": BEAT_S}
    with serving_process(**changes) as (process, port):
        node = NodeSettings(endpoint_host="127.0.0.1", endpoint_port=port, is_host=False)
        session = open_session(Settings(run=run_settings(**changes), node=node), NodeInfo(addr="127.0.0.1", pid=1))
        link = session.link
        place = link.next_place()
        assert isinstance(place, Place)
        assert not link.must_stop(1)
        os.kill(process.pid, signal.SIGSTOP)
        try:
            wait_for(lambda: link.must_stop(1))
            time.sleep(LEASE_S / 2)
        finally:
            os.kill(process.pid, signal.SIGCONT)
        wait_for(link._participant.is_trusted)
        assert link.must_stop(1), "for this cycle it stays so"
        assert not link.is_broken
        again = link.next_place()
        assert isinstance(again, Place)
        assert (again.cycle_id, again.incarnation) == (2, place.incarnation)
        assert not link.must_stop(2)
        link.finish(2)
        assert str(link.await_verdict()) == "succeeded"
        link.leave(Outcome.SUCCEEDED, "")
        session.bootstrap.release()
        assert process.wait(LONG_S) == 0
        assert process.stdout is not None
        assert "NodeFenced" not in process.stdout.read()


def wait_for(is_true: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LONG_S
    while not is_true():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)
