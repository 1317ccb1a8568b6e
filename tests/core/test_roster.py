"""What every record does to every role, and what the roster answers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import msgspec
import pytest

from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.core.capacity import PlacementRules, Policy
from ft_rendezvous.core.effects import Fence, FenceCause, UpdatesTold
from ft_rendezvous.core.lifecycle import Role
from ft_rendezvous.core.model import (
    AnyRecord,
    Failure,
    Finish,
    Goodbye,
    NodeInfo,
    NodeLeft,
    NodesLost,
    Outcome,
    Placement,
    Request,
    RequestKind,
    RestartRequested,
    UpdateNews,
    Withdrawal,
    WorkersFailed,
)
from ft_rendezvous.core.roster import Roster
from ft_rendezvous.core.update_notes import UpdateSums
from tests.core.build import arrival, incarnation, node, role_of, roster_of, roster_with, sealed_roster

ONE, TWO = incarnation(1), incarnation(2)


def take(roster: Roster, record: AnyRecord, cycle_id: int, is_open: bool) -> list[Fence]:
    """Take in a record; what is to be fenced because of it."""
    return [effect for effect in roster.take(record, cycle_id, is_open) if isinstance(effect, Fence)]


def charge(roster: Roster, failure: Failure) -> FailureNote | None:
    """Take in a failure; the note for the ledger, if it is one of the last world's."""
    notes = [effect for effect in roster.take(failure, 2, is_open=True) if isinstance(effect, FailureNote)]
    return notes[0] if notes else None


def withdrawal(cycle_id: int) -> AnyRecord:
    return Withdrawal(cycle_id=cycle_id, incarnation=ONE, node=node(1), reason="a bad GPU")


def failure(cycle_id: int) -> AnyRecord:
    return Failure(cycle_id=cycle_id, incarnation=ONE, reason="exit 1")


def finish(cycle_id: int, number: int = 1) -> AnyRecord:
    return Finish(cycle_id=cycle_id, incarnation=incarnation(number))


def goodbye(cycle_id: int, outcome: Outcome = Outcome.LEFT, number: int = 1) -> AnyRecord:
    return Goodbye(cycle_id=cycle_id, incarnation=incarnation(number), outcome=outcome, reason="SIGTERM")


def is_open_in(role: Role) -> bool:
    """Whether a roster with this role, as `roster_with` builds it, is in an open cycle."""
    return role in (Role.ARRIVED, Role.AWAITED)


def cycle_of(role: Role) -> int:
    return 2 if role is Role.AWAITED else 1


def after_record(role: Role, record: Callable[[int], AnyRecord], cycle_id: int | None = None) -> Roster:
    """A roster with node 1 in this role, after it wrote this record in the roster's cycle, or in the given one."""
    roster = roster_with(role)
    current = cycle_of(role)
    fences = take(roster, record(cycle_id or current), current, is_open=is_open_in(role))
    assert fences == []
    return roster


# --- each record, each role -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "after"),
    [
        (Role.HOT_SPARE, Role.HOT_SPARE),
        (Role.ARRIVED, Role.ARRIVED),
        (Role.ACTIVE, Role.ACTIVE),
        (Role.STANDBY, Role.STANDBY),
        (Role.AWAITED, Role.ARRIVED),
        (Role.FINISHED, Role.FINISHED),
    ],
)
def test_an_arrival(role: Role, after: Role) -> None:
    roster = after_record(role, lambda cycle_id: arrival(1, cycle_id=cycle_id))
    assert role_of(roster, 1) is after
    assert (ONE in roster.arrived) == (after is Role.ARRIVED)
    assert ONE not in roster.awaited


def test_an_arrival_of_a_hot_spare_in_an_open_cycle() -> None:
    roster = sealed_roster([2])
    take(roster, arrival(1), 1, is_open=False)
    roster.reopen()
    take(roster, arrival(1, cycle_id=2), 2, is_open=True)
    assert role_of(roster, 1) is Role.ARRIVED


@pytest.mark.parametrize("role", list(Role))
def test_a_withdrawal_ends_an_incarnation_and_says_why(role: Role) -> None:
    roster = after_record(role, withdrawal)
    assert role_of(roster, 1) is None
    assert ONE not in roster.arrived
    assert roster.troubles == ([NodesLost(("host1 pid 101",), (0,))] if role is Role.ACTIVE else [])
    assert roster.unhealthy == {"host1": "host1 pid 101: a bad GPU"}


