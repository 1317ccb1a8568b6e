"""Endpoints whose name has several addresses, none yet, or others later: real stores on loopback, names of the test."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from ft_rendezvous.config.settings import NodeSettings, Settings
from ft_rendezvous.core.model import NodeInfo, Outcome
from ft_rendezvous.errors import ConfigError, StoreUnavailable
from ft_rendezvous.host.serve import serve
from ft_rendezvous.node import dialing
from ft_rendezvous.node.dialing import StoreDialer, WrongStore, is_wrong, sum_up
from ft_rendezvous.node.session import CHANGED_LOG_INTERVAL_S, LOG_INTERVAL_S, WaitLog, open_session
from ft_rendezvous.store import names, raw_client
from ft_rendezvous.store.raw_client import Found, NoStore
from tests.contract.benches import LONG_S
from tests.contract.live import LiveNode, LiveRun, live_run, run_settings
from tests.contract.strangers import Answer, free_port, hang_up, listener, say_nothing, speak_http
from tests.support.proxy import Proxy

NAME = "train"
HERE, FIRST, SECOND = "127.0.0.1", "127.0.0.2", "127.0.0.3"


class Names:
    """What DNS knows of NAME; the test may change it. It asks the system for all other names."""

    def __init__(self) -> None:
        self.addresses: Sequence[str] = ()
        self.later: list[Sequence[str]] = []
        """What DNS knows after each lookup."""
        self.lookups = 0
        self.was_asked = threading.Event()

    def __call__(self, name: str) -> Sequence[str]:
        if name != NAME:
            return names.addresses_of(name)
        self.lookups += 1
        self.was_asked.set()
        known = self.addresses
        if self.later:
            self.addresses = self.later.pop(0)
        if not known:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known


@pytest.fixture
def dns(monkeypatch: pytest.MonkeyPatch) -> Names:
    known = Names()
    monkeypatch.setattr(names, "RESOLVER", names.Resolver(known, LONG_S))
    return known


def settings_of(port: int, *, join_s: float = LONG_S, **node: Any) -> Settings:
    known: dict[str, Any] = {"endpoint_host": NAME, "endpoint_port": port, **node}
    return Settings(run=run_settings(join_s=join_s), node=NodeSettings(**known))


def join(run: LiveRun, port: int, **node: Any) -> LiveNode:
    settings = replace(settings_of(port, **{"is_host": False, **node}), run=run.settings)
    live = LiveNode(run, open_session(settings, NodeInfo(addr=HERE, pid=1)))
    run.nodes.append(live)
    return live


# --- several addresses ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "answer", [None, hang_up, say_nothing, speak_http], ids=["refuses", "hangs up", "silent", "web"]
)
def test_the_addresses_are_tried_in_turn(dns: Names, monkeypatch: pytest.MonkeyPatch, answer: Answer | None) -> None:
    if answer is say_nothing:
        monkeypatch.setattr(raw_client, "GREETING_TIMEOUT_S", 0.5)
    with live_run() as run, Proxy(run.port) as proxy, ExitStack() as stack:
        if answer is not None:
            stack.enter_context(listener(answer, FIRST, proxy.port))
        dns.addresses = (FIRST, SECOND, HERE)
        join(run, proxy.port)
        assert proxy.accepted == 2, "both connections lead to the store"


def test_the_store_of_another_run_is_passed_by(dns: Names) -> None:
    """The pods of an earlier job may still be in DNS."""
    other = serve(run_settings(run_id="earlier"), 0, lambda _: None)
    try:
        with live_run() as run, Proxy(run.port) as ours, Proxy(other._served.port, FIRST, ours.port) as theirs:
            dns.addresses = (FIRST, HERE)
            join(run, ours.port)
            assert (theirs.accepted, ours.accepted) == (1, 2)
    finally:
        other.stop()


def test_an_attempt_goes_on_where_the_last_one_ran_out_of_time(dns: Names, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a few silent addresses could hide the store for ever."""
    monkeypatch.setattr(dialing, "DIAL_TIMEOUT_S", 0.0)  # There is time for one address.
    with live_run() as run, Proxy(run.port) as proxy:
        dns.addresses = (FIRST, SECOND, HERE)
        dialer = StoreDialer(replace(settings_of(proxy.port), run=run.settings), NAME)
        for _ in range(2):
            with pytest.raises(StoreUnavailable):
                dialer.dial()
        connections = dialer.dial()
        connections.writer.close()
        connections.listener.close()


# --- later ------------------------------------------------------------------------------------------


def test_a_reset_needs_no_lookup(dns: Names) -> None:
    """DNS may be down just then, and a lookup could cost the lease."""
    with live_run(min_nodes=1, beat_s=0.1) as run, Proxy(run.port) as proxy:
        dns.addresses = (FIRST, HERE)
        node = join(run, proxy.port)
        run.seal(node)
        asked = dns.lookups
        dns.addresses = ()
        accepted = proxy.accepted
        proxy.cut()
        run.wait_for(lambda: proxy.accepted >= accepted + 2)
        beats = node.participant.pulse.counter
        run.wait_for(lambda: node.participant.pulse.counter > beats)
        assert dns.lookups == asked
        assert not node.link.is_broken


def test_a_store_that_has_another_address_is_found_there(dns: Names) -> None:
    with live_run(min_nodes=1, beat_s=0.1) as run, Proxy(run.port) as old:
        dns.addresses = (HERE,)
        node = join(run, old.port)
        run.seal(node)
        with Proxy(run.port, FIRST, old.port) as new:
            dns.addresses = (FIRST,)
            old.refuse()
            run.wait_for(lambda: new.accepted >= 2)
            beats = node.participant.pulse.counter
            run.wait_for(lambda: node.participant.pulse.counter > beats)
            assert not node.link.is_broken
            node.leave()


