"""Short helpers that build nodes, arrivals and rosters for tests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.model import Arrival, Finish, NodeInfo, Placement
from ft_rendezvous.core.roster import Roster

EPOCH = "e" * 16


def incarnation(number: int) -> str:
    return f"{number:016x}"


def node(
    number: int,
    *,
    infra_rank: int | None = None,
    domain_id: str | None = None,
    unit_id: str | None = None,
    addr: str | None = None,
    role: str | None = None,
    local_world_size: int | None = None,
) -> NodeInfo:
    return NodeInfo(
        addr=addr or f"host{number}",
        pid=100 + number,
        infra_rank=infra_rank,
        domain_id=domain_id,
        unit_id=unit_id,
        role=role,
        local_world_size=local_world_size,
        born_us=number,
    )


def arrival(number: int, *, cycle_id: int = 1, seq: int | None = None, info: NodeInfo | None = None) -> Arrival:
    info = info or node(number)
    return Arrival(
        cycle_id=cycle_id,
        incarnation=incarnation(number),
        seq=number if seq is None else seq,
        node=info,
        bootstrap_port=20000 + number,
    )


def arrivals(numbers: Iterable[int], *, cycle_id: int = 1) -> dict[str, Arrival]:
    return {incarnation(number): arrival(number, cycle_id=cycle_id) for number in numbers}


def roster_of(numbers: Sequence[int], *, cycle_id: int = 1) -> Roster:
    """A roster with an open cycle in which the given nodes have arrived."""
    roster = Roster()
    for number in numbers:
        assert roster.take(arrival(number, cycle_id=cycle_id), cycle_id, is_open=True) == []
    return roster


def sealed_roster(active: Sequence[int], standby: Sequence[int] = ()) -> Roster:
    """A roster whose cycle 1 is sealed; ranks in the order given."""
    roster = roster_of([*active, *standby])
    roster.seal(Placement(tuple(map(incarnation, active)), tuple(map(incarnation, standby))), 1)
    return roster


def roster_with(role: Role) -> Roster:
    """A roster with node 1 in the given role and node 2 active or awaited, built with real steps."""
    match role:
        case Role.HOT_SPARE:
            roster = sealed_roster([2])
            roster.take(arrival(1), 1, is_open=False)
        case Role.ARRIVED:
            roster = roster_of([1, 2])
        case Role.ACTIVE:
            roster = sealed_roster([1, 2])
        case Role.STANDBY:
            roster = sealed_roster([2], standby=[1])
        case Role.AWAITED:
            roster = sealed_roster([1, 2])
            roster.reopen()
        case Role.FINISHED:
            roster = sealed_roster([1, 2])
            roster.take(Finish(cycle_id=1, incarnation=incarnation(1)), 1, is_open=False)
    assert roster.members[incarnation(1)].role is role
    return roster


def role_of(roster: Roster, number: int) -> Role | None:
    member = roster.members.get(incarnation(number))
    return member.role if member is not None else None
