"""What `ftr status` shows, as blocks of text and cells: drawn on a terminal, aligned lines elsewhere.

Pure: a picture and a time in, blocks out. Of many nodes it shows how many, and every one that is not well.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ft_rendezvous.doctor.node_names import fold_names
from ft_rendezvous.state.model.records import (
    Cycle,
    CycleStatus,
    Group,
    GroupStatus,
    Node,
    NodeRole,
    NodeStatus,
    RecentUpdate,
    Run,
    SlowRank,
)
from ft_rendezvous.state.model.run_state import NS
from ft_rendezvous.state.model.wording import cause_in_words, list_steps, local_time, name_group, sum_up_updates
from ft_rendezvous.state.read.log_reader import describe_missing
from ft_rendezvous.state.read.sources import Picture
from ft_rendezvous.text import clean, count, duration

SHORT_TIME = "%m-%d %H:%M:%S"
FEW = 24
"""Up to this number, live nodes are listed one by one."""
UNWELL_SHOWN = 40
DOMAINS_SHOWN = 40
CYCLES_LISTED = 8
UPDATES_LISTED = 8
LONG_NAME = 60
DEAD_SHOWN = 8
"""Of those that have ended, the newest."""

STYLES = {
    "RUNNING": "bold green",
    "FINISHED": "bold green",
    "ERRORED": "bold red",
    "ABORTED": "bold red",
    "RESTARTING": "bold yellow",
    "RESIZING": "bold cyan",
    "SCHEDULING": "bold yellow",
    "INITIALIZING": "bold yellow",
    "PENDING": "yellow",
    "WAITING": "bold yellow",
    "DISSOLVED": "red",
    "ALIVE": "green",
    "SUSPECT": "bold yellow",
    "DEAD": "red",
    "active": "green",
    "awaited": "yellow",
    "quarantined": "bold red",
}
"""By word: one word means one thing everywhere."""


@dataclass(frozen=True, slots=True)
class TextLine:
    """A line of text, after a word that has a meaning of its own."""

    text: str
    word: str = ""


@dataclass(frozen=True, slots=True)
class Bar:
    """How much of a whole is there."""

    label: str
    done: int
    whole: int


@dataclass(frozen=True, slots=True)
class Grid:
    """Cells under headings; a heading that begins with `>` is one of numbers."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    tail: str = ""
    """What was left out."""


Block = TextLine | Bar | Grid


def blocks_of(picture: Picture, now_ns: int, is_every_node: bool = False) -> Iterator[Block]:
    """All there is to see, the most important first."""
    run = picture.run
    now_ns = run.end_time_ns or now_ns
    yield TextLine(_name_and_detail(run), str(run.status))
    yield TextLine(_times(run, now_ns))
    yield from _arriving(picture)
    yield from _groups(run)
    yield from _nodes(picture, now_ns, is_every_node)
    yield from _slowest(run, now_ns)
    yield from _cycles(picture, now_ns)
    yield from _lost(run)
    yield from _updates(run)
    if picture.missing is not None and not picture.missing.is_empty():
        yield TextLine(f"of its log, {describe_missing(picture.missing)}", "incomplete")


def headline(picture: Picture) -> str:
    """The run in one line."""
    run = picture.run
    cycle = f" cycle {run.cycle_id}" if run.cycle_id else ""
    return f"{run.status}{cycle}  {_name_and_detail(run)}"


def gathering(picture: Picture) -> tuple[int, int] | None:
    """How many nodes have arrived of how many that are wanted; None while no cycle gathers the nodes of all groups."""
    common = next((cycle for cycle in reversed(picture.cycles) if cycle.group is None), None)
    if common is None or common.status is not CycleStatus.PENDING or picture.run.is_terminal():
        return None
    arrived = sum(1 for node in picture.nodes if node.role is NodeRole.ARRIVED and not node.is_terminal())
    return arrived, picture.run.wanted


# --- parts ------------------------------------------------------------------------------------------


def _name_and_detail(run: Run) -> str:
    return f"{clean(run.name)}: {clean(run.status_detail)}" if run.status_detail else clean(run.name)


