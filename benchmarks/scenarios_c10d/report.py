"""The contenders side by side: a table to read, a file to compare, a page for the docs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.scenarios_c10d.observe import Outcome, Story, describe, story_from
from benchmarks.scenarios_c10d.scenarios import wanted

STYLES = {Outcome.FINE: "green", Outcome.FLAWED: "yellow", Outcome.FAILED: "red", Outcome.HUNG: "red"}
COMMAND = "python -m benchmarks.scenarios_c10d"

Stories = Mapping[str, Mapping[str, Story]]
"""By scenario, then by contender."""

PAGE = """\
# The same faults with ft and with c10d

Written by `{command}` on {date}: torch {torch}, Python {python},
{cores} cores, all nodes on one machine. All contenders get the same commands and the same faults, with their own
default timeouts; only `--rdzv-backend` differs. A scenario is ended after {limit_s:g} s.

c10d runs twice: as it comes, and with `TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1`. As it comes, its rank 0 publishes the
address of the workers' store in the first round only, and a node that joins in a later one waits for it until every
node gives up after 60 s (`_bootstrap_store_info` in torch's `dynamic_rendezvous.py`).

- *fine*: every node exited as wanted, and nothing else was wrong
- *flawed*: the right end, but something happened before it that should not happen
- *failed*: a wrong exit code, or something that was wanted did not happen
- *hung*: a node was still running when the time was over

{table}

One thing that c10d does by design is called a flaw here, because jobs with spares want something else: a node that
joins a job below MAX restarts all workers to take part. Each scenario ran once: times are those of one run on this
machine.{note}
"""


def table_of(stories: Stories) -> Table:
    table = Table(show_lines=True)
    for heading in ("scenario", "backend", "outcome", "what was seen"):
        table.add_column(heading, no_wrap=heading != "what was seen")
    for name, by_contender in stories.items():
        for contender, story in by_contender.items():
            outcome = story.outcome
            table.add_row(name, contender, f"[{STYLES[outcome]}]{outcome}[/]", describe(story))
    return table


def write_json(path: Path, facts: Mapping[str, Any], stories: Stories) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        name: {contender: story.as_dict() for contender, story in by_contender.items()}
        for name, by_contender in stories.items()
    }
    path.write_text(json.dumps({"machine": facts, "scenarios": content}, indent=1) + "\n")


def read_json(path: Path) -> tuple[dict[str, Any], Stories]:
    """Facts and stories of an earlier run."""
    content = json.loads(path.read_text())
    return content["machine"], {
        name: {contender: story_from(written) for contender, written in by_contender.items()}
        for name, by_contender in content["scenarios"].items()
    }


def page_of(facts: Mapping[str, Any], stories: Stories) -> str:
    note = f"\n\n{facts['note']}" if facts.get("note") else ""
    return PAGE.format(**{**facts, "command": COMMAND, "table": markdown_of(stories), "note": note})


def markdown_of(stories: Stories) -> str:
    contenders = list(next(iter(stories.values())))
    rows = [f"| scenario, and what is wanted | {' | '.join(contenders)} |", "|---|" + "---|" * len(contenders)]
    for name, by_contender in stories.items():
        cells = (f"*{story.outcome}*: {describe(story)}" for story in by_contender.values())
        rows.append(f"| **{name}**: {wanted(name)} | {' | '.join(cells)} |")
    return "\n".join(rows)
