"""Lifelines on a real TCPStore, with real sockets: what their end costs a node that lives, and a node that does not."""

from __future__ import annotations

import socket
import struct

import pytest

from ft_rendezvous.core.model import Outcome
from ft_rendezvous.core.sealing import DoubtsNodes
from ft_rendezvous.errors import StoreUnavailable
from ft_rendezvous.node.lifeline import Lifeline
from ft_rendezvous.protocol import journal
from tests.contract.live import LiveNode, LiveRun, live_run

RESETS = 100


def lifeline_of(run: LiveRun, node: LiveNode) -> Lifeline:
    """The lifeline of a node, once it is there."""
    run.wait_for(lambda: node.link._lifeline is not None)
    lifeline = node.link._lifeline
    assert lifeline is not None
    return lifeline


def reset(lifeline: Lifeline) -> None:
    """What a proxy does that has enough of a connection: both ends see it at once."""
    lifeline._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    lifeline._socket.shutdown(socket.SHUT_RDWR)


def test_a_lifeline_that_is_reset_a_hundred_times_costs_no_cycle() -> None:
    with live_run() as run:
        nodes = [run.node(number) for number in range(2)]
        run.seal(*nodes)
        known: set[Lifeline] = set()
        for _ in range(RESETS):
            run.wait_for(lambda: nodes[1].link._lifeline not in (None, *known))
            lifeline = lifeline_of(run, nodes[1])
            known.add(lifeline)
            reset(lifeline)
        run.wait_for(lambda: nodes[1].link._lifeline not in (None, *known))
        run.wait_for(lambda: not run.host.coordinator.membership.suspects.suspects)
        assert len(known) == RESETS
        assert not any(node.link.must_stop(1) for node in nodes)
        assert run.told(journal.NodeFenced) == []


def test_a_node_that_cannot_connect_its_lifeline_again_beats_and_stays(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with live_run(lifeline_grace_s=1.0) as run:
        nodes = [run.node(number) for number in range(2)]
        run.seal(*nodes)
        lifeline = lifeline_of(run, nodes[1])

        def fail(_incarnation: str) -> Lifeline:
            raise StoreUnavailable("here:1", "no answer")

        monkeypatch.setattr(nodes[1].link._dialer, "dial_lifeline", fail)
        lifeline.close(says_goodbye=False)
        suspects = run.host.coordinator.membership.suspects
        run.wait_for(lambda: bool(suspects.suspects))
        run.wait_for(lambda: not suspects.suspects)
        run.wait_for(lambda: "no lifeline to the store host" in caplog.text)
        assert run.told(journal.NodeFenced) == []
        assert not nodes[1].link.must_stop(1)
        assert caplog.text.count("no lifeline to the store host") == 1


def test_a_node_whose_process_ends_is_dropped_long_before_its_lease() -> None:
    """Its lease is 30 s. Its threads stop without a word, as those of a killed process do."""
    with live_run(min_nodes=2, max_nodes=3) as run:
        nodes = [run.node(number) for number in range(2)]
        run.seal(*nodes)
        lifeline_of(run, nodes[1])
        nodes[1].link.stop()
        run.wait_for(lambda: bool(run.told(journal.NodeFenced)))
        (fenced,) = run.told(journal.NodeFenced)
        assert "its lifeline hung up" in fenced.reason
        assert fenced.silent_s < 10.0


def test_a_goodbye_leaves_no_suspicion() -> None:
    with live_run(min_nodes=1, max_nodes=3) as run:
        (active,) = run.seal(run.node(0))
        assert active.rank == 0
        spare = run.node(1)
        spare.ask()
        lifeline_of(run, spare)
        spare.leave(Outcome.LEFT)
        run.wait_for(lambda: bool(run.told(journal.NodeWent)))
        assert run.told(journal.NodeFenced) == []
        assert run.host.coordinator.membership.suspects.suspects == {}


def test_a_node_that_dies_while_it_waits_gets_no_rank() -> None:
    """The last arrival comes just when it is not known yet whether the other node is dead."""
    with live_run(min_nodes=2, max_nodes=3, lifeline_grace_s=3.0) as run:
        dead = run.node(1)
        dead.ask()
        run.wait_for(lambda: len(run.host.coordinator.roster.arrived) == 1)
        lifeline_of(run, dead)
        dead.link.stop()
        run.wait_for(lambda: bool(run.host.coordinator.membership.suspects.suspects))
        late = [run.node(number) for number in (2, 3)]
        asked = late[0].ask()
        run.wait_for(lambda: isinstance(run.host.coordinator.wait_reason, DoubtsNodes))
        assert not asked.done()
        others = late[1].ask()
        places = [late[0].train(asked), late[1].train(others)]
        assert sorted(place.rank for place in places) == [0, 1]
        assert [place.cycle_id for place in places] == [1, 1], "no world was formed with the dead node"


def test_without_lifelines_no_process_and_no_port_is_there() -> None:
    with live_run(has_lifelines=False) as run:
        nodes = [run.node(number) for number in range(2)]
        run.seal(*nodes)
        assert run.host.coordinator.publisher.lifeline_port == 0
        assert nodes[0].link._lifeline is None
