"""Explains the placement of replica groups, and what a loss would cost: which groups restart, wait or are given up.

It asks `decide_groups` and the placement of groups, as the coordinator does, and decides nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from itertools import islice

from ft_rendezvous.core.capacity import PlacementRules, capacity
from ft_rendezvous.core.explain import why_in_group
from ft_rendezvous.core.group_placement import Worlds, place_groups
from ft_rendezvous.core.groups import (
    CloseRun,
    DissolveGroup,
    FormGroup,
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
from ft_rendezvous.core.model import Arrival, NodeInfo, NodesLost, group_names, node_name
from ft_rendezvous.core.placement import bench, choose_candidates, in_topology_order
from ft_rendezvous.core.sealing import NeedsBlocks, NeedsNodes, find_lack
from ft_rendezvous.text import NAMED


@dataclass(frozen=True, slots=True)
class GroupedNodes:
    """The nodes of a run with groups, and where they were."""

    arrived: Mapping[str, Arrival]
    """The nodes that can be placed."""
    worlds: Worlds
    """The last world of each group; none before the first seal."""
    finished: AbstractSet[str] = frozenset()
    parked: AbstractSet[str] = frozenset()


@dataclass(frozen=True, slots=True)
class GroupRulebook:
    """The rules of single groups, of the first cycle, and of later common cycles."""

    single: GroupRules
    later: PlacementRules

    @property
    def first(self) -> PlacementRules:
        return self.single.placement


@dataclass(frozen=True, slots=True)
class GroupLine:
    """One node of a placement."""

    group: int | None
    rank: int | None
    node: NodeInfo
    reason: str

    @property
    def is_kept(self) -> bool:
        return self.reason == _KEPT


_KEPT = "keeps its rank"

MOST_TRIED = 100
"""How many groups lose a node, to find out what that costs."""


@dataclass(frozen=True, slots=True)
class GroupsOutlook:
    """How the groups would be if exactly these nodes were there."""

    worlds: Worlds = field(default_factory=dict)
    """The groups that train."""
    lines: Sequence[GroupLine] = ()
    lack: NeedsNodes | NeedsBlocks | None = None
    """Why no group can train."""
    restarts: tuple[int, ...] = ()
    """Groups that restart alone."""
    restarts_all: str = ""
    """Why all groups restart together."""
    waits: Mapping[int, GroupWait] = field(default_factory=dict)
    dissolved: Mapping[int, str] = field(default_factory=dict)
    formed: tuple[int, ...] = ()

    @property
    def trains(self) -> int:
        return sum(map(len, self.worlds.values()))

    @property
    def spares(self) -> int:
        return sum(line.rank is None for line in self.lines)


def foresee_groups(nodes: GroupedNodes, rules: GroupRulebook, lost: AbstractSet[str] = frozenset()) -> GroupsOutlook:
    """What becomes of the groups if these nodes are lost together."""
    if not nodes.worlds:
        here = {name: arrival for name, arrival in nodes.arrived.items() if name not in lost}
        return _place_all(nodes, here, rules.first)
    return _Foresight(nodes, rules, lost).run()


def _place_all(
    nodes: GroupedNodes, here: Mapping[str, Arrival], rules: PlacementRules, because: str = ""
) -> GroupsOutlook:
    """A common cycle."""
    candidates = choose_candidates(here, nodes.parked, rules)
    size = rules.world_size(capacity([arrival.node for arrival in candidates.values()], rules))
    if size == 0:
        return GroupsOutlook(lack=find_lack(here, (), rules), restarts_all=because)
    placement = bench(place_groups(candidates, nodes.worlds, size, rules), here)
    worlds = {group: tuple(here[name] for name in names) for group, names in placement.by_group()}
    lines = tuple(_explain(worlds, here, nodes, rules))
    return GroupsOutlook(worlds=worlds, lines=lines, restarts_all=because)


@dataclass(slots=True)
class _Foresight:
    """Takes the steps that the coordinator would take, until nothing more happens."""

    nodes: GroupedNodes
    rules: GroupRulebook
    lost: AbstractSet[str]
    here: dict[str, Arrival] = field(init=False)
    worlds: dict[int, tuple[Arrival, ...]] = field(init=False)
    is_open: set[int] = field(init=False)
    restarts: list[int] = field(init=False, default_factory=list)
    formed: list[int] = field(init=False, default_factory=list)
    dissolved: dict[int, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        nodes = self.nodes
        self.here = {name: arrival for name, arrival in nodes.arrived.items() if name not in self.lost}
        self.worlds = {group: tuple(seats) for group, seats in nodes.worlds.items()}
        # Groups that lack nodes before the loss have opened their next cycles already.
        self.is_open = {group for group, seats in self.worlds.items() if self._gone(seats, nodes.arrived)}

    def run(self) -> GroupsOutlook:
        for _ in range(8 * len(self.worlds) + 8 * self.rules.single.wanted + 8):
            plan = decide_groups(self._view(), 1.0, self.rules.single)
            if not plan.steps or isinstance(plan.steps[0], CloseRun):
                return self._tell(plan.waits)
            for step in plan.steps:
                if isinstance(step, RestartAll):
                    return _place_all(self.nodes, self.here, self.rules.later, str(step.why))
                self._take(step)
        raise AssertionError("the decisions about groups do not come to an end")

    def _take(self, step: GroupStep) -> None:
        match step:
            case OpenGroup():
                self.is_open.add(step.group)
                self.restarts.append(step.group)
            case SealGroup() | FormGroup():
                if isinstance(step, FormGroup):
                    self.formed.append(step.group)
                self.worlds[step.group] = tuple(self.here[name] for name in step.ranks)
                self.is_open.discard(step.group)
            case DissolveGroup():
                self.dissolved[step.group] = step.reason
                self.is_open.discard(step.group)
                del self.worlds[step.group]

    def _view(self) -> GroupsView:
        placed = {seat.incarnation for seats in self.worlds.values() for seat in seats}
        spares = {name: arrival for name, arrival in self.here.items() if name not in placed}
        return GroupsView(
            groups=[self._view_one(group, seats) for group, seats in sorted(self.worlds.items())],
            worlds=self.worlds,
            spares=spares,
            parked=self.nodes.parked,
            can_form_since=0.0 if len(spares) >= self.rules.first.group_size else None,
        )

    def _view_one(self, group: int, seats: Sequence[Arrival]) -> GroupView:
        gone = self._gone(seats, self.here)
        has_finished = all(seat.incarnation in self.nodes.finished for seat in seats)
        if group not in self.is_open:
            named = tuple(node_name(seat.node) for _, seat in gone[:NAMED])
            troubles = [NodesLost(named, tuple(rank for rank, _ in gone[:NAMED]), len(gone))] if gone else []
            return GroupView(group=group, is_open=False, has_finished=has_finished, troubles=troubles)
        return GroupView(
            group=group,
            is_open=True,
            survivors={seat.incarnation: seat for seat in seats if seat.incarnation in self.here},
            missing=tuple(f"{node_name(seat.node)} (rank {rank})" for rank, seat in islice(gone, NAMED)),
        )

    def _gone(self, seats: Sequence[Arrival], here: Mapping[str, Arrival]) -> list[tuple[int, Arrival]]:
        """Ranks whose nodes are not there, and have not finished."""
        return [
            (rank, seat)
            for rank, seat in enumerate(seats)
            if seat.incarnation not in here and seat.incarnation not in self.nodes.finished
        ]

    def _tell(self, waits: Mapping[int, GroupWait]) -> GroupsOutlook:
        worlds = {group: seats for group, seats in sorted(self.worlds.items()) if group not in self.is_open}
        survivors = {
            seat.incarnation for group in self.is_open for seat in self.worlds[group] if seat.incarnation in self.here
        }
        standing = {name: arrival for name, arrival in self.here.items() if name not in survivors}
        lines = [*_explain(worlds, standing, self.nodes, self.rules.first)]
        lines += [
            GroupLine(group, None, seat.node, "waits for its group")
            for group in sorted(self.is_open)
            for seat in self.worlds[group]
            if seat.incarnation in self.here
        ]
        return GroupsOutlook(
            worlds=worlds,
            lines=tuple(lines),
            restarts=tuple(self.restarts),
            waits=dict(waits),
            dissolved=self.dissolved,
            formed=tuple(self.formed),
        )


def _explain(
    worlds: Worlds, here: Mapping[str, Arrival], nodes: GroupedNodes, rules: PlacementRules
) -> Iterator[GroupLine]:
    """One line for every node: by group and rank, then the spares."""
    before = nodes.worlds
    was_at = {seat.incarnation: (group, rank) for group, seats in before.items() for rank, seat in enumerate(seats)}
    for group, seats in sorted(worlds.items()):
        for rank, seat in enumerate(seats):
            is_kept = was_at.get(seat.incarnation) == (group, rank)
            reason = _KEPT if is_kept else why_in_group(group, rank, seat, before, was_at, rules)
            yield GroupLine(group, rank, seat.node, reason)
    placed = {seat.incarnation for seats in worlds.values() for seat in seats}
    for arrival in in_topology_order(arrival for name, arrival in here.items() if name not in placed):
        is_parked = arrival.incarnation in nodes.parked
        reason = "spare: parked, because it was lost too often" if is_parked else "spare for any group"
        yield GroupLine(None, None, arrival.node, reason)


# --- what a loss costs --------------------------------------------------------------------------------


def tell_cost(before: GroupsOutlook, after: GroupsOutlook, is_brief: bool = False) -> str:
    """What a loss does to the groups, in one sentence. `is_brief`: without the names of the nodes that are lost."""
    if after.lack is not None:
        return f"the run waits: {after.lack}"
    if after.restarts_all:
        left = ", ".join(map(str, sorted(before.worlds.keys() - after.worlds.keys())))
        why = "" if is_brief else f": {after.restarts_all}"
        return f"all groups restart together{why}" + (f"; without group {left}" if left else "")
    texts = [_tell_restart(group, before, after, is_brief) for group in after.restarts if group not in after.dissolved]
    texts += [f"group {group} is dissolved: {reason}" for group, reason in after.dissolved.items()]
    touched = {*after.restarts, *after.dissolved}
    others = [group for group in after.worlds if group not in touched and group not in after.formed]
    if not touched:
        return "no group restarts"
    if others:
        texts.append("the others train on" if len(others) > 1 else f"group {others[0]} trains on")
    return "; ".join(texts)


def _tell_restart(group: int, before: GroupsOutlook, after: GroupsOutlook, is_brief: bool) -> str:
    if group in after.waits:
        return f"group {group} waits: {'no spare can take the place' if is_brief else after.waits[group]}"
    if group not in after.worlds:
        return f"group {group} restarts"
    was = {seat.incarnation for seat in before.worlds.get(group, ())}
    new = [node_name(seat.node) for seat in after.worlds[group] if seat.incarnation not in was]
    takes = f"; {', '.join(new[:NAMED])} take{'s' if len(new) == 1 else ''} the place" if new else ""
    return f"group {group} restarts{takes}"


def explain_losses(now: GroupedNodes, outlook: GroupsOutlook, rules: GroupRulebook) -> Iterator[str]:
    """What the loss of a single node would cost, for each group; groups to which the same happens share a line.

    `now` are the nodes after the placement of the outlook.
    """
    costs: dict[str, list[int]] = {}
    every = -(-len(outlook.worlds) // MOST_TRIED)
    tried = list(outlook.worlds.items())[::every]
    for group, seats in tried:
        # Nodes of one domain are alike: the first one stands for them.
        firsts = {seat.node.domain_id: seat for seat in reversed(seats) if seat.incarnation in now.arrived}
        for seat in firsts.values():
            cost = tell_cost(outlook, foresee_groups(now, rules, {seat.incarnation}), is_brief=True)
            groups = costs.setdefault(cost.replace(f"group {group} ", "it ", 1), [])
            if group not in groups:
                groups.append(group)
    for cost, groups in costs.items():
        yield f"losing a node of {group_names(groups)}: {cost}"
    if every > 1:
        yield f"({len(tried):,} of {len(outlook.worlds):,} groups were tried; --lose tries any other)"


def after_placement(nodes: GroupedNodes, outlook: GroupsOutlook) -> GroupedNodes:
    """The same nodes, once the groups of an outlook train. Groups that wait keep their last worlds."""
    waiting = {group: nodes.worlds[group] for group in outlook.waits}
    return replace(nodes, worlds={**outlook.worlds, **waiting})
