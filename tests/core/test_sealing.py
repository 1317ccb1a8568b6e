"""When a cycle is sealed: each decision once, then the properties that all of them must have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ft_rendezvous.core.capacity import PlacementRules, Policy
from ft_rendezvous.core.model import Arrival, Verdict, VerdictKind
from ft_rendezvous.core.sealing import (
    AwaitsOthers,
    AwaitsSurvivors,
    CountsDisagree,
    GiveUp,
    HopesForMore,
    NeedsBlocks,
    NeedsNodes,
    Seal,
    SealRules,
    SealView,
    Settles,
    Wait,
    decide_seal,
)
from ft_rendezvous.text import NAMED
from tests.core.build import arrival, arrivals, node
from tests.core.worlds import by_name, capacity_of, seat

RULES = SealRules(
    placement=PlacementRules(min_nodes=3, max_nodes=5), settle_s=2.0, last_call_s=45.0, join_s=600.0, lease_s=5.0
)
WANTED = 3
OPENED_AT = 100.0


def view_of(arrived: int, **changes: object) -> SealView:
    """An open cycle with nodes 1..arrived, enough of them since the opening."""
    view = SealView(
        opened_at=OPENED_AT,
        arrived=arrivals(range(1, arrived + 1)),
        awaited={},
        world=(),
        alive=arrivals(range(1, arrived + 1)),
        fit=arrived,
        joinable_fit=arrived,
        ready_fit=arrived,
        finished_count=0,
        has_all_finished=False,
        spent_count=0,
        left_count=0,
        drained_count=0,
        unhealthy=(),
        enough_since=OPENED_AT if arrived >= WANTED else None,
        disagrees_since=None,
    )
    return replace(view, **changes)  # type: ignore[arg-type]


def waits(reason: object, until: float) -> Wait:
    return Wait(reason, until)  # type: ignore[arg-type]


SURVIVOR = AwaitsSurvivors(1, ("host9 pid 109",))

TABLE = [
    pytest.param(view_of(3), OPENED_AT + 2.0, Seal(WANTED), id="enough, settled"),
    pytest.param(view_of(5), OPENED_AT + 2.0, Seal(WANTED), id="more than enough, settled"),
    pytest.param(view_of(3), OPENED_AT + 1.9, waits(Settles(), OPENED_AT + 2.0), id="enough, still settling"),
    pytest.param(
        view_of(3, enough_since=OPENED_AT + 30), OPENED_AT + 31, waits(Settles(), OPENED_AT + 32), id="settle from then"
    ),
    pytest.param(view_of(0), OPENED_AT, waits(NeedsNodes(0, 3, ()), OPENED_AT + 600), id="no node yet"),
    pytest.param(view_of(2), OPENED_AT + 599, waits(NeedsNodes(2, 3, ()), OPENED_AT + 600), id="one too few"),
    pytest.param(
        view_of(2, world=(arrival(1), arrival(9), arrival(2))),
        OPENED_AT,
        waits(NeedsNodes(2, 3, ("host9 pid 109 (rank 1)",)), OPENED_AT + 600),
        id="one of the last world is missing",
    ),
    pytest.param(
        view_of(3, awaited=arrivals([9])), OPENED_AT + 44.9, waits(SURVIVOR, OPENED_AT + 45), id="a survivor is awaited"
    ),
    pytest.param(view_of(3, awaited=arrivals([9])), OPENED_AT + 45, Seal(WANTED), id="last call is over"),
    pytest.param(
        view_of(3, disagrees_since=OPENED_AT + 1),
        OPENED_AT + 5.9,
        waits(CountsDisagree(), OPENED_AT + 6),
        id="an arrival without its record",
    ),
    pytest.param(
        view_of(3, disagrees_since=OPENED_AT + 1), OPENED_AT + 6, Seal(WANTED), id="the records are the truth"
    ),
    pytest.param(
        view_of(2, disagrees_since=OPENED_AT),
        OPENED_AT,
        waits(NeedsNodes(2, 3, ()), OPENED_AT + 600),
        id="too few explains more than a disagreement",
    ),
]


@pytest.mark.parametrize(("view", "now", "expected"), TABLE)
def test_decision(view: SealView, now: float, expected: object) -> None:
    assert decide_seal(view, now, RULES) == expected


@pytest.mark.parametrize(
    ("view", "now", "facts"),
    [
        pytest.param(
            view_of(2, world=(arrival(1), arrival(2), arrival(9, info=node(9, infra_rank=7)))),
            OPENED_AT + 600,
            ["join_timeout of 600 s is over", "2 of 3 nodes", "infra rank 7 at host9 pid 109 (rank 2)"],
            id="join_timeout names the missing nodes",
        ),
        pytest.param(
            view_of(2, finished_count=1),
            OPENED_AT,
            ["1 node finished", "2 others cannot form a world of 3"],
            id="a finished node cannot come back",
        ),
        pytest.param(
            view_of(2, spent_count=1),
            OPENED_AT,
            ["1 agent spent all restarts", "--max-restarts", "2 others cannot form a world of 3"],
            id="an agent has given up",
        ),
        pytest.param(
            view_of(1, finished_count=1, spent_count=2),
            OPENED_AT,
            ["1 node finished", " and 2 agents spent", "1 other cannot"],
            id="both facts",
        ),
    ],
)
def test_giving_up_tells_the_facts(view: SealView, now: float, facts: list[str]) -> None:
    decision = decide_seal(view, now, RULES)
    assert isinstance(decision, GiveUp)
    assert decision.verdict.kind is VerdictKind.FAILED
    for fact in facts:
        assert fact in decision.verdict.reason


def test_a_run_that_every_node_has_left_is_cancelled_at_once() -> None:
    view = view_of(0, left_count=2, world=tuple(arrivals([1, 2, 3]).values()))
    assert decide_seal(view, OPENED_AT, RULES) == GiveUp(
        Verdict(VerdictKind.CANCELLED, "every node has left", is_retryable=True)
    )


def test_a_world_that_has_finished_though_a_cycle_was_opened_has_succeeded() -> None:
    for arrived in (0, 1, 3):
        view = view_of(arrived, finished_count=3, has_all_finished=True, world=tuple(arrivals([7, 8, 9]).values()))
        assert decide_seal(view, OPENED_AT, RULES) == GiveUp(Verdict(VerdictKind.SUCCEEDED))


def test_a_run_that_some_have_left_waits_for_others_to_come() -> None:
    view = view_of(1, left_count=2)
    assert decide_seal(view, OPENED_AT, RULES) == waits(NeedsNodes(1, 3, ()), OPENED_AT + 600)


@pytest.mark.parametrize("field", ["finished_count", "spent_count", "left_count"])
def test_a_loss_that_the_others_can_make_good_ends_nothing(field: str) -> None:
    view = view_of(2, joinable_fit=3, **{field: 1})
    assert decide_seal(view, OPENED_AT, RULES) == waits(NeedsNodes(2, 3, ()), OPENED_AT + 600)


def test_reasons_name_a_few_nodes_and_count_the_rest() -> None:
    awaited = decide_seal(view_of(3, awaited=arrivals(range(10, 40))), OPENED_AT, RULES)
    assert isinstance(awaited, Wait)
    assert isinstance(awaited.reason, AwaitsSurvivors)
    assert awaited.reason.count == 30
    assert len(awaited.reason.first) == NAMED
    needs = decide_seal(view_of(2, world=tuple(arrivals(range(10, 40)).values())), OPENED_AT, RULES)
    assert isinstance(needs, Wait)
    assert isinstance(needs.reason, NeedsNodes)
    assert len(needs.reason.missing) == NAMED


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (NeedsNodes(2, 3, ()), "2 of 3 nodes have arrived"),
        (NeedsNodes(2, 3, ("x (rank 1)",)), "2 of 3 nodes have arrived; missing: x (rank 1)"),
        (SURVIVOR, "1 survivor is stopping workers: host9 pid 109"),
        (Settles(), "enough nodes have arrived; waiting settle_s for more"),
        (CountsDisagree(), "an arrival was counted and its record is not there yet"),
        (
            NeedsBlocks(2, 4, "segment", 2, ("1 in domain A", "1 in domain B")),
            "1 of 2 segments of 2 can be filled; left over: 1 in domain A, 1 in domain B",
        ),
        (
            NeedsBlocks(4, 12, "unit", 4, ("3 of 4 in unit X",)),
            "1 of 3 units of 4 can be filled; left over: 3 of 4 in unit X",
        ),
        (HopesForMore(4, 6), "a world of 4 is possible; last call for 6"),
    ],
)
def test_every_reason_to_wait_reads_as_a_sentence(reason: object, text: str) -> None:
    assert str(reason) == text


# --- blocks -----------------------------------------------------------------------------------------

SEGMENTS = replace(RULES, placement=PlacementRules(min_nodes=4, max_nodes=8, segment=2))
UNITS = replace(RULES, placement=PlacementRules(min_nodes=4, max_nodes=8, unit_size=2))


def view_with(rules: SealRules, *nodes: Arrival, **changes: object) -> SealView:
    """An open cycle in which these nodes have arrived. No other node is alive."""
    here, fit = by_name(nodes), capacity_of(nodes, rules.placement)
    known: dict[str, object] = {"arrived": here, "alive": here, "fit": fit, "joinable_fit": fit, "ready_fit": fit}
    return replace(view_of(0), **{**known, **changes})  # type: ignore[arg-type]


def in_domains(domains: Sequence[str]) -> list[Arrival]:
    """Nodes 0, 1, ... The letters are their domains."""
    return [seat(number, domain_id=domain) for number, domain in enumerate(domains)]


def in_units(units: str) -> list[Arrival]:
    return [seat(number, unit_id=unit) for number, unit in enumerate(units)]


@pytest.mark.parametrize(
    ("rules", "nodes", "reason"),
    [
        pytest.param(
            SEGMENTS,
            in_domains("AAAB"),
            NeedsBlocks(2, 4, "segment", 2, ("1 in domain A", "1 in domain B")),
            id="enough nodes, not enough segments",
        ),
        pytest.param(SEGMENTS, in_domains("AAB"), NeedsNodes(3, 4, ()), id="too few nodes explains more"),
        pytest.param(
            UNITS,
            in_units("XXYZ"),
            NeedsBlocks(2, 4, "unit", 2, ("1 of 2 in unit Y", "1 of 2 in unit Z")),
            id="enough nodes, not enough units",
        ),
    ],
)
def test_what_is_lacking(rules: SealRules, nodes: list[Arrival], reason: object) -> None:
    view = view_with(rules, *nodes)
    assert decide_seal(view, OPENED_AT + 599, rules) == waits(reason, OPENED_AT + 600)
    over = GiveUp(Verdict(VerdictKind.FAILED, f"join_timeout of 600 s is over: {reason}", is_retryable=True))
    assert decide_seal(view, OPENED_AT + 600, rules) == over


def test_what_is_lacking_names_a_few_domains() -> None:
    decision = decide_seal(view_with(SEGMENTS, *in_domains("ABCDEFGHIJKL")), OPENED_AT, SEGMENTS)
    assert isinstance(decision, Wait)
    assert isinstance(decision.reason, NeedsBlocks)
    assert len(decision.reason.leftovers) == NAMED + 1


@pytest.mark.parametrize(
    ("rules", "nodes"),
    [
        pytest.param(SEGMENTS, in_domains("AABB"), id="segments"),
        pytest.param(SEGMENTS, in_domains("AAABBB"), id="segments and spares"),
        pytest.param(UNITS, in_units("XYXYZ"), id="units"),
    ],
)
def test_a_cycle_is_sealed_when_enough_blocks_can_be_filled(rules: SealRules, nodes: list[Arrival]) -> None:
    assert decide_seal(view_with(rules, *nodes, enough_since=OPENED_AT), OPENED_AT + 2, rules) == Seal(4)


# --- elastic worlds ---------------------------------------------------------------------------------

ELASTIC = replace(RULES, placement=replace(RULES.placement, policy=Policy.ELASTIC))
LATER = OPENED_AT + 100


def world_of(size: int) -> tuple[Arrival, ...]:
    return tuple(arrivals(range(1, size + 1)).values())


@pytest.mark.parametrize(
    ("view", "now", "expected"),
    [
        pytest.param(view_of(2), OPENED_AT, waits(NeedsNodes(2, 3, ()), OPENED_AT + 600), id="first: too few"),
        pytest.param(
            view_of(3), OPENED_AT + 44, waits(HopesForMore(3, 5), OPENED_AT + 45), id="first: MIN, last call for MAX"
        ),
        pytest.param(
            view_of(4, enough_since=LATER),
            LATER + 44,
            waits(HopesForMore(4, 5), LATER + 45),
            id="first: the last call is from when there were MIN",
        ),
        pytest.param(view_of(3), OPENED_AT + 45, Seal(3), id="first: the last call is over"),
        pytest.param(view_of(4), OPENED_AT + 45, Seal(4), id="first: as many as there are"),
        pytest.param(view_of(5), OPENED_AT + 2, Seal(5), id="first: MAX waits for nothing"),
        pytest.param(view_of(5), OPENED_AT + 1, waits(Settles(), OPENED_AT + 2), id="first: MAX settles"),
        pytest.param(view_of(6), OPENED_AT + 2, Seal(5), id="first: never more than MAX"),
        pytest.param(
            view_of(3, finished_count=1), OPENED_AT, waits(HopesForMore(3, 5), OPENED_AT + 45), id="first: no world yet"
        ),
        pytest.param(
            view_of(4, world=world_of(5)),
            OPENED_AT + 44,
            waits(HopesForMore(4, 5), OPENED_AT + 45),
            id="one is gone: last call for a replacement",
        ),
        pytest.param(view_of(4, world=world_of(5)), OPENED_AT + 45, Seal(4), id="no node came: it shrinks"),
        pytest.param(view_of(5, world=world_of(5)), OPENED_AT + 2, Seal(5), id="a replacement came"),
        pytest.param(
            view_of(2, world=world_of(5), alive=arrivals([1, 2])),
            OPENED_AT + 100,
            waits(
                NeedsNodes(2, 3, ("host3 pid 103 (rank 2)", "host4 pid 104 (rank 3)", "host5 pid 105 (rank 4)")),
                OPENED_AT + 600,
            ),
            id="never below MIN",
        ),
        pytest.param(
            view_of(4, world=world_of(5), finished_count=1), OPENED_AT + 2, Seal(4), id="no call for finished nodes"
        ),
        pytest.param(
            view_of(4, world=world_of(5), drained_count=1), OPENED_AT + 2, Seal(4), id="no call for drained nodes"
        ),
        pytest.param(
            view_of(4, world=world_of(5), parked_count=1), OPENED_AT + 2, Seal(4), id="no call for parked nodes"
        ),
        pytest.param(
            view_of(3, world=world_of(5), parked_count=1),
            OPENED_AT + 2,
            waits(HopesForMore(3, 4), OPENED_AT + 45),
            id="a call for lost nodes beside the parked",
        ),
        pytest.param(
            view_of(3, world=world_of(5), drained_count=1),
            OPENED_AT + 2,
            waits(HopesForMore(3, 4), OPENED_AT + 45),
            id="a call for lost nodes beside the drained",
        ),
        pytest.param(view_of(3, world=world_of(3)), OPENED_AT + 2, Seal(3), id="a small world is not called larger"),
        pytest.param(view_of(4, world=world_of(3)), OPENED_AT + 2, Seal(4), id="it grows with the arrived nodes"),
        pytest.param(
            view_of(3, world=world_of(3), joinable_fit=4, ready_fit=4),
            OPENED_AT + 2,
            waits(HopesForMore(3, 4), OPENED_AT + 45),
            id="a live node that has not arrived is hoped for",
        ),
        pytest.param(
            view_of(4, world=world_of(5), drained_count=1, joinable_fit=5, ready_fit=5),
            OPENED_AT + 2,
            waits(HopesForMore(4, 5), OPENED_AT + 45),
            id="also in place of the drained",
        ),
        pytest.param(
            view_of(3, world=world_of(5), awaited=arrivals([9]), joinable_fit=4, ready_fit=4),
            OPENED_AT + 2,
            waits(SURVIVOR, OPENED_AT + 45),
            id="survivors come first",
        ),
        pytest.param(
            view_of(
                3, world=world_of(5), awaited=arrivals([9]), joinable_fit=4, ready_fit=4, enough_since=OPENED_AT + 30
            ),
            OPENED_AT + 45,
            waits(HopesForMore(3, 5), OPENED_AT + 75),
            id="a last call outlasts the wait for survivors",
        ),
    ],
)
def test_elastic_decision(view: SealView, now: float, expected: object) -> None:
    assert decide_seal(view, now, ELASTIC) == expected


ELASTIC_SEGMENTS = replace(SEGMENTS, placement=replace(SEGMENTS.placement, policy=Policy.ELASTIC))


@pytest.mark.parametrize(
    ("domains", "changes", "now", "expected"),
    [
        pytest.param("AAAABBB", {}, OPENED_AT, waits(HopesForMore(6, 8), OPENED_AT + 45), id="a segment more is hoped"),
        pytest.param("AAAABBB", {}, OPENED_AT + 45, Seal(6), id="a node that fills none is a spare"),
        pytest.param("AAAABBBB", {}, OPENED_AT + 2, Seal(8), id="MAX"),
        pytest.param(
            "AAAABBB", {"world": world_of(8), "finished_count": 1}, OPENED_AT + 2, Seal(6), id="a segment goes with one"
        ),
        pytest.param(
            "AAAABBB",
            {"world": world_of(6), "joinable_fit": 8, "ready_fit": 8},
            OPENED_AT + 2,
            waits(HopesForMore(6, 8), OPENED_AT + 45),
            id="one live node would fill another",
        ),
    ],
)
def test_elastic_worlds_are_of_whole_segments(
    domains: str, changes: Mapping[str, object], now: float, expected: object
) -> None:
    view = view_with(ELASTIC_SEGMENTS, *in_domains(domains), enough_since=OPENED_AT, **changes)
    assert decide_seal(view, now, ELASTIC_SEGMENTS) == expected


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        pytest.param(OPENED_AT + 2, Wait(AwaitsOthers(), OPENED_AT + 45), id="others come first"),
        pytest.param(OPENED_AT + 45, Seal(3), id="but not for ever"),
    ],
)
@pytest.mark.parametrize("policy", Policy)
def test_a_world_with_parked_nodes_waits_for_a_last_call_to_others(
    policy: Policy, now: float, expected: object
) -> None:
    rules = replace(RULES, placement=replace(RULES.placement, policy=policy))
    assert decide_seal(view_of(3, world=world_of(3), awaits_others=True), now, rules) == expected


def test_a_fixed_world_hopes_for_no_more_nodes() -> None:
    assert decide_seal(view_of(3, world=world_of(3), joinable_fit=5, ready_fit=5), OPENED_AT + 2, RULES) == Seal(3)


# --- properties -------------------------------------------------------------------------------------

POLICIES = [
    RULES,
    ELASTIC,
    replace(RULES, placement=PlacementRules(min_nodes=2, max_nodes=6, segment=2)),
    replace(RULES, placement=PlacementRules(min_nodes=2, max_nodes=6, segment=2, policy=Policy.ELASTIC)),
]

seconds = st.floats(min_value=0, max_value=1000, allow_nan=False)
moments = seconds.map(lambda s: OPENED_AT + s)


@dataclass(frozen=True)
class Cycle:
    """An open cycle: the arrived nodes, the others, and what else is known."""

    rules: SealRules
    arrived: tuple[Arrival, ...]
    awaited: tuple[Arrival, ...]
    coming: tuple[Arrival, ...]
    """Other live nodes that may arrive."""
    enough_since: float
    facts: Mapping[str, object]

    @property
    def size(self) -> int:
        return self.rules.placement.world_size(capacity_of(self.arrived, self.rules.placement))

    @property
    def view(self) -> SealView:
        joinable = [*self.arrived, *self.awaited, *self.coming]
        return view_with(
            self.rules,
            *self.arrived,
            awaited=by_name(self.awaited),
            joinable_fit=capacity_of(joinable, self.rules.placement),
            ready_fit=capacity_of(joinable, self.rules.placement),
            alive=by_name(joinable),
            enough_since=self.enough_since if self.size else None,
            **self.facts,
        )

    def decide(self, now: float) -> object:
        return decide_seal(self.view, now, self.rules)


@st.composite
def cycles(draw: st.DrawFn) -> Cycle:
    here, awaited, coming = draw(st.integers(0, 6)), draw(st.integers(0, 3)), draw(st.integers(0, 2))
    count = here + awaited + coming
    nodes = in_domains(draw(st.lists(st.sampled_from("AB"), min_size=count, max_size=count)))
    world = draw(st.lists(st.integers(0, 14), unique=True, max_size=6))
    return Cycle(
        rules=draw(st.sampled_from(POLICIES)),
        arrived=tuple(nodes[:here]),
        awaited=tuple(nodes[here : here + awaited]),
        coming=tuple(nodes[here + awaited :]),
        enough_since=draw(moments),
        facts={
            "world": tuple(arrivals(world).values()),
            "finished_count": draw(st.integers(0, 2)),
            "spent_count": draw(st.integers(0, 2)),
            "left_count": draw(st.integers(0, 2)),
            "drained_count": draw(st.integers(0, 2)),
            "disagrees_since": draw(st.none() | moments),
        },
    )


@given(cycle=cycles(), now=moments, later_s=seconds)
def test_time_alone_never_takes_a_final_decision_back(cycle: Cycle, now: float, later_s: float) -> None:
    decision = cycle.decide(now)
    if not isinstance(decision, Wait):
        assert cycle.decide(now + later_s) == decision


@given(cycle=cycles(), now=moments)
def test_a_wait_says_exactly_when_it_ends(cycle: Cycle, now: float) -> None:
    """Until then the answer does not change, so no earlier look is needed. Then it changes, so the look is useful."""
    decision = cycle.decide(now)
    if isinstance(decision, Wait):
        assert decision.until > now
        between = now + (decision.until - now) / 2
        if between < decision.until:
            assert cycle.decide(between) == decision
        after = cycle.decide(decision.until)
        assert not (isinstance(after, Wait) and type(after.reason) is type(decision.reason))


@given(cycle=cycles(), now=moments)
def test_waiting_ends_by_the_last_of_all_deadlines(cycle: Cycle, now: float) -> None:
    """If the decision is made again at the end of each wait, there are at most four waits."""
    decision = cycle.decide(now)
    for _ in range(4):
        if isinstance(decision, Wait):
            decision = cycle.decide(decision.until)
    assert not isinstance(decision, Wait)


@given(cycle=cycles(), now=moments)
def test_a_seal_is_never_early(cycle: Cycle, now: float) -> None:
    view, rules = cycle.view, cycle.rules
    if isinstance(cycle.decide(now), Seal):
        assert not view.awaited or now >= view.opened_at + rules.last_call_s
        assert now >= cycle.enough_since + rules.settle_s
        assert view.disagrees_since is None or now >= view.disagrees_since + rules.lease_s
        if cycle.size < rules.placement.world_size(view.ready_fit):
            assert now >= cycle.enough_since + rules.last_call_s, "the seal did not wait for a live node"
        if not view.world and cycle.size < rules.placement.world_size(rules.placement.max_nodes):
            assert now >= cycle.enough_since + rules.last_call_s, "the first world was not offered to MAX nodes"


@given(cycle=cycles(), now=moments)
def test_a_world_is_as_large_as_it_can_be_and_never_below_min(cycle: Cycle, now: float) -> None:
    decision, rules = cycle.decide(now), cycle.rules.placement
    if isinstance(decision, Seal):
        assert decision.world_size == cycle.size
        most = rules.max_nodes if rules.policy is Policy.ELASTIC else rules.min_nodes
        assert rules.min_nodes <= decision.world_size <= most
        assert decision.world_size % rules.block == 0


@given(cycle=cycles(), now=moments)
def test_a_cycle_hopes_for_nodes_no_longer_than_one_last_call(cycle: Cycle, now: float) -> None:
    decision, rules = cycle.decide(now), cycle.rules
    if isinstance(decision, Wait) and isinstance(decision.reason, HopesForMore):
        assert decision.until == cycle.enough_since + rules.last_call_s
        assert decision.reason.possible == cycle.size < decision.reason.hoped <= rules.placement.max_nodes


@settings(max_examples=200)
@given(cycle=cycles(), now=moments, domain=st.sampled_from("AB"))
def test_one_more_arrival_never_makes_a_cycle_worse(cycle: Cycle, now: float, domain: str) -> None:
    """A new node may make a larger world possible, which is worth a last call. A node that was hoped for does not."""
    newcomer = seat(99, domain_id=domain)
    more = replace(cycle, arrived=(*cycle.arrived, newcomer))
    if cycle.awaited:
        more = replace(cycle, arrived=(*cycle.arrived, cycle.awaited[0]), awaited=cycle.awaited[1:])
    elif cycle.coming:
        more = replace(cycle, arrived=(*cycle.arrived, cycle.coming[0]), coming=cycle.coming[1:])
    if not cycle.size:
        more = replace(more, enough_since=now)
    before, after = cycle.decide(now), more.decide(now)
    if isinstance(before, Seal):
        is_called = isinstance(after, Wait) and isinstance(after.reason, HopesForMore)
        assert after == Seal(more.size) or (is_called and newcomer in more.arrived)
        assert more.size >= before.world_size
    if not isinstance(before, GiveUp):
        assert not isinstance(after, GiveUp)


@given(cycle=cycles(), now=moments)
def test_enough_arrivals_are_never_given_up(cycle: Cycle, now: float) -> None:
    if cycle.size:
        assert not isinstance(cycle.decide(now), GiveUp)
