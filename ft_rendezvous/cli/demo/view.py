"""How a demo is shown: a live table on a terminal, plain timestamped lines elsewhere. It decides nothing."""

from __future__ import annotations

import time
from collections import deque
from types import TracebackType
from typing import Protocol, Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ft_rendezvous.cli.demo.story import Check, NodeState, Story

EVENTS_SHOWN = 10
PLAIN_STEPS = 10
"""Without a terminal, every so many steps get a line."""

STATE_STYLES = {
    "training": "green",
    "killed": "bold red",
    "waiting": "cyan",
    "exited 0": "green",
    "restarting": "yellow",
}


class View(Protocol):
    """What the demo needs of a view."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def tell(self, event: str) -> None:
        """Something happened."""

    def show(self, story: Story) -> None:
        """This is how things stand; called a few times a second."""


class PlainView:
    """One line per event, with the seconds since the start."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._told_step = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def tell(self, event: str) -> None:
        print(f"[{time.monotonic() - self._started_at:6.1f} s] {event}", flush=True)

    def show(self, story: Story) -> None:
        is_due = story.step // PLAIN_STEPS != self._told_step // PLAIN_STEPS or story.step == story.steps
        if is_due and story.step != self._told_step:
            self.tell(f"step {story.step} of {story.steps}")
            self._told_step = story.step


class LiveView:
    """Nodes, progress and newest events, redrawn in place."""

    def __init__(self, console: Console) -> None:
        self._started_at = time.monotonic()
        self._events: deque[str] = deque(maxlen=EVENTS_SHOWN)
        self._live = Live(console=console, refresh_per_second=8)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def tell(self, event: str) -> None:
        self._events.append(f"{time.monotonic() - self._started_at:6.1f} s  {event}")

    def show(self, story: Story) -> None:
        self._live.update(Group(_nodes_table(story), _progress(story), self._newest_events()))

    def _newest_events(self) -> Panel:
        lines = Text("\n".join(self._events), no_wrap=True, overflow="ellipsis")
        return Panel(lines, title="events", title_align="left", box=box.ROUNDED, height=EVENTS_SHOWN + 2)


def make_view(console: Console, is_terminal: bool) -> View:
    return LiveView(console) if is_terminal and not console.is_dumb_terminal else PlainView()


def _nodes_table(story: Story) -> Table:
    table = Table(box=box.SIMPLE_HEAD, expand=True)
    for heading, justify in (("node", "left"), ("pid", "right"), ("role", "left"), ("rank", "right")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for heading, justify in (("cycle", "right"), ("step", "right"), ("state", "left")):
        table.add_column(heading, justify=justify)  # type: ignore[arg-type]
    for node in story.nodes.values():
        table.add_row(*_cells(node, story.newest_cycle))
    return table


def _cells(node: NodeState, newest_cycle: int) -> list[str | Text]:
    state = node.state(newest_cycle)
    name = f"{node.name} (hosts the store)" if node.is_host else node.name
    numbers = ["" if value is None else str(value) for value in (node.rank, node.cycle_id, node.step)]
    pid = "" if node.pid is None else str(node.pid)
    return [
        name,
        pid,
        node.role,
        *numbers,
        Text(state, style=STATE_STYLES.get(state, "red" if "exited" in state else "")),
    ]


def _progress(story: Story) -> Table:
    grid = Table.grid(padding=(0, 2), expand=True)
    grid.add_column(no_wrap=True)
    grid.add_column(ratio=1)
    grid.add_row(f" step {story.step} of {story.steps}", ProgressBar(total=story.steps, completed=story.step))
    return grid


def print_summary(console: Console, checks: list[Check], facts: list[str], is_kept: bool) -> None:
    """The verdict first, then what it rests on."""
    verdict = "[bold green]the demo succeeded[/]" if is_kept else "[bold red]the demo failed[/]"
    console.print(f"\n{verdict}")
    for fact in facts:
        console.print(f"  {escape(fact)}", highlight=False)
    for check in checks:
        mark = "[green]ok  [/]" if check.is_kept else "[bold red]FAIL[/]"
        console.print(f"  {mark} {escape(check.promise)} [dim]({escape(check.detail)})[/]", highlight=False)
