"""The two state machines of a run, each one table.

A *run* is open (it gathers arrivals), sealed (it trains) or closed. A *node*, as the coordinator sees it, has one
role at a time. Every change goes through a table. A pair that is not in the table is a bug of ours.

    run      open ──seal──▶ sealed ──open──▶ open          open/sealed ──close──▶ closed

    node     hot spare ──arrive──▶ arrived ──seal──▶ active ──finish──▶ finished
                 ▲                    │                 │
                 │                    └──seal──▶ standby│
                 └────────────── open ──────────┘      open
                 ◀───── missed the seal ── awaited ◀────┘   (awaited ──arrive──▶ arrived)

With replica groups, an arrival stands: a node that came too late for a seal stands by, and the seal of a group may
place any standby. Only a common cycle makes the standbys arrive again.
"""

from __future__ import annotations

from enum import StrEnum

from ft_rendezvous.errors import ProtocolBug


class Phase(StrEnum):
    OPEN = "open"
    SEALED = "sealed"
    CLOSED = "closed"


class RunStep(StrEnum):
    OPEN = "open"
    SEAL = "seal"
    CLOSE = "close"


RUN_TABLE: dict[tuple[Phase, RunStep], Phase] = {
    (Phase.OPEN, RunStep.SEAL): Phase.SEALED,
    (Phase.OPEN, RunStep.CLOSE): Phase.CLOSED,
    (Phase.SEALED, RunStep.OPEN): Phase.OPEN,
    (Phase.SEALED, RunStep.CLOSE): Phase.CLOSED,
}


class Role(StrEnum):
    HOT_SPARE = "hot spare"
    ARRIVED = "arrived"
    ACTIVE = "active"
    STANDBY = "standby"
    AWAITED = "awaited"
    """It was active when the next cycle opened. It stops its workers and is expected to arrive."""
    FINISHED = "finished"


class NodeStep(StrEnum):
    ARRIVE = "arrive"
    WITHDRAW = "withdraw"
    """It takes its arrival back."""
    PLACE = "place"
    PASS_OVER = "pass over"
    """The cycle was sealed, and this node got no rank."""
    FINISH = "finish"
    REOPEN = "reopen"
    STAND_BY = "stand by"
    """It arrived, and waits for a place in any group."""


ROLE_TABLE: dict[tuple[Role, NodeStep], Role] = {
    (Role.HOT_SPARE, NodeStep.ARRIVE): Role.ARRIVED,
    (Role.HOT_SPARE, NodeStep.PASS_OVER): Role.HOT_SPARE,
    (Role.HOT_SPARE, NodeStep.REOPEN): Role.HOT_SPARE,
    # Its workers ended well in the cycle before the one that was sealed without it.
    (Role.HOT_SPARE, NodeStep.FINISH): Role.FINISHED,
    (Role.ARRIVED, NodeStep.WITHDRAW): Role.HOT_SPARE,
    (Role.ARRIVED, NodeStep.PLACE): Role.ACTIVE,
    (Role.ARRIVED, NodeStep.PASS_OVER): Role.STANDBY,
    (Role.ACTIVE, NodeStep.FINISH): Role.FINISHED,
    (Role.ACTIVE, NodeStep.REOPEN): Role.AWAITED,
    (Role.STANDBY, NodeStep.REOPEN): Role.HOT_SPARE,
    (Role.AWAITED, NodeStep.ARRIVE): Role.ARRIVED,
    # Its workers ended well while the coordinator was opening the next cycle.
    (Role.AWAITED, NodeStep.FINISH): Role.FINISHED,
    (Role.AWAITED, NodeStep.PASS_OVER): Role.HOT_SPARE,
    (Role.HOT_SPARE, NodeStep.STAND_BY): Role.STANDBY,
    (Role.STANDBY, NodeStep.PLACE): Role.ACTIVE,
    (Role.STANDBY, NodeStep.WITHDRAW): Role.HOT_SPARE,
    # A common cycle opens while the cycle of a group is open.
    (Role.ARRIVED, NodeStep.REOPEN): Role.AWAITED,
    (Role.AWAITED, NodeStep.REOPEN): Role.AWAITED,
    (Role.FINISHED, NodeStep.PASS_OVER): Role.FINISHED,
    (Role.FINISHED, NodeStep.REOPEN): Role.FINISHED,
}


def roles_after(step: NodeStep) -> dict[Role, Role]:
    """What a step that concerns all nodes makes of them, by what they were; roles that stay are left out."""
    return {role: after for (role, each), after in ROLE_TABLE.items() if each is step and after is not role}


def next_phase(phase: Phase, step: RunStep) -> Phase:
    try:
        return RUN_TABLE[phase, step]
    except KeyError:
        raise ProtocolBug(f"a run that is {phase} cannot {step}") from None


def next_role(role: Role, step: NodeStep) -> Role:
    try:
        return ROLE_TABLE[role, step]
    except KeyError:
        raise ProtocolBug(f"a node that is {role} cannot {step}") from None
