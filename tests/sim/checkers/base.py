"""A checker: every sighting there is, and how to say that a guarantee does not hold."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

from ft_rendezvous.core.model import (
    AnyEvent,
    AnyRecord,
    Called,
    Closed,
    Inquired,
    Opened,
    Sealed,
    Seat,
    Verdict,
)
from ft_rendezvous.core.update_notes import UpdateNote
from ft_rendezvous.protocol.journal import Entry
from ft_rendezvous.protocol.participant import Place
from tests.sim.faults import Ending
from tests.sim.kernel import Connection, Process

if TYPE_CHECKING:
    from tests.sim.agent import SimNode
    from tests.sim.naive_roster import Census
    from tests.sim.world import World


class Violation(BaseException):
    """A guarantee does not hold. Passes through every `except Exception` of the code that is being watched."""

    def __init__(self, checker: str, fact: str) -> None:
        super().__init__(checker, fact)
        self.checker = checker
        self.fact = fact

    def __str__(self) -> str:
        return f"{self.checker}: {self.fact}"


class Checker:
    """All sightings there are; a checker overrides those it judges by."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._settings = world.settings

    def fail(self, fact: str) -> NoReturn:
        raise Violation(type(self).__name__, fact)

    @property
    def _now(self) -> float:
        return self._world.kernel.now

    @property
    def _census(self) -> Census:
        return self._world.eyes.census

    def _name(self, incarnation: str) -> str:
        return self._world.name_of(incarnation)

    # What the server performed.
    def published(self, event: AnyEvent) -> None: ...
    def opened(self, event: Opened) -> None: ...
    def sealed(self, event: Sealed, seats: dict[str, Seat]) -> None: ...
    def called(self, event: Called, draining: set[str]) -> None: ...
    def inquired(self, event: Inquired) -> None: ...
    def closed(self, event: Closed) -> None: ...
    def record(self, record: AnyRecord, process: Process) -> None: ...
    def appended(self, key: str, size_bytes: int) -> None: ...
    def deleted(self, key: str) -> None: ...
    def log_emptied(self, key: str) -> None: ...
    def beat(self, incarnation: str, counter: int) -> None: ...
    def beats_read(self, incarnations: list[str]) -> None: ...
    def logs_read(self) -> None: ...
    def fenced(self, incarnation: str, reason: str) -> None: ...
    def beat_ended(self, incarnation: str) -> None: ...
    def event_deleted(self, no: int) -> None: ...
    def waits_for_event(self, ear: Connection, no: int) -> None: ...

    # What agents saw and did.
    def beat_answered(self, incarnation: str, is_renewed: bool, called_at: float) -> None: ...
    def hears(self, incarnation: str, event: AnyEvent) -> None: ...
    def begins_anew(self, node: SimNode) -> None: ...
    def takes_place(self, node: SimNode, place: Place) -> None: ...
    def asks_whether_to_stop(self, node: SimNode, place: Place, must_stop: bool) -> None: ...
    def workers_end(self, node: SimNode, place: Place, ending: Ending) -> None: ...
    def reports_update(self, node: SimNode, cycle_id: int, note: UpdateNote) -> None: ...
    def hears_verdict(self, node: SimNode, verdict: Verdict) -> None: ...
    def exits(self, node: SimNode, error: Exception | None) -> None: ...
    def thread_dies(self, process: Process, thread: str, error: Exception) -> None: ...

    # What the host did.
    def host_leaves(self) -> None: ...
    def journals(self, entry: Entry) -> None: ...

    # The passing of time.
    def second_passes(self) -> None: ...
    def run_ends(self) -> None: ...


def event_number(key: str) -> int:
    """The number in the name of an event, whatever its channel."""
    return int(key.split("/")[4])