@pytest.mark.parametrize("role", list(Role))
def test_a_failure_is_a_trouble_if_it_comes_from_an_active(role: Role) -> None:
    roster = after_record(role, failure)
    assert role_of(roster, 1) is role
    assert roster.troubles == ([WorkersFailed("host1 pid 101", 0, "exit 1")] if role is Role.ACTIVE else [])


@pytest.mark.parametrize("role", list(Role))
def test_a_finish_counts_once_for_a_node_that_can_have_trained(role: Role) -> None:
    roster = after_record(role, finish)
    # A hot spare may be a former active node. Its finish is read after the next cycle was sealed without it.
    finishes = role in (Role.ACTIVE, Role.AWAITED, Role.HOT_SPARE)
    assert role_of(roster, 1) is (Role.FINISHED if finishes else role)
    assert roster.finished_count == (1 if finishes or role is Role.FINISHED else 0)
    assert ONE not in roster.unfinished
    assert ONE not in roster.awaited
    assert roster.troubles == []


@pytest.mark.parametrize(("role", "outcome"), list(product(Role, Outcome)))
def test_a_goodbye_ends_an_incarnation(role: Role, outcome: Outcome) -> None:
    roster = after_record(role, lambda cycle_id: goodbye(cycle_id, outcome))
    assert role_of(roster, 1) is None
    assert roster.is_known(ONE)
    assert ONE not in roster.arrived
    assert ONE not in roster.awaited
    assert roster.spent_count == (outcome is Outcome.FAILED)
    assert roster.left_count == (outcome in (Outcome.LEFT, Outcome.DRAINED))
    has_finished = role is Role.FINISHED or (outcome is Outcome.SUCCEEDED and role in (Role.ACTIVE, Role.AWAITED))
    assert roster.finished_count == has_finished
    assert roster.finished_live_count == 0
    is_trouble = role is Role.ACTIVE and outcome is not Outcome.SUCCEEDED
    assert roster.troubles == ([NodeLeft("host1 pid 101", 0, outcome, "SIGTERM")] if is_trouble else [])
    was_in_the_world = role in (Role.ACTIVE, Role.AWAITED)
    assert (ONE in roster.unfinished) == (was_in_the_world and outcome is not Outcome.SUCCEEDED)


@pytest.mark.parametrize("role", list(Role))
def test_death_is_a_trouble_if_it_takes_an_active(role: Role) -> None:
    roster = roster_with(role)
    roster.drop(ONE)
    assert role_of(roster, 1) is None
    assert roster.troubles == ([NodesLost(("host1 pid 101",), (0,))] if role is Role.ACTIVE else [])
    assert roster.joinable_count() == 1
    assert roster.finished_count == (role is Role.FINISHED)


def test_the_dead_say_nothing_more() -> None:
    roster = sealed_roster([1, 2])
    roster.drop(ONE)
    before = list(roster.troubles)
    for record in (arrival(1), failure(1), finish(1), withdrawal(1), goodbye(1, Outcome.FAILED)):
        assert take(roster, record, 1, is_open=False) == []
    assert role_of(roster, 1) is None
    assert roster.troubles == before
    assert (roster.finished_count, roster.spent_count) == (0, 0)
    assert ONE in roster.unfinished, "a dead active has not finished"


def test_a_stranger_that_never_arrived_says_nothing() -> None:
    roster = Roster()
    for record in (failure(1), finish(1), goodbye(1)):
        assert take(roster, record, 1, is_open=True) == []
    assert roster == Roster()


def test_a_stranger_that_is_unfit_is_counted_as_such() -> None:
    roster = Roster()
    take(roster, withdrawal(1), 1, is_open=True)
    assert list(roster.unhealthy) == ["host1"]
    assert roster.members == {}
    take(roster, arrival(1), 1, is_open=True)
    assert roster.unhealthy == {}, "it is fit again"


# --- records of an older cycle ----------------------------------------------------------------------


def moved_on() -> Roster:
    """Nodes 1 and 2 trained in cycle 1 and in cycle 2, which is sealed."""
    roster = sealed_roster([1, 2])
    roster.reopen()
    for number in (1, 2):
        take(roster, arrival(number, cycle_id=2), 2, is_open=True)
    roster.seal(Placement((ONE, TWO), ()), 2)
    return roster


