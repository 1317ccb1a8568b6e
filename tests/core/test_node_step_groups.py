"""What a node hears and does in a run with replica groups: only what concerns it, and all of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ft_rendezvous.core.model import (
    AnyEvent,
    Called,
    Closed,
    FirstCycle,
    Master,
    Opened,
    Sealed,
    Seat,
    Verdict,
    VerdictKind,
    View,
    fold,
    fold_for,
)
from ft_rendezvous.core.node_step import (
    Arrive,
    GiveUpPlace,
    NodeDecision,
    Park,
    Progress,
    ReportFailure,
    TakeSeat,
    decide_step,
    find_seals,
    is_superseded,
    watch_from,
)

ME, OTHER = "0123456789abcdef", "fedcba9876543210"
VERDICT = Verdict(VerdictKind.SUCCEEDED)


def opened(cycle_id: int, no: int, group: int | None = None, log_id: int = 1) -> Opened:
    return Opened(
        no=no, cycle_id=cycle_id, shards=1, ring_at=2, channels=1, why=FirstCycle(), log_id=log_id, group=group
    )


def sealed(cycle_id: int, no: int, seats: dict[str, Seat], group: int | None = None, groups: int = 2) -> Sealed:
    places = range(groups) if group is None else [group]
    masters = {place: Master("a", place) for place in places}
    return Sealed(
        no=no,
        cycle_id=cycle_id,
        world_size=2,
        counted=4,
        masters=masters,
        group=group,
        group_count=groups,
        seats=seats,
    )


MINE = {ME: Seat(1, group=1)}
TRAINS = View(no=2, opened=opened(1, 1), sealed=sealed(1, 2, MINE))
"""This node has rank 1 in group 1, since the common cycle 1."""
STANDS_BY = View(no=2, opened=opened(1, 1), sealed=sealed(1, 2, {ME: Seat(None)}))
OPENED_2 = View(no=3, opened=opened(2, 3, group=1))
"""Its group has opened cycle 2."""
TRAINS_2 = View(no=4, opened=opened(2, 3, group=1), sealed=sealed(2, 4, MINE, group=1))


def number_only(view: View, event: AnyEvent) -> View:
    return msgspec.structs.replace(view, no=event.no)


# --- events -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "event"),
    [
        pytest.param(TRAINS, opened(2, 3, group=0), id="another group opens its next cycle"),
        pytest.param(TRAINS, sealed(2, 3, {OTHER: Seat(0)}, group=0), id="another group is sealed"),
        pytest.param(TRAINS, Called(no=3, cycle_id=2, draining=(OTHER,), reason=""), id="another group is called"),
        pytest.param(STANDS_BY, opened(2, 3, group=1), id="a group opens, and this node stands by"),
        pytest.param(STANDS_BY, sealed(2, 3, {OTHER: Seat(0, group=1)}, group=1), id="a seal without this node"),
        pytest.param(OPENED_2, opened(3, 4, group=0), id="another group opens while this one gathers"),
        pytest.param(OPENED_2, opened(3, 4, group=1), id="its own opens anew, just before its seal: no second arrival"),
        pytest.param(OPENED_2, sealed(3, 4, {OTHER: Seat(0)}, group=0), id="another group is sealed meanwhile"),
        pytest.param(TRAINS_2, opened(3, 5, group=0), id="another group opens, later"),
    ],
)
def test_what_does_not_concern_a_node_is_a_number(view: View, event: AnyEvent) -> None:
    assert fold_for(view, event, ME) == number_only(view, event)


@pytest.mark.parametrize(
    ("view", "event", "expected"),
    [
        pytest.param(TRAINS, opened(2, 3, group=1), OPENED_2, id="its group opens its next cycle"),
        pytest.param(OPENED_2, sealed(2, 4, MINE, group=1), TRAINS_2, id="its group is sealed with it"),
        pytest.param(
            OPENED_2,
            sealed(2, 4, {OTHER: Seat(0, group=1)}, group=1),
            View(no=4, opened=OPENED_2.opened, sealed=sealed(2, 4, {OTHER: Seat(0, group=1)}, group=1)),
            id="its group is sealed without it",
        ),
        pytest.param(
            OPENED_2,
            sealed(3, 4, {OTHER: Seat(0, group=1)}, group=1),
            View(no=4, opened=OPENED_2.opened, sealed=sealed(3, 4, {OTHER: Seat(0, group=1)}, group=1)),
            id="its group is sealed without it, in a later cycle than the one it heard of",
        ),
        pytest.param(
            STANDS_BY,
            sealed(2, 3, MINE, group=1),
            View(no=3, opened=opened(2, 1, group=1), sealed=sealed(2, 3, MINE, group=1)),
            id="a group that it was not in places it",
        ),
        pytest.param(
            OPENED_2,
            sealed(5, 4, {ME: Seat(0)}, group=0),
            View(no=4, opened=opened(5, 3, group=0), sealed=sealed(5, 4, {ME: Seat(0)}, group=0)),
            id="its group was given up, and another one places it",
        ),
        pytest.param(TRAINS, opened(2, 3, log_id=2), View(no=3, opened=opened(2, 3, log_id=2)), id="all restart"),
        pytest.param(
            TRAINS_2,
            Called(no=5, cycle_id=2, draining=(), reason=""),
            msgspec.structs.replace(TRAINS_2, no=5, called=Called(no=5, cycle_id=2, draining=(), reason="")),
            id="its group is called",
        ),
        pytest.param(
            STANDS_BY,
            Called(no=3, cycle_id=9, draining=(ME,), reason=""),
            msgspec.structs.replace(STANDS_BY, no=3, called=Called(no=3, cycle_id=9, draining=(ME,), reason="")),
            id="it is asked to go",
        ),
        pytest.param(
            TRAINS_2,
            Closed(no=5, verdict=VERDICT),
            msgspec.structs.replace(TRAINS_2, no=5, closed=Closed(no=5, verdict=VERDICT)),
            id="the run is closed",
        ),
    ],
)
def test_what_concerns_a_node_is_in_its_view(view: View, event: AnyEvent, expected: View) -> None:
    assert fold_for(view, event, ME) == expected


@pytest.mark.parametrize("event", [opened(2, 3, group=1), sealed(2, 3, MINE, group=1)])
def test_the_head_tells_of_common_cycles_only(event: AnyEvent) -> None:
    assert fold(TRAINS, event) == number_only(TRAINS, event)


@pytest.mark.parametrize("no", [2, 4])
def test_no_event_is_left_out_or_taken_twice(no: int) -> None:
    with pytest.raises(AssertionError, match=f"event {no} after 2"):
        fold_for(TRAINS, opened(2, no, group=0), ME)


def test_a_node_that_is_placed_and_has_not_started_hears_that_its_group_opens_again() -> None:
    """Both events may be read before the agent is told of its place."""
    view = fold_for(STANDS_BY, sealed(2, 3, MINE, group=1), ME)
    view = fold_for(view, opened(3, 4, group=1), ME)
    assert decide_step(view, Progress(arrived_in=1), ME, is_draining=False) == Arrive(3)


# --- steps ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "mine", "expected"),
    [
        pytest.param(OPENED_2, Progress(1, 1), Arrive(2), id="its group opened its next cycle"),
        pytest.param(OPENED_2, Progress(2, 1), Park(), id="it has arrived"),
        pytest.param(TRAINS_2, Progress(2, 1), TakeSeat(sealed(2, 4, MINE, group=1), MINE[ME]), id="placed again"),
        pytest.param(TRAINS_2, Progress(1), TakeSeat(sealed(2, 4, MINE, group=1), MINE[ME]), id="stood by since 1"),
        pytest.param(TRAINS_2, Progress(2, 2), ReportFailure(2), id="its workers failed"),
        pytest.param(TRAINS_2, Progress(2, 2, 2), Park(), id="it has said so"),
        pytest.param(STANDS_BY, Progress(1), Park(), id="it stands by: its arrival stands"),
    ],
)
def test_decision(view: View, mine: Progress, expected: NodeDecision) -> None:
    assert decide_step(view, mine, ME, is_draining=False) == expected


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        pytest.param([], ReportFailure(1), id="its workers stopped: say so first"),
        pytest.param([opened(2, 3, group=1)], GiveUpPlace(), id="its group opened: its place is gone"),
        pytest.param([opened(2, 3, group=0)], ReportFailure(1), id="another group is nothing to it"),
        pytest.param(
            [opened(2, 3, group=1), sealed(2, 4, {OTHER: Seat(0, group=1)}, group=1)], GiveUpPlace(), id="replaced"
        ),
        pytest.param(
            [opened(2, 3, group=1), opened(3, 4, group=1), sealed(3, 5, {OTHER: Seat(0, group=1)}, group=1)],
            GiveUpPlace(),
            id="replaced, after its group has opened anew",
        ),
        pytest.param(
            [opened(2, 3, group=0), sealed(2, 4, {OTHER: Seat(0)}, group=0)],
            ReportFailure(1),
            id="another group is sealed: that is nothing to it",
        ),
    ],
)
def test_a_draining_node_goes_when_its_group_has_opened_its_next_cycle(
    events: list[AnyEvent], expected: NodeDecision
) -> None:
    view = TRAINS
    for event in events:
        view = fold_for(view, event, ME)
    assert decide_step(view, Progress(1, 1), ME, is_draining=True) == expected


# --- newcomers --------------------------------------------------------------------------------------

HEAD = View(no=9, opened=opened(1, 1), sealed=sealed(1, 2, {}))
"""Cycle 1 counted four arrivals. Groups were sealed in the events 5 and 8."""
SEALS = ((5, 6), (8, 7))


@pytest.mark.parametrize(
    ("head", "seq", "found"),
    [
        pytest.param(HEAD, 4, [2, 5, 8], id="the common seal counts it"),
        pytest.param(HEAD, 5, [5, 8], id="the first seal of a group counts it"),
        pytest.param(HEAD, 7, [8], id="only the last one does"),
        pytest.param(HEAD, 8, [], id="it came after all seals"),
        pytest.param(msgspec.structs.replace(HEAD, sealed=None), 1, [], id="no cycle is sealed"),
        pytest.param(msgspec.structs.replace(HEAD, closed=Closed(no=9, verdict=VERDICT)), 1, [], id="closed"),
    ],
)
def test_the_seals_in_which_a_newcomer_may_have_a_seat(head: View, seq: int, found: list[int]) -> None:
    assert find_seals(head, 1, seq, SEALS[::-1]) == found
    assert find_seals(head, 2, seq, SEALS) == [], "it arrived in another cycle"


@pytest.mark.parametrize("seal_no", [2, 5, 8])
def test_a_newcomer_starts_just_before_the_seal_that_may_have_its_seat(seal_no: int) -> None:
    view = watch_from(HEAD, seal_no)
    assert (view.no, view.opened) == (seal_no - 1, HEAD.opened)
    assert (view.sealed is not None) == (seal_no > 2), "a later seal of a group follows the common one"
    group = None if seal_no == 2 else 1
    view = fold_for(view, sealed(1 if seal_no == 2 else 6, seal_no, MINE, group=group), ME)
    assert isinstance(decide_step(view, Progress(arrived_in=1), ME, is_draining=False), TakeSeat)


def test_a_newcomer_that_no_seal_counts_starts_from_the_head() -> None:
    assert watch_from(HEAD, None) == HEAD


# --- whole runs -------------------------------------------------------------------------------------


@dataclass
class Announcer:
    """Publishes the events of a run with groups, and remembers where every node is. It knows no rule but that."""

    nodes: Sequence[str]
    events: list[AnyEvent] = field(default_factory=list)
    groups: dict[int, list[str]] = field(default_factory=dict)
    cycles: dict[int, int] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)
    common: int = 1
    newest: int = 1
    is_open: bool = False

    @property
    def no(self) -> int:
        return len(self.events) + 1

    def standing(self) -> list[str]:
        placed = {name for members in self.groups.values() for name in members}
        return [name for name in self.nodes if name not in placed]

    def open_all(self) -> None:
        self.newest += bool(self.events)
        self.common, self.is_open = self.newest, True
        self.open.clear()
        self.events.append(opened(self.newest, self.no, log_id=self.newest))

    def seal_all(self, count: int) -> None:
        self.groups = {group: list(self.nodes[2 * group : 2 * group + 2]) for group in range(count)}
        self.cycles, self.is_open = dict.fromkeys(self.groups, self.common), False
        seats = {name: Seat(rank, group=group) for group, two in self.groups.items() for rank, name in enumerate(two)}
        rest = {name: Seat(None) for name in self.standing()}
        self.events.append(sealed(self.common, self.no, {**seats, **rest}, groups=count))

    def open_group(self, group: int) -> None:
        self.newest += 1
        self.open.add(group)
        self.cycles[group] = self.newest
        self.events.append(opened(self.newest, self.no, group=group, log_id=self.common))

    def seal_group(self, group: int, members: list[str]) -> None:
        self.open.discard(group)
        self.groups[group] = members
        seats = {name: Seat(rank, group=group) for rank, name in enumerate(members)}
        self.events.append(sealed(self.cycles[group], self.no, seats, group=group))

    def happen(self, what: str, choice: int) -> None:
        sealed_groups = [group for group in self.groups if group not in self.open]
        spare = self.standing()
        if what == "all":
            self.seal_all(1 + choice % 3) if self.is_open else self.open_all()
        elif self.is_open:
            return
        elif what == "open" and sealed_groups:
            self.open_group(sealed_groups[choice % len(sealed_groups)])
        elif what == "seal" and self.open:
            group = sorted(self.open)[choice % len(self.open)]
            if choice % 3 == 0:
                self.open_group(group)  # It is opened anew just before its seal.
            self.seal_group(group, [*self.groups[group], *spare][choice % 2 :][:2] if spare else self.groups[group])
        elif what == "dissolve" and self.open:
            group = sorted(self.open)[choice % len(self.open)]
            self.open.discard(group)
            del self.groups[group]
        elif what == "form" and len(spare) >= 2:
            group = next(number for number in range(9) if number not in self.groups)
            self.open_group(group)
            self.seal_group(group, spare[:2])

    def place_of(self, name: str) -> tuple[int, int, int] | None:
        """Group, rank and cycle in which a node trains now."""
        if self.is_open:
            return None
        for group, members in self.groups.items():
            if name in members and group not in self.open:
                return group, members.index(name), self.cycles[group]
        return None


@settings(max_examples=150)
@given(
    happenings=st.lists(
        st.tuples(st.sampled_from(["all", "open", "open", "seal", "seal", "dissolve", "form"]), st.integers(0, 11)),
        max_size=25,
    )
)
def test_every_node_knows_its_own_place_whatever_happens(happenings: list[tuple[str, int]]) -> None:
    """A node whose workers run knows when they must stop. It learns each place that it has. It misses no number."""
    run = Announcer([f"{number:016x}" for number in range(8)])
    run.open_all()
    first = run.events[0]
    assert isinstance(first, Opened)
    views = {name: View(no=1, opened=first) for name in run.nodes}
    head = View(no=1, opened=first)
    trains: dict[str, int] = {}
    """The cycle of the workers of each node."""
    for what, choice in [("all", 1), *happenings]:
        run.happen(what, choice)
        for event in run.events[head.no :]:
            head = msgspec.structs.replace(fold(head, event))
            for name in run.nodes:
                before = views[name]
                views[name] = fold_for(before, event, name)
                assert views[name].no == event.no
                is_of_group = isinstance(event, Opened | Sealed) and event.group is not None
                if is_of_group and run_elsewhere(event, before, name):
                    assert views[name] == number_only(before, event), "it hears only what concerns it"
        for name in run.nodes:
            place, view = run.place_of(name), views[name]
            if place is not None:
                assert view.sealed is not None
                seat = view.sealed.seats[name]
                assert (seat.group, seat.rank, view.sealed.cycle_id, view.cycle_id) == (*place, place[2])
                assert not is_superseded(view, place[2])
            if name in trains and (place is None or place[2] != trains[name]):
                assert is_superseded(view, trains[name]), "its workers stop"
            if place is None:
                trains.pop(name, None)
            else:
                trains[name] = place[2]
        common = head.sealed if head.sealed is not None else head.opened
        assert (common.cycle_id, common.group, head.no) == (run.common, None, len(run.events))


def run_elsewhere(event: AnyEvent, view: View, name: str) -> bool:
    """Whether an event is of a group that a node has nothing to do with, before it and after it."""
    assert isinstance(event, Opened | Sealed)
    seat = event.seats.get(name) if isinstance(event, Sealed) else None
    return seat is None and view.opened.group != event.group and view.group_of(name) != event.group
