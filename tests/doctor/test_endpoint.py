"""Holding, looking and reaching, on loopback, with real programs at the other end."""

from __future__ import annotations

import socket

import pytest

from ft_rendezvous.core.model import Verdict, VerdictKind
from ft_rendezvous.doctor import endpoint
from ft_rendezvous.doctor.endpoint import (
    HeldPort,
    hold_port,
    look_at_endpoint,
    name_clients,
    reach_endpoint,
    reach_lifelines,
)
from ft_rendezvous.doctor.facts import (
    Attempts,
    Clients,
    EndpointFacts,
    EndpointSeen,
    EndpointState,
    LifelinePort,
    LookAtEndpoint,
    NameClients,
    Reach,
    ReachLifelines,
)
from ft_rendezvous.doctor.node_actions import NodeActions
from ft_rendezvous.protocol.codec import HEAD_KEY
from ft_rendezvous.protocol.ops import Set, perform_move
from ft_rendezvous.store import net
from ft_rendezvous.store.client import ServedStore
from tests.contract.live import live_run
from tests.contract.strangers import Answer, echo, free_port, hang_up, listener, reset, say_nothing, speak_http


def test_a_free_port_is_held_and_let_go() -> None:
    port = free_port()
    held, seen = hold_port("127.0.0.1", port, "token")
    assert held is not None
    assert seen.state is EndpointState.HELD
    assert [attempt.error for attempt in reach_endpoint("127.0.0.1", port, "token")] == [""]
    assert held.clients() == ["::ffff:127.0.0.1"], "as a store would see them"
    held.close()
    net.listen(port).close()


