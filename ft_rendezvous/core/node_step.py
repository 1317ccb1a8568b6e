"""What a node does next, given what the coordinator has published and what the node has done so far."""

from __future__ import annotations

from dataclasses import dataclass

from ft_rendezvous.core.model import Sealed, Seat, Verdict, View


@dataclass(frozen=True, slots=True)
class Drained:
    """A node was asked to go, and may: somebody else has its place, or it had none."""


@dataclass(frozen=True, slots=True)
class WorkerExit:
    """How the first worker to fail on this node ended."""

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
    """The cycle is sealed and we have a rank in it."""

    sealed: Sealed
    seat: Seat


@dataclass(frozen=True, slots=True)
class ReportFailure:
    """We trained in the current cycle and are back: our workers failed, ask for the next cycle."""

    cycle_id: int


@dataclass(frozen=True, slots=True)
class Park:
    """Nothing to do until the next event."""


@dataclass(frozen=True, slots=True)
class Leave:
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class GiveUpPlace:
    """We were asked to go, and nobody needs us any more."""


NodeDecision = Arrive | TakeSeat | ReportFailure | Park | Leave | GiveUpPlace


def decide_step(view: View, mine: Progress, incarnation: str, is_draining: bool) -> NodeDecision:
    """The one thing to do now for a node that is not training."""
    if view.closed is not None:
        return Leave(view.closed.verdict)
    cycle_id = view.cycle_id
    must_report = mine.trained_in == cycle_id and mine.reported_in < cycle_id
    if is_draining and not must_report:
        # Whoever held a place stays until somebody else has it.
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
    """What a newcomer may take from the head it read after its arrival; it watches for the events that follow.

    The head has no seats. If the seal counts our arrival, our seat is in the event of the seal, which is kept
    until we have read it: go back to just before it.
    """
    sealed = head.sealed
    if sealed is None or head.closed is not None or sealed.cycle_id != arrived_in or seq > sealed.counted:
        return head
    return View(no=sealed.no - 1, opened=head.opened)


def is_superseded(view: View, cycle_id: int) -> bool:
    """Whether workers of this cycle must stop."""
    return view.closed is not None or view.cycle_id > cycle_id
