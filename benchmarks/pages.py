"""Results as text: the page in docs/. Pure functions of runs.

The docstring of a benchmark's module introduces it. Contests are shown as ratios to ours; times are context.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby

from benchmarks import machine, plots, registry
from benchmarks.baselines import barrier, nvrx, ray_train, torchft
from benchmarks.costs import CASE as COSTS
from benchmarks.costs import Costs, costs_in
from benchmarks.measure import OURS, Finding
from benchmarks.report import Row, digits, warnings_of
from benchmarks.runs import Run, latest_of, parse_case, with_shown_names
from benchmarks.scale import LASTS, NODES, PHASES, TARGET, Comparison, HostCheck, Model, check_hosts, compare
from benchmarks.scale import NAME as SCALE

ORDER = ("form", "recovery", "warm", "hangs", "groups", "ray", "read", "steady", "placement", "failing", "codec", SCALE)
"""The order of the page; benchmarks that are not listed here follow."""

SHORT_FROM = {"form": 0, "recovery": 0, "warm": 0, "groups": 0, "ray": 0, "read": 10_000}
"""Which contests the page shows in short at its top, and from how many nodes on."""

PAGE = """\
# Benchmarks

`python -m benchmarks report` writes this page; do not edit it. It shows the results in
{names}.
`python -m benchmarks` runs all benchmarks, `python -m benchmarks --quick` small cases in about a minute.

Contenders take turns within one run, in changing order, on one machine. A result is checked before its time counts.
*Ratio* is the median over rounds of a contender's time divided by ours in the same round: above 1 we are faster. Times
are context: they change with the machine. Ratios change less. Both change with the layout of processes. *Spread* is
the fastest and the slowest sample.

## In short

{machine}. All nodes share this machine with the store, as threads, 64 in a process unless
the case says otherwise. Most of the time of such worlds goes into that. Read the ratios, not the times. With fewer
nodes in a process, as in a cluster, c10d is much faster.

{tables}

× is a contender's time divided by ours. Below 1 the contender is faster; a raw operation is the lower limit.{closing}

The contenders:

- *c10d* is torchrun's own rendezvous. *unshared* means `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`; without it a replacement
  makes every node exit. Most of the difference to c10d's default is that `ft` notices a lost node sooner, so in one
  case both notice it after 3 s.
- *nvrx 0.4.1* is the handler of nvidia-resiliency-ext 0.4.1. That is the newest version on PyPI, and not the handler of
  today's releases: see the next section for those.
- *raw operations* are the same store operations without any decision.
- *slots* are the layout with one key per node that other rendezvous use, read as they read it. *by the thousand* reads
  it in requests of 1,000 keys, which none of them does.
{more_contenders}
## NVIDIA's barrier rendezvous

{barrier}

## Machine

{machines}

{sections}
"""

BARRIER = """\
Today's releases of NVIDIA's extension have another handler than 0.4.1, the barrier rendezvous. It is not on PyPI. We
measured it once ({source}), on this kind of machine, with its nodes as threads in one process. It did not take
turns with ours, so the comparison is rough: **ours is {ratios}**
(worlds of 8, 64, 256 and 1,024 nodes, and reading {read_nodes:,} participants). The large ratios of the column
*nvrx 0.4.1* do not hold for it.

{table}"""


TORCHFT = """\
- *torchft* trains with replica groups, as its README starts it. What a loss costs depends on its timeouts, so it says
  nothing of its training.
"""

RAY_TRAIN = """\
- *Ray Train* is the trainer of Ray (`ray[train]`), which starts workers itself, without torchrun. What a loss costs
  depends on when Ray takes a machine for dead. *torchruns* are ours without Ray.
"""


def page_of(runs: Sequence[Run]) -> str:
    """docs/benchmarks.md"""
    runs = [with_shown_names(run) for run in runs]
    latest = latest_of(runs)
    return PAGE.format(
        names=_names(runs, "../"),
        machine="; ".join(dict.fromkeys(_machine_in_short(run) for run in runs)),
        tables="\n\n".join(_contest(name, run) for name, run in _in_order(latest) if _is_short(name, run)),
        closing=_closing([finding for name, run in _in_order(latest) for finding in run.findings_of(name)]),
        more_contenders="".join(text for name, text in (("groups", TORCHFT), ("ray", RAY_TRAIN)) if name in latest),
        barrier=_compare_barrier(latest),
        machines="\n\n".join(_machine(run) for run in runs),
        sections="\n\n".join(_section(name, run) for name, run in _in_order(latest)),
    )


def _is_short(name: str, run: Run) -> bool:
    return name in SHORT_FROM and bool(run.rows_of(name))


def _compare_barrier(latest: Mapping[str, Run]) -> str:
    """NVIDIA's barrier rendezvous beside ours, where the runs have the same number of nodes."""
    lines = [
        (f"{nodes:,} nodes have their ranks", _rough(*seconds), _ours(latest, "form", nodes))
        for nodes, seconds in barrier.FORM_S.items()
    ]
    read = f"{barrier.READ_NODES:,} participants are read"
    lines.append(
        (read, _rough(barrier.READ_S, barrier.READ_S), _ours(latest, "read", barrier.READ_NODES, "first read"))
    )
    return BARRIER.format(
        source=barrier.SOURCE,
        ratios=barrier.RATIOS,
        read_nodes=barrier.READ_NODES,
        table=table_of(("until", f"barrier rendezvous, {barrier.SOURCE}", "ours, from the run above"), lines),
    )