def _times(run: Run, now_ns: int) -> str:
    until_ns = run.end_time_ns or now_ns
    lasted_s = max(0.0, (until_ns - run.start_time_ns) / NS)
    began = f"began {local_time(run.start_time_ns)} on {clean(run.store_host)}"
    ended = f", ended after {duration(lasted_s)}" if run.end_time_ns else f", {duration(lasted_s)} ago"
    share = f" ({100 * run.trained_s / lasted_s:.1f} %)" if lasted_s > 0 else ""
    return f"{began}{ended}; trained {duration(run.trained_s)}{share}, lost {duration(run.lost_s)}"


def _arriving(picture: Picture) -> Iterator[Block]:
    found = gathering(picture)
    if found is not None:
        arrived, wanted = found
        label = f"{arrived:,} nodes have arrived, {wanted:,} are wanted"
        if arrived <= wanted:
            label = f"{arrived:,} of {wanted:,} nodes have arrived"
        yield Bar(label, min(arrived, wanted), wanted)


def _groups(run: Run) -> Iterator[Block]:
    """The replica groups, if the run has any; of many, those that are not well."""
    if not run.groups:
        return
    shown = run.groups
    if len(shown) > FEW:
        shown = tuple(group for group in shown if group.status is not GroupStatus.RUNNING)[:UNWELL_SHOWN]
    rest = len(run.groups) - len(shown)
    headings = (">group", "status", ">cycle", ">nodes", ">restarts", ">trained", ">lost", "last restarted because")
    tail = f"and {count(rest, 'more group')}" + (", all of them running" * _are_running(run, shown)) if rest else ""
    yield Grid(count(len(run.groups), "group"), headings, [_group_cells(group) for group in shown], tail)


def _are_running(run: Run, shown: Sequence[Group]) -> bool:
    return all(group.status is GroupStatus.RUNNING for group in run.groups if group not in shown)


def _group_cells(group: Group) -> tuple[str, ...]:
    is_dissolved = group.status is GroupStatus.DISSOLVED
    return (
        str(group.group),
        str(group.status),
        str(group.cycle_id),
        "" if is_dissolved else f"{group.live} of {group.wanted}",
        str(group.restarts or ""),
        duration(group.trained_s),
        duration(group.lost_s) if group.lost_s else "",
        clean("; ".join(filter(None, (group.why_text if group.restarts else "", group.status_detail)))),
    )


def _nodes(picture: Picture, now_ns: int, is_every_node: bool) -> Iterator[Block]:
    has_groups = bool(picture.run.groups)
    live = [node for node in picture.nodes if not node.is_terminal()]
    dead = [node for node in picture.nodes if node.is_terminal()]
    if picture.run.is_terminal():
        # All nodes leave when a run ends: only those that did not end well are of interest.
        dead = [node for node in dead if not _ended_well(node)]
    if is_every_node:
        yield _each("nodes", picture.nodes, now_ns, has_groups=has_groups)
        return
    if len(live) <= FEW:
        is_vanished = picture.run.is_terminal() and picture.run.verdict is None
        title = "nodes, as last known" if is_vanished else "nodes"
        yield from _some(title, sorted(live, key=_rank_first), now_ns, FEW, has_groups)
    else:
        yield _counted(live)
        unwell = [
            node for node in live if node.status is NodeStatus.SUSPECT or node.failure_count or node.status_detail
        ]
        yield from _some("nodes that are not well", unwell, now_ns, UNWELL_SHOWN, has_groups)
    yield from _some("nodes that have ended, newest first", dead[::-1], now_ns, DEAD_SHOWN, has_groups)


def _ended_well(node: Node) -> bool:
    return node.failure_count == 0 and node.status_detail.startswith("went, ")


def _has_rank(node: Node) -> bool:
    """Whether its rank is that of now, or of the world that has just ended."""
    return node.group_rank is not None and node.role not in (NodeRole.HOT_SPARE, NodeRole.STANDBY)


def _rank_first(node: Node) -> tuple[bool, int, int]:
    return (False, node.group or 0, node.group_rank or 0) if _has_rank(node) else (True, node.joined_ns, 0)


def _some(title: str, nodes: Sequence[Node], now_ns: int, most: int, has_groups: bool) -> Iterator[Block]:
    if nodes:
        rest = len(nodes) - most
        tail = f"and {rest:,} more: --nodes shows all" if rest > 0 else ""
        yield _each(title, nodes[:most], now_ns, tail, has_groups=has_groups)