def test_a_port_is_let_go_before_its_clients_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow resolver must not keep a run from starting."""
    port = free_port()
    node = NodeActions("127.0.0.1", port)
    assert node.do(LookAtEndpoint(token="token", is_holder=True)) == EndpointSeen(
        endpoint=EndpointFacts(state=EndpointState.HELD)
    )
    assert node.do(Reach(token="token"))

    def look_up(*_: object) -> tuple[str, str]:
        net.listen(port).close()
        return "", ""

    monkeypatch.setattr(socket, "getnameinfo", look_up)
    answer = node.do(NameClients())
    assert isinstance(answer, Clients)
    assert [(lookup.of, lookup.error) for lookup in answer.lookups] == [("::ffff:127.0.0.1", "")]


def test_the_port_of_the_lifelines_is_held_and_let_go_with_that_of_the_endpoint() -> None:
    node = NodeActions("127.0.0.1", free_port())
    seen = node.do(LookAtEndpoint(token="token", is_holder=True, lifeline_port=0))
    assert isinstance(seen, EndpointSeen)
    assert seen.endpoint.lifelines is not None
    port = seen.endpoint.lifelines.port
    assert _errors(node.do(ReachLifelines(port=port, token="token"))) == [""]
    assert _errors(node.do(ReachLifelines(port=port, token="other"))) == ["another program answers at 127.0.0.1"]
    assert node.do(NameClients()) == Clients(lookups=()), "only clients of the endpoint are looked up"
    assert _errors(node.do(ReachLifelines(port=port, token="token"))) == ["127.0.0.1: Connection refused"]
    net.listen(port).close()


def test_a_lifeline_port_that_is_taken_is_reported_so() -> None:
    """As that of the endpoint is, if both settings name the same port."""
    port = free_port()
    node = NodeActions("127.0.0.1", port)
    seen = node.do(LookAtEndpoint(token="token", is_holder=True, lifeline_port=port))
    lifelines = LifelinePort(port=port, error="Address already in use")
    assert seen == EndpointSeen(endpoint=EndpointFacts(state=EndpointState.HELD, lifelines=lifelines))
    node.close()


def _errors(answer: object) -> list[str]:
    assert isinstance(answer, Attempts)
    return [attempt.error for attempt in answer.attempts]


def test_another_token_means_the_wrong_port() -> None:
    held = HeldPort(port := free_port(), "theirs")
    (attempt,) = reach_endpoint("127.0.0.1", port, "ours")
    held.close()
    assert attempt.error == "another program answers at 127.0.0.1"


def test_every_address_of_a_name_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldPort(port := free_port(), "token")
    resolve = socket.getaddrinfo

    def both(host: str, *rest: int, **more: int) -> list[object]:
        names = ("127.0.0.1", "127.0.0.2") if host == "n1" else (host,)
        return [found for name in names for found in resolve(name, *rest, **more)]

    monkeypatch.setattr(socket, "getaddrinfo", both)
    assert [(attempt.address, attempt.error) for attempt in reach_endpoint("n1", port, "token")] == [
        ("127.0.0.1", ""),
        ("127.0.0.2", ""),
    ]
    held.close()


def test_a_port_where_nothing_is_is_refused() -> None:
    (attempt,) = reach_endpoint("127.0.0.1", free_port(), "token")
    assert attempt.error == "127.0.0.1: Connection refused"
    assert look_at_endpoint("127.0.0.1", free_port()).state is EndpointState.NOTHING


@pytest.mark.parametrize("answer", [speak_http, echo, hang_up, reset, say_nothing])
def test_another_program_is_reported_as_such(answer: Answer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "ENDPOINT_TIMEOUT_S", 0.5)
    monkeypatch.setattr("ft_rendezvous.store.raw_client.GREETING_TIMEOUT_S", 0.5)
    with listener(answer) as port:
        held, seen = hold_port("127.0.0.1", port, "token")
    assert held is None
    assert seen.state is EndpointState.STRANGER
    assert seen.detail


def test_a_port_that_is_taken_on_another_address_only() -> None:
    with socket.create_server(("127.0.0.5", 0)) as server:
        held, seen = hold_port("127.0.0.1", server.getsockname()[1], "token")
    assert held is None
    assert seen.state is EndpointState.TAKEN


def test_a_live_run_is_named_over_one_connection_and_goes_on() -> None:
    with live_run(run_id="training") as run:
        first, second = run.node(0), run.node(1)
        run.seal(first, second)
        held, seen = hold_port("127.0.0.1", run.port, "token")
        assert held is None
        assert (seen.state, seen.run.run_id if seen.run else "") == (EndpointState.RUN, "training")
        assert seen.run is not None
        assert (seen.run.cycle_id, seen.run.is_sealed, seen.run.verdict) == (1, True, "")
        assert seen.run.settings == run.settings.as_dict()
        assert seen.lifelines is not None
        attempts = reach_lifelines("127.0.0.1", seen.lifelines.port, "")
        assert [attempt.error for attempt in attempts] == [""]
        assert run.finish(first, second).kind is VerdictKind.SUCCEEDED


def test_a_run_that_waits_for_its_nodes_can_be_greeted() -> None:
    with live_run() as run:
        seen = look_at_endpoint("127.0.0.1", run.port)
        assert seen.run is not None
        assert not seen.run.is_sealed
        assert [attempt.error for attempt in reach_endpoint("127.0.0.1", run.port, "")] == [""]


def test_a_run_without_lifelines_names_no_port_for_them() -> None:
    with live_run(has_lifelines=False) as run:
        seen = look_at_endpoint("127.0.0.1", run.port)
        assert (seen.state, seen.lifelines) == (EndpointState.RUN, None)


def test_a_run_that_has_ended_says_how() -> None:
    with live_run() as run:
        verdict = Verdict(VerdictKind.CANCELLED, "an operator asked for it")
        perform_move(run.host._served, run.host.coordinator.close(verdict))
        seen = look_at_endpoint("127.0.0.1", run.port)
        assert seen.run is not None
        assert seen.run.verdict == "cancelled(an operator asked for it)"


@pytest.mark.parametrize("head", [None, b"not ours", b'{"v": 99}', b'{"v": 1}'])
def test_a_store_of_another_program_or_version(head: bytes | None) -> None:
    served = ServedStore(net.listen())
    if head is not None:
        served.perform(Set(HEAD_KEY, head))
    seen = look_at_endpoint("127.0.0.1", served.port)
    served.stop()
    assert seen.state is EndpointState.OTHER_STORE
    assert seen.detail


def test_clients_are_looked_up_within_the_time_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver that never answers: the first ones are unanswered, the rest untried."""
    monkeypatch.setattr(socket, "getnameinfo", lambda *_: socket.create_server(("127.0.0.1", 0)).accept())
    lookups, untried = name_clients([f"10.0.0.{number}" for number in range(100)], timeout_s=0.2)
    assert (len(lookups), untried) == (8, 92)
    assert {lookup.is_over for lookup in lookups} == {False}
    assert all(lookup.seconds >= 0.1 for lookup in lookups)
