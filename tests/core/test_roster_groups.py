"""The roster of a run with replica groups: by example, and through everything that can happen, in any order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ft_rendezvous.core.blame import FailureNote
from ft_rendezvous.core.effects import CheckpointWritten, Effect, NodeExit, NodeFinish
from ft_rendezvous.core.lifecycle import ROLE_TABLE, Role
from ft_rendezvous.core.model import (
    AnyRecord,
    Checkpoint,
    Failure,
    Finish,
    Goodbye,
    NodeLeft,
    NodesLost,
    Outcome,
    Placement,
    Request,
    RequestKind,
    RestartRequested,
    Withdrawal,
    WorkersFailed,
)
from ft_rendezvous.core.roster import Roster
from tests.core.build import arrival, incarnation, node, role_of
from tests.core.worlds import names

# --- examples ---------------------------------------------------------------------------------------


def two_groups(spares: int = 0) -> Roster:
    """Group 0 has the nodes 1 and 2, group 1 has 3 and 4. The spares are 5, 6 and so on. Cycle 1 is sealed."""
    roster = Roster(has_groups=True)
    for number in range(1, 5 + spares):
        roster.take(arrival(number), 1, is_open=True)
    roster.seal(Placement(names([1, 2, 3, 4]), names(range(5, 5 + spares)), (0, 1)), 1)
    return roster


def take(roster: Roster, record: AnyRecord, cycle_id: int = 1) -> list[Effect]:
    """Take in a record while the last common cycle is sealed."""
    return roster.take(record, cycle_id, is_open=False)


def roles(roster: Roster) -> dict[int, Role]:
    return {int(name, 16): member.role for name, member in roster.members.items()}


def test_a_common_seal_gives_each_group_its_world() -> None:
    roster = two_groups(spares=1)
    assert {group: list(world.ranks) for group, world in roster.worlds.items()} == {
        0: list(names([1, 2])),
        1: list(names([3, 4])),
    }
    assert [roster.group_of(incarnation(number)) for number in (1, 3, 5)] == [0, 1, None]
    assert list(roster.ready) == list(names([5]))
    assert role_of(roster, 5) is Role.STANDBY


def test_a_failure_is_a_trouble_of_its_own_group() -> None:
    roster = two_groups()
    (note,) = take(roster, Failure(cycle_id=1, incarnation=incarnation(4), reason="exit 1"))
    assert isinstance(note, FailureNote)
    assert (note.group, note.rank) == (1, 1)
    assert roster.worlds[0].troubles == []
    assert roster.worlds[1].troubles == [WorkersFailed("host4 pid 104", 1, "exit 1")]


@pytest.mark.parametrize(
    ("happens", "trouble"),
    [
        pytest.param(lambda roster: roster.drop(incarnation(4)), NodesLost(("host4 pid 104",), (1,)), id="lost"),
        pytest.param(
            lambda roster: take(
                roster, Goodbye(cycle_id=1, incarnation=incarnation(4), outcome=Outcome.LEFT, reason="SIGTERM")
            ),
            NodeLeft("host4 pid 104", 1, Outcome.LEFT, "SIGTERM"),
            id="left",
        ),
        pytest.param(
            lambda roster: take(
                roster, Request(cycle_id=1, incarnation=incarnation(4), kind=RequestKind.RESTART, reason="r")
            ),
            RestartRequested("host4 pid 104 (rank 1)", "r"),
            id="asks for a restart",
        ),
    ],
)
def test_what_ends_a_group_is_a_trouble_of_that_group(happens: Callable[[Roster], object], trouble: object) -> None:
    roster = two_groups()
    happens(roster)
    assert (roster.worlds[0].troubles, roster.worlds[1].troubles) == ([], [trouble])


def test_only_the_nodes_of_the_group_are_awaited() -> None:
    roster = two_groups(spares=1)
    assert roster.reopen_group(1, 2) == dict.fromkeys(names([3, 4]), Role.AWAITED)
    assert list(roster.awaited) == list(names([3, 4]))
    assert roles(roster) == {1: Role.ACTIVE, 2: Role.ACTIVE, 3: Role.AWAITED, 4: Role.AWAITED, 5: Role.STANDBY}
    assert roster.worlds[1].troubles == []


@pytest.mark.parametrize(
    ("number", "cycle_id", "role"),
    [
        pytest.param(3, 2, Role.ARRIVED, id="a survivor, in the cycle of its group"),
        pytest.param(3, 1, Role.AWAITED, id="a survivor, in the cycle that is over: a late record"),
        pytest.param(1, 2, Role.ACTIVE, id="a node of another group"),
        pytest.param(5, 1, Role.STANDBY, id="a standby, once more"),
        pytest.param(6, 1, Role.STANDBY, id="a newcomer stands by"),
    ],
)
def test_an_arrival_while_a_group_is_open(number: int, cycle_id: int, role: Role) -> None:
    roster = two_groups(spares=1)
    roster.reopen_group(1, 2)
    take(roster, arrival(number, cycle_id=cycle_id))
    assert role_of(roster, number) is role
    assert (incarnation(number) in roster.arrived) == (role is Role.ARRIVED)
    assert (incarnation(number) in roster.ready) == (role is Role.STANDBY)


def test_a_newcomer_of_an_older_cycle_is_a_hot_spare_until_it_arrives_again() -> None:
    roster = two_groups()
    roster.reopen()
    roster.take(arrival(3, cycle_id=2), 2, is_open=True)
    roster.take(arrival(4, cycle_id=2), 2, is_open=True)
    roster.seal(Placement(names([3, 4]), (), (1,)), 2)
    take(roster, arrival(6, cycle_id=1), 2)
    assert role_of(roster, 6) is Role.HOT_SPARE
    take(roster, arrival(6, cycle_id=2), 2)
    assert role_of(roster, 6) is Role.STANDBY


def test_a_group_is_sealed_with_a_spare_and_without_the_one_that_is_late() -> None:
    roster = two_groups(spares=1)
    roster.reopen_group(1, 2)
    take(roster, arrival(3, cycle_id=2))
    assert roster.seal_group(1, names([3, 5]), 2) == {incarnation(4): Role.HOT_SPARE}
    assert roles(roster) == {1: Role.ACTIVE, 2: Role.ACTIVE, 3: Role.ACTIVE, 4: Role.HOT_SPARE, 5: Role.ACTIVE}
    assert (roster.arrived, roster.awaited, roster.ready, roster.open_groups) == ({}, {}, {}, {})
    assert [roster.group_of(incarnation(number)) for number in (3, 4, 5)] == [1, None, 1]
    take(roster, arrival(4, cycle_id=2))
    assert role_of(roster, 4) is Role.STANDBY, "it may be placed in any group"


def test_a_survivor_that_its_group_has_no_place_for_stands_by() -> None:
    """With segments, a group may move to another domain as a whole."""
    roster = two_groups(spares=2)
    roster.reopen_group(1, 2)
    roster.drop(incarnation(4))
    take(roster, arrival(3, cycle_id=2))
    assert roster.seal_group(1, names([5, 6]), 2) == {incarnation(3): Role.STANDBY}
    assert list(roster.ready) == list(names([3]))


def test_the_nodes_of_a_group_that_is_given_up_stand_by() -> None:
    roster = two_groups()
    roster.reopen_group(1, 2)
    take(roster, arrival(3, cycle_id=2))
    assert roster.dissolve_group(1) == {incarnation(3): Role.STANDBY, incarnation(4): Role.HOT_SPARE}
    assert list(roster.worlds) == [0]
    take(roster, arrival(4, cycle_id=2))
    assert list(roster.ready) == list(names([3, 4]))


def test_a_new_group_is_formed_of_nodes_that_stand_by() -> None:
    roster = two_groups(spares=2)
    assert roster.reopen_group(2, 2) == {}
    assert roster.seal_group(2, names([5, 6]), 2) == {}
    assert roster.group_of(incarnation(5)) == 2
    take(roster, Failure(cycle_id=2, incarnation=incarnation(6), reason="r"))
    assert len(roster.worlds[2].troubles) == 1


def test_a_failure_in_an_earlier_cycle_of_the_group_counts_no_more() -> None:
    roster = two_groups()
    roster.reopen_group(1, 2)
    for number in (3, 4):
        take(roster, arrival(number, cycle_id=2))
    roster.seal_group(1, names([3, 4]), 2)
    assert take(roster, Failure(cycle_id=1, incarnation=incarnation(3), reason="late")) == []
    assert roster.worlds[1].troubles == []


def test_a_failure_that_comes_while_the_next_cycle_gathers_is_noted_and_is_no_trouble() -> None:
    roster = two_groups()
    roster.reopen_group(1, 2)
    (note,) = take(roster, Failure(cycle_id=1, incarnation=incarnation(3), reason="r"))
    assert isinstance(note, FailureNote)
    assert roster.worlds[1].troubles == []


def test_a_checkpoint_is_that_of_its_group() -> None:
    roster = two_groups()
    assert take(roster, Checkpoint(cycle_id=1, incarnation=incarnation(4))) == [CheckpointWritten(1)]
    roster.reopen_group(1, 2)
    for number in (3, 4):
        take(roster, arrival(number, cycle_id=2))
    roster.seal_group(1, names([3, 4]), 2)
    assert take(roster, Checkpoint(cycle_id=1, incarnation=incarnation(4))) == [], "of a cycle that is over"
    assert take(roster, Checkpoint(cycle_id=2, incarnation=incarnation(4))) == [CheckpointWritten(1)]


def test_a_group_has_finished_when_all_its_nodes_have_and_their_deaths_do_not_matter() -> None:
    roster = two_groups()
    for number in (3, 4):
        assert not roster.worlds[1].has_finished
        take(roster, Finish(cycle_id=1, incarnation=incarnation(number)))
    assert roster.worlds[1].has_finished
    roster.drop(incarnation(3))
    assert roster.worlds[1].has_finished
    assert roster.troubles == []
    assert (roster.worlds[1].lost_count, roster.finished_count) == (0, 2)


def test_what_left_a_group_that_is_given_up_is_not_forgotten() -> None:
    """Whether a run can go on depends on it: agents that spent their restarts, and finished nodes, never come back."""
    roster = two_groups()
    take(roster, Finish(cycle_id=1, incarnation=incarnation(3)))
    take(roster, Goodbye(cycle_id=1, incarnation=incarnation(4), outcome=Outcome.FAILED))
    roster.reopen_group(1, 2)
    roster.dissolve_group(1)
    assert (roster.finished_count, roster.spent_count) == (1, 1)


def test_a_common_cycle_makes_all_nodes_arrive_again() -> None:
    roster = two_groups(spares=1)
    roster.reopen_group(1, 2)
    take(roster, arrival(3, cycle_id=2))
    roster.reopen()
    assert roles(roster) == dict.fromkeys((1, 2, 3, 4), Role.AWAITED) | {5: Role.HOT_SPARE}
    assert list(roster.awaited) == list(names([1, 2, 3, 4]))
    assert (roster.arrived, roster.ready, roster.open_groups) == ({}, {}, {})
    roster.take(arrival(3, cycle_id=2), 3, is_open=True)
    assert role_of(roster, 3) is Role.AWAITED, "an arrival in the cycle of its group is too old"
    roster.take(arrival(3, cycle_id=3), 3, is_open=True)
    assert role_of(roster, 3) is Role.ARRIVED


def test_a_node_that_drains_is_described_with_its_group() -> None:
    roster = two_groups(spares=1)
    assert roster.describe(incarnation(4)) == "host4 pid 104 (group 1 rank 1)"
    assert roster.describe(incarnation(5)) == "host5 pid 105"
    for number in (2, 4, 5):
        roster.drain(incarnation(number))
    assert roster.draining_actives() == ["host2 pid 102", "host4 pid 104"]
    assert roster.draining_actives(group=1) == ["host4 pid 104"]
    assert roster.ready == {}, "it does not stand by any more"


def test_nodes_of_several_groups_at_one_address_cannot_be_told_apart() -> None:
    roster = Roster(has_groups=True)
    for number in (1, 2):
        roster.take(arrival(number, info=node(number, addr="shared")), 1, is_open=True)
    roster.seal(Placement(names([1, 2]), (), (0, 1)), 1)
    roster.drop(incarnation(1))
    assert roster.losses == []


# --- everything that can happen ---------------------------------------------------------------------

SIZE = 2


@dataclass
class Story:
    """A roster to which things happen, and what a naive reader would count."""

    roster: Roster = field(default_factory=lambda: Roster(has_groups=True))
    common: int = 1
    newest: int = 1
    is_open: bool = True
    started: int = 0
    finished: Counter[int | None] = field(default_factory=Counter)
    """How many nodes of each group's last world have finished; under None: of no world."""

    def happen(self, what: str, choice: int) -> None:
        before = {name: member.role for name, member in self.roster.members.items()}
        getattr(self, what)(choice)
        self.judge(before)

    # --- nodes ---

    def some(self, choice: int) -> str | None:
        members = sorted(self.roster.members)
        return members[choice % len(members)] if members else None

    def tell(self, record: AnyRecord) -> list[Effect]:
        return self.roster.take(record, self.common, self.is_open)

    def cycle_for(self, name: str, choice: int) -> int:
        """The cycle of which a node speaks: mostly that of its group."""
        world = self.roster.world_of(name)
        own = self.common if world is None else self.roster.open_groups.get(world.group, world.cycle_id)
        return [own, own, own, self.common, self.newest, max(1, own - 1)][choice % 6]

    def come(self, choice: int) -> None:
        """A new node; or another start of one that is there."""
        self.started += 1
        number, name = 1000 + self.started, self.some(choice)
        if name is not None and choice % 5 == 0 and self.roster.members[name].arrival.node.infra_rank is not None:
            old = self.roster.members[name].arrival.node
            info = node(number, infra_rank=old.infra_rank, addr=old.addr if choice % 2 else "elsewhere")
        else:
            info = node(number, infra_rank=number if choice % 3 else None)
        self.tell(arrival(number, cycle_id=self.common, info=info))

    def arrive(self, choice: int) -> None:
        name = self.some(choice // 6)
        if name is not None:
            cycle_id = self.cycle_for(name, choice)
            self.tell(arrival(int(name, 16), cycle_id=cycle_id, info=self.roster.members[name].arrival.node))

    def gather(self, choice: int) -> None:
        """Nodes that stopped their workers are back, all but a few."""
        for name in list(self.roster.awaited)[choice % 3 :]:
            cycle_id = self.cycle_for(name, 0) if not self.is_open else self.common
            self.tell(arrival(int(name, 16), cycle_id=cycle_id, info=self.roster.members[name].arrival.node))

    def fail(self, choice: int) -> None:
        name = self.some(choice // 6)
        if name is not None:
            self.tell(Failure(cycle_id=self.cycle_for(name, choice), incarnation=name, reason="r"))

    def finish(self, choice: int) -> None:
        name = self.some(choice // 6)
        if name is not None:
            self.count_finishes(name, self.tell(Finish(cycle_id=self.cycle_for(name, choice), incarnation=name)))

    def count_finishes(self, name: str, effects: list[Effect]) -> None:
        if any(isinstance(effect, NodeFinish) for effect in effects):
            self.finished[self.roster.group_of(name)] += 1

    def leave(self, choice: int) -> None:
        name = self.some(choice // 4)
        if name is not None:
            outcome = list(Outcome)[choice % 4]
            role, group = self.roster.members[name].role, self.roster.group_of(name)
            effects = self.tell(Goodbye(cycle_id=self.cycle_for(name, 0), incarnation=name, outcome=outcome))
            assert sum(isinstance(effect, NodeExit) for effect in effects) == 1
            if outcome is Outcome.SUCCEEDED and role in (Role.ACTIVE, Role.AWAITED):
                self.finished[group] += 1

    def withdraw(self, choice: int) -> None:
        name = self.some(choice)
        if name is not None:
            info = self.roster.members[name].arrival.node
            self.tell(Withdrawal(cycle_id=self.common, incarnation=name, node=info, reason="r"))

    def lose(self, choice: int) -> None:
        name = self.some(choice)
        if name is not None:
            self.roster.drop(name)

    def drain(self, choice: int) -> None:
        name = self.some(choice)
        if name is not None:
            self.roster.drain(name)

    def ask(self, choice: int) -> None:
        name = self.some(choice // 6)
        if name is not None:
            kind = RequestKind.RESTART if choice % 2 else RequestKind.DRAIN
            self.tell(Request(cycle_id=self.cycle_for(name, choice), incarnation=name, kind=kind))
            self.tell(Checkpoint(cycle_id=self.cycle_for(name, choice), incarnation=name))

    # --- cycles ---

    def changed(self, step: Callable[[], dict[str, Role]], placed: tuple[str, ...] = ()) -> None:
        """A step returns the nodes whose roles have changed, but for those that it places."""
        before = {name: member.role for name, member in self.roster.members.items()}
        told = step()
        after = {name: member.role for name, member in self.roster.members.items()}
        assert told == {name: role for name, role in after.items() if role is not before[name] and name not in placed}

    def open_group(self, choice: int) -> None:
        sealed = [group for group in self.roster.worlds if group not in self.roster.open_groups]
        if sealed and not self.is_open:
            self.newest += 1
            self.changed(lambda: self.roster.reopen_group(sealed[choice % len(sealed)], self.newest))

    def open_again(self, choice: int) -> None:
        """The cycle of a group is opened anew, because a node to place has arrived in a later one."""
        if self.roster.open_groups:
            group = sorted(self.roster.open_groups)[choice % len(self.roster.open_groups)]
            self.newest += 1
            self.changed(lambda: self.roster.reopen_group(group, self.newest))

    def seal_group(self, choice: int) -> None:
        for group, cycle_id in list(self.roster.open_groups.items())[choice % 2 :]:
            own = [name for name in self.roster.worlds[group].ranks if name in self.roster.arrived]
            can_be = [*own, *self.roster.ready] if choice % 3 else [*self.roster.ready, *own]
            if len(can_be) >= SIZE:
                ranks = tuple(can_be[:SIZE])
                self.changed(partial(self.roster.seal_group, group, ranks, cycle_id), ranks)
                del self.finished[group]

    def form_group(self, choice: int) -> None:
        free = [group for group in range(4) if group not in self.roster.worlds]
        if not self.is_open and free and len(self.roster.ready) >= SIZE:
            group, ranks = free[choice % len(free)], tuple(self.roster.ready)[:SIZE]
            self.newest += 1
            assert self.roster.reopen_group(group, self.newest) == {}
            self.changed(lambda: self.roster.seal_group(group, ranks, self.newest), ranks)

    def dissolve(self, choice: int) -> None:
        if self.roster.open_groups:
            group = sorted(self.roster.open_groups)[choice % len(self.roster.open_groups)]
            self.changed(lambda: self.roster.dissolve_group(group))
            self.finished[None] += self.finished.pop(group, 0)

    def open_all(self, choice: int) -> None:  # noqa: ARG002
        if not self.is_open:
            self.roster.reopen()
            self.newest += 1
            self.common, self.is_open = self.newest, True

    def seal_all(self, choice: int) -> None:
        count = min(3, len(self.roster.arrived) // SIZE)
        if self.is_open and count:
            arrived = list(self.roster.arrived)
            groups = tuple(sorted((choice + offset) % 4 for offset in range(count)))
            ranks = tuple(arrived[: count * SIZE])
            self.roster.seal(Placement(ranks, tuple(arrived[count * SIZE :]), groups), self.common)
            self.is_open = False
            self.finished.clear()

    # --- what must be true ---

    def judge(self, before: dict[str, Role]) -> None:
        roster = self.roster
        now = {name: member.role for name, member in roster.members.items()}
        for name, role in now.items():
            was = before.get(name, Role.HOT_SPARE)
            assert role is was or role in reachable(was), f"from {was} to {role}"
        having = {role: {name for name, each in now.items() if each is role} for role in Role}
        assert roster.arrived.keys() == having[Role.ARRIVED]
        assert roster.ready.keys() == having[Role.STANDBY]
        assert roster.awaited.keys() == having[Role.AWAITED] - roster.draining
        assert roster.draining <= now.keys()
        assert roster.finished_live_count == len(having[Role.FINISHED])
        assert roster.joinable_count() == len(now.keys() - having[Role.FINISHED] - roster.draining)
        assert not (self.is_open and (roster.open_groups or having[Role.ACTIVE] or having[Role.STANDBY]))
        assert roster.open_groups.keys() <= roster.worlds.keys()
        for name in having[Role.ACTIVE]:
            assert roster.group_of(name) not in {None, *roster.open_groups}
        for name in having[Role.AWAITED] | (having[Role.ARRIVED] if not self.is_open else set()):
            assert self.is_open or roster.group_of(name) in roster.open_groups
        for name in having[Role.STANDBY]:
            assert roster.group_of(name) is None
            assert roster.members[name].arrival.cycle_id >= self.common
        self.judge_worlds()
        for name in now:
            roster.describe(name)

    def judge_worlds(self) -> None:
        roster = self.roster
        seats = [seat.incarnation for world in roster.worlds.values() for seat in world.seats]
        assert len(seats) == len(set(seats)), "a node is in one world"
        for group, world in roster.worlds.items():
            assert (world.group, len(world.seats), list(world.ranks.values())) == (group, SIZE, [0, 1])
            assert world.finished_count == self.finished[group]
            assert len(world.unfinished) == SIZE - world.finished_count
            assert all(roster.world_of(name) in (world, None) for name in world.ranks)
            assert not (group in roster.open_groups and world.troubles)
        assert roster.finished_count == self.finished.total()
        homes = [name for name in roster.members if roster.world_of(name) is not None]
        assert all(any(roster.world_of(name) is world for world in roster.worlds.values()) for name in homes)


def reachable(role: Role) -> set[Role]:
    """The roles that a node may have after some steps of the table."""
    found, more = set[Role](), {role}
    while more:
        found |= more
        more = {target for (origin, _), target in ROLE_TABLE.items() if origin in found} - found
    return found


HAPPENINGS = (
    *("come", "come", "come", "arrive", "arrive", "gather", "gather", "gather", "fail", "finish", "leave", "withdraw"),
    *("lose", "drain", "drain", "ask", "open_group", "open_group", "open_group", "open_again", "seal_group"),
    *("seal_group", "form_group", "dissolve", "open_all", "seal_all", "seal_all"),
)


@settings(max_examples=250)
@given(happenings=st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 119)), min_size=15, max_size=40))
def test_whatever_happens_the_roster_is_consistent(happenings: list[tuple[str, int]]) -> None:
    story = Story()
    for _ in range(8):
        story.come(1)
    story.seal_all(0)
    for what, choice in happenings:
        story.happen(what, choice)