def _each(title: str, nodes: Sequence[Node], now_ns: int, tail: str = "", *, has_groups: bool) -> Grid:
    headings: tuple[str, ...] = (">rank", "node", "domain", "role", "status", "last beat", ">failures", "")
    rows = [_node_cells(node, now_ns) for node in nodes]
    if any(node.last_progress_ns is not None for node in nodes):
        headings = (*headings[:-1], "progress", headings[-1])
        rows = [(*row[:-1], _progress(node, now_ns), row[-1]) for node, row in zip(nodes, rows, strict=True)]
    if has_groups:
        groups = ["" if node.group is None else str(node.group) for node in nodes]
        return Grid(
            title, (">group", *headings), [(group, *row) for group, row in zip(groups, rows, strict=True)], tail
        )
    return Grid(title, headings, rows, tail)


def _progress(node: Node, now_ns: int) -> str:
    """The last step of a node's slowest worker, how long ago it was, and which worker that is."""
    if node.last_progress_ns is None or node.role is not NodeRole.ACTIVE or node.is_terminal():
        return ""
    step = "" if node.step is None else f"step {node.step:,}, "
    rank = "" if node.slowest_rank is None else f", rank {node.slowest_rank}"
    return f"{step}{_ago(node.last_progress_ns, now_ns)}{rank}"


def _ago(time_ns: int, now_ns: int) -> str:
    seconds = max(0, now_ns - time_ns) // NS
    return f"{_whole(seconds)} ago" if seconds else "just now"


def _whole(seconds: int) -> str:
    """Ages of progress are known to the second."""
    return f"{seconds} s" if seconds < 60 else duration(seconds)


def _slowest(run: Run, now_ns: int) -> Iterator[Block]:
    """If hangs are looked for: the ranks that wait for longest, at most one of each node."""
    if not run.slowest or run.is_terminal():
        return
    late = "" if run.late_after_s is None else f"; a rank is late after {_whole(run.late_after_s)}"
    headings: tuple[str, ...] = (">rank", "node", ">step", "last progress")
    rows = [_slow_cells(each, now_ns) for each in run.slowest]
    if run.groups:
        headings = (">group", *headings)
        rows = [(str(each.group or 0), *row) for each, row in zip(run.slowest, rows, strict=True)]
    yield Grid(f"slowest ranks{late}", headings, rows)


def _slow_cells(slow: SlowRank, now_ns: int) -> tuple[str, ...]:
    step = "" if slow.step is None else f"{slow.step:,}"
    return str(slow.rank), clean(slow.node), step, _ago(slow.last_progress_ns, now_ns)


def _node_cells(node: Node, now_ns: int) -> tuple[str, ...]:
    detail = node.status_detail
    if node.failures:
        detail = (
            f"{detail}; " * bool(detail) + f"failed in cycle {node.failures[-1].cycle_id}: {node.failures[-1].error}"
        )
    # A live node that is well beats: when exactly is of no interest, and not known to the second.
    beats = {
        NodeStatus.ALIVE: "",
        NodeStatus.SUSPECT: f"{duration((now_ns - node.last_beat_ns) / NS)} ago",
        NodeStatus.DEAD: local_time(node.last_beat_ns, SHORT_TIME),
    }
    return (
        str(node.group_rank) if _has_rank(node) else "",
        clean(node.name),
        clean(node.domain or ""),
        str(node.role),
        str(node.status),
        beats[node.status],
        str(node.failure_count or ""),
        clean(detail),
    )


def _counted(live: Sequence[Node]) -> Grid:
    """How many nodes of each role there are in each domain."""
    counts: dict[str, Counter[str]] = {}
    for node in live:
        counts.setdefault(clean(node.domain or "no domain"), Counter())[str(node.role)] += 1
        if node.status is NodeStatus.SUSPECT:
            counts[clean(node.domain or "no domain")][str(node.status)] += 1
    present = {word for each in counts.values() for word in each}
    words = [word for word in (*(str(role) for role in NodeRole), str(NodeStatus.SUSPECT)) if word in present]
    total: Counter[str] = sum(counts.values(), Counter())
    # Those that are not as most others come first, and where many are alike they share a row.
    alike: dict[tuple[str, ...], list[str]] = {}
    for domain, each in counts.items():
        alike.setdefault(_count_cells(each, words), []).append(domain)
    rows = [
        (name, *cells)
        for cells, domains in sorted(alike.items(), key=lambda item: len(item[1]))
        for name in (_by_nature(domains) if len(counts) <= DOMAINS_SHOWN else [_together(domains)])
    ]
    rest = len(rows) - DOMAINS_SHOWN
    rows = rows[:DOMAINS_SHOWN]
    if len(counts) > 1:
        rows.append((f"all {count(len(counts), 'domain')}", *_count_cells(total, words)))
    tail = f"and {rest:,} more rows: --nodes shows all nodes" if rest > 0 else ""
    return Grid(count(len(live), "live node"), ("domain", *(f">{word}" for word in words)), rows, tail)


