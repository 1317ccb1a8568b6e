"""A participant whose agent leaves while it joins."""

from __future__ import annotations

from ft_rendezvous.core.model import FirstCycle, NodeInfo, Opened, Outcome, View
from ft_rendezvous.protocol.ops import Add, Append, CompareSet, Get
from ft_rendezvous.protocol.participant import Participant

OPENED = Opened(no=1, cycle_id=1, shards=1, ring_at=9, channels=1, why=FirstCycle(), log_id=1)


def test_a_node_that_is_asked_to_end_right_after_it_arrived_says_goodbye() -> None:
    participant = Participant(
        epoch="e" * 16,
        node=NodeInfo(addr="here", pid=1),
        lease_s=5.0,
        clock=lambda: 0.0,
        new_incarnation=lambda: "0" * 16,
        hold_bootstrap=lambda *_: 1,
        greeted=View(no=1, opened=OPENED),
    )
    joining = participant.next_place()
    beat = next(joining)
    assert isinstance(beat, CompareSet)
    assert isinstance(joining.send(beat.desired), Add)
    assert isinstance(joining.send(1), Append)
    assert isinstance(joining.send(None), Get), "the arrival is written, and the head is to be read"
    joining.close()
    said = list(participant.goodbye(Outcome.LEFT, "SIGTERM"))
    assert any(isinstance(op, Append) and b'"goodbye"' in op.value for op in said)
