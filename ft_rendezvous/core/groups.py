"""Decides what becomes of replica groups while no common cycle is open: which restart, are filled, formed or given up.

One function of a snapshot and a time. It returns steps that can be taken together, in this order, and why every other
group waits. A group that has trouble never waits for another one, and no step concerns a group that trains well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from itertools import islice

from ft_rendezvous.core.capacity import PlacementRules
from ft_rendezvous.core.group_placement import Worlds, choose_spares, fill_group, find_neighbours, form_groups
from ft_rendezvous.core.model import (
    AnyWhy,
    Arrival,
    GroupForms,
    NodesDrain,
    NoGroupTrains,
    Verdict,
    VerdictKind,
    WorkersHang,
    node_name,
)
from ft_rendezvous.core.next_cycle import DrainState, find_cause
from ft_rendezvous.core.sealing import AwaitsSurvivors, CountsDisagree, NeedsNodes
from ft_rendezvous.core.spare_pool import SparePool
from ft_rendezvous.text import NAMED


@dataclass(frozen=True, slots=True)
class GroupRules:
    """The settings that groups depend on."""

    placement: PlacementRules
    wanted: int
    """How many groups there are if there are nodes for them."""
    min_groups: int
    last_call_s: float
    settle_s: float
    join_s: float
    lease_s: float

    @property
    def least(self) -> int:
        """For so many groups, those of MIN nodes, even parked nodes are placed."""
        return self.placement.min_nodes // self.placement.group_size


@dataclass(frozen=True, slots=True)
class GroupView:
    """One group, as the last read shows it."""

    group: int
    is_open: bool
    """Whether its next cycle is open. If not, its world is sealed."""
    opened_at: float = 0.0
    """When its open cycle began to wait, not counting stalls of the host."""
    why: AnyWhy | None = None
    """Why its open cycle was opened."""
    has_finished: bool = False
    """Whether every node of its last world has finished, though its next cycle may be open. It never trains again."""
    troubles: Sequence[AnyWhy] = ()
    survivors: Mapping[str, Arrival] = field(default_factory=dict)
    """Nodes of its last world that are back."""
    awaited: Mapping[str, Arrival] = field(default_factory=dict)
    """Live nodes of its last world that stop their workers."""
    missing: tuple[str, ...] = ()
    """Nodes of its last world that are not in the run, the first few."""
    drain: DrainState | None = None
    is_at_checkpoint: bool = False

    @property
    def is_training(self) -> bool:
        return not (self.is_open or self.has_finished or self.troubles)


@dataclass(frozen=True, slots=True)
class GroupsView:
    """All groups of a run that have nodes or wait for them, and the nodes that stand by."""

    groups: Sequence[GroupView]
    worlds: Worlds
    """The last world of each group."""
    spares: Mapping[str, Arrival]
    parked: AbstractSet[str] = frozenset()
    can_form_since: float | None = None
    """Since when enough nodes for another group stand by."""
    short_since: float | None = None
    """Since when fewer than `min_groups` groups are sealed, not counting stalls of the host."""
    disagrees_since: float | None = None
    """Since when the counts and the records of the log disagree."""
    is_drain_total: bool = False
    """Whether nodes drain, and all others together, finished or not, are too few for a run."""


# --- steps ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OpenGroup:
    group: int
    why: AnyWhy


@dataclass(frozen=True, slots=True)
class SealGroup:
    """Place these nodes, by rank. The end of the group's last world is settled first."""

    group: int
    ranks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class FormGroup:
    """Open and seal the first cycle of a group."""

    group: int
    ranks: tuple[str, ...]
    why: GroupForms


@dataclass(frozen=True, slots=True)
class DissolveGroup:
    """Give up a group that waits. The end of its last world is settled first. Its nodes stand by."""

    group: int
    reason: str


@dataclass(frozen=True, slots=True)
class RestartAll:
    """Open a common cycle."""

    why: AnyWhy


@dataclass(frozen=True, slots=True)
class CloseRun:
    verdict: Verdict


GroupStep = OpenGroup | SealGroup | FormGroup | DissolveGroup | RestartAll | CloseRun
GroupWait = NeedsNodes | AwaitsSurvivors | CountsDisagree


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """What to do now, or why nothing."""

    steps: tuple[GroupStep, ...] = ()
    waits: Mapping[int, GroupWait] = field(default_factory=dict)
    """Why each open group is not sealed."""
    until: float = float("inf")
    """When to decide again, even if no record comes."""


# --- deciding ---------------------------------------------------------------------------------------