def _together(domains: list[str]) -> str:
    if len(domains) == 1:
        return domains[0]
    folded = fold_names(_by_nature(domains))
    shown = folded if len(folded) <= LONG_NAME else f"{folded[:LONG_NAME]}…"
    return f"{len(domains):,} domains, each: {shown}"


def _by_nature(names: list[str]) -> list[str]:
    """`rack2` before `rack10`."""
    return sorted(names, key=lambda name: [(int(part), "") if part.isdecimal() else (0, part) for part in _parts(name)])


def _parts(name: str) -> list[str]:
    return re.findall(r"[0-9]{1,9}|[^0-9]+", name)


def _count_cells(counts: Counter[str], words: Sequence[str]) -> tuple[str, ...]:
    return tuple(f"{counts[word]:,}" if counts[word] else "" for word in words)


def _cycles(picture: Picture, now_ns: int) -> Iterator[Block]:
    if picture.cycles:
        shown = picture.cycles[: -CYCLES_LISTED - 1 : -1]
        rest = len(picture.cycles) - len(shown)
        headings: tuple[str, ...] = (
            ">cycle",
            "opened",
            "status",
            ">to seal",
            ">trained",
            ">lost",
            ">active",
            ">failed",
            "opened because",
        )
        tail = f"and {count(rest, 'older cycle')}" if rest else ""
        rows = [_cycle_cells(cycle, picture.run, now_ns) for cycle in shown]
        if picture.run.groups:
            headings = (headings[0], ">group", *headings[1:])
            rows = [(row[0], name_group(cycle), *row[1:]) for cycle, row in zip(shown, rows, strict=True)]
        yield Grid("cycles, newest first", headings, rows, tail)


def _cycle_cells(cycle: Cycle, run: Run, now_ns: int) -> tuple[str, ...]:
    until_ns = cycle.end_time_ns or run.end_time_ns or now_ns
    since_ns = cycle.seal_time_ns
    return (
        str(cycle.cycle_id),
        local_time(cycle.start_time_ns, SHORT_TIME),
        str(cycle.status),
        "" if cycle.time_to_seal_s is None else duration(cycle.time_to_seal_s),
        "" if since_ns is None else duration((until_ns - since_ns) / NS),
        duration(cycle.lost_s) if cycle.lost_s else "",
        f"{cycle.active:,}" if cycle.seal_time_ns else "",
        str(cycle.failure_count or ""),
        clean(cycle.why_text),
    )


def _lost(run: Run) -> Iterator[Block]:
    if run.lost:
        causes = sorted(run.lost.items(), key=lambda item: -item[1].seconds)
        rows = [(cause_in_words(cause), str(lost.times), duration(lost.seconds)) for cause, lost in causes]
        yield Grid("time without training", ("because of", ">times", ">lost"), rows)


def _updates(run: Run) -> Iterator[Block]:
    """If the run has any: all in one line, and the newest; those that failed or were retried before the others."""
    if not run.updates.updates:
        return
    newest = run.recent_updates[::-1]
    shown = [*(each for each in newest if not each.is_plain), *(each for each in newest if each.is_plain)]
    shown = sorted(shown[:UPDATES_LISTED], key=lambda each: -each.time_ns)
    headings = (
        "at",
        ">cycle",
        ">version",
        "outcome",
        ">attempts",
        ">parties",
        ">time",
        ">lost",
        "steps, and what failed",
    )
    yield Grid(f"updates: {sum_up_updates(run.updates)}", headings, [_update_cells(each) for each in shown])


def _update_cells(update: RecentUpdate) -> tuple[str, ...]:
    return (
        local_time(update.time_ns, SHORT_TIME),
        str(update.cycle_id),
        str(update.version),
        str(update.outcome),
        str(update.attempts),
        f"{update.updated:,} of {update.parties:,}",
        duration(update.duration_s),
        duration(update.lost_s) if update.lost_s else "",
        clean("; ".join(filter(None, (list_steps(update), update.failed_names, update.reason)))),
    )
