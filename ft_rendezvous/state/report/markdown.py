"""A report as markdown, to read after the run. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

from ft_rendezvous.state.model.records import Cycle, CycleStatus, Group, Lost, RecentUpdate, Run, UpdateTotals
from ft_rendezvous.state.model.run_state import NS
from ft_rendezvous.state.model.wording import cause_in_words, list_steps, local_time, name_group, sum_up_updates
from ft_rendezvous.state.read.log_reader import describe_missing
from ft_rendezvous.state.read.sources import Picture
from ft_rendezvous.state.report.run_report import NodeHistory, ReportedFailure, RunPhase, RunReport
from ft_rendezvous.text import clean, count, duration

T = TypeVar("T")

UPDATE_CYCLES_SHOWN = 20
CYCLES_IN_TABLE = 100
"""Half of them are the first cycles, half the last."""
SLOW_CYCLES_SHOWN = 20
FLAPPING_SHOWN = 20
FAILURES_SHOWN = 60
MAX_ERROR_CHARS = 160
"""How many letters of an error are shown."""


def write_page(picture: Picture, report: RunReport, plot: str | None = None) -> str:
    """The whole report; `plot` is the name of the picture beside it."""
    parts = [
        *_summary(picture, report),
        *([f"![timeline of {clean(picture.run.name)}]({plot})", ""] if plot else []),
        *_time(picture, report),
        *_groups(picture),
        *_cycles(picture, report),
        *_updates(picture, report),
        *_slow(picture, report),
        *_flapping(report),
        *_failures(report),
        *_missing(picture),
    ]
    return "\n".join(parts).rstrip() + "\n"


# --- sections ---------------------------------------------------------------------------------------


def _summary(picture: Picture, report: RunReport) -> Iterator[str]:
    run = picture.run
    yield f"# Run {clean(run.name)}: {run.status}"
    yield ""
    if run.status_detail:
        yield f"{_upper(clean(run.status_detail))}."
        yield ""
    lasted = "" if run.end_time_ns is None else f", {duration((run.end_time_ns - run.start_time_ns) / NS)} later"
    ended = "not yet" if run.end_time_ns is None else f"{local_time(run.end_time_ns)}{lasted}"
    total = sum(span.seconds for span in report.spans)
    failures = sum(notes.failure_count for notes in report.notes.values())
    rows = [
        ("id", run.id),
        ("verdict", "none" if run.verdict is None else str(run.verdict)),
        ("began", f"{local_time(run.start_time_ns)} on {run.store_host}"),
        ("ended", ended),
        ("nodes wanted", run.settings.get("nnodes", str(run.wanted))),
        (
            "nodes seen",
            f"{len(report.histories):,} in {sum(each.incarnations for each in report.histories.values()):,} lives",
        ),
        *([("groups", f"{len(run.groups):,} of {run.groups[0].wanted:,} nodes")] if run.groups else []),
        ("cycles", f"{run.cycle_id:,}"),
        ("failures of workers", f"{failures:,}"),
        ("trained", f"{duration(run.trained_s)}{_share(run.trained_s, total)}"),
        ("lost", f"{duration(run.lost_s)}{_share(run.lost_s, total)}"),
    ]
    if run.updates.updates:
        rows.append(("updates", sum_up_updates(run.updates)))
    if run.versions:
        rows.append(("versions", ", ".join(f"{name} {version}" for name, version in run.versions.items())))
    yield from _table(("", ""), rows)


def _time(picture: Picture, report: RunReport) -> Iterator[str]:
    yield "## Where the time went"
    yield ""
    seconds = report.seconds()
    lost: dict[str, Lost] = {}
    if picture.run.groups:
        seconds, lost = _seconds_of_groups(picture.run, seconds), picture.run.lost
    total = sum(seconds.values()) or 1.0
    names = {
        RunPhase.WAITING: "waiting for the first world",
        RunPhase.UNKNOWN: "not recorded",
        RunPhase.TRAINING: "training",
    }
    rows = []
    for (phase, cause), spent in sorted(seconds.items(), key=lambda item: (item[0][0] is RunPhase.LOST, -item[1])):
        alike = (span for span in report.spans if (span.phase, span.cause) == (phase, cause))
        times = sum(not span.is_continued for span in alike)
        if phase is RunPhase.LOST and cause in lost:
            times = lost[cause].times
        what = names.get(phase) or f"lost: {cause_in_words(cause)}"
        each = duration(spent / times) if phase is RunPhase.LOST else ""
        rows.append((what, f"{times:,}", duration(spent), f"{100 * spent / total:.2f} %", each))
    yield from _table(("", ">times", ">time", ">share", ">on the average"), rows)
    if picture.run.lost:
        yield "Lost time begins when the world before was last known to be whole, and ends with the next seal."
        if picture.run.groups:
            yield "Of N groups, what each one trains or loses counts as the N-th part."
        yield ""


def _seconds_of_groups(run: Run, seconds: dict[tuple[RunPhase, str], float]) -> dict[tuple[RunPhase, str], float]:
    """The run's own sums. Those of the spans may differ by the silence of a node that was lost while groups came and
    went, because each span has one number of groups."""
    found = {kind: spent for kind, spent in seconds.items() if kind[0] in (RunPhase.WAITING, RunPhase.UNKNOWN)}
    found[RunPhase.TRAINING, ""] = run.trained_s
    return found | {(RunPhase.LOST, cause): lost.seconds for cause, lost in run.lost.items()}


def _groups(picture: Picture) -> Iterator[str]:
    """Only in a run with replica groups."""
    if not picture.run.groups:
        return
    yield "## Groups"
    yield ""
    yield from _table(
        (">group", "status", ">cycle", ">restarts", ">trained", ">lost", "last opened because"),
        [_group_row(group) for group in picture.run.groups],
    )


def _group_row(group: Group) -> tuple[str, ...]:
    detail = f": {group.status_detail}" if group.status_detail else ""
    return (
        str(group.group),
        f"{group.status}{detail}",
        str(group.cycle_id),
        str(group.restarts),
        duration(group.trained_s),
        duration(group.lost_s),
        group.why_text,
    )


def _cycles(picture: Picture, report: RunReport) -> Iterator[str]:
    yield "## Cycles"
    yield ""
    trained = _trained_by_cycle(report)
    shown, left_out = _both_ends(picture.cycles, CYCLES_IN_TABLE)
    headings: tuple[str, ...] = (
        ">cycle",
        "opened",
        "opened because",
        ">to seal",
        ">lost",
        ">trained",
        ">active + standby",
        "ended",
    )
    rows = [_cycle_row(cycle, trained) for cycle in shown]
    if picture.run.groups:
        headings = (headings[0], ">group", *headings[1:])
        rows = [(row[0], name_group(cycle), *row[1:]) for cycle, row in zip(shown, rows, strict=True)]
    yield from _table(headings, rows)
    first = picture.cycles[0].cycle_id if picture.cycles else 1
    if left_out or first > 1:
        yield f"{count(left_out + first - 1, 'cycle')} between or before are left out."
        yield ""


def _trained_by_cycle(report: RunReport) -> dict[int, float]:
    """How long each cycle trained; of several groups in it, the one that trained longest."""
    trained: dict[tuple[int, int | None], float] = {}
    for span in report.spans:
        if span.phase is RunPhase.TRAINING:
            place = span.cycle_id, span.group
            trained[place] = trained.get(place, 0.0) + span.own_seconds
    longest: dict[int, float] = {}
    for (cycle_id, _), seconds in trained.items():
        longest[cycle_id] = max(longest.get(cycle_id, 0.0), seconds)
    return longest


def _cycle_row(cycle: Cycle, trained: dict[int, float]) -> tuple[str, ...]:
    is_sealed = cycle.seal_time_ns is not None
    ended = "; ".join([str(cycle.status), *(f"group {group} {status}" for group, status in cycle.left.items())])
    if cycle.first_failure is not None:
        ended += f": {cycle.first_failure_node}, {cycle.first_failure.error}"
    elif cycle.status not in (CycleStatus.FINISHED, CycleStatus.PENDING, CycleStatus.RUNNING):
        ended += f": {cycle.status_detail}" if cycle.status_detail else ""
    return (
        str(cycle.cycle_id),
        local_time(cycle.start_time_ns),
        cycle.why_text,
        "" if cycle.time_to_seal_s is None else duration(cycle.time_to_seal_s),
        duration(cycle.lost_s) if cycle.lost_s else "",
        duration(trained[cycle.cycle_id]) if cycle.cycle_id in trained else "",
        f"{cycle.active:,} + {cycle.standby:,}" if is_sealed else "not sealed",
        ended,
    )


def _updates(picture: Picture, report: RunReport) -> Iterator[str]:
    """Only if workers have reported any."""
    totals = picture.run.updates
    if not totals.updates:
        return
    yield "## Updates"
    yield ""
    cycles = [(str(cycle.cycle_id), cycle.updates) for cycle in picture.cycles if cycle.updates is not None]
    shown, left_out = _both_ends(cycles, UPDATE_CYCLES_SHOWN)
    rows = [_totals_row(name, each) for name, each in [*shown, ("all", totals)]]
    headings = (">cycle", ">updates", ">failed", ">retried", ">time", ">on the average", ">lost to failed attempts")
    yield from _table(headings, rows)
    if left_out:
        yield f"{count(left_out, 'cycle')} between are left out."
        yield ""
    troubled = [*report.first_updates, *report.last_updates]
    if not troubled:
        yield "No update failed or was retried."
        yield ""
        return
    yield "Updates that failed or were retried:"
    yield ""
    yield from _table(
        (">cycle", "time", "node", ">version", "outcome", ">attempts", ">parties", ">took", ">lost", "steps", "error"),
        [_update_row(update) for update in troubled],
    )
    if report.last_updates:
        yield "Of more than these, the first and the last are listed."
        yield ""


def _totals_row(name: str, totals: UpdateTotals) -> tuple[str, ...]:
    counts = (f"{totals.updates:,}", f"{totals.failed:,}", f"{totals.retried:,}")
    lost = duration(totals.lost_s) if totals.lost_s else ""
    return (name, *counts, duration(totals.spent_s), duration(totals.spent_s / max(1, totals.updates)), lost)


def _update_row(update: RecentUpdate) -> tuple[str, ...]:
    return (
        str(update.cycle_id),
        local_time(update.time_ns),
        update.node,
        str(update.version),
        str(update.outcome),
        str(update.attempts),
        f"{update.updated:,} of {update.parties:,}",
        duration(update.duration_s),
        duration(update.lost_s) if update.lost_s else "",
        list_steps(update),
        "; ".join(filter(None, (update.failed_names, update.reason)))[:MAX_ERROR_CHARS],
    )


def _slow(picture: Picture, report: RunReport) -> Iterator[str]:
    yield "## Slowest to arrive"
    yield ""
    if not report.worst:
        yield "No node arrived in the recorded time."
        yield ""
        return
    yield "Seconds from a cycle's opening until a node was ready for it; the worst of the run:"
    yield ""
    worst = [(slow.node, str(slow.cycle_id), duration(slow.after_s)) for slow in report.slowest()]
    yield from _table(("node", ">cycle", ">after"), worst)
    by_cycle = {cycle.cycle_id: cycle for cycle in picture.cycles}
    slowest = sorted(report.notes.items(), key=lambda item: item[1].slowest[:1], reverse=True)
    shown = sorted(cycle_id for cycle_id, notes in slowest[:SLOW_CYCLES_SHOWN] if notes.slowest)
    yield "By cycle:" if len(report.notes) <= SLOW_CYCLES_SHOWN else f"The {len(shown)} cycles that waited longest:"
    yield ""
    rows = []
    for cycle_id in shown:
        notes, cycle = report.notes[cycle_id], by_cycle.get(cycle_id)
        sealed = "" if cycle is None or cycle.time_to_seal_s is None else duration(cycle.time_to_seal_s)
        slowest_nodes = ", ".join(f"{slow.node} ({duration(slow.after_s)})" for slow in notes.slowest)
        rows.append((str(cycle_id), f"{notes.arrived:,}", sealed, slowest_nodes))
    yield from _table((">cycle", ">arrivals", ">to seal", "slowest"), rows)


def _flapping(report: RunReport) -> Iterator[str]:
    yield "## Flapping nodes"
    yield ""
    flapping = report.flapping()
    if not flapping:
        yield "None: no node was silent, fenced or restarted again and again."
        yield ""
        return
    yield from _table(
        ("node", ">lives", ">silences", ">fenced", ">failures", "parked"),
        [_history_row(history) for history in flapping[:FLAPPING_SHOWN]],
    )
    if len(flapping) > FLAPPING_SHOWN:
        yield f"And {len(flapping) - FLAPPING_SHOWN:,} more."
        yield ""


def _history_row(history: NodeHistory) -> tuple[str, ...]:
    causes = ", ".join(f"{number} {cause}" for cause, number in sorted(history.fences.items()))
    counts = (str(history.incarnations), str(history.silences), causes or "0", str(history.failures))
    return (history.name, *counts, "yes" if history.was_parked else "")


def _failures(report: RunReport) -> Iterator[str]:
    yield "## Failures"
    yield ""
    failures = [failure for cycle_id in sorted(report.notes) for failure in report.notes[cycle_id].failures]
    if not failures:
        yield "No workers failed."
        yield ""
        return
    shown, left_out = _both_ends(failures, FAILURES_SHOWN)
    yield from _table(
        (">cycle", "time", "node", ">rank", ">exit code", ">after", "error", "log"),
        [_failure_row(failure, report) for failure in shown],
    )
    total = sum(notes.failure_count for notes in report.notes.values())
    if total > len(failures) or left_out:
        yield f"{total - len(failures) + left_out:,} more are left out; of each cycle, the first three are listed."
        yield ""
    yield "The node in **bold** failed first, and was charged."
    yield ""


def _failure_row(failure: ReportedFailure, report: RunReport) -> tuple[str, ...]:
    note, charged = failure.note, report.notes[failure.note.cycle_id].charged
    is_first = charged is not None and charged.incarnation == note.incarnation
    error = note.reason if ": " in note.reason or not note.last_words else f"{note.reason}: {note.last_words}"
    return (
        str(note.cycle_id),
        local_time(failure.time_ns),
        f"**{note.node}**" if is_first else note.node,
        str(note.rank),
        "" if note.exit_code is None else str(note.exit_code),
        "" if note.after_s is None else duration(note.after_s),
        error if len(error) <= MAX_ERROR_CHARS else f"{error[:MAX_ERROR_CHARS]}…",
        f"`{note.log_path}`" if note.log_path else "",
    )


def _missing(picture: Picture) -> Iterator[str]:
    yield "## What is missing in the log"
    yield ""
    missing = picture.missing
    if missing is None or missing.is_empty():
        yield "Nothing."
        return
    yield f"{_upper(describe_missing(missing))}."
    if missing.gaps:
        yield ""
        yield "Events that are not there: " + ", ".join(
            f"{gap.first:,} to {gap.last:,}" if gap.last > gap.first else f"{gap.first:,}" for gap in missing.gaps
        )


# --- parts ------------------------------------------------------------------------------------------


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(heading.removeprefix(">") for heading in headings) + " |"
    yield "|" + "|".join("--:" if heading.startswith(">") else "---" for heading in headings) + "|"
    for row in rows:
        yield "| " + " | ".join(clean(cell).replace("|", "\\|") for cell in row) + " |"
    yield ""


def _both_ends(items: Sequence[T], most: int) -> tuple[list[T], int]:
    if len(items) <= most:
        return list(items), 0
    return [*items[: most // 2], *items[-most // 2 :]], len(items) - most


def _share(part_s: float, whole_s: float) -> str:
    return f" ({100 * part_s / whole_s:.2f} %)" if whole_s > 0 else ""


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
