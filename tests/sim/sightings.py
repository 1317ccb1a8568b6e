"""What can be seen of a run from outside: operations as the server performs them, and what agents do.

Turns both into sightings and hands each to the checkers that look for it. Asks neither the coordinator nor any
participant for its opinion; the protocol's codecs are used to read what is in the store, and nothing else of it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ft_rendezvous.core.model import AnyEvent, Called, Closed, Inquired, Opened, Sealed, Seat, Verdict
from ft_rendezvous.core.update_notes import UpdateNote
from ft_rendezvous.protocol import codec
from ft_rendezvous.protocol.journal import Entry
from ft_rendezvous.protocol.ops import Append, CompareSet, Delete, Get, MultiGet, MultiSet, Op, Set
from ft_rendezvous.protocol.participant import Place
from tests.sim.checkers import ALL, Checker, event_number
from tests.sim.faults import Ending
from tests.sim.kernel import Connection, Process
from tests.sim.naive_blame import Account
from tests.sim.naive_roster import Census

if TYPE_CHECKING:
    from tests.sim.agent import SimNode
    from tests.sim.world import World


decode_event = lru_cache(maxsize=512)(codec.decode_event)
"""Nodes of one channel read the same bytes."""


class Eyes:
    """Sees everything, remembers little; the checkers remember what they need."""

    def __init__(self, world: World, checkers: tuple[type[Checker], ...] = ALL) -> None:
        self.world = world
        self._kernel = world.kernel
        self.census = Census(world)
        """Told before the checkers, which look things up in it."""
        self.account = Account(world)
        """The same, of why each world ended."""
        self.checkers = [self.census, self.account, *(checker(world) for checker in checkers)]
        self._counters: dict[str, bytes] = {}
        """The last beat of each incarnation, by its key."""
        self.digest = 0
        """A checksum of every operation performed, with its time: equal digests are equal runs."""
        self._look: dict[type, Callable[[Any, Any, Process], None]] = {
            CompareSet: self._see_compare_set,
            Append: self._see_append,
            Set: lambda op, _, process: self._see_values([(op.key, op.value)], process),
            MultiSet: lambda op, _, process: self._see_values(zip(op.keys, op.values, strict=True), process),
            Delete: self._see_delete,
            MultiGet: self._see_read,
        }
        self._audience = {
            name: [
                getattr(checker, name)
                for checker in self.checkers
                if getattr(type(checker), name) is not getattr(Checker, name)
            ]
            for name in vars(Checker)
            if not name.startswith("_") and name != "fail"
        }

    def _tell(self, sighting: str, *facts: Any) -> None:
        for look in self._audience[sighting]:
            look(*facts)

    # --- the store ----------------------------------------------------------------------------------

    def applied(self, op: Op, reply: Any, process: Process) -> None:
        """The server has performed an operation."""
        kind = type(op)
        line = f"{self._kernel.now!r} {process.name} {kind.__name__} {getattr(op, 'key', '')}"
        self.digest = zlib.crc32(line.encode(), self.digest)
        look = self._look.get(kind)
        if look is not None:
            look(op, reply, process)

    def _see_compare_set(self, op: CompareSet, reply: bytes, _: Process) -> None:
        if "/log/" in op.key and reply == op.desired:
            self._tell("log_emptied", op.key)
        elif "/beat/" in op.key and reply == op.desired != self._counters.get(op.key):
            # One that is performed twice is no second beat.
            self._counters[op.key] = reply
            self._tell("beat", op.key.rsplit("/", 1)[1], int(reply))

    def _see_append(self, op: Append, _: Any, process: Process) -> None:
        cycle_id = int(op.key.split("/")[4])
        self._tell("appended", op.key, len(op.value))
        newest = self.world.cycles if self.world.settings.group_size else None
        records, bad = codec.decode_records(op.value, cycle_id, 1 << 30, newest)
        assert not bad, f"{process.name} wrote {bad}"
        for record in records:
            self.world.tell(process.name, f"says {type(record).__name__.lower()} in cycle {cycle_id}")
            self._tell("record", record, process)

    def _see_values(self, pairs: Any, process: Process) -> None:
        copies: list[AnyEvent] = []
        for key, value in pairs:
            family, *rest = key.split("/")[3:] if key.count("/") > 2 else [""]
            if family == "event":
                copies.append(codec.decode_event(value))
            elif family == "fence":
                self.world.tell(process.name, f"fences {self.world.name_of(rest[0])}: {value.decode()}")
                self._tell("fenced", rest[0], value.decode())
        if copies:
            self._see_event(copies)

    def _see_event(self, copies: list[AnyEvent]) -> None:
        """Every channel has its copy; those of a seal differ in their seats."""
        event = copies[0]
        self._tell("published", event)
        match event:
            case Opened():
                of = "" if event.group is None else f" of group {event.group}"
                self.world.tell("host", f"opens cycle {event.cycle_id}{of} (event {event.no}): {event.why}")
                self.world.cycles = event.cycle_id
                self._tell("opened", event)
            case Sealed():
                seats = {name: seat for copy in copies if isinstance(copy, Sealed) for name, seat in copy.seats.items()}
                of = "" if event.group is None else f" of group {event.group}"
                self.world.tell("host", f"seals cycle {event.cycle_id}{of} (event {event.no}): {self._roll(seats)}")
                self._tell("sealed", event, seats)
            case Called():
                asked = {name for copy in copies if isinstance(copy, Called) for name in copy.draining}
                names = " ".join(sorted(self.world.name_of(name) for name in asked))
                what = f"asks to go: {names}" if asked else f"calls: {event.reason}"
                self.world.tell("host", f"{what} (event {event.no})")
                self._tell("called", event, asked)
            case Inquired():
                self.world.tell("host", f"asks where the workers of cycle {event.cycle_id} are (event {event.no})")
                self._tell("inquired", event)
            case Closed():
                self.world.tell("host", f"closes the run (event {event.no}): {event.verdict}")
                self._tell("closed", event)

    def _roll(self, seats: dict[str, Seat]) -> str:
        ranked = sorted((seat.group, seat.rank, name) for name, seat in seats.items() if seat.rank is not None)
        has_groups = self.world.settings.group_size > 0
        return " ".join(
            f"{f'{group}.' if has_groups else ''}{rank}={self.world.name_of(name)}" for group, rank, name in ranked
        )

    def _see_delete(self, op: Delete, was_there: bool, process: Process) -> None:
        family, *rest = op.key.split("/")[3:]
        self._tell("deleted", op.key)
        if family == "event" and was_there:
            self._tell("event_deleted", int(rest[0]))
        elif family == "beat" and process is self.world.host.process:
            self._tell("beat_ended", rest[0])

    def _see_read(self, op: MultiGet, _: Any, __: Process) -> None:
        if "/beat/" in op.keys[0]:
            self._tell("beats_read", [key.rsplit("/", 1)[1] for key in op.keys])
        else:
            self._tell("logs_read")

    def waits(self, connection: Connection, key: str) -> None:
        """A node's read waits at the server for a key that is not there."""
        if "/event/" in key:
            self._tell("waits_for_event", connection, event_number(key))

    # --- the agents ---------------------------------------------------------------------------------

    def receives(self, connection: Connection, op: Op, reply: Any) -> None:
        """A reply has reached a node."""
        if type(op) is CompareSet and "/beat/" in op.key:
            self._tell("beat_answered", op.key.rsplit("/", 1)[1], reply == op.desired, connection.called_at)
        elif type(op) is Get and "/event/" in op.key and reply:
            self._tell("hears", connection.serves, decode_event(reply))

    def begins_anew(self, node: SimNode) -> None:
        self.world.tell(node.name, "begins a new incarnation")
        self._tell("begins_anew", node)

    def takes_place(self, node: SimNode, place: Place) -> None:
        self.world.tell(node.name, f"trains in cycle {place.cycle_id} as rank {place.rank} of {place.world_size}")
        self.world.places_taken += 1
        self._tell("takes_place", node, place)

    def asks_whether_to_stop(self, node: SimNode, place: Place, must_stop: bool) -> None:
        if must_stop:
            self.world.tell(node.name, f"stops its workers of cycle {place.cycle_id}")
        self._tell("asks_whether_to_stop", node, place, must_stop)

    def workers_end(self, node: SimNode, place: Place, ending: Ending) -> None:
        self.world.tell(node.name, f"its workers {ending} in cycle {place.cycle_id}")
        self._tell("workers_end", node, place, ending)

    def reports_update(self, node: SimNode, cycle_id: int, note: UpdateNote) -> None:
        self.world.tell(node.name, f"its workers report update {note.version} of cycle {cycle_id}: {note.outcome}")
        self._tell("reports_update", node, cycle_id, note)

    def hears_verdict(self, node: SimNode, verdict: Verdict) -> None:
        self.world.tell(node.name, f"hears the verdict: {verdict}")
        self._tell("hears_verdict", node, verdict)

    def exits(self, node: SimNode, reason: str, error: Exception | None) -> None:
        self.world.tell(node.name, f"exits: {reason}")
        self._tell("exits", node, error)

    def thread_dies(self, process: Process, thread: str, error: Exception) -> None:
        self.world.tell(process.name, f"its {thread} died: {type(error).__name__}: {error}")
        self._tell("thread_dies", process, thread, error)

    def journals(self, entry: Entry) -> None:
        self._tell("journals", entry)

    def host_leaves(self) -> None:
        self.world.tell("host", "leaves: no other node is in the run")
        self._tell("host_leaves")

    def second_passes(self) -> None:
        self._tell("second_passes")

    def run_ends(self) -> None:
        self._tell("run_ends")
