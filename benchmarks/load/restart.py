"""Generated nodes train, and the workers of one node fail: until all nodes that restart have their new ranks.

Nodes of other groups and spares listen, as real ones do. What every node asks of the store from the failure on is
counted.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.consumption import cpu_at
from benchmarks.load.crowd import HOST, Crowd
from benchmarks.load.nodes import make_participant
from benchmarks.measure import require
from benchmarks.nodes import make_arrivals
from ft_rendezvous.config.settings import RunSettings
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.ops import Get, Move, Op, Rest, Routine
from ft_rendezvous.protocol.participant import Participant, Place
from ft_rendezvous.store.client import connect

EVENTS_PER_CYCLE = 2
"""The opening and the seal."""
LISTEN_PAUSE_S = 0.3
"""The store takes note of all nodes that listen before the first of them fails."""
FAILING = 1, 1
"""Group and rank of the node whose workers fail. Without groups there is one, of number 0."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A node has read all events of a cycle."""

    at: float
    place: Place | None
    """Its place now. None: it stands by."""


@dataclass(frozen=True, slots=True)
class Restarted:
    """A restart, as all nodes of a run saw it."""

    seconds: float
    """From the failure until the last of the nodes that restart had its rank."""
    before: Mapping[int, Place]
    """The places before the failure, by node."""
    after: Mapping[int, Place]
    operations: Mapping[int, Mapping[str, int]]
    """What each node asked of the store from the failure on, by node and kind."""
    host_s: float
    """Seconds of CPU that the store host took meanwhile."""


class ListeningNode:
    """A participant that takes a place, listens, and restarts when it must."""

    def __init__(self, participant: Participant) -> None:
        self.participant = participant
        self.place: Place | None = None
        self.operations: Counter[str] = Counter()
        self._routine: Routine[object] | None = participant.next_place()
        self._watch: Routine[None] | None = None
        self._next_read: Op | None = None

    def fail(self) -> None:
        """Its workers fail, and its agent has restarts left."""
        self.place, self._routine = None, self.participant.next_place()

    def take_part(self, until_no: int) -> Move[Heard]:
        """Act upon every event up to this number."""
        while True:
            if self._routine is not None:
                yield from self._ask(self._routine)
            view = self.participant.view
            if view is not None and view.no >= until_no:
                return Heard(time.perf_counter(), self.place)
            yield from self._hear()
            if self.place is not None and self.participant.must_stop(self.place.cycle_id):
                self.fail()

    def _ask(self, routine: Routine[object]) -> Move[None]:
        """Ask for a place until there is one, or nothing to do but to listen."""
        reply = None
        while True:
            try:
                step = routine.send(reply)
            except StopIteration as stop:
                if not isinstance(stop.value, Place):
                    raise RuntimeError(f"the run is over for this node: {stop.value}") from None
                self.place, self._routine = stop.value, None
                return
            if isinstance(step, Rest):
                return
            reply = yield from self._count(step)

    def _hear(self) -> Move[None]:
        """Read the next event."""
        if self._watch is None:
            self._watch = self.participant.watch(self.participant.incarnation)
            self._await(next(self._watch))
        assert self._next_read is not None
        reply = yield from self._count(self._next_read)
        self._await(self._watch.send(reply))

    def _await(self, step: object) -> None:
        assert isinstance(step, Get), "the lease of this node has run out"
        self._next_read = step

    def _count(self, op: Op) -> Move[object]:
        reply: object = yield op
        self.operations[type(op).__name__.lower()] += 1
        return reply


def restart_ours(run: RunSettings, port: int, host_pid: int) -> Restarted:
    """Let all nodes of the run that is hosted there take their places; then the workers of one of them fail."""
    head = codec.decode_head(connect(HOST, port).perform(Get(codec.HEAD_KEY)))
    nodes = [ListeningNode(make_participant(run, head, arrival)) for arrival in make_arrivals(run.max_nodes)]
    sealed_no = head.view.no + EVENTS_PER_CYCLE - 1
    with Crowd[Heard](port, len(nodes)) as crowd:
        crowd.begin({index: node.take_part(sealed_no) for index, node in enumerate(nodes)})
        crowd.perform()
        before = places_of(nodes)
        failing = find_failing(before, run)
        for node in nodes:
            node.operations.clear()
        until_no = sealed_no + EVENTS_PER_CYCLE
        crowd.begin({index: node.take_part(until_no) for index, node in enumerate(nodes) if index != failing})
        gc.collect()
        gc.freeze()  # What is there stays there: looking through it again would be part of the time.
        time.sleep(LISTEN_PAUSE_S)
        nodes[failing].fail()
        started_at, host_before = time.perf_counter(), cpu_at(host_pid)
        crowd.begin({failing: nodes[failing].take_part(until_no)})
        heard = crowd.perform()
        host_s = cpu_at(host_pid) - host_before
    after = places_of(nodes)
    restarted = [index for index, place in after.items() if place != before.get(index)]
    ended_at = max((heard[index].at for index in restarted), default=started_at)
    operations = {index: dict(node.operations) for index, node in enumerate(nodes)}
    return Restarted(ended_at - started_at, before, after, operations, host_s)


def places_of(nodes: list[ListeningNode]) -> dict[int, Place]:
    return {index: node.place for index, node in enumerate(nodes) if node.place is not None}


def find_failing(places: Mapping[int, Place], run: RunSettings) -> int:
    group, rank = FAILING if run.group_size else (0, FAILING[1])
    found = [index for index, place in places.items() if (place.group, place.rank) == (group, rank)]
    require(len(found) == 1, f"rank {rank} of group {group} is held by {len(found)} nodes")
    return found[0]
