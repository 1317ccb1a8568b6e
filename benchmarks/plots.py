"""Results as pictures: time over nodes on logarithmic axes, and bars. Needs matplotlib, and only when it draws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.costs import costs_in
from benchmarks.measure import OURS
from benchmarks.report import Row
from benchmarks.runs import NodeCase, Run, parse_case
from benchmarks.scale import NODES, Model

TITLES = {
    "form": "from the first arrival to the last rank in hand",
    "read": "a consistent snapshot of all nodes",
    "recovery": "from a failure until ranks are held, workers are started, a step is trained",
    "warm": "from the start of workers until all have trained a step",
    "groups": "a group is lost: longest gap of the others; a worker fails: until ranks are held",
    "ray": "on Ray, from the loss of a machine or the start of a run until a step is trained",
}
"""The benchmarks that have a picture, and what is timed there."""

BARS = ("recovery", "warm", "groups", "ray")
"""Whose cases differ in more than the number of nodes."""

COLORS = ("#0b6bcb", "#c4452d", "#6b7280", "#b07d12", "#3f8f4f", "#8652a8")
"""Ours first; the others in the order they come."""

MOST_WAYS = 3
MARKERS = "oDs^"
"""By the way in which a line was measured."""


class CannotDraw(Exception):
    """matplotlib is not installed."""

    def __init__(self) -> None:
        super().__init__("plots need matplotlib: pip install 'ft-rendezvous[plots]'")


@dataclass(slots=True)
class Line:
    """One contender, by nodes."""

    label: str
    contender: str
    way: str = ""
    """In which other way than this contender's plain line it was measured."""
    points: list[tuple[int, float]] = field(default_factory=list)
    late: list[tuple[int, float]] = field(default_factory=list)
    """Where it did not finish, and within which time."""


def file_name(benchmark: str) -> str:
    return f"benchmark-{benchmark}.png"


def can_draw(benchmark: str, run: Run) -> bool:
    rows = run.rows_of(benchmark)
    if benchmark in BARS:
        return any(row.median_s is not None for row in rows)
    return benchmark in TITLES and any(parse_case(row.case) for row in rows)


def draw(benchmark: str, run: Run, directory: Path) -> Path:
    """Draw a benchmark's picture. Raises CannotDraw without matplotlib."""
    figure_class = _load()
    rows = run.rows_of(benchmark)
    if benchmark in BARS:
        figure = _draw_bars(figure_class, rows)
    else:
        panels = by_panel(rows) if benchmark == "read" else {"": _cases_of(rows)}
        model = costs_in(run.findings) if benchmark == "form" else None
        figure = _draw_lines(figure_class, panels, None if model is None else Model(model))
    figure.suptitle(f"{TITLES[benchmark].capitalize()} ({run.machine['cores']} cores)", fontsize=11)
    path = directory / file_name(benchmark)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, facecolor="white", metadata={"Software": None})
    return path


def _load() -> Any:
    """Matplotlib's figure, which needs no display and keeps no state."""
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415
    except ImportError as error:
        raise CannotDraw from error
    return Figure


# --- lines ------------------------------------------------------------------------------------------

_Cases = list[tuple[NodeCase, Row]]


def _cases_of(rows: Iterable[Row]) -> _Cases:
    return [(case, row) for row in rows if (case := parse_case(row.case)) is not None]


def by_panel(rows: Iterable[Row]) -> dict[str, _Cases]:
    """Cases that say the same after their number of nodes."""
    panels: dict[str, _Cases] = {}
    for case, row in _cases_of(rows):
        panels.setdefault(case.rest, []).append((case, row))
    return panels


def lines_of(cases: _Cases) -> list[Line]:
    """A line per contender, and per way in which it was measured if those are few."""
    ways: dict[str, set[str]] = {}
    for case, row in cases:
        ways.setdefault(row.contender, set()).add(case.rest)
    lines: dict[str, Line] = {}
    for case, row in sorted(cases, key=lambda item: item[0].nodes):
        way = case.rest if 1 < len(ways[row.contender]) <= MOST_WAYS else ""
        label = f"{row.contender}, {way}" if way else row.contender
        line = lines.setdefault(label, Line(label, row.contender, way))
        if row.median_s is not None:
            line.points.append((case.nodes, row.median_s))
        elif row.limit_s is not None:
            line.late.append((case.nodes, row.limit_s))
    return sorted(lines.values(), key=lambda line: line.contender != OURS)