def test_a_failure_of_the_last_cycle_does_not_end_this_one() -> None:
    roster = moved_on()
    take(roster, failure(1), 2, is_open=False)
    assert roster.troubles == []


def test_an_arrival_of_the_last_cycle_does_not_count_in_this_one() -> None:
    roster = sealed_roster([1, 2])
    roster.reopen()
    take(roster, arrival(1, cycle_id=1), 2, is_open=True)
    assert role_of(roster, 1) is Role.AWAITED
    assert roster.arrived == {}


def test_a_newcomer_in_an_old_log_is_introduced_as_a_hot_spare() -> None:
    roster = sealed_roster([1, 2])
    roster.reopen()
    take(roster, arrival(3, cycle_id=1), 2, is_open=True)
    assert role_of(roster, 3) is Role.HOT_SPARE
    assert roster.arrived == {}


def test_a_finish_in_the_last_cycle_counts_after_the_next_has_opened() -> None:
    roster = sealed_roster([1, 2])
    roster.reopen()
    take(roster, finish(1), 2, is_open=True)
    assert role_of(roster, 1) is Role.FINISHED
    assert list(roster.awaited) == [TWO]


# --- infra ranks ------------------------------------------------------------------------------------


def test_a_newer_start_at_the_same_address_replaces_the_older() -> None:
    roster = sealed_roster([2])
    take(roster, arrival(1, info=node(1, infra_rank=7, addr="gpu7")), 1, is_open=False)
    (fence,) = take(roster, arrival(3, info=node(3, infra_rank=7, addr="gpu7")), 1, is_open=False)
    assert (fence.incarnation, fence.cause.is_refusal) == (ONE, True)
    assert fence.node == "infra rank 7 at gpu7 pid 101"
    assert fence.reason == "infra rank 7 at gpu7 pid 103 is a newer start of infra rank 7 at gpu7 pid 101"
    assert role_of(roster, 1) is None
    assert role_of(roster, 3) is Role.HOT_SPARE


def test_a_replaced_active_is_lost_to_its_world() -> None:
    roster = Roster()
    take(roster, arrival(1, info=node(1, infra_rank=7, addr="gpu7")), 1, is_open=True)
    roster.seal(Placement((ONE,), ()), 1)
    take(roster, arrival(3, info=node(3, infra_rank=7, addr="gpu7")), 1, is_open=False)
    assert roster.troubles == [NodesLost(("infra rank 7 at gpu7 pid 101",), (0,))]


def test_a_process_that_lost_touch_does_not_throw_out_the_one_started_in_its_place() -> None:
    """The node was frozen, an operator started it again, then it thaws: the second process is the newer start."""
    roster = sealed_roster([2])
    take(roster, arrival(3, info=node(3, infra_rank=7, addr="gpu7")), 1, is_open=False)
    back = arrival(1, cycle_id=5, seq=9, info=node(1, infra_rank=7, addr="gpu7"))
    (fence,) = take(roster, back, 1, is_open=False)
    assert (fence.incarnation, fence.cause.is_refusal) == (ONE, True)
    assert fence.reason == "infra rank 7 at gpu7 pid 103 was started later, in the place of this node"
    assert role_of(roster, 3) is Role.HOT_SPARE


def booted(number: int, boot_id: str) -> NodeInfo:
    return msgspec.structs.replace(node(number, infra_rank=7, addr="gpu7"), boot_id=boot_id)


def test_a_machine_that_was_booted_again_is_not_taken_for_an_older_start() -> None:
    """Its clock began anew, so its new process seems to be born before the one that went down with it."""
    roster = sealed_roster([2])
    take(roster, arrival(3, seq=4, info=booted(3, "before")), 1, is_open=False)
    (fence,) = take(roster, arrival(1, seq=5, info=booted(1, "after")), 1, is_open=False)
    assert (fence.incarnation, fence.cause) == (incarnation(3), FenceCause.REPLACED)
    assert role_of(roster, 1) is Role.HOT_SPARE


def test_of_two_boots_the_later_arrival_counts_even_if_it_is_read_first() -> None:
    roster = sealed_roster([2])
    take(roster, arrival(1, seq=5, info=booted(1, "after")), 1, is_open=False)
    (fence,) = take(roster, arrival(3, seq=4, info=booted(3, "before")), 1, is_open=False)
    assert (fence.incarnation, fence.cause) == (incarnation(3), FenceCause.REFUSED)
    assert role_of(roster, 1) is Role.HOT_SPARE


