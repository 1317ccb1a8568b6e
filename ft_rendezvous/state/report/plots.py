"""A run's time as a picture: when it trained, when it did not and why. Needs matplotlib, and only when it draws."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from ft_rendezvous.state.model.records import Run
from ft_rendezvous.state.model.run_state import NS
from ft_rendezvous.state.model.wording import cause_in_words
from ft_rendezvous.state.report.run_report import RunPhase, RunReport, Span
from ft_rendezvous.text import clean, duration

PHASE_COLORS = {RunPhase.TRAINING: "#7fb98a", RunPhase.WAITING: "#c9cdd3", RunPhase.UNKNOWN: "#ffffff"}
CAPHASE_COLORS = {
    "nodes_lost": "#c4452d",
    "workers_failed": "#8652a8",
    "node_left": "#b07d12",
    "nodes_drain": "#0b6bcb",
    "restart_requested": "#1b8a8f",
    "world_grows": "#5b6470",
    "no_group_trains": "#d9822b",
    "group_fails_again": "#a0337d",
}
OTHER_COLOR = "#222222"
INK = "#30363d"
SEEN = 350
"""The smallest part of the whole width that can be seen."""
FEW_SPANS = 250
"""Up to this number, spans are drawn one by one."""
MOST_LANES = 16
"""With more groups than this, shares of all are drawn."""
MARKED = 60
"""At most this number of cycles get their number, if there is room."""


class CannotDraw(Exception):
    """matplotlib is not there."""

    def __init__(self) -> None:
        super().__init__("no plot without matplotlib: pip install 'ft-rendezvous[plots]'")


def draw_timeline(run: Run, report: RunReport, path: Path) -> None:
    """Write the picture. Raises CannotDraw without matplotlib."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise CannotDraw from error
    figure = Figure(figsize=(11, 5), layout="constrained")
    band, losses = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2.6))
    begin_ns = min((span.start_ns for span in report.spans), default=run.start_time_ns)
    end_ns = max((span.end_ns for span in report.spans), default=begin_ns + NS)
    _draw_band(band, report.spans, begin_ns, end_ns)
    _draw_losses(losses, report.spans, begin_ns, end_ns)
    _explain(figure, report.spans)
    _name_times(losses, begin_ns, end_ns)
    lasted_s = (end_ns - begin_ns) / NS
    share = f", {100 * run.trained_s / lasted_s:.1f} % of it training" if lasted_s > 0 else ""
    title = f"run {clean(run.name)}: {run.status} after {duration(lasted_s)}{share}"
    figure.suptitle(title, fontsize=12, color=INK, x=0.01, ha="left")
    figure.savefig(path, dpi=130, facecolor="white", metadata={"Software": None})


def _draw_band(axes: Any, spans: Sequence[Span], begin_ns: int, end_ns: int) -> None:
    """What the run did, from left to right; with groups, a lane for each of them."""
    groups = sorted({span.group for span in spans if span.group is not None})
    if len(spans) <= FEW_SPANS and 1 < len(groups) <= MOST_LANES:
        _draw_lanes(axes, spans, groups, end_ns - begin_ns)
    elif len(spans) <= FEW_SPANS and len(groups) <= 1:
        _draw_spans(axes, spans, end_ns - begin_ns)
        _number_cycles(axes, spans, end_ns - begin_ns)
    else:
        _draw_shares(axes, spans, begin_ns, end_ns)
    axes.set_ylim(0, 1.28)
    axes.tick_params(axis="both", length=0)
    for side in ("left", "right", "top", "bottom"):
        axes.spines[side].set_visible(False)


def _draw_spans(axes: Any, spans: Sequence[Span], whole_ns: int) -> None:
    """Each span."""
    for span in sorted(spans, key=lambda span: span.phase is RunPhase.LOST):
        _draw_span(axes, span, (0, 1), whole_ns)
    axes.set_yticks([1.16], ["cycle"], fontsize=9, color=INK)


