"""What becomes of replica groups: a table of situations, and random runs against a naive model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ft_rendezvous.core.capacity import PlacementRules
from ft_rendezvous.core.groups import (
    CloseRun,
    DissolveGroup,
    FormGroup,
    GroupPlan,
    GroupRules,
    GroupStep,
    GroupsView,
    GroupView,
    GroupWait,
    OpenGroup,
    RestartAll,
    SealGroup,
    decide_groups,
)
from ft_rendezvous.core.model import (
    Arrival,
    GroupForms,
    NodesDrain,
    NodesLost,
    NoGroupTrains,
    RestartRequested,
    Verdict,
    VerdictKind,
    WorkersFailed,
)
from ft_rendezvous.core.next_cycle import DrainState
from ft_rendezvous.core.sealing import AwaitsSurvivors, CountsDisagree, NeedsNodes
from tests.core.worlds import by_name, names, seat

FOREVER = float("inf")
NOW, OPENED = 1000.0, 990.0
LAST_CALL = OPENED + 45.0
RULES = GroupRules(
    placement=PlacementRules(min_nodes=6, max_nodes=10, group_size=2),
    wanted=3,
    min_groups=1,
    last_call_s=45.0,
    settle_s=0.0,
    join_s=600.0,
    lease_s=5.0,
)
PATIENT = replace(RULES, settle_s=20.0)
TWO_AT_LEAST = replace(RULES, min_groups=2)
WHOLE = replace(RULES, placement=replace(RULES.placement, segment=2))
SHARED = replace(RULES, wanted=4, placement=replace(RULES.placement, segment=4, max_nodes=12))
FOURS = replace(RULES, wanted=4, placement=replace(RULES.placement, group_size=4, max_nodes=16))

FAILED = WorkersFailed("n", 0, "exit 1")
LOST = NodesLost(("n",), (0,))
ASKED = RestartRequested("an operator", "")
LACKS = "it lacks nodes, and all other groups have finished"


def nodes(*numbers: int, domain: str | None = None) -> dict[str, Arrival]:
    return by_name(seat(number, number, domain) for number in numbers)


def sealed(number: int, *troubles: Any, **rest: Any) -> GroupView:
    """A group that trains, or did until its troubles."""
    return GroupView(number, is_open=False, troubles=troubles, **rest)


def drains(*, due_at: float, is_covered: bool = True) -> DrainState:
    return DrainState(("n",), due_at, is_covered=is_covered, is_total=False)


def finished(number: int) -> GroupView:
    return GroupView(number, is_open=False, has_finished=True)


def waiting(
    number: int, back: Sequence[int] = (), awaited: Sequence[int] = (), opened_at: float = OPENED, **rest: Any
) -> GroupView:
    """A group whose cycle is open, with its nodes that are back and those that stop their workers."""
    return GroupView(
        number,
        is_open=True,
        opened_at=opened_at,
        why=LOST,
        survivors=nodes(*back),
        awaited=nodes(*awaited),
        **rest,
    )


def run(*groups: GroupView, spares: Sequence[int] = (), size: int = 2, **rest: Any) -> GroupsView:
    """A run. Group 3 has had the nodes 31 and 32, and so on."""
    given = {"can_form_since": OPENED} | rest
    worlds = {
        each.group: tuple(nodes(*range(each.group * 10 + 1, each.group * 10 + 1 + size)).values()) for each in groups
    }
    return GroupsView(groups=groups, worlds=worlds, spares=nodes(*spares), **given)


def seal(number: int, *ranks: int) -> SealGroup:
    return SealGroup(number, names(ranks))


def form(number: int, *ranks: int) -> FormGroup:
    return FormGroup(number, names(ranks), GroupForms(len(ranks)))


def awaits(*numbers: int) -> AwaitsSurvivors:
    first = tuple(f"infra rank {number} at host{number} pid {100 + number}" for number in numbers)
    return AwaitsSurvivors(len(numbers), first)


def lacks(arrived: int, wanted: int = 2, missing: tuple[str, ...] = ()) -> NeedsNodes:
    return NeedsNodes(arrived, wanted, missing)


@dataclass(frozen=True, slots=True)
class Case:
    view: GroupsView
    steps: Sequence[GroupStep] = ()
    waits: Mapping[int, GroupWait] | None = None
    until: float = FOREVER
    now: float = NOW
    rules: GroupRules = RULES


CASES = {
    # --- groups end ---
    "all train: nothing happens": Case(run(sealed(0), sealed(1), sealed(2))),
    "workers of one group fail: it alone restarts": Case(
        run(sealed(0), sealed(1, FAILED), sealed(2)), [OpenGroup(1, FAILED)]
    ),
    "two groups end: each opens its next cycle": Case(
        run(sealed(0, LOST), sealed(1, FAILED), sealed(2)), [OpenGroup(0, LOST), OpenGroup(1, FAILED)]
    ),
    "an operator restarts one group": Case(run(sealed(0), sealed(1, ASKED)), [OpenGroup(1, ASKED)]),
    "the first trouble is the cause; losses are named together": Case(
        run(sealed(0), sealed(1, LOST, FAILED, LOST)), [OpenGroup(1, NodesLost(("n", "n"), (0, 0), count=2))]
    ),
    "all fail at once: one common restart": Case(
        run(sealed(0, FAILED), sealed(1, LOST)), [RestartAll(NoGroupTrains((0, 1), str(FAILED)))]
    ),
    "the last group that trained fails, another waits: one common restart": Case(
        run(waiting(0, back=[1]), sealed(1, FAILED)), [RestartAll(NoGroupTrains((1,), str(FAILED)))]
    ),
    "the only group of a run fails: the cause is its own": Case(
        run(sealed(0, FAILED)), [RestartAll(FAILED)], rules=replace(RULES, wanted=1)
    ),
    "all others have finished: the one that fails restarts alone": Case(
        run(finished(0), sealed(1, FAILED)), [OpenGroup(1, FAILED)]
    ),
    "a restart comes before a seal": Case(
        run(waiting(0, back=[1, 2]), sealed(1, FAILED), sealed(2)), [OpenGroup(1, FAILED)]
    ),
    # --- groups are filled ---
    "all survivors are back, and a spare fills the hole": Case(
        run(waiting(0, back=[1]), sealed(1), spares=[7]), [seal(0, 1, 7)]
    ),
    "a survivor keeps its rank": Case(run(waiting(0, back=[2]), sealed(1), spares=[7]), [seal(0, 7, 2)]),
    "a group without a hole is sealed as it was": Case(run(waiting(0, back=[2, 1]), sealed(1)), [seal(0, 1, 2)]),
    "a group that lost all its nodes is filled with spares": Case(
        run(waiting(1), sealed(0), spares=[7, 8]), [seal(1, 7, 8)]
    ),
    "a group lacks a node: it waits, the others train on": Case(
        run(waiting(0, back=[1], missing=("m",)), sealed(1)), waits={0: lacks(1, missing=("m",))}
    ),
    "a survivor stops its workers: wait for it": Case(
        run(waiting(0, back=[1], awaited=[2]), sealed(1)), waits={0: awaits(2)}, until=LAST_CALL
    ),
    "even if spares could take its place": Case(
        run(waiting(0, back=[1], awaited=[2]), sealed(1), spares=[7]), waits={0: awaits(2)}, until=LAST_CALL
    ),
    "until the last call is over": Case(
        run(waiting(0, back=[1], awaited=[2]), sealed(1), spares=[7]), [seal(0, 1, 7)], now=LAST_CALL
    ),
    "after the last call, one that no spare can replace is waited for": Case(
        run(waiting(0, back=[1], awaited=[2]), sealed(1)), waits={0: awaits(2)}, now=LAST_CALL
    ),
    "an arrival was counted, and its record is not there yet": Case(
        run(waiting(0, back=[1, 2]), sealed(1), disagrees_since=NOW - 1), waits={0: CountsDisagree()}, until=NOW + 4
    ),
    "its record never comes": Case(run(waiting(0, back=[1, 2]), sealed(1), disagrees_since=NOW - 5), [seal(0, 1, 2)]),
    "the group that waits longest is first": Case(
        run(waiting(0, back=[1]), waiting(1, back=[11], opened_at=OPENED - 1), sealed(2), spares=[7]),
        [seal(1, 11, 7)],
        waits={0: lacks(1)},
    ),
    "of two that wait equally long, the lower number": Case(
        run(waiting(0, back=[1]), waiting(1, back=[11]), sealed(2), spares=[7]), [seal(0, 1, 7)], waits={1: lacks(1)}
    ),
    "no spare is given twice": Case(
        run(waiting(0, back=[1]), waiting(1, back=[11]), sealed(2), spares=[7, 8]), [seal(0, 1, 7), seal(1, 11, 8)]
    ),
    "a group that waits for a survivor keeps the spare for its hole": Case(
        run(waiting(0, awaited=[1]), waiting(1, back=[11], opened_at=OPENED + 1), sealed(2), spares=[7]),
        waits={0: awaits(1), 1: lacks(1)},
        until=LAST_CALL,
    ),
    "but no spare for the survivor": Case(
        run(waiting(0, awaited=[1, 2]), waiting(1, back=[11], opened_at=OPENED + 1), sealed(2), spares=[7, 8]),
        [seal(1, 11, 7)],
        waits={0: awaits(1, 2)},
        until=LAST_CALL,
    ),
    "a large group that waits for survivors keeps the spare for its hole": Case(
        run(
            waiting(0, awaited=[1, 2, 3]),
            waiting(1, back=[11, 12, 13], opened_at=OPENED + 1),
            sealed(2),
            spares=[7],
            size=4,
        ),
        waits={0: awaits(1, 2, 3), 1: lacks(3, 4)},
        until=LAST_CALL,
        rules=FOURS,
    ),
    "a parked node is the last choice": Case(
        run(waiting(0, back=[1]), sealed(1), spares=[7, 8], parked=set(names([7]))), [seal(0, 1, 8)]
    ),
    "a parked node fills a hole that no other node can": Case(
        run(waiting(0, back=[1]), sealed(1), spares=[7], parked=set(names([7]))), [seal(0, 1, 7)]
    ),
    # --- groups are given up ---
    "two lack a node each: one is given up for the other": Case(
        run(waiting(0, back=[1]), waiting(1, back=[11]), sealed(2)),
        [DissolveGroup(1, "group 0 needs its nodes, and no others come")],
        waits={0: lacks(1), 1: lacks(1)},
    ),
    "the one with fewer survivors": Case(
        run(waiting(0, back=[1]), waiting(1, back=[11, 12, 13]), sealed(2), size=4),
        [DissolveGroup(0, "group 1 needs its nodes, and no others come")],
        waits={0: lacks(1, 4), 1: lacks(3, 4)},
        rules=FOURS,
    ),
    "several, if one is not enough": Case(
        run(waiting(0, back=[1, 2]), waiting(1, back=[11]), waiting(2, back=[21]), sealed(3), size=4),
        [
            DissolveGroup(1, "group 0 needs its nodes, and no others come"),
            DissolveGroup(2, "group 0 needs its nodes, and no others come"),
        ],
        waits={0: lacks(2, 4), 1: lacks(1, 4), 2: lacks(1, 4)},
        rules=FOURS,
    ),
    "not more than are needed": Case(
        run(waiting(0, back=[1, 2, 3]), waiting(1, back=[11]), waiting(2, back=[21]), sealed(3), size=4),
        [DissolveGroup(2, "group 0 needs its nodes, and no others come")],
        waits={0: lacks(3, 4), 1: lacks(1, 4), 2: lacks(1, 4)},
        rules=FOURS,
    ),
    "none, if that helps no other": Case(
        run(waiting(0, back=[1]), waiting(1, back=[11]), sealed(2), size=4),
        waits={0: lacks(1, 4), 1: lacks(1, 4)},
        rules=FOURS,
    ),
    "none that only lacks a spare that another group keeps for now": Case(
        run(
            waiting(0, awaited=[1, 2]),
            waiting(1, back=[11], opened_at=OPENED + 1),
            waiting(2, back=[21], opened_at=OPENED + 1),
            sealed(3),
            spares=[7, 8],
        ),
        [seal(1, 11, 7), seal(2, 21, 8)],
        waits={0: awaits(1, 2)},
        until=LAST_CALL,
        rules=replace(RULES, wanted=4),
    ),
    "none whose survivors still stop their workers": Case(
        run(waiting(0, back=[1]), waiting(1, awaited=[11]), sealed(2)),
        waits={0: lacks(1), 1: awaits(11)},
        until=LAST_CALL,
    ),
    "all others have finished, and a group lacks nodes": Case(
        run(finished(0), waiting(1, back=[11])), [DissolveGroup(1, LACKS)], waits={1: lacks(1)}
    ),
    "all others have finished, and two groups lack nodes: one is given up for the other": Case(
        run(finished(0), waiting(1, back=[11]), waiting(2, back=[21])),
        [DissolveGroup(2, "group 1 needs its nodes, and no others come")],
        waits={1: lacks(1), 2: lacks(1)},
    ),
    "all others have finished, and a survivor is on its way": Case(
        run(finished(0), waiting(1, awaited=[11])), waits={1: awaits(11)}, until=LAST_CALL
    ),
    "some others still train": Case(run(finished(0), sealed(1), waiting(2, back=[21])), waits={2: lacks(1)}),
    # --- groups are formed ---
    "enough spares for a group: it is formed, and no other restarts": Case(
        run(sealed(0), sealed(1), spares=[7, 8, 9]), [form(2, 7, 8)]
    ),
    "two at once": Case(run(sealed(0), spares=[6, 7, 8, 9]), [form(1, 6, 7), form(2, 8, 9)]),
    "with the lowest free number": Case(run(sealed(0), sealed(2), spares=[7, 8]), [form(1, 7, 8)]),
    "none above the wanted number": Case(run(sealed(0), sealed(1), sealed(2), spares=[7, 8])),
    "none while more nodes may come": Case(run(sealed(0), sealed(1), spares=[7, 8]), until=OPENED + 20, rules=PATIENT),
    "until settle_s is over": Case(
        run(sealed(0), sealed(1), spares=[7, 8]), [form(2, 7, 8)], now=OPENED + 20, rules=PATIENT
    ),
    "a hole comes first": Case(run(sealed(0), waiting(1, back=[11]), spares=[7, 8]), [seal(1, 11, 7)]),
    "none of nodes that a group keeps for its hole": Case(
        run(sealed(0), waiting(1, awaited=[11]), spares=[7, 8]), waits={1: awaits(11)}, until=LAST_CALL
    ),
    "for MIN nodes also of parked nodes": Case(run(sealed(0), spares=[7, 8], parked=set(names([7]))), [form(1, 7, 8)]),
    "beyond MIN nodes none for the sake of a parked node": Case(
        run(sealed(0), sealed(1), sealed(2), spares=[7, 8], parked=set(names([7]))), rules=replace(RULES, wanted=4)
    ),
    "none once a group has finished": Case(run(sealed(0), finished(1), spares=[7, 8])),
    # --- drains ---
    "a node drains: its group waits for a checkpoint": Case(
        run(sealed(0), sealed(1, drain=drains(due_at=NOW + 30)), spares=[7]), until=NOW + 30
    ),
    "its group is at a checkpoint": Case(
        run(sealed(0), sealed(1, drain=drains(due_at=NOW + 30), is_at_checkpoint=True), spares=[7]),
        [OpenGroup(1, NodesDrain(("n",), 1))],
    ),
    "its time is over": Case(
        run(sealed(0), sealed(1, drain=drains(due_at=NOW)), spares=[7]), [OpenGroup(1, NodesDrain(("n",), 1))]
    ),
    "no other node can take its place: it trains on": Case(
        run(sealed(0), sealed(1, drain=drains(due_at=NOW, is_covered=False)))
    ),
    "a group that ends anyway is opened once": Case(
        run(sealed(0), sealed(1, FAILED, drain=drains(due_at=NOW)), spares=[7]), [OpenGroup(1, FAILED)]
    ),
    # --- the end ---
    "every group has finished": Case(run(finished(0), finished(1)), [CloseRun(Verdict(VerdictKind.SUCCEEDED))]),
    "every group has finished, one of them while its next cycle was open": Case(
        run(finished(0), waiting(1, has_finished=True)), [CloseRun(Verdict(VerdictKind.SUCCEEDED))]
    ),
    "a group that finished while its next cycle was open is not filled": Case(
        run(sealed(0), waiting(1, has_finished=True), spares=[7, 8])
    ),
    "nor is it given up": Case(
        run(sealed(0), waiting(1, has_finished=True), waiting(2, back=[21])), waits={2: lacks(1)}
    ),
    "finished, and drained nodes leave too few": Case(
        run(finished(0), is_drain_total=True),
        [CloseRun(Verdict(VerdictKind.CANCELLED, "drained: too few nodes would remain", is_retryable=True))],
    ),
    "no group trains, and none can: a common cycle says how long the run waits": Case(
        run(waiting(0, back=[1]), waiting(1), size=4),
        [RestartAll(NoGroupTrains((0, 1), str(LOST)))],
        waits={0: lacks(1, 4), 1: lacks(0, 4)},
        rules=FOURS,
    ),
    "too few groups are sealed: the run waits": Case(
        run(sealed(0), waiting(1, back=[11]), short_since=NOW - 10),
        waits={1: lacks(1)},
        until=NOW + 590,
        rules=TWO_AT_LEAST,
    ),
    "for join_timeout": Case(
        run(sealed(0), waiting(1, back=[11], missing=("m (rank 1)",)), short_since=NOW - 600),
        [
            CloseRun(
                Verdict(
                    VerdictKind.FAILED,
                    "join_timeout of 600 s is over: 1 of 2 groups train; "
                    "group 1: 1 of 2 nodes have arrived; missing: m (rank 1)",
                    is_retryable=True,
                )
            )
        ],
        waits={1: lacks(1, missing=("m (rank 1)",))},
        rules=TWO_AT_LEAST,
    ),
    "also for a group that was given up": Case(
        run(sealed(0), spares=[7], short_since=NOW - 600, can_form_since=None),
        [
            CloseRun(
                Verdict(
                    VerdictKind.FAILED,
                    "join_timeout of 600 s is over: 1 of 2 groups train; group 1: 1 of 2 nodes have arrived",
                    is_retryable=True,
                )
            )
        ],
        rules=TWO_AT_LEAST,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_decision(name: str) -> None:
    case = CASES[name]
    assert decide_groups(case.view, case.now, case.rules) == GroupPlan(tuple(case.steps), case.waits or {}, case.until)


# --- domains and segments ---------------------------------------------------------------------------


def in_domains(worlds: Mapping[int, tuple[str, Sequence[int]]], spares: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """The worlds of groups and the spares, by domain."""
    return {
        "worlds": {
            group: tuple(nodes(*numbers, domain=domain).values()) for group, (domain, numbers) in worlds.items()
        },
        "spares": {
            name: one for domain, numbers in spares.items() for name, one in nodes(*numbers, domain=domain).items()
        },
    }


@pytest.mark.parametrize(
    ("spares", "wanted", "steps"),
    [
        pytest.param({"A": [7, 8]}, 4, [form(1, 7, 8)], id="in the domain of the segment's other group"),
        pytest.param({"B": [7, 8]}, 4, [form(2, 7, 8)], id="in another domain: the first of another segment"),
        pytest.param({"A": [3, 4], "B": [7, 8, 9, 10]}, 4, [form(1, 3, 4), form(2, 7, 8), form(3, 9, 10)], id="all"),
        pytest.param({"B": [7, 8]}, 2, [], id="not above the wanted number"),
        pytest.param({"A": [7], "B": [8]}, 4, [], id="not in two domains"),
    ],
)
def test_groups_that_share_a_segment_are_formed_in_one_domain(
    spares: dict[str, list[int]], wanted: int, steps: list[GroupStep]
) -> None:
    view = GroupsView(groups=[sealed(0)], can_form_since=OPENED, **in_domains({0: ("A", [1, 2])}, spares))
    assert decide_groups(view, NOW, replace(SHARED, wanted=wanted)).steps == tuple(steps)


def test_no_group_is_given_up_for_one_that_its_nodes_cannot_fill() -> None:
    """With segments, nodes of another domain do not help."""
    view = GroupsView(
        groups=[
            GroupView(0, is_open=True, survivors=nodes(1, domain="A")),
            GroupView(1, is_open=True, survivors=nodes(11, domain="B")),
            GroupView(2, is_open=True, survivors=nodes(21, domain="A")),
            sealed(3),
        ],
        **in_domains({0: ("A", [1, 2]), 1: ("B", [11, 12]), 2: ("A", [21, 22]), 3: ("A", [31, 32])}, {}),
    )
    (step,) = decide_groups(view, NOW, WHOLE).steps
    assert step == DissolveGroup(2, "group 0 needs its nodes, and no others come")


# --- random runs ------------------------------------------------------------------------------------

ACTIVE, STOPPING, BACK, GONE, DONE = "active", "stopping", "back", "gone", "done"


@dataclass(slots=True)
class NaiveGroup:
    """A group, and what each of its nodes does."""

    roles: dict[int, str]
    is_open: bool = False
    opened_at: float = 0.0
    troubles: int = 0

    @property
    def has_finished(self) -> bool:
        return all(role is DONE for role in self.roles.values())

    def having(self, role: str) -> list[int]:
        return [number for number, each in self.roles.items() if each is role]


class NaiveRun:
    """A run with groups that does what it is told, and complains if that is wrong. Nodes are numbers."""

    def __init__(self, groups: int, spares: int, rules: GroupRules) -> None:
        size = rules.placement.group_size
        self.rules, self.now, self.count = rules, NOW, groups * size
        self.groups = {
            group: NaiveGroup(dict.fromkeys(range(group * size, (group + 1) * size), ACTIVE)) for group in range(groups)
        }
        self.spares: set[int] = set()
        self.late: set[int] = set()
        """Nodes that still stop workers of a group that goes on without them."""
        self.end: GroupStep | None = None
        self.short_since: float | None = None
        self.add_spares(spares)

    def add_spares(self, count: int) -> None:
        self.spares.update(range(self.count, self.count + count))
        self.count += count

    @property
    def view(self) -> GroupsView:
        size = self.rules.placement.group_size
        groups = []
        for number, group in sorted(self.groups.items()):
            is_sealed = not group.is_open
            groups.append(
                GroupView(
                    number,
                    is_open=group.is_open,
                    opened_at=group.opened_at,
                    why=LOST if group.is_open else None,
                    has_finished=group.has_finished,
                    troubles=[FAILED] * group.troubles if is_sealed else [],
                    survivors={} if is_sealed else nodes(*group.having(BACK)),
                    awaited={} if is_sealed else nodes(*group.having(STOPPING)),
                )
            )
        can_form = len(groups) < self.rules.wanted and len(self.spares) >= size
        sealed_count = sum(not each.is_open or each.has_finished for each in groups)
        is_short = sealed_count < self.rules.min_groups
        self.short_since = (self.short_since or self.now) if is_short else None
        return GroupsView(
            groups=groups,
            worlds={number: tuple(nodes(*group.roles).values()) for number, group in self.groups.items()},
            spares=nodes(*sorted(self.spares)),
            can_form_since=self.now if can_form else None,
            short_since=self.short_since,
        )

    def settle(self) -> GroupPlan:
        """Decide and act until there is nothing to do. That takes a bounded number of rounds."""
        for _ in range(4 * self.rules.wanted + 4):
            view = self.view
            plan = decide_groups(view, self.now, self.rules)
            self.judge(view, plan)
            for step in plan.steps:
                self.take(step)
            if not plan.steps or self.end is not None:
                return plan
        raise AssertionError("the decisions do not come to an end")

    # --- what may be ---

    def judge(self, view: GroupsView, plan: GroupPlan) -> None:
        training = {each.group for each in view.groups if each.is_training}
        done = {each.group for each in view.groups if each.has_finished}
        assert plan.until > self.now, "a time that is over"
        given = [name for step in plan.steps if isinstance(step, SealGroup | FormGroup) for name in step.ranks]
        assert len(given) == len(set(given)), "a node is given once"
        for step in plan.steps:
            match step:
                case RestartAll():
                    assert not training, "a group trains well"
                    assert not done, "a group has finished"
                    assert not any(isinstance(other, SealGroup) for other in plan.steps)
                case CloseRun(verdict) if verdict.kind is VerdictKind.SUCCEEDED:
                    assert len(done) == len(view.groups) > 0
                case CloseRun(verdict):
                    assert verdict.kind is VerdictKind.FAILED
                    assert view.short_since is not None
                    assert self.now >= view.short_since + self.rules.join_s
                case _:
                    assert step.group not in training | done, "no step concerns a group that trains or has finished"
            if isinstance(step, DissolveGroup):
                self.judge_dissolving(step, done)

    def judge_dissolving(self, step: DissolveGroup, done: set[int]) -> None:
        """No group is given up that the spares can fill, unless other groups that wait have them."""
        size, group = self.rules.placement.group_size, self.groups[step.group]
        assert group.is_open
        assert not group.having(STOPPING)
        kept = sum(size - len(other.having(BACK)) - len(other.having(STOPPING)) for other in self.having_stoppers())
        left = max(0, len(self.spares) - kept)
        assert len(group.having(BACK)) + left < size, "it can be filled"
        others = [other for number, other in self.groups.items() if number != step.group and other.is_open]
        pool = left + len(group.having(BACK)) + sum(len(other.having(BACK)) for other in others)
        is_last = all(number in done or other.is_open for number, other in self.groups.items())
        assert pool >= size or (done and is_last), "it helps another group, or all others have finished"

    def having_stoppers(self) -> list[NaiveGroup]:
        return [group for group in self.groups.values() if group.is_open and group.having(STOPPING)]

    # --- what follows ---

    def take(self, step: GroupStep) -> None:
        match step:
            case OpenGroup(number):
                group = self.groups[number]
                assert not group.is_open
                assert group.troubles
                group.is_open, group.opened_at, group.troubles = True, self.now, 0
                for node in group.having(ACTIVE):
                    group.roles[node] = STOPPING
            case SealGroup(number, ranks):
                assert self.groups[number].is_open
                self.release(number)
                self.place(number, ranks)
            case FormGroup(number, ranks):
                assert number not in self.groups
                assert len(self.groups) < self.rules.wanted
                self.place(number, ranks)
            case DissolveGroup(number):
                self.release(number)
                del self.groups[number]
            case _:
                self.end = step

    def release(self, number: int) -> None:
        """The nodes of an open group stand by, or will."""
        self.spares.update(self.groups[number].having(BACK))
        self.late.update(self.groups[number].having(STOPPING))

    def place(self, number: int, ranks: Sequence[str]) -> None:
        taken = [int(name, 16) for name in ranks]
        assert len(taken) == self.rules.placement.group_size
        assert self.spares.issuperset(taken), "nodes that are not here"
        self.spares.difference_update(taken)
        self.groups[number] = NaiveGroup(dict.fromkeys(taken, ACTIVE))

    # --- what happens ---

    def happen(self, what: str, choice: int) -> None:
        """One thing happens to one node or group, if there is one."""
        number = sorted(self.groups)[choice % len(self.groups)]
        group = self.groups[number]
        node = list(group.roles)[choice % len(group.roles)]
        role = group.roles[node]
        match what:
            case "fail" if role is ACTIVE and not group.is_open:
                group.troubles += 1
            case "lose" if role in (ACTIVE, STOPPING, BACK):
                group.troubles += role is ACTIVE and not group.is_open
                group.roles[node] = GONE
            case "lose a spare" if self.spares:
                self.spares.remove(sorted(self.spares)[choice % len(self.spares)])
            case "come":
                self.add_spares(1 + choice % 3)
            case "return":
                self.spares |= self.late
                self.late.clear()
            case "finish" if role in (ACTIVE, STOPPING):
                group.roles[node] = DONE
            case "stop" if role is STOPPING:
                group.roles[node] = BACK
            case "wait":
                self.now += 1.0 + 30.0 * (choice % 3)

    def heal(self) -> None:
        """Every node that stops its workers is back."""
        for group in self.groups.values():
            for node in group.having(STOPPING):
                group.roles[node] = BACK
        self.happen("return", 0)


HAPPENINGS = ("fail", "lose", "lose a spare", "come", "return", "finish", "stop", "wait", "lose", "stop")


@settings(max_examples=300)
@given(
    size=st.integers(1, 4),
    groups=st.integers(1, 4),
    spares=st.integers(0, 3),
    more=st.integers(0, 1),
    happenings=st.lists(st.tuples(st.sampled_from(HAPPENINGS), st.integers(0, 11)), max_size=25),
)
def test_a_random_run(size: int, groups: int, spares: int, more: int, happenings: list[tuple[str, int]]) -> None:
    """Whatever happens, every decision is just; and once all nodes are back, no group waits that could be filled."""
    placement = PlacementRules(min_nodes=size * groups, max_nodes=99, group_size=size)
    naive = NaiveRun(groups, spares, replace(RULES, placement=placement, wanted=groups + more))
    for what, choice in happenings:
        naive.happen(what, choice)
        if choice % 4:
            naive.settle()
        if naive.end is not None:
            return
    for _ in range(3):
        naive.heal()
        naive.settle()
        naive.now += 50.0
    if naive.end is not None:
        return
    waiting = [group for group in naive.groups.values() if group.is_open and not group.has_finished]
    idle = len(naive.spares) + sum(len(group.having(BACK)) for group in waiting)
    assert not any(group.troubles and not group.has_finished for group in naive.groups.values())
    assert not waiting or idle < size, "nodes that could fill a group are idle"
    has_begun_to_finish = any(group.has_finished for group in naive.groups.values())
    assert has_begun_to_finish or waiting or len(naive.groups) == groups + more or len(naive.spares) < size
    assert any(group.has_finished or not group.is_open for group in naive.groups.values()), "the run is stuck"


def test_too_few_groups_for_too_long_close_the_run() -> None:
    naive = NaiveRun(3, 0, TWO_AT_LEAST)
    for choice in (1, 4, 2, 5):
        naive.happen("lose", choice)
        plan = naive.settle()
    assert [group.is_open for group in naive.groups.values()] == [False, True, True]
    assert plan.until == naive.now + RULES.join_s
    naive.now = plan.until
    naive.settle()
    assert isinstance(naive.end, CloseRun)
    assert naive.end.verdict.is_retryable