def decide_groups(view: GroupsView, now: float, rules: GroupRules) -> GroupPlan:
    """The next steps. Restarts come first, then seals, then groups are given up or formed."""
    ended = _decide_end(view)
    if ended is not None:
        return GroupPlan((ended,))
    restarts = _decide_restarts(view, now, rules)
    if restarts:
        return GroupPlan(tuple(restarts))
    filling = _Filling(view, now, rules)
    filling.run()
    steps: Sequence[GroupStep] = filling.seals
    if not steps:
        steps = _decide_dissolving(view, filling) or filling.form_groups()
    if not steps and _is_stuck(view, filling):
        open_ids = tuple(each.group for each in view.groups if each.is_open)
        first = next((str(each.why) for each in view.groups if each.is_open), "its nodes were lost")
        steps = [RestartAll(NoGroupTrains(open_ids, first))]
    if not steps:
        steps = _decide_shortage(view, filling, now, rules)
    return GroupPlan(tuple(steps), filling.waits, filling.until)


def _decide_end(view: GroupsView) -> CloseRun | None:
    if not view.groups or not all(each.has_finished for each in view.groups):
        return None
    if view.is_drain_total:
        text = "drained: too few nodes would remain"
        return CloseRun(Verdict(VerdictKind.CANCELLED, text, is_retryable=True))
    return CloseRun(Verdict(VerdictKind.SUCCEEDED))


def _decide_restarts(view: GroupsView, now: float, rules: GroupRules) -> list[GroupStep]:
    """Which groups open their next cycle. If that leaves none that trains or has finished, all restart together."""
    ended = [each for each in view.groups if each.troubles and not each.is_open and not each.has_finished]
    is_any_left = any(each.is_training or each.has_finished for each in view.groups)
    if ended and not is_any_left:
        first = find_cause(ended[0].troubles)
        if len(view.groups) == rules.wanted == 1:
            return [RestartAll(first)]
        is_hang = isinstance(first, WorkersHang)
        return [RestartAll(NoGroupTrains(tuple(each.group for each in ended), str(first), is_hang))]
    steps: list[GroupStep] = [OpenGroup(each.group, find_cause(each.troubles)) for each in ended]
    for each in view.groups:
        drain = _drain_ahead(each)
        if drain is not None and (each.is_at_checkpoint or now >= drain.due_at) and not steps:
            # One at a time: the next one may count on the same spare.
            steps.append(OpenGroup(each.group, NodesDrain(drain.nodes[:NAMED], len(drain.nodes))))
    return steps


def _drain_ahead(each: GroupView) -> DrainState | None:
    """The drain for which a group will open its next cycle, sooner or later."""
    drain = each.drain
    return drain if each.is_training and drain is not None and drain.nodes and drain.is_covered else None


