"""Decides what a node does next, from what the coordinator published and what the node has done so far."""

from __future__ import annotations

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
        # A node that held a place stays until another node has it.
        is_replaced = view.sealed is not None and view.sealed.cycle_id > mine.trained_in
        return GiveUpPlace() if mine.trained_in == 0 or is_replaced else Park()
    if mine.arrived_in < cycle_id:
        return Arrive(cycle_id)
    if mine.trained_in == cycle_id:
        return ReportFailure(cycle_id) if must_report else Park()
    seat = view.sealed.seats.get(incarnation) if view.sealed is not None else None
    if view.sealed is not None and seat is not None and seat.rank is not None:
        return TakeSeat(view.sealed, seat)
    return Park()


def watch_from(head: View, arrived_in: int, seq: int) -> View:
    """The view from which a new node follows events. It has read the head after its arrival.

    The head has no seats. If the seal counts this node's arrival, its seat is in the event of the seal. The coordinator
    keeps that event until this node has read it. So the node starts just before it.
    """
    sealed = head.sealed
    if sealed is None or head.closed is not None or sealed.cycle_id != arrived_in or seq > sealed.counted:
        return head
    return View(no=sealed.no - 1, opened=head.opened)


def is_superseded(view: View, cycle_id: int) -> bool:
    """Whether workers of this cycle must stop."""
    return view.closed is not None or view.cycle_id > cycle_id
