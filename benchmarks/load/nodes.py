"""What each node of a generated crowd does: as the real participant does it, or as bare operations.

Nothing of the protocol is written down here. The participant says which operation is next, so the load cannot drift
from it.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace

from benchmarks import ours
from benchmarks.baselines import raw
from benchmarks.consumption import cpu_at
from benchmarks.crowd import Formed, Seat
from benchmarks.load.crowd import HOST, form_world
from benchmarks.nodes import make_arrivals
from ft_rendezvous.config.addresses import format_endpoint
from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.core.model import Arrival, Head, Verdict
from ft_rendezvous.core.node_step import Drained
from ft_rendezvous.host.serve import new_id
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.ops import Get, Move, Rest
from ft_rendezvous.protocol.participant import Participant, Place
from ft_rendezvous.store.client import connect


def form_ours(count: int, port: int, host_pid: int | None = None) -> Formed:
    """Form a world of participants in the run that is hosted there; given its process, count what that takes."""
    run, head = ours.run_settings(count), codec.decode_head(connect(HOST, port).perform(Get(codec.HEAD_KEY)))
    moves = [take_part(make_participant(run, head, arrival)) for arrival in make_arrivals(count)]
    if host_pid is None:
        return form_world(port, moves)
    at: list[float] = []
    formed = form_world(port, moves, around=lambda: at.append(cpu_at(host_pid)))
    return replace(formed, host_s=at[1] - at[0])


def form_raw(count: int, port: int) -> Formed:
    """Perform as many raw operations on the bare store that is there."""
    event = raw.make_event(count)
    return form_world(port, [raw.take_part(count, arrival, event) for arrival in make_arrivals(count)])


def make_participant(run: RunSettings, head: Head, arrival: Arrival) -> Participant:
    """A node that has greeted the run, and will arrive as this one."""
    return Participant(
        epoch=head.epoch,
        node=arrival.node,
        lease_s=run.lease_s,
        clock=time.monotonic,
        new_incarnation=new_id,
        hold_bootstrap=lambda *_: arrival.bootstrap_port,
        on_enlisted=lambda: None,
        greeted=head.view,
    )


def take_part(participant: Participant) -> Move[Seat]:
    """From the arrival to the seat: what a node's writer and listener do, in turns.

    The writer has nothing to do when the routine rests. Then the listener may block.
    """
    routine = participant.next_place()
    watch, event_read, reply = None, None, None
    while True:
        try:
            step = routine.send(reply)
        except StopIteration as stop:
            return _seat_of(stop.value)
        if not isinstance(step, Rest):
            reply = yield step
            continue
        if watch is None:
            watch = participant.watch(participant.incarnation)
            event_read = next(watch)
        assert event_read is not None
        assert not isinstance(event_read, Rest), "the lease of this node has run out"
        with suppress(StopIteration):  # The run is closed, and the routine ends with the verdict.
            event_read = watch.send((yield event_read))
        reply = None


def _seat_of(place: Place | Verdict | Drained) -> Seat:
    """What a node holds; a run that is over has no seats."""
    if not isinstance(place, Place):
        raise RuntimeError(f"the run is over for this node: {place}")
    return Seat(place.rank, place.world_size, format_endpoint(place.master_addr, place.master_port))