def test_a_process_that_returns_replaces_its_own_former_incarnation() -> None:
    roster = sealed_roster([2])
    info = node(1, infra_rank=7, addr="gpu7")
    take(roster, arrival(1, info=info), 1, is_open=False)
    (fence,) = take(roster, arrival(3, info=info), 1, is_open=False)
    assert fence.incarnation == ONE
    assert role_of(roster, 3) is Role.HOT_SPARE


def test_a_record_of_a_former_incarnation_that_is_read_late_does_not_replace_the_present_one() -> None:
    roster = sealed_roster([2])
    info = node(1, infra_rank=7, addr="gpu7")
    take(roster, arrival(3, seq=5, info=info), 1, is_open=False)
    (fence,) = take(roster, arrival(1, seq=4, info=info), 1, is_open=False)
    assert fence.incarnation == ONE
    assert role_of(roster, 3) is Role.HOT_SPARE


def test_the_same_infra_rank_at_another_address_is_refused_and_told_of_both() -> None:
    roster = roster_of([2])
    take(roster, arrival(1, info=node(1, infra_rank=7, addr="gpu7")), 1, is_open=True)
    (fence,) = take(roster, arrival(3, info=node(3, infra_rank=7, addr="gpu8")), 1, is_open=True)
    assert (fence.incarnation, fence.cause.is_refusal) == (incarnation(3), True)
    for fact in ("infra rank 7", "gpu7 pid 101", "gpu8 pid 103", "infra_rank=N", "FT_INFRA_RANK"):
        assert fact in fence.reason
    assert role_of(roster, 1) is Role.ARRIVED
    assert role_of(roster, 3) is None
    assert take(roster, arrival(3, info=node(3, infra_rank=7, addr="gpu8")), 1, is_open=True) == []


@pytest.mark.parametrize("how", ["drop", "goodbye"])
def test_an_infra_rank_is_free_again_when_its_holder_has_gone(how: str) -> None:
    roster = roster_of([2])
    take(roster, arrival(1, info=node(1, infra_rank=7, addr="gpu7")), 1, is_open=True)
    if how == "drop":
        roster.drop(ONE)
    else:
        take(roster, goodbye(1), 1, is_open=True)
    assert take(roster, arrival(3, info=node(3, infra_rank=7, addr="gpu8")), 1, is_open=True) == []
    assert role_of(roster, 3) is Role.ARRIVED


def test_nodes_without_an_infra_rank_never_contest() -> None:
    roster = Roster()
    for number in range(1, 5):
        assert take(roster, arrival(number, info=node(number, addr="same")), 1, is_open=True) == []
    assert len(roster.arrived) == 4


def test_a_known_node_arrives_again_without_contesting_itself() -> None:
    info = node(1, infra_rank=7)
    roster = Roster()
    take(roster, arrival(1, info=info), 1, is_open=True)
    roster.seal(Placement((ONE,), ()), 1)
    roster.reopen()
    assert take(roster, arrival(1, cycle_id=2, info=info), 2, is_open=True) == []
    assert role_of(roster, 1) is Role.ARRIVED


# --- openings and seals -----------------------------------------------------------------------------


def test_an_opening_awaits_the_actives_and_forgets_their_troubles() -> None:
    roster = sealed_roster([1, 2], standby=[3])
    take(roster, finish(1, number=2), 1, is_open=False)
    take(roster, failure(1), 1, is_open=False)
    roster.reopen()
    assert [role_of(roster, number) for number in (1, 2, 3)] == [Role.AWAITED, Role.FINISHED, Role.HOT_SPARE]
    assert list(roster.awaited) == [ONE]
    assert roster.troubles == []
    assert roster.joinable_count() == 2


def test_a_seal_places_some_and_passes_over_the_rest() -> None:
    roster = sealed_roster([1, 2])
    roster.reopen()
    for number in (1, 3, 4):
        take(roster, arrival(number, cycle_id=2), 2, is_open=True)
    roster.seal(Placement((ONE, incarnation(3)), (incarnation(4),)), 2)
    roles = [role_of(roster, number) for number in (1, 2, 3, 4)]
    assert roles == [Role.ACTIVE, Role.HOT_SPARE, Role.ACTIVE, Role.STANDBY]
    assert [a.incarnation for a in roster.world] == [ONE, incarnation(3)]
    assert roster.unfinished == {ONE, incarnation(3)}
    assert (roster.arrived, roster.awaited) == ({}, {})


