"""How findings are shown: a table on a terminal, lines elsewhere, JSON for programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ft_rendezvous.doctor.facts import Attempt, Clients, Controller, EndpointFacts, NodeFacts
from ft_rendezvous.doctor.findings import Examination, Finding, Status, worst
from ft_rendezvous.doctor.node_names import describe_nodes
from ft_rendezvous.text import count

STATUS_STYLES = {Status.PASS: "green", Status.WARN: "yellow", Status.FAIL: "bold red"}


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `ftr doctor --json` prints. Field names are stable."""

    format: int = 1
    endpoint: str
    status: Status
    nodes_expected: int
    nodes_missing: tuple[int, ...]
    """Infra ranks that never reported."""
    findings: tuple[Finding, ...]
    endpoint_facts: EndpointFacts
    attempts: dict[int, tuple[Attempt, ...]]
    lifeline_attempts: dict[int, tuple[Attempt, ...]]
    clients: Clients | None
    slurm: Controller | None
    nodes: tuple[NodeFacts, ...]


def as_json(seen: Examination, findings: Sequence[Finding]) -> bytes:
    report = DoctorReport(
        endpoint=seen.endpoint_name,
        status=worst(findings),
        nodes_expected=seen.expected,
        nodes_missing=tuple(seen.missing),
        findings=tuple(findings),
        endpoint_facts=seen.endpoint,
        attempts={task: tuple(attempts) for task, attempts in seen.attempts.items()},
        lifeline_attempts={task: tuple(attempts) for task, attempts in seen.lifeline_attempts.items()},
        clients=seen.clients,
        slurm=seen.controller,
        nodes=tuple(seen.nodes),
    )
    return msgspec.json.format(msgspec.json.encode(report), indent=2)


def report_lines(seen: Examination, findings: Sequence[Finding]) -> Iterator[str]:
    """One finding per line, its remedy below."""
    width = max((len(finding.check) for finding in findings), default=0)
    for finding in findings:
        whom = describe_nodes(finding.nodes, seen.expected)
        yield f"{finding.status}  {finding.check:{width}}  {f'{whom}: ' if whom else ''}{finding.fact}"
        if finding.remedy:
            yield f"      {'':{width}}  -> {finding.remedy}"
    yield summary(seen, findings)


def as_table(seen: Examination, findings: Sequence[Finding]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    table.add_column("", no_wrap=True)
    table.add_column("check", no_wrap=True, style="bold")
    table.add_column("nodes", max_width=24, overflow="fold")
    table.add_column("what was found, and what to do", overflow="fold")
    for finding in findings:
        text = Text(finding.fact)
        if finding.remedy:
            text.append(f"\n→ {finding.remedy}", style="cyan")
        whom = describe_nodes(finding.nodes, seen.expected)
        table.add_row(Text(finding.status, style=STATUS_STYLES[finding.status]), finding.check, Text(whom), text)
    return table


def summary(seen: Examination, findings: Sequence[Finding]) -> str:
    counts = Counter(finding.status for finding in findings)
    text = ", ".join(
        (f"{counts[Status.FAIL]} failed", f"{count(counts[Status.WARN], 'warning')}", f"{counts[Status.PASS]} passed")
    )
    examined = count(len(seen.nodes), "node")
    return f"{worst(findings)}: {text}; {examined} examined for {seen.endpoint_name}"


def print_report(console: Console, seen: Examination, findings: Sequence[Finding], is_terminal: bool) -> None:
    if not is_terminal:
        for line in report_lines(seen, findings):
            print(line)
        return
    console.print(as_table(seen, findings))
    console.print(Text(summary(seen, findings), style=STATUS_STYLES[worst(findings)]))