def test_a_name_that_is_unknown_at_first_is_waited_for(dns: Names, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ft_rendezvous")
    with live_run() as run:
        asked = run.do(lambda: join(run, run.port))
        assert dns.was_asked.wait(LONG_S)
        dns.addresses = (HERE,)
        asked.result(LONG_S)
    assert f"waiting for the store at train:{run.port}: the host name does not resolve" in caplog.text


def test_a_name_that_stays_unknown_is_an_error_with_the_next_step(dns: Names) -> None:
    with pytest.raises(StoreUnavailable) as caught:
        open_session(settings_of(1, join_s=0.1), NodeInfo(addr=HERE, pid=1))
    assert dns.lookups > 1
    assert "store train:1: the host name does not resolve, for 0 s: check the name in --rdzv-endpoint" in str(
        caught.value
    )
    assert "`getent ahosts train`" in str(caught.value)


# --- who hosts --------------------------------------------------------------------------------------


def hosted(settings: Settings) -> bool:
    """Whether a node with these settings hosts the store that it finds."""
    session = open_session(settings, NodeInfo(addr=HERE, pid=1))
    try:
        return session.host is not None
    finally:
        session.link.leave(Outcome.LEFT, "")
        session.bootstrap.release()
        if session.host is not None:
            session.host.stop()


@pytest.mark.parametrize("later", [[], [(), (FIRST,), (FIRST, HERE)]], ids=["at once", "when DNS has its address"])
def test_index_0_hosts(dns: Names, later: list[Sequence[str]]) -> None:
    dns.addresses, dns.later = ((), later) if later else ((FIRST, HERE), [])
    assert hosted(settings_of(free_port(), job_index=0, is_pod=True))


@pytest.mark.parametrize("addresses", [(HERE,), (HERE, FIRST)])
def test_another_index_does_not_host_and_says_so(
    dns: Names, caplog: pytest.LogCaptureFixture, addresses: Sequence[str]
) -> None:
    caplog.set_level(logging.INFO, "ft_rendezvous")
    dns.addresses = addresses
    with pytest.raises(StoreUnavailable, match=r"JOB_COMPLETION_INDEX is 1, .*: start that node, or set is_host"):
        hosted(settings_of(free_port(), join_s=0.1, job_index=1))
    assert caplog.text.count("this node does not host the store: JOB_COMPLETION_INDEX is 1") == 1


def test_a_node_that_cannot_know_whether_to_host_says_what_to_do(dns: Names) -> None:
    """192.0.2.1 is no address of this machine."""
    dns.addresses = (HERE, "192.0.2.1")
    with pytest.raises(ConfigError) as caught:
        hosted(settings_of(free_port(), hostname="worker-x2x4z"))
    assert "train has 2 addresses (127.0.0.1, 192.0.2.1)" in str(caught.value)
    for remedy in ("is_host=true", "is_host=false", "JOB_COMPLETION_INDEX", "train-0"):
        assert remedy in str(caught.value)


def test_a_node_without_an_address_gets_the_one_of_its_route(dns: Names) -> None:
    """The name may have been unknown when the node started."""
    dns.later = [(HERE,)]
    with live_run() as run:
        settings = replace(settings_of(run.port, is_host=False), run=run.settings)
        node = LiveNode(run, open_session(settings, NodeInfo(addr="", pid=1)))
        run.nodes.append(node)
        assert node.participant.node.addr == NAME


# --- what is told -----------------------------------------------------------------------------------


def refused() -> StoreUnavailable:
    return NoStore("x:1", Found.NOTHING)


def silent() -> StoreUnavailable:
    return NoStore("x:1", Found.NO_ANSWER)


def stranger() -> StoreUnavailable:
    return NoStore("x:1", Found.STRANGER)


def other_run() -> StoreUnavailable:
    return WrongStore("x:1", "the store there serves run 'a', not 'b'")


@pytest.mark.parametrize(
    ("errors", "refuses", "wrong"),
    [
        ([refused, refused], True, False),
        ([refused, silent], False, False),
        ([silent, other_run], False, False),
        ([refused, other_run], True, False),
        ([stranger, refused], False, False),
        ([stranger, other_run], True, True),
        ([stranger], False, True),
        ([other_run], True, True),
        ([refused], True, False),
    ],
)
def test_an_endpoint_is_as_hopeless_as_its_best_address(
    errors: list[Callable[[], StoreUnavailable]], refuses: bool, wrong: bool
) -> None:
    told = sum_up("train:1", {f"10.0.0.{number}": make() for number, make in enumerate(errors)})
    assert (told.is_refused, is_wrong(told)) == (refuses, wrong)


def test_the_fact_names_addresses_and_does_not_depend_on_their_order() -> None:
    failures = {"10.0.0.9": silent(), **{f"10.0.0.{number}": refused() for number in (4, 3, 2, 1)}}
    fact = (
        "no answer from that host or port (10.0.0.9); nothing listens there (10.0.0.1, 10.0.0.2, 10.0.0.3 and 1 more)"
    )
    assert sum_up("train:1", failures).fact == fact
    assert sum_up("train:1", dict(reversed(failures.items()))).fact == fact


def test_a_wait_is_logged_at_once_soon_after_a_change_and_now_and_then(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "ft_rendezvous")
    waits = WaitLog("train:1")
    moments = [("a", 0.0), ("a", 1.0), ("b", 2.0), ("b", CHANGED_LOG_INTERVAL_S), ("b", LOG_INTERVAL_S)]
    moments += [("b", CHANGED_LOG_INTERVAL_S + LOG_INTERVAL_S)]
    for fact, now in moments:
        waits.note(fact, now)
    assert [record.getMessage().rpartition(" ")[2] for record in caplog.records] == ["a", "b", "b"]
