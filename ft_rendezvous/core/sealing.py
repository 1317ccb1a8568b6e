"""Decides when an open cycle is sealed, how long it waits and for which nodes, and when it is given up.

One function of a snapshot and a time. It returns what to do and why; the coordinator does it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice

from ft_rendezvous.core.capacity import PlacementRules, capacity, leftovers
from ft_rendezvous.core.model import Arrival, Verdict, VerdictKind, node_name
from ft_rendezvous.text import NAMED, listing


@dataclass(frozen=True, slots=True)
class SealRules:
    """The settings that a seal depends on."""

    placement: PlacementRules
    settle_s: float
    last_call_s: float
    join_s: float
    lease_s: float


@dataclass(frozen=True, slots=True)
class SealView:
    """An open cycle, as one consistent read shows it."""

    opened_at: float
    """When the wait began: at the opening, or in the first cycle at the first arrival."""
    arrived: Mapping[str, Arrival]
    awaited: Mapping[str, Arrival]
    """Survivors of the last world that are alive and not back yet."""
    world: tuple[Arrival, ...]
    """The last world by rank. It tells which nodes are missing."""
    alive: Collection[str]
    """All nodes in the run. A node that is in it is not missing."""
    fit: int
    """How many of the arrived nodes can be placed together."""
    joinable_fit: int
    """How many of the live nodes that have arrived, or still can, can be placed together."""
    ready_fit: int
    """The same for the nodes that arrived in this cycle or the one before: another node may never arrive. It is 0
    unless the world is elastic."""
    finished_count: int
    has_all_finished: bool
    """Every active node of the last world has finished, although a cycle was opened in between."""
    spent_count: int
    left_count: int
    """Nodes that left since the last seal for a reason of their own."""
    drained_count: int
    """Nodes that have drained since the last seal, or still drain."""
    unhealthy: tuple[str, ...]
    """Nodes whose health check failed, with the reason."""
    enough_since: float | None
    """Since when enough nodes for a world have arrived."""
    disagrees_since: float | None
    """Since when the counts and the records of this cycle disagree."""
    parked_count: int = 0
    """Nodes of the last world that were lost since, and are parked."""
    groups: tuple[int, ...] = ()
    """The groups whose worlds are in `world`, one after the other. Empty in a run without groups."""
    suspected: tuple[str, ...] = ()
    """Arrived nodes whose lifeline has ended, by name."""
    suspected_until: float = 0.0
    """When it is known whether they are dead."""
    awaits_others: bool = False
    """The arrived can form a world only with parked nodes, and enough others are alive."""


# --- reasons to wait --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class NeedsNodes:
    arrived: int
    wanted: int
    missing: tuple[str, ...]
    """The first few nodes of the last world that are not in the run."""

    def __str__(self) -> str:
        tail = f"; missing: {', '.join(self.missing)}" if self.missing else ""
        return f"{self.arrived} of {self.wanted} nodes have arrived{tail}"


@dataclass(frozen=True, slots=True)
class NeedsBlocks:
    """Enough nodes have arrived, but not enough of them belong together."""

    fit: int
    wanted: int
    block: str
    size: int
    leftovers: tuple[str, ...]

    def __str__(self) -> str:
        have, want = self.fit // self.size, self.wanted // self.size
        return f"{have} of {want} {self.block}s of {self.size} can be filled; left over: {', '.join(self.leftovers)}"


@dataclass(frozen=True, slots=True)
class HopesForMore:
    """A world is possible, and a larger one may be soon."""

    possible: int
    hoped: int

    def __str__(self) -> str:
        return f"a world of {self.possible} is possible; last call for {self.hoped}"


@dataclass(frozen=True, slots=True)
class AwaitsSurvivors:
    count: int
    first: tuple[str, ...]

    def __str__(self) -> str:
        who = "1 survivor is" if self.count == 1 else f"{self.count} survivors are"
        return f"{who} stopping workers: {', '.join(self.first)}"


@dataclass(frozen=True, slots=True)
class AwaitsOthers:
    def __str__(self) -> str:
        return "a world is possible only with nodes that were lost too often; last call for the others"


@dataclass(frozen=True, slots=True)
class Settles:
    def __str__(self) -> str:
        return "enough nodes have arrived; waiting settle_s for more"


@dataclass(frozen=True, slots=True)
class CountsDisagree:
    def __str__(self) -> str:
        return "an arrival was counted and its record is not there yet"


@dataclass(frozen=True, slots=True)
class DoubtsNodes:
    """No rank is given to a node that may be dead."""

    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"the connection of {listing(self.names, NAMED)} has ended; waiting for a sign of life"


WaitReason = (
    NeedsNodes | NeedsBlocks | AwaitsSurvivors | HopesForMore | AwaitsOthers | Settles | CountsDisagree | DoubtsNodes
)


# --- decisions --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Seal:
    """Place and publish."""

    world_size: int


@dataclass(frozen=True, slots=True)
class Wait:
    reason: WaitReason
    until: float
    """When to decide again, even if no record comes."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """This cycle cannot be sealed, or need not be: the run is over."""

    verdict: Verdict


SealDecision = Seal | Wait | GiveUp


def decide_seal(view: SealView, now: float, rules: SealRules) -> SealDecision:
    """Seal when enough nodes have arrived, no survivor is awaited any more, and counts and records agree."""
    size = rules.placement.world_size(view.fit)
    hopeless = _find_hopeless(view, rules.placement)
    if hopeless is not None:
        return hopeless
    if size == 0:
        deadline = view.opened_at + rules.join_s
        reason = find_lack(view.arrived, _missing(view), rules.placement)
        if now >= deadline:
            text = f"join_timeout of {rules.join_s:g} s is over: {reason}"
            return GiveUp(Verdict(VerdictKind.FAILED, text, is_retryable=True))
        return Wait(reason, deadline)
    last_call = view.opened_at + rules.last_call_s
    if view.awaited and now < last_call:
        first = tuple(node_name(arrival.node) for arrival in islice(view.awaited.values(), NAMED))
        return Wait(AwaitsSurvivors(len(view.awaited), first), last_call)
    assert view.enough_since is not None, "enough arrivals, but not since any time"
    hoped, last_call = _hoped_for(view, rules.placement), view.enough_since + rules.last_call_s
    if size < hoped and now < last_call:
        return Wait(HopesForMore(size, hoped), last_call)
    if view.awaits_others and now < last_call:
        return Wait(AwaitsOthers(), last_call)
    settled_at = view.enough_since + rules.settle_s
    if now < settled_at:
        return Wait(Settles(), settled_at)
    if view.disagrees_since is not None and now < view.disagrees_since + rules.lease_s:
        return Wait(CountsDisagree(), view.disagrees_since + rules.lease_s)
    if view.suspected:
        return Wait(DoubtsNodes(view.suspected), view.suspected_until)
    return Seal(size)


def _find_hopeless(view: SealView, rules: PlacementRules) -> GiveUp | None:
    """Why no world can be formed, however long the run waits, or why none is needed."""
    wanted, is_short = rules.min_nodes, view.joinable_fit < rules.min_nodes
    if is_short and rules.max_nodes - len(view.unhealthy) < wanted:
        return GiveUp(Verdict(VerdictKind.FAILED, _unfit(view, rules), is_retryable=True))
    if is_short and view.drained_count:
        text = f"drained: {_count(view.joinable_fit, 'node')} of {wanted} would remain"
        return GiveUp(Verdict(VerdictKind.CANCELLED, text, is_retryable=True))
    if view.has_all_finished:
        return GiveUp(Verdict(VerdictKind.SUCCEEDED))
    if is_short and (view.finished_count or view.spent_count):
        return GiveUp(Verdict(VerdictKind.FAILED, _hopeless(view, wanted), is_retryable=not view.spent_count))
    if not view.alive and view.left_count:
        return GiveUp(Verdict(VerdictKind.CANCELLED, "every node has left", is_retryable=True))
    return None


def find_lack(
    arrived: Mapping[str, Arrival], missing: tuple[str, ...], rules: PlacementRules
) -> NeedsNodes | NeedsBlocks:
    """What the arrived nodes lack to form a world. Call it only if they cannot form one."""
    if len(arrived) < rules.min_nodes:
        return NeedsNodes(len(arrived), rules.min_nodes, missing)
    nodes = [arrival.node for arrival in arrived.values()]
    found = leftovers(nodes, rules)
    lacking = tuple(found[:NAMED]) + ((f"and {len(found) - NAMED} more",) if len(found) > NAMED else ())
    return NeedsBlocks(capacity(nodes, rules), rules.min_nodes, rules.block_name, rules.block, lacking)


def _hoped_for(view: SealView, rules: PlacementRules) -> int:
    """The world size that is worth a last call: that of the last world (at first the maximum), or of all that came.

    Nodes that finished, drain or are parked do not count.
    """
    if rules.group_size and view.world:
        # A group that lacks nodes is filled later, and no other group restarts for it.
        return rules.world_size(view.ready_fit)
    gone = view.finished_count + view.drained_count + view.parked_count
    last = len(view.world) - gone if view.world else rules.max_nodes
    return max(rules.world_size(last), rules.world_size(view.ready_fit))


def _hopeless(view: SealView, wanted: int) -> str:
    facts: list[str] = []
    if view.finished_count:
        facts.append(f"{_count(view.finished_count, 'node')} finished and cannot train again")
    if view.spent_count:
        facts.append(f"{_count(view.spent_count, 'agent')} spent all restarts (torchrun --max-restarts)")
    return f"{' and '.join(facts)}, and {_count(view.joinable_fit, 'other')} cannot form a world of {wanted}"


def _unfit(view: SealView, rules: PlacementRules) -> str:
    named = "; ".join(view.unhealthy[:NAMED])
    left = rules.max_nodes - len(view.unhealthy)
    return (
        f"{_count(len(view.unhealthy), 'node')} of at most {rules.max_nodes} unhealthy, {left} can remain and "
        f"{rules.min_nodes} are needed: {named}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _missing(view: SealView) -> tuple[str, ...]:
    missing = (
        f"{node_name(arrival.node)} ({_place_of(view, number)})"
        for number, arrival in enumerate(view.world)
        if arrival.incarnation not in view.alive
    )
    return tuple(islice(missing, NAMED))


def _place_of(view: SealView, number: int) -> str:
    """The place of a node in the last world, in which it has this number."""
    if not view.groups:
        return f"rank {number}"
    index, rank = divmod(number, len(view.world) // len(view.groups))
    return f"group {view.groups[index]} rank {rank}"