def test_ranks_in_reasons_are_those_of_the_last_seal() -> None:
    roster = sealed_roster([1, 2])
    roster.reopen()
    for number in (1, 2):
        take(roster, arrival(number, cycle_id=2), 2, is_open=True)
    roster.seal(Placement((TWO, ONE), ()), 2)
    take(roster, failure(2), 2, is_open=False)
    assert roster.troubles == [WorkersFailed("host1 pid 101", 1, "exit 1")]


def test_spent_agents_are_forgiven_by_the_next_seal_and_finishes_never() -> None:
    roster = sealed_roster([1, 2])
    take(roster, goodbye(1, Outcome.FAILED), 1, is_open=False)
    take(roster, finish(1, number=2), 1, is_open=False)
    roster.reopen()
    for number in (3, 4):
        take(roster, arrival(number, cycle_id=2), 2, is_open=True)
    assert (roster.spent_count, roster.finished_count) == (1, 1)
    roster.seal(Placement((incarnation(3), incarnation(4)), ()), 2)
    assert (roster.spent_count, roster.finished_count) == (0, 0)


def test_joinable_nodes_are_all_but_the_finished() -> None:
    roster = sealed_roster([1, 2], standby=[3])
    assert roster.joinable_count() == 3
    take(roster, finish(1), 1, is_open=False)
    assert roster.joinable_count() == 2
    take(roster, goodbye(1, Outcome.SUCCEEDED), 1, is_open=False)
    assert roster.joinable_count() == 2
    roster.drop(TWO)
    assert roster.joinable_count() == 1


def test_a_node_is_described_with_its_rank_while_it_has_one() -> None:
    roster = sealed_roster([1, 2], standby=[3])
    assert roster.describe(TWO) == "host2 pid 102 (rank 1)"
    assert roster.describe(incarnation(3)) == "host3 pid 103"


# --- losses, drains and blame -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "is_loss"), [(Outcome.LEFT, True), (Outcome.DRAINED, True), (Outcome.FAILED, False)]
)
def test_a_goodbye_of_the_world_is_a_loss_unless_its_workers_failed(outcome: Outcome, is_loss: bool) -> None:
    roster = sealed_roster([1, 2], standby=[3])
    take(roster, goodbye(1, outcome, 3), 1, is_open=False)
    assert roster.lost_count == 0, "a standby is no loss"
    take(roster, goodbye(1, outcome), 1, is_open=False)
    assert roster.lost_count == is_loss
    take(roster, arrival(4), 1, is_open=False)
    roster.reopen()
    for number in (2, 4):
        take(roster, arrival(number, cycle_id=2), 2, is_open=True)
    roster.seal(Placement((TWO, incarnation(4)), ()), 2)
    assert roster.lost_count == 0, "a new world"


def test_a_death_is_a_loss_also_while_the_node_is_awaited() -> None:
    roster = sealed_roster([1, 2])
    roster.reopen()
    roster.drop(ONE)
    assert roster.lost_count == 1


def test_a_draining_node_is_neither_placed_nor_awaited_nor_joinable() -> None:
    roster = sealed_roster([1, 2], standby=[3])
    assert roster.drain(ONE)
    assert not roster.drain(ONE), "once"
    assert roster.draining_actives() == ["host1 pid 101"]
    assert (roster.joinable_count(), roster.draining_count()) == (2, 1)
    roster.reopen()
    assert set(roster.awaited) == {TWO}
    take(roster, arrival(1, cycle_id=2), 2, is_open=True)
    assert ONE not in roster.arrived
    take(roster, goodbye(2, Outcome.DRAINED), 2, is_open=True)
    assert (roster.joinable_count(), roster.draining_count()) == (2, 1), "its place is still empty"


def test_a_node_that_drains_before_the_seal_takes_its_arrival_back() -> None:
    roster = roster_of([1, 2])
    assert roster.drain(ONE)
    assert set(roster.arrived) == {TWO}
    assert role_of(roster, 1) is Role.HOT_SPARE
    assert roster.draining_count() == 0, "it had no place"


