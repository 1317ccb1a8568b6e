"""The life of a party of a fleet, as one table. Pure.

    STALE ──complete──▶ HEALTHY ──fail──▶ SUSPECT ──fail too often──▶ DEAD ──restart──▶ RESTARTING ──return──▶ STALE

Any live party may fail, die, or be restarted. A pair that is not in the table is a bug of ours.
"""

from __future__ import annotations

from enum import StrEnum

from ft_rendezvous.errors import ProtocolBug


class PartyState(StrEnum):
    HEALTHY = "healthy"
    """The last update completed on it. It may serve."""
    SUSPECT = "suspect"
    """It failed. The next update tries it again."""
    DEAD = "dead"
    """It is gone, or it failed too often in a row."""
    RESTARTING = "restarting"
    """A replacement is on its way."""
    STALE = "stale"
    """It is new, or it came back. No update has reached it."""


class PartyStep(StrEnum):
    COMPLETE = "complete"
    """An update completed on it."""
    FAIL = "fail"
    DIE = "die"
    RESTART = "restart"
    RETURN = "return"
    """Another party has taken its name: it came back, or it was replaced."""


HEALTHY, SUSPECT, DEAD = PartyState.HEALTHY, PartyState.SUSPECT, PartyState.DEAD
RESTARTING, STALE = PartyState.RESTARTING, PartyState.STALE

PARTY_TABLE: dict[tuple[PartyState, PartyStep], PartyState] = {
    (STALE, PartyStep.COMPLETE): HEALTHY,
    (HEALTHY, PartyStep.COMPLETE): HEALTHY,
    (SUSPECT, PartyStep.COMPLETE): HEALTHY,
    (STALE, PartyStep.FAIL): SUSPECT,
    (HEALTHY, PartyStep.FAIL): SUSPECT,
    (SUSPECT, PartyStep.FAIL): SUSPECT,
    (STALE, PartyStep.DIE): DEAD,
    (HEALTHY, PartyStep.DIE): DEAD,
    (SUSPECT, PartyStep.DIE): DEAD,
    # Its replacement did not come up.
    (RESTARTING, PartyStep.DIE): DEAD,
    (DEAD, PartyStep.DIE): DEAD,
    (STALE, PartyStep.RESTART): RESTARTING,
    (HEALTHY, PartyStep.RESTART): RESTARTING,
    (SUSPECT, PartyStep.RESTART): RESTARTING,
    (DEAD, PartyStep.RESTART): RESTARTING,
    (RESTARTING, PartyStep.RESTART): RESTARTING,
    (STALE, PartyStep.RETURN): STALE,
    (HEALTHY, PartyStep.RETURN): STALE,
    (SUSPECT, PartyStep.RETURN): STALE,
    (DEAD, PartyStep.RETURN): STALE,
    (RESTARTING, PartyStep.RETURN): STALE,
}
TAKES_PART = frozenset({HEALTHY, SUSPECT, STALE})
"""The states in which an update calls a party."""


def next_party_state(state: PartyState, step: PartyStep) -> PartyState:
    try:
        return PARTY_TABLE[state, step]
    except KeyError:
        raise ProtocolBug(f"a party that is {state} cannot {step}") from None
