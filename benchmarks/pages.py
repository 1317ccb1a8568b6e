"""Results as text: the page in docs/, and the short section of the README. Pure functions of runs.

A benchmark is introduced by its module's own docstring. Contests are told as ratios to ours; times are context.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from itertools import groupby

from benchmarks import machine, plots, registry
from benchmarks.baselines import nvrx
from benchmarks.costs import CASE as COSTS
from benchmarks.costs import Costs, costs_in
from benchmarks.measure import OURS, Finding
from benchmarks.report import Row, digits, warnings_of
from benchmarks.runs import Run, latest_of, parse_case
from benchmarks.scale import LASTS, NODES, PHASES, TARGET, Comparison, HostCheck, Model, check_hosts, compare
from benchmarks.scale import NAME as SCALE

ORDER = ("form", "recovery", "read", "steady", "placement", "codec", SCALE)
"""What readers ask first comes first; others follow."""

README_FROM = {"form": 0, "recovery": 0, "read": 10_000}
"""Which contests the README shows, and from how many nodes on."""

PAGE = """\
# Benchmarks

Written by `python -m benchmarks report` from {names}; do not edit.

Contenders take turns within one run, in changing order, on one machine, and a result is checked before its time counts.
*Ratio* is the median over rounds of a contender's time divided by ours in the same round: above 1 we are faster. Times
are context: they change with the machine, ratios less; with the layout of processes both change. *Spread* is the
fastest and the slowest sample.

## Machine

{machines}

{sections}
"""

README = """\
`python -m benchmarks` (`--quick` for a smoke run) lets contenders take turns within one run, `python -m benchmarks
report` renders this section and [docs/benchmarks.md](docs/benchmarks.md) (all benchmarks, machine, scale model). From
{names}:
{machine}. All nodes share that machine with the store, as threads by 64 in a process
unless the case says otherwise, which is where most of the time of such worlds goes: read the ratios, not the times, and
mind that with fewer nodes in a process, as in a cluster, c10d is much faster.

{tables}

× is a contender's time divided by ours; below 1 it is faster, and a raw operation is the floor.{closing}"""


def page_of(runs: Sequence[Run]) -> str:
    """docs/benchmarks.md"""
    sections = [_section(name, run) for name, run in _in_order(latest_of(runs))]
    machines = "\n\n".join(_machine(run) for run in runs)
    return PAGE.format(names=_names(runs, "../"), machines=machines, sections="\n\n".join(sections))


def readme_of(runs: Sequence[Run]) -> str:
    """What stands between the README's markers."""
    tables: list[str] = []
    latest = latest_of(runs)
    for name, run in _in_order(latest):
        if name in README_FROM and run.rows_of(name):
            tables.append(_contest(name, run))
            tables += _images(name, run, "docs/")
    return README.format(
        names=_names(runs, ""),
        machine="; ".join(dict.fromkeys(_machine_in_short(run) for run in runs)),
        tables="\n\n".join(tables),
        closing=_closing([finding for name, run in _in_order(latest) for finding in run.findings_of(name)]),
    )


def _in_order(latest: dict[str, Run]) -> list[tuple[str, Run]]:
    known = [name for name in ORDER if name in latest]
    return [(name, latest[name]) for name in [*known, *(name for name in latest if name not in ORDER)]]


def _names(runs: Iterable[Run], up: str) -> str:
    return ", ".join(f"[`{run.name}`]({up}{run.name})" for run in runs)


# --- the machine ------------------------------------------------------------------------------------


def _machine(run: Run) -> str:
    facts = run.machine
    load = f"{facts['load_1min']:.1f} before"
    if "after" in facts:
        load += f", {facts['after']['load_1min']:.1f} after"
    changed = ", with local changes" if facts["has_local_changes"] else ""
    lines = [
        ("commit", f"`{(facts['commit'] or 'unknown')[:12]}`{changed}"),
        ("torch, Python", f"{facts['torch']}, {facts['python']}"),
        (nvrx.PACKAGE, facts.get(nvrx.PACKAGE) or "not installed"),
        ("platform", facts["platform"]),
        ("cores", str(facts["cores"])),
        ("load (1 min)", load),
        ("reverse DNS", machine.explain_lookups(facts)),
    ]
    notes = ["a smoke run: few rounds, small cases"] if run.is_quick else []
    notes += warnings_of(facts, run.rows)
    return table_of((f"`{run.name}`", ""), [*lines, *(("**note**", note) for note in notes)], left=2)


