"""`ftr explain`: shows a placement with the reason for each node, and what a loss would change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ft_rendezvous.config.settings import RunSettings, settings_from
from ft_rendezvous.core.capacity import PlacementRules
from ft_rendezvous.core.explain import Kept, Outlook, PlacementLine, foresee, lacks_place
from ft_rendezvous.core.explain_groups import (
    GroupedNodes,
    GroupLine,
    GroupRulebook,
    GroupsOutlook,
    after_placement,
    explain_losses,
    foresee_groups,
    tell_cost,
)
from ft_rendezvous.core.groups import GroupRules
from ft_rendezvous.core.model import Arrival, RequestKind, node_name
from ft_rendezvous.core.roster import operator_names
from ft_rendezvous.core.snapshot import Snapshot, find_finished, find_parked, restore, restore_groups
from ft_rendezvous.errors import ConfigError, StoreUnavailable
from ft_rendezvous.launch.options import parse_nnodes
from ft_rendezvous.text import count

RULE_KEYS = ("nnodes", "segment", "unit_size", "ranks", "spread", "policy", "group_size", "min_groups")


@dataclass(frozen=True, slots=True)
class Question:
    """What to explain."""

    source: str
    """A file, or the endpoint of a live run."""
    rules: Mapping[str, str]
    """The rules that were given. The others come from the roster, or are the defaults."""
    losses: Sequence[str]
    save: Path | None = None


def explain_placement(question: Question) -> Iterator[str]:
    """The answer, line by line. Raises ConfigError for what cannot be explained."""
    snapshot = load_file(Path(question.source)) if Path(question.source).is_file() else ask_run(question.source)
    if question.save is not None:
        save_file(snapshot, question.save)
    settings = {key: value for key, value in snapshot.settings.items() if key in RULE_KEYS} | dict(question.rules)
    if "nnodes" not in settings:
        raise ConfigError(f"{question.source} does not say how many nodes train: pass --nnodes MIN:MAX")
    run = settings_from(*parse_nnodes(settings.pop("nnodes")), settings)
    try:
        yield from (
            _explain_groups(question, snapshot, run)
            if run.group_size
            else _explain_world(question, snapshot, run.placement_rules)
        )
    except ValueError as error:
        raise ConfigError(f"{question.source}: {error}") from error


def _explain_world(question: Question, snapshot: Snapshot, rules: PlacementRules) -> Iterator[str]:
    arrived, previous = restore(snapshot)
    losses = [(loss, find_lost(loss, arrived)) for loss in question.losses]
    yield from _refuse(arrived, rules)
    finished = sum(node.finished for node in snapshot.nodes)
    ends = f"the run fails, because {finished} finished and cannot train again" if finished else "the run waits"
    parked = find_parked(snapshot)
    outlook = foresee(arrived, previous, rules, parked)
    yield from _tell(outlook, len(arrived), rules, ends)
    for loss, lost in losses:
        left = {name: arrival for name, arrival in arrived.items() if name not in lost}
        world = previous if outlook.world is None else outlook.world
        yield from _tell_loss(loss, len(lost), foresee(left, world, rules, parked), ends)


def _explain_groups(question: Question, snapshot: Snapshot, run: RunSettings) -> Iterator[str]:
    arrived, worlds = restore_groups(snapshot, run.group_size)
    losses = [(loss, find_lost(loss, arrived)) for loss in question.losses]
    yield from _refuse(arrived, run.placement_rules)
    rules = GroupRulebook(
        GroupRules(
            placement=run.placement_rules,
            wanted=run.wanted_groups,
            min_groups=run.min_groups,
            last_call_s=0.0,
            settle_s=0.0,
            join_s=0.0,
            lease_s=0.0,
        ),
        run.later_placement_rules,
    )
    nodes = GroupedNodes(arrived, worlds, find_finished(snapshot), find_parked(snapshot))
    outlook = foresee_groups(nodes, rules)
    yield from _tell_groups(outlook, len(arrived), run.placement_rules)
    if outlook.lack is not None:
        return
    yield ""
    now = after_placement(nodes, outlook)
    yield from explain_losses(now, outlook, rules)
    for loss, lost in losses:
        after = foresee_groups(now, rules, lost)
        yield ""
        yield f"without {loss} ({count(len(lost), 'node')}): {tell_cost(outlook, after)}"
        yield from _group_table([line for line in after.lines if line.rank is not None and not line.is_kept])


def _refuse(arrived: dict[str, Arrival], rules: PlacementRules) -> Iterator[str]:
    """Take out the nodes that the run would refuse, and name them."""
    refused = [name for name, arrival in arrived.items() if lacks_place(arrival.node, rules)]
    if refused:
        needed = " and ".join(["a domain"] * rules.needs_domain + ["a unit"] * rules.needs_unit)
        names = ", ".join(node_name(arrived.pop(name).node) for name in refused)
        yield f"refused, because every node needs {needed}: {names}"


# --- rosters ----------------------------------------------------------------------------------------


def load_file(path: Path) -> Snapshot:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Snapshot)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ConfigError(f'{path} is no roster: {error}; it looks like {{"nodes": [{{"infra_rank": 0}}]}}') from error


def save_file(snapshot: Snapshot, path: Path) -> None:
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(snapshot)) + b"\n")
    except OSError as error:
        raise ConfigError(f"--save {path}: {error.strerror}: choose another file") from error


def ask_run(endpoint: str) -> Snapshot:
    """The roster of a live run, from its coordinator."""
    if ":" not in endpoint:
        raise ConfigError(f"there is no file {endpoint!r}, and it is no HOST:PORT of a live run either")
    # It imports torch, which takes seconds. A bad option is reported before.
    from ft_rendezvous.node.operator import Operator  # noqa: PLC0415

    try:
        answer = Operator(endpoint).ask(RequestKind.ROSTER)
    except StoreUnavailable as error:
        raise ConfigError(f"{error}: is its host alive?") from error
    if not answer.is_granted:
        raise ConfigError(f"the run at {endpoint} gives no roster: {answer.text}")
    return msgspec.json.decode(answer.text, type=Snapshot)


def find_lost(loss: str, arrived: Mapping[str, Arrival]) -> set[str]:
    """The nodes that a loss names: infra ranks, addresses, `domain:A` or `unit:7`, several joined by commas."""
    found: set[str] = set()
    for part in (part.strip() for part in loss.split(",")):
        kind, _, name = part.partition(":")
        named = {
            incarnation
            for incarnation, arrival in arrived.items()
            if (kind == "domain" and arrival.node.domain_id == name)
            or (kind == "unit" and arrival.node.unit_id == name)
            or part in operator_names(arrival.node)
        }
        if not named:
            raise ConfigError(
                f"--lose {loss}: there is no live node {part!r}: an infra rank, an address, domain:NAME or unit:NAME"
            )
        found |= named
    return found


# --- output ----------------------------------------------------------------------------------------


def _tell(outlook: Outlook, node_count: int, rules: PlacementRules, ends: str) -> Iterator[str]:
    if outlook.lack is not None:
        yield f"{ends}: {outlook.lack}"
        return
    trains = sum(line.rank is not None for line in outlook.lines)
    yield f"{trains} of {node_count} nodes train{_describe(rules)}"
    yield ""
    yield from _table(outlook.lines)
    yield ""
    yield f"spares cover {outlook.cover}{_may_shrink(trains, rules)}"


def _may_shrink(trains: int, rules: PlacementRules) -> str:
    return f", and the world may shrink to {rules.min_nodes}" if trains > rules.min_nodes else ""


def _describe(rules: PlacementRules) -> str:
    """The rules that are not the defaults."""
    plain = PlacementRules(min_nodes=rules.min_nodes, max_nodes=rules.max_nodes)
    names = ("policy", "segment", "unit_size", "ranks", "spread", "group_size")
    changed = [f"{name}={getattr(rules, name)}" for name in names if getattr(rules, name) != getattr(plain, name)]
    return f" (--nnodes={rules.min_nodes}:{rules.max_nodes}{''.join(f' {text}' for text in changed)})"


def _tell_loss(loss: str, count: int, outlook: Outlook, ends: str) -> Iterator[str]:
    yield ""
    what = f"without {loss} ({count} node{'' if count == 1 else 's'})"
    if outlook.lack is not None:
        yield f"{what}: {ends}: {outlook.lack}"
        return
    if outlook.is_smaller:
        what += ", after a last call for replacements"
    ranked = [line for line in outlook.lines if line.rank is not None]
    changed = [line for line in ranked if not isinstance(line.reason, Kept)]
    yield f"{what}: {len(ranked)} train, {len(ranked) - len(changed)} keep their ranks; spares cover {outlook.cover}"
    yield from _table(changed)


def _tell_groups(outlook: GroupsOutlook, node_count: int, rules: PlacementRules) -> Iterator[str]:
    if outlook.lack is not None:
        yield f"the run waits: {outlook.lack}"
        return
    groups = count(len(outlook.worlds), "group")
    yield f"{outlook.trains} of {node_count} nodes train in {groups} of {rules.group_size}{_describe(rules)}"
    if outlook.restarts_all:
        yield f"all groups restart together: {outlook.restarts_all}"
    yield from (f"group {group} waits: {wait}" for group, wait in outlook.waits.items())
    yield from (f"group {group} is dissolved: {reason}" for group, reason in outlook.dissolved.items())
    yield from (f"group {group} is new" for group in outlook.formed)
    yield ""
    yield from _group_table(outlook.lines)


def _group_table(lines: Sequence[GroupLine]) -> Iterator[str]:
    rows: list[tuple[str, ...]] = [("group", "rank", "node", "domain", "unit", "why")]
    for line in lines:
        place = ("-" if number is None else str(number) for number in (line.group, line.rank))
        rows.append((*place, node_name(line.node), line.node.domain_id or "", line.node.unit_id or "", line.reason))
    yield from _align(rows, numbers=2)


def _table(lines: Sequence[PlacementLine]) -> Iterator[str]:
    rows = [("rank", "node", "domain", "unit", "why")]
    for line in lines:
        rank = "-" if line.rank is None else str(line.rank)
        rows.append((rank, node_name(line.node), line.node.domain_id or "", line.node.unit_id or "", str(line.reason)))
    yield from _align(rows, numbers=1)


def _align(rows: Sequence[tuple[str, ...]], numbers: int) -> Iterator[str]:
    """Rows under their headings; the first columns are of numbers. Columns that are empty throughout are left out."""
    if len(rows) == 1:
        return
    columns = [column for column in zip(*rows, strict=True) if any(column[1:])]
    widths = [max(map(len, column)) for column in columns]
    for row in zip(*columns, strict=True):
        cells = enumerate(zip(row, widths, strict=True))
        yield "  ".join(
            cell.rjust(width) if place < numbers else cell.ljust(width) for place, (cell, width) in cells
        ).rstrip()