def _colors(contenders: Iterable[str]) -> dict[str, str]:
    others = dict.fromkeys(name for name in contenders if name != OURS)
    return dict(zip([OURS, *others], COLORS * 3, strict=False))


def _draw_lines(figure_class: Any, panels: dict[str, _Cases], model: Model | None) -> Any:
    figure = figure_class(figsize=(9.0 if len(panels) == 1 else 4.6 * len(panels), 4.4), layout="constrained")
    colors = _colors(row.contender for cases in panels.values() for _, row in cases)
    for axes, (title, cases) in zip(
        figure.subplots(1, len(panels), squeeze=False, sharey=True)[0], panels.items(), strict=True
    ):
        lines = lines_of(cases)
        markers = dict(zip(["", *dict.fromkeys(line.way for line in lines if line.way)], MARKERS, strict=False))
        for line in lines:
            _draw_line(axes, line, colors[line.contender], markers[line.way])
        _name_late(axes, lines)
        if model is not None:
            predicted = [model.form(nodes) for nodes in NODES]
            axes.plot(NODES, predicted, color="#0b6bcb", linestyle=":", linewidth=1.2, label="model, nodes elsewhere")
        axes.set(xscale="log", yscale="log", xlabel="nodes", ylabel="time (s)", title=title)
        axes.grid(which="major", color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)} if len(panels) == 1 else {}
        axes.legend(fontsize=8, frameon=False, **beside)
        axes.margins(y=0.12)
        nodes = sorted({case.nodes for case, _ in cases} | ({NODES[-1]} if model is not None else set()))
        axes.set_xticks(nodes, [f"{count:,}" for count in nodes], fontsize=8)
        axes.set_xticks([], minor=True)
        axes.yaxis.set_major_formatter(lambda value, _position: f"{value:g}")
    return figure


def _draw_line(axes: Any, line: Line, color: str, marker: str) -> None:
    width, style = 2.2 if line.contender == OURS else 1.4, "--" if line.way else "-"
    if line.points:
        nodes_by_time = zip(*line.points, strict=True)
        look = {"linestyle": style if len(line.points) > 1 else "none", "marker": marker, "markersize": 5}
        axes.plot(*nodes_by_time, color=color, linewidth=width, label=line.label, **look)
    for nodes, limit_s in line.late:
        axes.plot([nodes], [limit_s], color=color, marker="^", markersize=8, linestyle="none")


def _name_late(axes: Any, lines: Iterable[Line]) -> None:
    """Name the contenders that did not finish once, at the first mark: their marks lie upon each other."""
    late = [(nodes, limit_s, line.label) for line in lines for nodes, limit_s in line.late]
    if late:
        nodes, limit_s, _ = min(late)
        names = ", ".join(dict.fromkeys(label for _, _, label in late))
        where = {"textcoords": "offset points", "fontsize": 8, "ha": "left"}
        axes.annotate(f"{names}: not in {limit_s:g} s", (nodes, limit_s), (-6, 9), **where)


# --- bars -------------------------------------------------------------------------------------------


def _draw_bars(figure_class: Any, rows: Sequence[Row]) -> Any:
    """Bars from top to bottom, those of a case close together."""
    cases = list(dict.fromkeys(row.case for row in rows))
    colors = _colors(row.contender for row in rows)
    figure = figure_class(figsize=(7.5, 1.2 + 0.28 * (len(rows) + len(cases))), layout="constrained")
    axes = figure.subplots()
    at, ticks = 0, list[float]()
    for case in cases:
        of_case = [row for row in rows if row.case == case]
        ticks.append(at + (len(of_case) - 1) / 2)
        for row in of_case:
            seconds = row.median_s if row.median_s is not None else row.limit_s or 0.0
            axes.barh(at, seconds, 0.85, color=colors[row.contender], alpha=1.0 if row.median_s is not None else 0.35)
            text = f"{seconds:.2f} s" if row.median_s is not None else f"not in {seconds:g} s"
            axes.annotate(text, (seconds, at), (4, 0), textcoords="offset points", va="center", fontsize=8)
            at += 1
        at += 1
    for name in (name for name in colors if any(row.contender == name for row in rows)):
        axes.barh(0, 0, color=colors[name], label=name)
    axes.set_yticks(ticks, cases, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.15, y=0.02)
    axes.set(xlabel="time (s)")
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    return figure