def _machine_in_short(run: Run) -> str:
    facts = run.machine
    return f"{facts['cores']} cores, torch {facts['torch']}, load {facts['load_1min']:.1f}"


# --- benchmarks -------------------------------------------------------------------------------------


def _section(name: str, run: Run) -> str:
    parts = [f"## {name}", introduce(name), *_images(name, run, "")]
    if run.rows_of(name):
        parts.append(_rows_table(run.rows_of(name)))
    if name == SCALE:
        parts += _scale_tables(run)
    elif run.findings_of(name):
        parts.append(_findings_table(run.findings_of(name)))
    return "\n\n".join(part for part in parts if part)


def introduce(name: str) -> str:
    """What a benchmark's module says about itself, without its name."""
    source = registry.BENCHMARKS.get(name)
    text = sys.modules[source.__module__].__doc__ if source is not None else None
    told = (text or "").strip().removeprefix(f"`{name}`: ")
    return told[:1].upper() + told[1:]


def _images(name: str, run: Run, up: str) -> list[str]:
    title = plots.TITLES.get(name)
    return [f"![{title}]({up}images/{plots.file_name(name)})"] if title and plots.can_draw(name, run) else []


def _rows_table(rows: Sequence[Row]) -> str:
    lines: list[tuple[str, ...]] = []
    for case, group in groupby(rows, key=lambda row: row.case):
        for index, row in enumerate(group):
            name = f"**{row.contender}**" if row.contender == OURS else row.contender
            lines.append(("" if index else case, name, _median(row), _spread(row), _ratio(row)))
    return table_of(("case", "contender", "median ms", "spread ms", "ratio to ours"), lines, left=2)


def _median(row: Row) -> str:
    return f"did not finish in {row.limit_s:g} s" if row.median_s is None else digits(row.median_s * 1e3)


def _spread(row: Row) -> str:
    if row.median_s is None or not row.seconds:
        return ""
    return f"{digits(min(row.seconds) * 1e3)} to {digits(max(row.seconds) * 1e3)}"


def _ratio(row: Row) -> str:
    if row.ratio is None or row.contender == OURS:
        return ""
    return f"> {digits(row.ratio)}" if row.median_s is None else digits(row.ratio)


def _contest(name: str, run: Run) -> str:
    """One line per case: our time, and how many times as long the others took."""
    rows = [row for row in run.rows_of(name) if _nodes_of(row) >= README_FROM[name]] or run.rows_of(name)
    contenders = list(dict.fromkeys(row.contender for row in rows))
    lines: list[tuple[str, ...]] = []
    for case, group in groupby(rows, key=lambda row: row.case):
        by_contender = {row.contender: row for row in group}
        lines.append((case, *(_contest_cell(by_contender.get(contender)) for contender in contenders)))
    return table_of((plots.TITLES[name], *contenders), lines)


def _contest_cell(row: Row | None) -> str:
    if row is None:
        return ""
    if row.median_s is None:
        return f"did not finish in {row.limit_s:g} s"
    if row.contender == OURS or row.ratio is None:
        return told_s(row.median_s)
    return f"{digits(row.ratio)} ×"


def _nodes_of(row: Row) -> int:
    case = parse_case(row.case)
    return case.nodes if case is not None else 0


# --- what was counted -------------------------------------------------------------------------------


def _findings_table(findings: Iterable[Finding]) -> str:
    lines: list[tuple[str, ...]] = []
    for case, group in groupby(findings, key=lambda found: found.case):
        for index, found in enumerate(group):
            lines.append(("" if index else case, found.what, _value(found), found.target, _verdict(found)))
    return table_of(("case", "what", "value", "target", ""), lines, left=2)


def _value(found: Finding) -> str:
    return f"{digits(found.value)} {found.unit}".strip()


def _verdict(found: Finding) -> str:
    return {True: "met", False: "**missed**", None: ""}[found.is_met]


def _closing(findings: Sequence[Finding]) -> str:
    """Which targets were missed, and the model's sentence."""
    aimed = [found for found in findings if found.is_met is not None and found.benchmark != SCALE]
    missed = [f"{found.benchmark}, {found.case}: {found.what}" for found in aimed if not found.is_met]
    told = ""
    if aimed:
        told = f" {len(aimed) - len(missed)} of {len(aimed)} targets were met"
        told += f"; missed: {'; '.join(missed)}." if missed else "."
    costs = costs_in(findings)
    limits = [found for found in findings if (found.benchmark, found.case) == (SCALE, LASTS)]
    if costs is not None and limits:
        first, form_s, doubt = limits[0], Model(costs).form(TARGET), _doubt(findings, costs)
        told += (
            f"\n\nA model of operations x cost predicts {told_s(form_s)} for a world of {TARGET:,} nodes{doubt}. "
            f"What gives way first here: {first.what}, at {digits(first.value)} nodes."
        )
    return told