def _ours(latest: Mapping[str, Run], benchmark: str, nodes: int, rest: str | None = None) -> str:
    """Our times for so many nodes, in every layout of processes that was measured with threads."""
    rows = latest[benchmark].rows_of(benchmark) if benchmark in latest else []
    found: list[float] = []
    for row in rows:
        case = parse_case(row.case)
        is_wanted = case is not None and case.nodes == nodes and case.rest != "generated" and rest in (None, case.rest)
        if is_wanted and row.contender == OURS and row.median_s is not None:
            found.append(row.median_s)
    return _rough(min(found), max(found)) if found else ""


def _rough(fastest_s: float, slowest_s: float) -> str:
    """One time or two, without more digits than they are worth."""
    times = dict.fromkeys(f"{seconds:.2g}" if seconds < 0.1 else f"{seconds:.3g}" for seconds in (fastest_s, slowest_s))
    return f"{' to '.join(times)} s"


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
        *((name, facts[name] or "not installed") for name in (torchft.PACKAGE, ray_train.PACKAGE) if name in facts),
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
    parts = [f"## {name}", introduce(name), *_images(name, run)]
    if run.rows_of(name):
        parts.append(_rows_table(run.rows_of(name)))
    if name == SCALE:
        parts += _scale_tables(run)
    elif run.findings_of(name):
        parts.append(_findings_table(run.findings_of(name)))
    return "\n\n".join(part for part in parts if part)


def introduce(name: str) -> str:
    """The docstring of a benchmark's module, without the benchmark's name."""
    source = registry.BENCHMARKS.get(name)
    text = sys.modules[source.__module__].__doc__ if source is not None else None
    introduction = (text or "").strip().removeprefix(f"`{name}`: ")
    return introduction[:1].upper() + introduction[1:]


def _images(name: str, run: Run) -> list[str]:
    title = plots.TITLES.get(name)
    return [f"![{title}](images/{plots.file_name(name)})"] if title and plots.can_draw(name, run) else []


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
    rows = [row for row in run.rows_of(name) if _nodes_of(row) >= SHORT_FROM[name]] or run.rows_of(name)
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
        return short_s(row.median_s)
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
    text = ""
    if aimed:
        text = f" {len(aimed) - len(missed)} of {len(aimed)} targets were met"
        text += f"; missed: {'; '.join(missed)}." if missed else "."
    costs = costs_in(findings)
    limits = [found for found in findings if (found.benchmark, found.case) == (SCALE, LASTS)]
    if costs is not None and limits:
        first, form_s, doubt = limits[0], Model(costs).form(TARGET), _doubt(findings, costs)
        text += (
            f"\n\nA model of operations x cost predicts {short_s(form_s)} for a world of {TARGET:,} nodes{doubt}. "
            f"What gives way first here: {first.what}, at {digits(first.value)} nodes."
        )
    return text


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
        (f"{nodes:,}", short_s(model.form(nodes)), f"{digits(model.beat_share(nodes) * 100)} %") for nodes in NODES
    ]
    phases = [(found.what, short_s(found.value)) for found in findings if found.case == PHASES]
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
    return f"{host.nodes:,} nodes", short_s(host.measured_s), short_s(host.predicted_s), f"{host.error * 100:+.0f} %"


def _compared(seen: Comparison) -> tuple[str, ...]:
    error = f"{(seen.here_s / seen.measured_s - 1) * 100:+.0f} %"
    times = (short_s(seconds) for seconds in (seen.measured_s, seen.here_s, seen.predicted_s))
    measured, here, elsewhere = times
    return f"{seen.case}, {seen.contender}", measured, here, error, elsewhere


# --- text -------------------------------------------------------------------------------------------


def table_of(headings: Sequence[str], lines: Iterable[Sequence[str]], left: int = 1) -> str:
    """A table whose first columns are words and whose others are numbers."""
    ruler = "|---" * left + "|--:" * (len(headings) - left) + "|"
    return "\n".join([_line(headings), ruler, *map(_line, lines)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def short_s(seconds: float) -> str:
    return f"{digits(seconds)} s" if seconds >= 1 else f"{digits(seconds * 1e3)} ms"