def test_the_finished_do_not_drain() -> None:
    roster = sealed_roster([1, 2])
    take(roster, finish(1), 1, is_open=False)
    assert not roster.drain(ONE)
    assert not roster.drain("f" * 16)


def test_an_operator_finds_nodes_by_infra_rank_address_or_process() -> None:
    roster = Roster()
    for number in (1, 2, 3):
        info = node(number, infra_rank=number, addr="shared" if number < 3 else "alone")
        take(roster, arrival(number, info=info), 1, is_open=True)
    assert roster.find("2") == [TWO]
    assert roster.find("shared") == [ONE, TWO]
    assert roster.find("shared:101") == [ONE]
    assert roster.find("unknown") == []
    take(roster, arrival(4, info=node(4, addr="unranked")), 1, is_open=True)
    assert roster.find("None") == []


def test_a_restart_is_asked_for_by_the_world_of_this_cycle() -> None:
    roster = sealed_roster([1, 2], standby=[3])
    for number, cycle_id in ((3, 1), (1, 7), (1, 1)):
        request = Request(cycle_id=cycle_id, incarnation=incarnation(number), kind=RequestKind.RESTART, reason="NaN")
        take(roster, request, 1, is_open=False)
    assert roster.troubles == [RestartRequested("host1 pid 101 (rank 0)", "NaN")]


def timed(cycle_id: int, number: int = 1) -> Failure:
    return Failure(cycle_id=cycle_id, incarnation=incarnation(number), reason="r", rank=9, exit_code=3, after_s=1.5)


def test_a_failure_of_the_world_can_be_charged_also_after_the_next_cycle_has_opened() -> None:
    roster = sealed_roster([1, 2], standby=[3])
    note = charge(roster, timed(1))
    assert note is not None
    assert (note.rank, note.exit_code, note.after_s, note.cycle_id) == (9, 3, 1.5, 1)
    roster.reopen()
    assert charge(roster, timed(1)) == note
    assert charge(roster, timed(2)) is None, "no world of that cycle"
    assert charge(roster, timed(1, 3)) is None, "a standby has no workers"
    assert charge(roster, timed(1, 7)) is None, "it is not a member"


def test_blame_goes_to_the_infra_rank_else_to_an_address_of_its_own_else_to_the_incarnation() -> None:
    infos = [node(1, infra_rank=7), node(2), node(3, addr="shared"), node(4, addr="shared")]
    roster = Roster()
    for number, info in enumerate(infos, 1):
        take(roster, arrival(number, info=info), 1, is_open=True)
    roster.seal(Placement(tuple(incarnation(number) for number in (1, 2, 3, 4)), ()), 1)
    notes = [charge(roster, timed(1, number)) for number in (1, 2, 3, 4)]
    assert [note and note.key for note in notes] == [
        "infra rank 7",
        "address host2",
        incarnation(3),
        incarnation(4),
    ]


def test_a_second_start_at_the_same_address_does_not_hide_the_first() -> None:
    """Without an infra rank both are there until the first one loses its lease."""
    roster = sealed_roster([1, 2])
    take(roster, arrival(3, info=node(3, addr="host1")), 1, is_open=False)
    note = charge(roster, timed(1))
    assert note is not None
    assert note.key == "address host1"
    assert roster.find_blamed(note) == [ONE, incarnation(3)]
    assert not roster.can_lose(note, PlacementRules(min_nodes=2, max_nodes=3), 0)


def test_blame_does_not_reach_a_node_that_has_finished() -> None:
    """It never trains again, and it must hear the verdict."""
    roster = sealed_roster([1, 2])
    note = charge(roster, timed(1))
    assert note is not None
    take(roster, finish(1), 1, is_open=False)
    assert roster.find_blamed(note) == []


def unfit(number: int, cycle_id: int = 1) -> AnyRecord:
    """A start of a node that never joined."""
    return Withdrawal(cycle_id=cycle_id, incarnation=incarnation(90 + number), node=node(number), reason="a bad GPU")


def test_a_node_that_arrives_again_is_not_unfit_because_a_second_start_of_it_was() -> None:
    roster = Roster()
    take(roster, arrival(1), 1, is_open=True)
    roster.seal(Placement((ONE,), ()), 1)
    take(roster, unfit(1), 1, is_open=False)
    assert list(roster.unhealthy) == ["host1"]
    roster.reopen()
    take(roster, arrival(1, cycle_id=2), 2, is_open=True)
    assert roster.unhealthy == {}


