"""How a demo is shown: a live table on a terminal, plain lines with times elsewhere. Decides nothing."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ft_rendezvous.cli.demo.promises import DemoStory, Promise
from ft_rendezvous.state.model.records import Node, NodeRole

EVENTS_SHOWN = 10
PLAIN_STEPS = 10
"""Without a terminal, every tenth step gets a line."""
COLUMNS = (("node", "left"), ("pid", "right"), ("role", "left"), ("rank", "right"), ("step", "right"))
STATE_STYLES = {
    "training": "green",
    "killed": "bold red",
    "waiting": "cyan",
    "exited 0": "green",
    "restarting": "yellow",
}
STATES = {
    NodeRole.HOT_SPARE: "waiting",
    NodeRole.STANDBY: "waiting",
    NodeRole.AWAITED: "restarting",
    NodeRole.ARRIVED: "waiting for the seal",
}


class PlainDisplay:
    """One line per event, with the seconds since the start."""

    def __init__(self) -> None:
        self._started_at = time.monotonic()
        self._shown_step = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def tell(self, event: str) -> None:
        """Something happened."""
        print(f"[{time.monotonic() - self._started_at:6.1f} s] {event}", flush=True)

    def show(self, story: DemoStory, nodes: Mapping[str, Node], pids: Mapping[str, int]) -> None:
        """This is how things stand. The demo calls it a few times a second."""
        del nodes, pids
        is_due = story.step // PLAIN_STEPS != self._shown_step // PLAIN_STEPS or story.step == story.steps
        if is_due and story.step != self._shown_step:
            self.tell(f"step {story.step} of {story.steps}")
            self._shown_step = story.step


class LiveDisplay(PlainDisplay):
    """Nodes, progress and newest events, redrawn in place."""

    def __init__(self, console: Console) -> None:
        super().__init__()
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

    def show(self, story: DemoStory, nodes: Mapping[str, Node], pids: Mapping[str, int]) -> None:
        table = Table(box=box.SIMPLE_HEAD, expand=True)
        for heading, justify in (*COLUMNS, ("state", "left")):
            table.add_column(heading, justify=justify)  # type: ignore[arg-type]
        for name, pid in pids.items():
            table.add_row(name, str(pid), *_cells(name, story, nodes.get(name)))
        progress = Table.grid(padding=(0, 2), expand=True)
        progress.add_column(no_wrap=True)
        progress.add_column(ratio=1)
        progress.add_row(f" step {story.step} of {story.steps}", ProgressBar(total=story.steps, completed=story.step))
        lines = Text("\n".join(self._events), no_wrap=True, overflow="ellipsis")
        events = Panel(lines, title="events", title_align="left", box=box.ROUNDED, height=EVENTS_SHOWN + 2)
        self._live.update(Group(table, progress, events))


def make_display(console: Console, is_terminal: bool) -> PlainDisplay:
    return LiveDisplay(console) if is_terminal and not console.is_dumb_terminal else PlainDisplay()


def _cells(name: str, story: DemoStory, node: Node | None) -> Sequence[str | Text]:
    report = story.newest.get(name)
    state = describe_state(name, story, node)
    style = STATE_STYLES.get(state, "red" if "exited" in state else "")
    role = "" if node is None else node.role.value
    rank = "" if node is None or node.group_rank is None else str(node.group_rank)
    return [
        "dead" if name == story.victim else role,
        rank,
        str(report.step) if report else "",
        Text(state, style=style),
    ]


def describe_state(name: str, story: DemoStory, node: Node | None) -> str:
    """What a process does, in one or two words."""
    code = story.exit_codes[name]
    if name == story.victim:
        return "killed"
    if code is not None:
        return f"exited {code}"
    if node is None:
        return "hosts the store" if name == "store" else "starting"
    if node.role is not NodeRole.ACTIVE:
        return STATES.get(node.role, node.role.value)
    report = story.newest.get(name)
    return "training" if report is not None and report.cycle_id == node.arrived_in else "starting workers"


def print_summary(console: Console, promises: list[Promise], facts: list[str]) -> None:
    """The verdict first, then its reasons."""
    is_kept = all(promise.is_kept for promise in promises)
    verdict = "[bold green]the demo succeeded[/]" if is_kept else "[bold red]the demo failed[/]"
    console.print(f"\n{verdict}")
    for fact in facts:
        console.print(f"  {escape(fact)}", highlight=False)
    for promise in promises:
        mark = "[green]ok  [/]" if promise.is_kept else "[bold red]FAIL[/]"
        console.print(f"  {mark} {escape(promise.text)} [dim]({escape(promise.detail)})[/]", highlight=False)