def _draw_lanes(axes: Any, spans: Sequence[Span], groups: Sequence[int], whole_ns: int) -> None:
    """Each span in the lane of its group, the first group above. What is of no group fills all lanes."""
    height = 1 / len(groups)
    lows = {group: 1 - (index + 1) * height for index, group in enumerate(groups)}
    for span in sorted(spans, key=lambda span: span.phase is RunPhase.LOST):
        lane = (0.0, 1.0) if span.group is None else (lows[span.group], 0.88 * height)
        _draw_span(axes, span, lane, whole_ns)
    names = [f"group {group}" for group in groups]
    axes.set_yticks([lows[group] + height / 2 for group in groups], names, fontsize=9, color=INK)


def _draw_span(axes: Any, span: Span, lane: tuple[float, float], whole_ns: int) -> None:
    """Lost time that is too short is drawn wide enough to be seen."""
    width = _days(span.end_ns - span.start_ns)
    if span.phase is RunPhase.LOST:
        width = max(_days(whole_ns) / SEEN, width)
    axes.broken_barh([(_x(span.start_ns), width)], lane, **_paint(span))


def _draw_shares(axes: Any, spans: Sequence[Span], begin_ns: int, end_ns: int) -> None:
    """For many spans: their shares of the time in each stretch."""
    step_ns = max(1, (end_ns - begin_ns) // SEEN + 1)
    shares: dict[tuple[RunPhase, str], list[float]] = {}
    kinds: dict[tuple[RunPhase, str], Span] = {}
    for span in spans:
        kind = span.phase, span.cause
        kinds.setdefault(kind, span)
        share = shares.setdefault(kind, [0.0] * SEEN)
        for place in range((span.start_ns - begin_ns) // step_ns, (span.end_ns - 1 - begin_ns) // step_ns + 1):
            left_ns = begin_ns + place * step_ns
            part_ns = min(span.end_ns, left_ns + step_ns) - max(span.start_ns, left_ns)
            share[place] += part_ns / step_ns / span.sharing
    x = [_x(begin_ns + place * step_ns) for place in range(SEEN)]
    bottom = [0.0] * SEEN
    for kind in sorted(shares, key=lambda kind: (kind[0] is RunPhase.LOST, kind[0] is not RunPhase.TRAINING, kind[1])):
        axes.bar(x, shares[kind], _days(step_ns), bottom=bottom, align="edge", linewidth=0, **_paint(kinds[kind]))
        bottom = [low + high for low, high in zip(bottom, shares[kind], strict=True)]
    axes.set_yticks([0, 1], ["0 %", "100 %"], fontsize=9, color=INK)


def _paint(span: Span) -> dict[str, Any]:
    color = _color(span.cause) if span.phase is RunPhase.LOST else PHASE_COLORS[span.phase]
    hatch = {"hatch": "////", "edgecolor": "#9aa1aa"} if span.phase is RunPhase.UNKNOWN else {"edgecolor": "none"}
    return {"facecolor": color, **hatch}


def _number_cycles(axes: Any, spans: Sequence[Span], whole_ns: int) -> None:
    """The number of each world above the middle of its time, where there is room for it."""
    worlds = [span for span in spans if span.phase is RunPhase.TRAINING]
    room_ns = whole_ns / MARKED
    for span in worlds:
        if span.end_ns - span.start_ns >= room_ns:
            middle = _x((span.start_ns + span.end_ns) // 2)
            axes.text(middle, 1.06, str(span.cycle_id), ha="center", va="bottom", fontsize=9, color=INK)


def _draw_losses(axes: Any, spans: Sequence[Span], begin_ns: int, end_ns: int) -> None:
    """How the time without training added up, by cause."""
    lost = [span for span in spans if span.phase in (RunPhase.LOST, RunPhase.WAITING)]
    total_s = sum(span.seconds for span in lost)
    unit_s, unit = (3600.0, "hours") if total_s > 7200 else (60.0, "minutes") if total_s > 120 else (1.0, "seconds")
    times = sorted({begin_ns, end_ns, *(span.start_ns for span in lost), *(span.end_ns for span in lost)})
    by_name: dict[str, list[Span]] = {}
    for span in lost:
        by_name.setdefault(span.cause if span.phase is RunPhase.LOST else "", []).append(span)
    names = sorted(by_name, key=lambda name: (name != "", -sum(span.seconds for span in by_name[name])))
    series = [[each / unit_s for each in _added_up(by_name[name], times)] for name in names]
    if series:
        x = [_x(time_ns) for time_ns in times]
        colors = [_color(name) if name else PHASE_COLORS[RunPhase.WAITING] for name in names]
        axes.stackplot(x, series, colors=colors)
    else:
        axes.text(0.5, 0.5, "no time was lost", transform=axes.transAxes, ha="center", color=INK)
    axes.set_ylim(0, max(total_s / unit_s, 1e-3) * 1.08)
    axes.set_ylabel(f"{unit} without training", fontsize=9, color=INK)
    axes.grid(axis="y", color="#e5e7ea", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=INK, labelsize=9)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _added_up(spans: Sequence[Span], times: Sequence[int]) -> list[float]:
    """Seconds of these spans that have passed at each of these times, which are all of their beginnings and ends."""
    changes: dict[int, float] = {}
    for span in spans:
        changes[span.start_ns] = changes.get(span.start_ns, 0.0) + 1 / span.sharing
        changes[span.end_ns] = changes.get(span.end_ns, 0.0) - 1 / span.sharing
    passed: list[float] = []
    done_s, rate, before_ns = 0.0, 0.0, times[0]
    for time_ns in times:
        done_s += rate * (time_ns - before_ns) / NS
        passed.append(done_s)
        rate, before_ns = rate + changes.get(time_ns, 0.0), time_ns
    return passed


def _explain(figure: Any, spans: Sequence[Span]) -> None:
    """What each colour stands for, and how much of it there is, the largest first."""
    from matplotlib.patches import Patch  # noqa: PLC0415

    names = {
        RunPhase.TRAINING: "training",
        RunPhase.WAITING: "waiting for the first world",
        RunPhase.UNKNOWN: "not recorded",
    }
    found: dict[tuple[RunPhase, str], list[Span]] = {}
    for span in spans:
        found.setdefault((span.phase, span.cause), []).append(span)
    patches = []
    for (phase, cause), each in sorted(found.items(), key=lambda item: -sum(span.seconds for span in item[1])):
        number = sum(not span.is_continued for span in each)
        times = f", {number:,} times" if phase is RunPhase.LOST and number > 1 else ""
        label = f"{names.get(phase) or cause_in_words(cause)}: {duration(sum(span.seconds for span in each))}{times}"
        patches.append(Patch(label=label, **_paint(each[0])))
    if patches:
        figure.legend(handles=patches, loc="outside lower center", ncols=3, fontsize=9, frameon=False, labelcolor=INK)


def _name_times(axes: Any, begin_ns: int, end_ns: int) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # noqa: PLC0415

    locator = AutoDateLocator(minticks=4, maxticks=10)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))  # type: ignore[no-untyped-call]
    axes.set_xlim(_x(begin_ns), _x(end_ns) + _days(end_ns - begin_ns) / SEEN)


def _x(time_ns: int) -> float:
    """Matplotlib counts days and knows no time zones: this is local time."""
    offset = datetime.fromtimestamp(time_ns / NS).astimezone().utcoffset()
    return _days(time_ns) + (0.0 if offset is None else offset.total_seconds() / 86_400)


def _days(length_ns: int) -> float:
    return length_ns / NS / 86_400


def _color(cause: str) -> str:
    return CAPHASE_COLORS.get(cause, OTHER_COLOR)
