"""Explains a placement: the reason for every node, and one line for every cycle.

It reads a finished placement and decides nothing, so that placing nodes pays nothing for explanations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import islice

from ft_rendezvous.core.capacity import Cover, PlacementRules, Ranks, capacity, cover_of, is_complete
from ft_rendezvous.core.model import Arrival, NodeInfo, Placement, node_name
from ft_rendezvous.core.placement import bench, choose_candidates, place
from ft_rendezvous.core.sealing import NeedsBlocks, NeedsNodes, find_lack
from ft_rendezvous.text import NAMED

# --- reasons ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Kept:
    def __str__(self) -> str:
        return "keeps its rank"


@dataclass(frozen=True, slots=True)
class CameBack:
    def __str__(self) -> str:
        return "came back: its infra rank had this rank"


@dataclass(frozen=True, slots=True)
class Replaces:
    node: str
    gone_from: str | None
    """The domain of the node that is replaced."""
    domain: str | None
    is_benched: bool = False
    """The replaced node is alive and a spare now: its segment or unit could not be filled."""

    def __str__(self) -> str:
        text = f"in place of {self.node}"
        if self.gone_from is not None:
            text += ", of the same domain" if self.domain == self.gone_from else f", of domain {self.gone_from}"
        return text + (", which is a spare now" if self.is_benched else "")


@dataclass(frozen=True, slots=True)
class Moved:
    was: int
    """Its rank in the last world."""

    def __str__(self) -> str:
        return f"had rank {self.was}"


@dataclass(frozen=True, slots=True)
class InOrder:
    def __str__(self) -> str:
        return "next in topology order"


@dataclass(frozen=True, slots=True)
class Spare:
    def __str__(self) -> str:
        return "spare: every rank is taken"


@dataclass(frozen=True, slots=True)
class TooFew:
    """Its domain or unit cannot fill another block."""

    where: str
    have: int
    need: int
    block: str

    def __str__(self) -> str:
        return f"spare: {self.where} has {self.have} left, a {self.block} takes {self.need}"


@dataclass(frozen=True, slots=True)
class Torn:
    """Its unit has enough nodes, but they do not form whole segments."""

    unit: str
    segment: int

    def __str__(self) -> str:
        return f"spare: unit {self.unit} is not in whole segments of {self.segment}"


@dataclass(frozen=True, slots=True)
class Nowhere:
    """It has no domain or no unit, and the rules need one."""

    what: str

    def __str__(self) -> str:
        return f"spare: it has no {self.what}"


@dataclass(frozen=True, slots=True)
class LastChoice:
    """It is parked, and the other nodes can form a world."""

    def __str__(self) -> str:
        return "spare: parked, because it was lost too often"


PlacementReason = Kept | CameBack | Replaces | Moved | InOrder | Spare | TooFew | Torn | Nowhere | LastChoice


@dataclass(frozen=True, slots=True)
class PlacementLine:
    """One node of a placement."""

    rank: int | None
    node: NodeInfo
    reason: PlacementReason


def explain(
    placement: Placement,
    arrived: Mapping[str, Arrival],
    previous: Sequence[Arrival],
    rules: PlacementRules,
    parked: AbstractSet[str] = frozenset(),
) -> list[PlacementLine]:
    """One line for every node, in the order of ranks, then the spares, then parked nodes that were no candidates."""
    candidates = choose_candidates(arrived, parked, rules)
    rank_before = {seat.incarnation: rank for rank, seat in enumerate(previous)}
    lines = [
        PlacementLine(rank, arrived[name].node, _why_here(rank, arrived[name], previous, rank_before, arrived, rules))
        for rank, name in enumerate(placement.ranks)
    ]
    standbys = [arrived[incarnation].node for incarnation in placement.standbys if incarnation in candidates]
    others = [arrived[incarnation].node for incarnation in placement.standbys if incarnation not in candidates]
    left: dict[str | None, list[NodeInfo]] = defaultdict(list)
    for node in standbys:
        left[_pool_of(node, rules)].append(node)
    reasons = {pool: _why_spare(pool, nodes, rules) for pool, nodes in left.items()}
    lines += [PlacementLine(None, node, reasons[_pool_of(node, rules)]) for node in standbys]
    return lines + [PlacementLine(None, node, LastChoice()) for node in others]


def _why_here(  # noqa: PLR0917
    rank: int,
    arrival: Arrival,
    previous: Sequence[Arrival],
    rank_before: Mapping[str, int],
    arrived: Mapping[str, Arrival],
    rules: PlacementRules,
) -> PlacementReason:
    was = rank_before.get(arrival.incarnation)
    if was is not None:
        return Kept() if was == rank else Moved(was)
    if rank >= len(previous) or rules.ranks is Ranks.TOPOLOGY:
        return InOrder()
    gone, node = previous[rank].node, arrival.node
    if gone.infra_rank is not None and (gone.infra_rank, gone.domain_id) == (node.infra_rank, node.domain_id):
        return CameBack()
    is_benched = previous[rank].incarnation in arrived
    return Replaces(node_name(gone), gone.domain_id, node.domain_id, is_benched)


def _pool_of(node: NodeInfo, rules: PlacementRules) -> str | None:
    return node.unit_id if rules.needs_unit else node.domain_id


def _why_spare(pool: str | None, left: Sequence[NodeInfo], rules: PlacementRules) -> PlacementReason:
    """Why the nodes of one domain or unit are spares."""
    where = "unit" if rules.needs_unit else "domain"
    if rules.block > 1 and pool is None:
        return Nowhere(where)
    if len(left) < rules.block:
        return TooFew(f"{where} {pool}", len(left), rules.block, rules.block_name)
    if pool is not None and rules.needs_unit and not is_complete(left, rules):
        return Torn(pool, rules.segment)
    return Spare()


# --- what would be -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Outlook:
    """How a cycle would be sealed if exactly these nodes arrived."""

    lack: NeedsNodes | NeedsBlocks | None
    """Why it would not be sealed."""
    lines: Sequence[PlacementLine] = ()
    world: tuple[Arrival, ...] | None = None
    cover: Cover | None = None
    is_smaller: bool = False
    """The world would be smaller than the last one, so a last call comes first."""


def foresee(
    arrived: Mapping[str, Arrival],
    previous: Sequence[Arrival],
    rules: PlacementRules,
    parked: AbstractSet[str] = frozenset(),
) -> Outlook:
    nodes = [arrival.node for arrival in arrived.values()]
    candidates = choose_candidates(arrived, parked, rules)
    size = rules.world_size(capacity([arrival.node for arrival in candidates.values()], rules))
    if size == 0:
        return Outlook(find_lack(arrived, (), rules))
    placement = bench(place(candidates, previous, size, rules), arrived)
    world = tuple(arrived[incarnation] for incarnation in placement.ranks)
    cover = cover_of([arrival.node for arrival in world], nodes, rules)
    lines = explain(placement, arrived, previous, rules, parked)
    return Outlook(None, lines, world, cover, size < len(previous))


def lacks_place(node: NodeInfo, rules: PlacementRules) -> bool:
    """Whether a node would be refused because it has no domain or no unit, and the rules need it."""
    return (rules.needs_domain and node.domain_id is None) or (rules.needs_unit and node.unit_id is None)


# --- one line per cycle -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Summary:
    """What a placement changed, and which losses the spares can replace now."""

    kept: int
    moved: int
    """Number of nodes of the last world that have another rank now."""
    new: int
    benched: int
    """Number of nodes of the last world that are alive and have no rank now."""
    changes: tuple[tuple[int, str, PlacementReason], ...]
    """Rank, node and reason of the first few nodes that have a rank they did not have before."""
    cover: Cover
    least: int | None
    """The smallest size that the world may have. None if it may not become smaller."""

    @property
    def effect(self) -> str:
        """What the spares cover now, and who has which rank for what reason."""
        changes = "; ".join(f"rank {rank} {node}, {reason}" for rank, node, reason in self.changes)
        more = self.moved + self.new - len(self.changes)
        tail = f": {changes}" + (f" and {more} more" if more else "") if changes else ""
        shrinks = "" if self.least is None else f", and the world may shrink to {self.least}"
        return f"spares cover {self.cover}{shrinks}{tail}"


def summarize(
    placement: Placement, arrived: Mapping[str, Arrival], previous: Sequence[Arrival], rules: PlacementRules
) -> Summary:
    """A placement in one line."""
    rank_before = {seat.incarnation: rank for rank, seat in enumerate(previous)}
    others = [(rank, name) for rank, name in enumerate(placement.ranks) if rank_before.get(name) != rank]
    moved = sum(name in rank_before for _, name in others)
    # Before the first world no node had a rank, so there are no changes to name.
    changed = others if previous else []
    return Summary(
        kept=len(placement.ranks) - len(others),
        moved=moved,
        new=len(others) - moved,
        benched=sum(name in rank_before for name in placement.standbys),
        changes=tuple(
            (rank, node_name(arrived[name].node), _why_here(rank, arrived[name], previous, rank_before, arrived, rules))
            for rank, name in islice(changed, NAMED)
        ),
        cover=cover_of(
            [arrived[name].node for name in placement.ranks], [arrival.node for arrival in arrived.values()], rules
        ),
        least=rules.min_nodes if len(placement.ranks) > rules.min_nodes else None,
    )


def summarize_groups(
    placement: Placement,
    arrived: Mapping[str, Arrival],
    worlds: Mapping[int, Sequence[Arrival]],
    rules: PlacementRules,
    spare_count: int,
) -> GroupSummary:
    """The placement of one group, or of all groups, in one line. `worlds` are the last worlds of the groups."""
    was_at = {seat.incarnation: (group, rank) for group, seats in worlds.items() for rank, seat in enumerate(seats)}
    seats = [(group, rank, name) for group, names in placement.by_group() for rank, name in enumerate(names)]
    others = [(group, rank, name) for group, rank, name in seats if was_at.get(name) != (group, rank)]
    moved = sum(name in was_at for _, _, name in others)
    changes = [
        f"group {group} rank {rank} {node_name(arrived[name].node)}, "
        f"{why_in_group(group, rank, arrived[name], worlds, was_at, rules)}"
        for group, rank, name in islice(others if worlds else [], NAMED)
    ]
    return GroupSummary(
        kept=len(seats) - len(others),
        moved=moved,
        new=len(others) - moved,
        benched=sum(name in was_at for name in placement.standbys),
        changes=tuple(changes),
        spare_count=spare_count,
    )


def why_in_group(  # noqa: PLR0917
    group: int,
    rank: int,
    arrival: Arrival,
    worlds: Mapping[int, Sequence[Arrival]],
    was_at: Mapping[str, tuple[int, int]],
    rules: PlacementRules,
) -> str:
    """Why a node has a rank of a group that it did not have before."""
    before = was_at.get(arrival.incarnation)
    if before is not None:
        return f"had group {before[0]} rank {before[1]}"
    return str(_why_here(rank, arrival, worlds.get(group, ()), {}, {}, rules))


@dataclass(frozen=True, slots=True)
class GroupSummary:
    """What a placement of groups changed, and how many nodes stand by."""

    kept: int
    moved: int
    """Number of nodes of the last worlds that have another group or rank now."""
    new: int
    benched: int
    """Number of nodes of the last worlds that stand by now."""
    changes: tuple[str, ...]
    spare_count: int

    @property
    def effect(self) -> str:
        """How many losses the spares cover now, and who has which rank for what reason."""
        more = self.moved + self.new - len(self.changes)
        changes = "; ".join(self.changes) + (f" and {more} more" if more else "")
        spares = "1 node stands" if self.spare_count == 1 else f"{self.spare_count or 'no'} nodes stand"
        return f"{spares} by for any group" + (f": {changes}" if self.changes else "")