def _doubt(findings: Sequence[Finding], costs: Costs) -> str:
    """By how much the model is wrong where it can be checked."""
    hosts = check_hosts(findings, costs)
    if not hosts:
        return ""
    errors = [host.error * 100 for host in hosts]
    fewest, most = hosts[0].nodes, hosts[-1].nodes
    return (
        f"; of the CPU time that the store host takes for {fewest:,} to {most:,} it is wrong by "
        f"{min(errors):+.0f} to {max(errors):+.0f} %"
    )


# --- the model --------------------------------------------------------------------------------------

COMPARED = """\
Predicted and measured in the same run. The measured nodes are on the machine of the store and take its time: what is
predicted for nodes elsewhere should be below, and the error is that of the prediction for nodes here.
"""


def _scale_tables(run: Run) -> list[str]:
    """Predictions; measured worlds beside them; what gives way, in which order; and what it all rests on."""
    findings = run.findings_of(SCALE)
    costs = costs_in(findings)
    if costs is None:
        return [_findings_table(findings)]
    model = Model(costs)
    predictions = [
        (f"{nodes:,}", told_s(model.form(nodes)), f"{digits(model.beat_share(nodes) * 100)} %") for nodes in NODES
    ]
    phases = [(found.what, told_s(found.value)) for found in findings if found.case == PHASES]
    limits = [
        (found.what, digits(found.value), "yes" if found.is_met else "**no**")
        for found in findings
        if found.case == LASTS
    ]
    parts = [
        table_of(("nodes", "predicted time to form", "of the store's time, beats take"), predictions),
        table_of((PHASES, "takes"), phases),
        "What gives way first, by itself and with default settings:",
        table_of(("what", "lasts for nodes", f"enough for {TARGET:,}"), limits),
    ]
    hosts = check_hosts(findings, costs)
    if hosts:
        checked = ("CPU of the store host while a world forms", "measured", "predicted", "error")
        parts.append(table_of(checked, [_checked(host) for host in hosts]))
    comparisons = compare(run.rows, costs)
    if comparisons:
        headings = ("world", "measured", "predicted, nodes here", "error", "predicted, nodes elsewhere")
        parts += [
            COMPARED.strip(),
            table_of(headings, [_compared(seen) for seen in comparisons]),
        ]
    named = [(found.what, _value(found)) for found in findings if found.case == COSTS]
    return [*parts, "The costs it rests on, measured in the same run:", table_of(("what", "cost"), named)]


def errors_of(rows: Iterable[Row], findings: Sequence[Finding]) -> list[str]:
    """For the terminal: by how much the model is wrong about the worlds of a run."""
    costs = costs_in(findings)
    if costs is None:
        return []
    hosts = (_checked(host) for host in check_hosts(findings, costs))
    worlds = (_compared(seen) for seen in compare(rows, costs))
    return [
        *(f"store host's CPU, {world}: took {took}, predicted {said}, {error}" for world, took, said, error in hosts),
        *(
            f"{world}: measured {took}, predicted {here}, {error}; nodes elsewhere {elsewhere}"
            for world, took, here, error, elsewhere in worlds
        ),
    ]


def _checked(host: HostCheck) -> tuple[str, ...]:
    return f"{host.nodes:,} nodes", told_s(host.measured_s), told_s(host.predicted_s), f"{host.error * 100:+.0f} %"


def _compared(seen: Comparison) -> tuple[str, ...]:
    error = f"{(seen.here_s / seen.measured_s - 1) * 100:+.0f} %"
    times = (told_s(seconds) for seconds in (seen.measured_s, seen.here_s, seen.predicted_s))
    measured, here, elsewhere = times
    return f"{seen.case}, {seen.contender}", measured, here, error, elsewhere


# --- text -------------------------------------------------------------------------------------------


def table_of(headings: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table whose first columns are words and whose others are numbers."""
    ruler = "|---" * left + "|--:" * (len(headings) - left) + "|"
    return "\n".join([_line(headings), ruler, *map(_line, lines)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def told_s(seconds: float) -> str:
    return f"{digits(seconds)} s" if seconds >= 1 else f"{digits(seconds * 1e3)} ms"
