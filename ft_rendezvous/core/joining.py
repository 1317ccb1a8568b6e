"""What a node does next, given what the coordinator has published and what the node has done so far."""

from __future__ import annotations

from dataclasses import dataclass

from ft_rendezvous.core.model import Sealed, Verdict, View


@dataclass(slots=True)
class Progress:
    """The newest cycle in which this incarnation did each thing."""

    arrived_in: int = 0
    looked_up: int = 0
    trained_in: int = 0
    reported_in: int = 0
    finished_in: int = 0


@dataclass(frozen=True, slots=True)
class Arrive:
    cycle_id: int


@dataclass(frozen=True, slots=True)
class LookUp:
    """The cycle is sealed: read our seat."""

    sealed: Sealed


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


NodeDecision = Arrive | LookUp | ReportFailure | Park | Leave


def decide_step(view: View, mine: Progress) -> NodeDecision:
    """The one thing to do now for a node that wants a place."""
    if view.closed is not None:
        return Leave(view.closed.verdict)
    cycle_id = view.cycle_id
    if mine.arrived_in < cycle_id:
        return Arrive(cycle_id)
    if mine.trained_in == cycle_id:
        return Park() if mine.reported_in == cycle_id else ReportFailure(cycle_id)
    if view.sealed is not None and mine.looked_up < cycle_id:
        return LookUp(view.sealed)
    return Park()


def is_superseded(view: View, cycle_id: int) -> bool:
    """Whether workers of this cycle must stop."""
    return view.closed is not None or view.cycle_id > cycle_id