class _Filling:
    """Gives the nodes that stand by to groups that lack some, each node once; the group that waits longest is first."""

    def __init__(self, view: GroupsView, now: float, rules: GroupRules) -> None:
        self._view, self._now, self._rules = view, now, rules
        self.pool = SparePool(view.spares, view.parked, rules.placement)
        gone = {each.group for each in view.groups if each.is_open and not (each.survivors or each.awaited)}
        self._homes = {group: seats for group, seats in view.worlds.items() if group not in gone}
        """The worlds that say in which domains groups are: those that have nodes, or will have."""
        self.seals: list[GroupStep] = []
        self.waits: dict[int, GroupWait] = {}
        self.until = float("inf")
        self.lacking: list[GroupView] = []
        """Open groups that cannot be filled, although all of their survivors are back."""

    def run(self) -> None:
        waiting = [each for each in self._view.groups if each.is_open and not each.has_finished]
        for each in sorted(waiting, key=lambda each: (each.opened_at, each.group)):
            self._fill(each)
        for each in self._view.groups:
            drain = _drain_ahead(each)
            if drain is not None:
                self.until = min(self.until, drain.due_at)

    def _fill(self, each: GroupView) -> None:
        offered = self.pool.offer(self._view.worlds.get(each.group, ()))
        ranks = kept = self._find_ranks(each.group, each.survivors, offered)
        last_call = each.opened_at + self._rules.last_call_s
        disagrees_since = self._view.disagrees_since
        if each.awaited and self._now < last_call:
            # It keeps the nodes that fill its holes. Survivors that stop their workers have their own places.
            kept = self._find_ranks(each.group, {**each.survivors, **each.awaited}, offered)
        if each.awaited and (ranks is None or self._now < last_call):
            first = tuple(node_name(arrival.node) for arrival in islice(each.awaited.values(), NAMED))
            self._wait(each, AwaitsSurvivors(len(each.awaited), first), last_call)
        elif ranks is None:
            self.lacking.append(each)
            self._wait(each, NeedsNodes(len(each.survivors), self._rules.placement.group_size, each.missing))
        elif disagrees_since is not None and self._now < disagrees_since + self._rules.lease_s:
            self._wait(each, CountsDisagree(), disagrees_since + self._rules.lease_s)
        else:
            self.seals.append(SealGroup(each.group, ranks))
        if kept is not None:
            self._take(each.group, kept, {**each.survivors, **each.awaited, **offered})

    def _take(self, group: int, ranks: Sequence[str], arrivals: Mapping[str, Arrival]) -> None:
        self._homes[group] = [arrivals[name] for name in ranks]
        self.pool.take(ranks)

    def _wait(self, each: GroupView, reason: GroupWait, until: float = float("inf")) -> None:
        self.waits[each.group] = reason
        self.until = min(self.until, until if until > self._now else float("inf"))

    def _find_ranks(
        self, group: int, survivors: Mapping[str, Arrival], spares: Mapping[str, Arrival]
    ) -> tuple[str, ...] | None:
        rules, worlds = self._rules.placement, self._homes
        if len(survivors) + len(spares) < rules.group_size:
            return None
        if group in self._view.worlds:
            worlds = {**worlds, group: self._view.worlds[group]}
        chosen = choose_spares(group, survivors, spares, self._view.parked, worlds, rules)
        return fill_group(group, survivors, chosen, worlds, rules)

    def lack_of_new(self) -> NeedsNodes:
        """Why another group is not formed."""
        return NeedsNodes(len(self.pool.left), self._rules.placement.group_size, ())

    # --- new groups ---------------------------------------------------------------------------------

    def form_groups(self) -> list[GroupStep]:
        """New groups of nodes that are left over. None is formed at the end, nor for parked nodes beyond MIN nodes."""
        view, rules = self._view, self._rules
        if any(each.has_finished for each in view.groups) or view.can_form_since is None:
            return []
        found = self._find_new()
        due_at = view.can_form_since + rules.settle_s
        if found and self._now < due_at:
            self.until = min(self.until, due_at)
            return []
        return [FormGroup(group, ranks, GroupForms(rules.placement.group_size)) for group, ranks in found.items()]

    def _find_new(self) -> dict[int, tuple[str, ...]]:
        """The ranks of new groups, by number."""
        rules, taken = self._rules, {each.group for each in self._view.groups}
        found: dict[int, tuple[str, ...]] = {}
        if rules.placement.segment <= rules.placement.group_size:
            steady = {name: each for name, each in self.pool.left.items() if name not in self._view.parked}
            free = [number for number in range(rules.wanted) if number not in taken]
            found.update(zip(free, form_groups(steady, len(free), rules.placement), strict=False))
            for ranks in found.values():
                self.pool.take(ranks)
        while len(taken | found.keys()) < rules.wanted:
            group, one_more = self._find_one(taken | found.keys())
            if one_more is None:
                break
            found[group] = one_more
            self._take(group, one_more, self.pool.left)
        return found

    def _find_one(self, taken: AbstractSet[int]) -> tuple[int, tuple[str, ...] | None]:
        """One more group. Up to MIN nodes also of parked ones."""
        offered = self.pool.offer(())
        if len(taken) >= self._rules.least:
            offered = {name: arrival for name, arrival in offered.items() if name not in self._view.parked}
        for number in self._free_numbers(taken):
            ranks = self._find_ranks(number, {}, self._near(number) or offered)
            if ranks is not None:
                return number, ranks
        return 0, None

    def _near(self, number: int) -> dict[str, Arrival]:
        """What the pool offers to a group whose segment has a domain. Nothing if it has none."""
        neighbours = find_neighbours(number, self._homes, self._rules.placement)
        return self.pool.offer(neighbours[0]) if neighbours else {}

    def _free_numbers(self, taken: AbstractSet[int]) -> list[int]:
        """The lowest free number; of each segment, if it holds several groups: they may be bound to domains."""
        placement = self._rules.placement
        free = [number for number in range(self._rules.wanted) if number not in taken]
        length = placement.step // placement.group_size
        return free[:1] if length == 1 else sorted({number // length: number for number in reversed(free)}.values())

    # --- groups that are given up -------------------------------------------------------------------

    def give_up(self) -> list[GroupStep]:
        """Groups that lack nodes and are dissolved, so that others are filled. Those with the most survivors stay."""
        lacking = sorted(self.lacking, key=lambda each: (-len(each.survivors), each.group))
        available = _Supply([self.pool.left, *(each.survivors for each in lacking)], self._rules.placement)
        steps: list[GroupStep] = []
        freed: dict[str, Arrival] = {}
        """Nodes of groups that are given up, which no other has taken."""
        while lacking:
            taker = lacking.pop(0)
            neighbours = find_neighbours(taker.group, self._homes, self._rules.placement)
            if not available.can_fill(neighbours):
                continue
            spares = {**self.pool.offer(self._view.worlds.get(taker.group, ())), **freed}
            givers, ranks = self._find_givers(taker, lacking, spares)
            if ranks is None:
                continue
            reason = f"group {taker.group} needs its nodes, and no others come"
            steps += [DissolveGroup(each.group, reason) for each in sorted(givers, key=lambda each: each.group)]
            freed |= {name: each.survivors[name] for each in givers for name in each.survivors}
            freed = {name: arrival for name, arrival in freed.items() if name not in ranks}
            self.pool.take(ranks)
            lacking = [each for each in lacking if each not in givers]
            available.remove([arrival for name, arrival in {**taker.survivors, **spares}.items() if name in ranks])
        return steps

    def _find_givers(
        self, taker: GroupView, others: Sequence[GroupView], spares: Mapping[str, Arrival]
    ) -> tuple[list[GroupView], tuple[str, ...] | None]:
        """The groups with the fewest survivors that are enough to fill one, and the ranks of that one."""
        givers: list[GroupView] = []
        ranks = self._find_ranks(taker.group, taker.survivors, spares)  # What others have given may be enough.
        for each in reversed(others) if ranks is None else ():
            if each.survivors:
                givers.append(each)
                ranks = self._find_ranks(taker.group, taker.survivors, {**spares, **_survivors_of(givers)})
            if ranks is not None:
                break
        for each in givers[:-1] if ranks is not None else ():
            without = [giver for giver in givers if giver is not each]
            fewer = self._find_ranks(taker.group, taker.survivors, {**spares, **_survivors_of(without)})
            if fewer is not None:
                givers, ranks = without, fewer
        return givers, ranks


class _Supply:
    """How many nodes of each domain there are, to find out at once which groups cannot be filled."""

    def __init__(self, nodes: Iterable[Mapping[str, Arrival]], rules: PlacementRules) -> None:
        self._counts = Counter(arrival.node.domain_id for each in nodes for arrival in each.values())
        self._size, self._segment = rules.group_size, min(rules.segment, rules.group_size)

    def can_fill(self, neighbours: Sequence[Sequence[Arrival]]) -> bool:
        """Whether all nodes together could fill a group, which must be in the domain of its neighbours."""
        if neighbours:
            return self._counts[neighbours[0][0].node.domain_id] >= self._size
        whole = (count // self._segment for domain, count in self._counts.items() if domain or self._segment == 1)
        return sum(whole) * self._segment >= self._size

    def remove(self, arrivals: Iterable[Arrival]) -> None:
        self._counts.subtract(arrival.node.domain_id for arrival in arrivals)


def _survivors_of(groups: Iterable[GroupView]) -> dict[str, Arrival]:
    return {name: arrival for each in groups for name, arrival in each.survivors.items()}


def _decide_dissolving(view: GroupsView, filling: _Filling) -> list[GroupStep]:
    """Give up groups that lack nodes: because others need their nodes, or because all others have finished."""
    steps = filling.give_up()
    others = [each for each in view.groups if each not in filling.lacking]
    if not steps and filling.lacking and others and all(each.has_finished for each in others):
        reason = "it lacks nodes, and all other groups have finished"
        return [DissolveGroup(each.group, reason) for each in filling.lacking]
    return steps


def _is_stuck(view: GroupsView, filling: _Filling) -> bool:
    """Whether no group trains, and none can: then the rules of a common cycle say how long the run waits."""
    return not filling.seals and all(each in filling.lacking for each in view.groups)


def _decide_shortage(view: GroupsView, filling: _Filling, now: float, rules: GroupRules) -> list[GroupStep]:
    """Close the run when too few groups are sealed for too long."""
    if view.short_since is None:
        return []
    deadline = view.short_since + rules.join_s
    if now < deadline:
        filling.until = min(filling.until, deadline)
        return []
    sealed = sum(not each.is_open or each.has_finished for each in view.groups)
    taken = {each.group for each in view.groups}
    new = [number for number in range(rules.wanted) if number not in taken][: max(0, rules.min_groups - len(taken))]
    waits = {**filling.waits, **dict.fromkeys(new, filling.lack_of_new())}
    lacks = "; ".join(f"group {group}: {wait}" for group, wait in islice(waits.items(), NAMED))
    text = f"join_timeout of {rules.join_s:g} s is over: {sealed} of {rules.min_groups} groups train; {lacks}"
    return [CloseRun(Verdict(VerdictKind.FAILED, text, is_retryable=True))]


def find_left(view: GroupsView, now: float, rules: GroupRules) -> dict[str, Arrival]:
    """The nodes on which a drain can count: those that no open group takes, and those of groups that lack others."""
    filling = _Filling(view, now, rules)
    filling.run()
    return {**filling.pool.left, **_survivors_of(filling.lacking)}