def test_of_more_nodes_than_the_run_can_use_the_first_unfit_one_was_replaced() -> None:
    roster = Roster(max_nodes=2)
    take(roster, arrival(1), 1, is_open=True)
    take(roster, unfit(2), 1, is_open=True)
    take(roster, unfit(3), 1, is_open=True)
    assert list(roster.unhealthy) == ["host3"]


def test_unfit_nodes_that_were_replaced_do_not_count_for_ever() -> None:
    """Losing a rack later must not end a run for nodes that were replaced long ago."""
    roster = Roster(max_nodes=3)
    for number in (1, 2, 3):
        take(roster, arrival(number), 1, is_open=True)
    for number in (1, 2):
        bad, fresh = arrival(number), arrival(number + 10)
        take(
            roster,
            Withdrawal(cycle_id=1, incarnation=bad.incarnation, node=bad.node, reason="a bad GPU"),
            1,
            is_open=True,
        )
        assert len(roster.unhealthy) == 1
        take(roster, fresh, 1, is_open=True)
        assert roster.unhealthy == {}


# --- parked nodes -----------------------------------------------------------------------------------

ELASTIC = PlacementRules(min_nodes=2, max_nodes=9, policy=Policy.ELASTIC)


def keys_of(roster: Roster) -> list[str]:
    return [loss.key for loss in roster.losses]


@pytest.mark.parametrize("role", [role for role in Role if role is not Role.FINISHED])
def test_a_death_counts_as_a_loss_of_that_node_once_there_is_a_world(role: Role) -> None:
    roster = roster_with(role)
    roster.drop(ONE)
    assert keys_of(roster) == (["address host1"] if roster.world else [])


def test_a_node_that_is_replaced_by_a_newer_start_was_lost() -> None:
    roster = Roster()
    for number in (1, 2):
        take(roster, arrival(number, info=node(number, infra_rank=number)), 1, is_open=True)
    roster.seal(Placement((ONE, TWO), ()), 1)
    take(roster, arrival(3, info=node(3, infra_rank=1, addr="host1")), 1, is_open=False)
    assert keys_of(roster) == ["infra rank 1"]


def test_a_loss_of_a_node_that_cannot_be_known_again_is_not_counted() -> None:
    roster = Roster()
    for number in (1, 2):
        take(roster, arrival(number, info=node(number, addr="shared")), 1, is_open=True)
    roster.seal(Placement((ONE, TWO), ()), 1)
    roster.drop(ONE)
    assert keys_of(roster) == []


def test_what_is_no_loss() -> None:
    """A goodbye, a drain, a failed health check, a quarantine, and a node that has finished."""
    roster = sealed_roster([1, 2, 3, 4, 5])
    take(roster, goodbye(1, Outcome.LEFT, 1), 1, is_open=False)
    roster.drain(TWO)
    roster.drop(TWO)
    sick = arrival(3)
    take(roster, Withdrawal(cycle_id=1, incarnation=sick.incarnation, node=sick.node, reason="r"), 1, is_open=False)
    roster.drop(incarnation(4), is_loss=False)
    take(roster, finish(1, 5), 1, is_open=False)
    roster.drop(incarnation(5))
    assert keys_of(roster) == []


def test_a_node_is_parked_under_every_incarnation_until_its_time_is_over() -> None:
    roster = sealed_roster([1, 2])
    roster.park({"address host3", "infra rank 7"})
    for number, info in ((3, node(3)), (4, node(4, infra_rank=7)), (5, node(5, infra_rank=3))):
        take(roster, arrival(number, info=info), 1, is_open=False)
    assert roster.parked == {incarnation(3), incarnation(4)}
    roster.drop(incarnation(3))
    assert roster.parked == {incarnation(4)}
    roster.park(set())
    assert roster.parked == set()
    roster.park({"address host1"})
    assert roster.parked == {ONE}


def test_no_larger_world_is_hoped_for_with_a_parked_node() -> None:
    roster = sealed_roster([1, 2])
    roster.park({"address host3"})
    take(roster, arrival(3), 1, is_open=False)
    assert (roster.ready_fit(ELASTIC, 1), roster.joinable_fit(ELASTIC)) == (2, 3)
    take(roster, arrival(4), 1, is_open=False)
    assert roster.ready_fit(ELASTIC, 1) == 3
    roster.park(set())
    assert roster.ready_fit(ELASTIC, 1) == 4


