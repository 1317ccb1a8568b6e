"""Decides what a node does next, from what the coordinator published and what the node has done so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ft_rendezvous.core.model import Sealed, Seat, Verdict, View


@dataclass(frozen=True, slots=True)
class Drained:
    """A draining node may leave now: another node has its place, or it had none."""


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How the worker that failed first on this node ended."""

    reason: str
    rank: int | None = None
    exit_code: int | None = None
    after_s: float | None = None
    log_path: str = ""
    last_words: str = ""


@dataclass(slots=True)
class Progress:
    """The newest cycle in which this incarnation did each thing."""

    arrived_in: int = 0
    trained_in: int = 0
    reported_in: int = 0
    finished_in: int = 0


@dataclass(frozen=True, slots=True)
class Arrive:
    cycle_id: int


@dataclass(frozen=True, slots=True)
class TakeSeat:
    """The cycle is sealed, and this node has a rank in it."""

    sealed: Sealed
    seat: Seat


@dataclass(frozen=True, slots=True)
class ReportFailure:
    """This node trained in the current cycle, and its workers failed: ask for the next cycle."""

    cycle_id: int


@dataclass(frozen=True, slots=True)
class Park:
    """Nothing to do until the next event."""


@dataclass(frozen=True, slots=True)
class Leave:
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class GiveUpPlace:
    """This node drains, and no other node needs it any more."""


NodeDecision = Arrive | TakeSeat | ReportFailure | Park | Leave | GiveUpPlace


def decide_step(view: View, mine: Progress, incarnation: str, is_draining: bool) -> NodeDecision:
    """The one thing that a node does now, if it does not train."""
    if view.closed is not None:
        return Leave(view.closed.verdict)
    cycle_id = view.cycle_id
    must_report = mine.trained_in == cycle_id and mine.reported_in < cycle_id
    if is_draining and not must_report:
        # A node that held a place stays until another node has it. With groups, it goes when its group has opened its
        # next cycle: the group may be given up, and then it hears of no seal.
        is_replaced = view.sealed is not None and view.sealed.cycle_id > mine.trained_in
        has_no_place = view.opened.group is not None and view.cycle_id > mine.trained_in
        return GiveUpPlace() if mine.trained_in == 0 or is_replaced or has_no_place else Park()
    if mine.trained_in == cycle_id:
        return ReportFailure(cycle_id) if must_report else Park()
    # With groups, a node that stands by is placed in cycles that it did not arrive in.
    seat = view.sealed.seats.get(incarnation) if view.sealed is not None else None
    has_arrived = mine.arrived_in == cycle_id or view.opened.group is not None
    if view.sealed is not None and seat is not None and seat.rank is not None and has_arrived:
        return TakeSeat(view.sealed, seat)
    return Arrive(cycle_id) if mine.arrived_in < cycle_id else Park()


def find_seals(head: View, arrived_in: int, seq: int, seals: Sequence[tuple[int, int]] = ()) -> list[int]:
    """The events that may hold the seat of a new node, in their order. It has read the head after its arrival.

    The head has no seats. If a seal counts this node's arrival, its seat is in the event of the seal. `seals` are those
    of single groups: the numbers of their events, and the arrivals they have counted.
    """
    sealed = head.sealed
    if sealed is None or head.closed is not None or sealed.cycle_id != arrived_in:
        return []
    return [no for no, counted in ((sealed.no, sealed.counted), *sorted(seals)) if seq <= counted]


def watch_from(head: View, seal_no: int | None) -> View:
    """The view from which a new node follows events: just before the seal that may have its seat, if there is one."""
    if seal_no is None or head.sealed is None:
        return head
    return View(no=seal_no - 1, opened=head.opened, sealed=head.sealed if seal_no > head.sealed.no else None)


def is_superseded(view: View, cycle_id: int) -> bool:
    """Whether workers of this cycle must stop."""
    return view.closed is not None or view.cycle_id > cycle_id
