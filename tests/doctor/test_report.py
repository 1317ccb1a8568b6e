"""What is printed: a thousand nodes on a screen, and nothing that a terminal could misread."""

from __future__ import annotations

import io

import msgspec
from rich.console import Console

from ft_rendezvous.doctor.facts import Lookup, NodeFacts
from ft_rendezvous.doctor.findings import Examination
from ft_rendezvous.doctor.judging import judge
from ft_rendezvous.doctor.report import DoctorReport, as_json, as_table, report_lines, summary
from tests.doctor.build import examination, in_step, lookup, node


def crowd() -> Examination:
    """A thousand nodes, every tenth with a slow resolver, three that never reported."""
    nodes: list[NodeFacts] = []
    for task in range(997):
        slow: tuple[Lookup, ...] = (lookup(f"::ffff:10.0.0.{task}", 2.0),)
        facts = node(task, reverse=slow) if task % 10 == 0 else node(task)
        nodes.append(in_step(facts, 1000))
    return examination(*nodes, expected=1000)


def render(seen: Examination, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width)
    console.print(as_table(seen, judge(seen)))
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text


def test_a_thousand_nodes_fit_on_a_screen() -> None:
    seen = crowd()
    text = render(seen)
    assert len(text.splitlines()) < 60
    assert max(map(len, text.splitlines())) <= 120
    assert "n[998-1000]" in text
    assert "100 nodes, first n1" in text
    lines = list(report_lines(seen, judge(seen)))
    assert len(lines) < 40
    assert lines[0].startswith("fail  reports")
    assert lines[-1].startswith("fail: 3 failed, ")
    assert lines[-1].endswith("997 nodes examined for n1:29400")


def test_brackets_and_colours_in_facts_are_text() -> None:
    seen = examination(node(run_error="[bold]config=[/x] cannot be read: [red]no such file"))
    assert "[bold]config=[/x] cannot be read" in render(seen)


def test_json_round_trips() -> None:
    seen = crowd()
    findings = judge(seen)
    report = msgspec.json.decode(as_json(seen, findings), type=DoctorReport)
    assert report.findings == tuple(findings)
    assert report.nodes == tuple(seen.nodes)
    assert report.nodes_missing == (997, 998, 999)


def test_the_summary_counts() -> None:
    seen = examination(node(own_name=lookup("n1", 2.0)))
    passed = sum(finding.status == "pass" for finding in judge(seen))
    assert summary(seen, judge(seen)) == f"warn: 0 failed, 1 warning, {passed} passed; 1 node examined for n1:29400"