def test_a_parked_node_that_is_needed_counts_and_another_one_brings_no_growth() -> None:
    """Two nodes train, and one of them is parked. Another parked node waits."""
    roster = sealed_roster([1, 2])
    roster.park({"address host2", "address host3"})
    take(roster, arrival(3), 1, is_open=False)
    assert roster.ready_fit(ELASTIC, 1) == 2, "the world as it is"
    take(roster, arrival(4), 1, is_open=False)
    assert roster.ready_fit(ELASTIC, 1) == 2, "a world without the parked nodes would be no larger"
    take(roster, arrival(5), 1, is_open=False)
    assert roster.ready_fit(ELASTIC, 1) == 3


@pytest.mark.parametrize(
    ("arrived", "fit", "awaits"),
    [
        pytest.param([1], 1, False, id="too few, and parked nodes are not there"),
        pytest.param([1, 3], 2, True, id="enough with the parked one; another node is on its way"),
        pytest.param([1, 2], 2, False, id="enough without"),
        pytest.param([1, 2, 3], 2, False, id="enough without, and the parked one is there"),
    ],
)
def test_a_parked_node_counts_only_if_the_others_are_too_few(arrived: list[int], fit: int, awaits: bool) -> None:
    roster = sealed_roster([1, 2], standby=[3])
    roster.park({"address host3"})
    roster.reopen()
    for number in arrived:
        take(roster, arrival(number, cycle_id=2), 2, is_open=True)
    assert (roster.arrived_fit(ELASTIC), roster.awaits_others(ELASTIC, 1)) == (fit, awaits)


def test_others_that_have_not_come_for_long_are_not_awaited() -> None:
    roster = sealed_roster([1, 2], standby=[3])
    roster.park({"address host3"})
    for cycle_id in (2, 3):
        roster.reopen()
        for number in (1, 3):
            take(roster, arrival(number, cycle_id=cycle_id), cycle_id, is_open=True)
        assert roster.awaits_others(ELASTIC, cycle_id - 1) == (cycle_id == 2)
        roster.seal(Placement((ONE, incarnation(3)), ()), 2)


def test_parked_nodes_of_the_last_world_that_are_gone_are_counted() -> None:
    roster = sealed_roster([1, 2, 3])
    roster.park({"address host3"})
    assert roster.parked_count() == 0, "it still trains"
    roster.drop(incarnation(3))
    assert roster.parked_count() == 1
    take(roster, arrival(4, info=node(4, addr="host3")), 1, is_open=False)
    assert roster.parked_count() == 1, "it is back, and does not count"
    roster.park(set())
    assert roster.parked_count() == 0


# --- updates ----------------------------------------------------------------------------------------


def updates(number: int, author: str = ONE, worker_cycle_id: int = 1) -> UpdateNews:
    return UpdateNews(
        cycle_id=1,
        incarnation=author,
        number=number,
        worker_cycle_id=worker_cycle_id,
        merged=UpdateSums(3, 1, 0, 2.0, 1.0),
        notes=(),
    )


@pytest.mark.parametrize("role", Role)
def test_a_report_of_updates_changes_nothing_and_counts_once_in_any_role(role: Role) -> None:
    roster = roster_with(role)
    before = repr((roster.members, roster.arrived, roster.awaited, roster.worlds, roster.losses))
    for number, times in ((1, 1), (1, 0), (3, 1), (2, 0)):
        effects = roster.take(updates(number), cycle_of(role), is_open_in(role))
        assert len(effects) == times
        assert all(isinstance(effect, UpdatesTold) and effect.news.number == number for effect in effects)
    assert repr((roster.members, roster.arrived, roster.awaited, roster.worlds, roster.losses)) == before


def test_a_report_counts_after_the_node_is_over_and_a_strangers_does_not() -> None:
    roster = roster_with(Role.ACTIVE)
    name = roster.members[ONE].name
    assert roster.take(updates(1), 1, is_open=False) == [UpdatesTold(name, updates(1))]
    roster.drop(ONE)
    assert roster.take(updates(1), 1, is_open=False) == []
    assert roster.take(updates(2), 1, is_open=False) == [UpdatesTold(ONE, updates(2))]
    assert roster.take(updates(1, "f" * 16), 1, is_open=False) == []
