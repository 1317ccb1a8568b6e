"""`ftr demo`: a real run on this machine in which a node is killed and a hot spare takes its place."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from rich.console import Console
from rich.markup import escape

from ft_rendezvous.cli.demo import nodes
from ft_rendezvous.cli.demo.nodes import NodeProcess
from ft_rendezvous.cli.demo.report import Tail, decode_report, last_lines, report_path
from ft_rendezvous.cli.demo.story import Check, NodeState, Story, judge
from ft_rendezvous.cli.demo.view import View, make_view, print_summary
from ft_rendezvous.errors import ConfigError

GLANCE_S = 0.1
STEP_S = 0.15
CHECKPOINT_EVERY = 5
LEAST_STEPS = 3 * CHECKPOINT_EVERY
GONE_PATIENCE_S = 3.0
"""How long workers may take to disappear after their agents have."""
FAILURE_PATIENCE_S = 10.0
"""How long the other nodes may go on once one has failed; their end may tell more."""
TAIL_LINES = 25


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What the user asked for, checked."""

    actives: int
    spares: int
    steps: int
    lease_s: float
    kills: bool
    timeout_s: float

    def __post_init__(self) -> None:
        if self.kills and self.actives < 2:
            raise ConfigError("one active node hosts the store and cannot be killed: use --nodes 2 or --no-kill")
        if self.kills and self.spares < 1:
            raise ConfigError("without a spare nobody can take the killed node's rank: use --spares 1 or --no-kill")
        if self.kills and self.steps < LEAST_STEPS:
            raise ConfigError(f"the kill needs a checkpoint before it and steps after it: use --steps {LEAST_STEPS}")

    @property
    def kill_after(self) -> int:
        """Past a checkpoint and between two, so that a resume is seen to go back."""
        checkpoints = max(1, self.steps // 3 // CHECKPOINT_EVERY)
        return checkpoints * CHECKPOINT_EVERY + 2

    @property
    def kill_before(self) -> int:
        """A spare that is not there by this step takes the rank when it comes."""
        return self.steps * 2 // 3

    @property
    def conf(self) -> dict[str, str]:
        return {"lease_timeout": f"{self.lease_s:g}", "beat_interval": f"{self.lease_s / 6:g}"}


@dataclass(slots=True)
class Demo:
    """One demo: its processes, what is known of them, and where they write."""

    plan: Plan
    directory: Path
    view: View
    token: str = field(default_factory=lambda: secrets.token_hex(8))
    port: int = field(default_factory=nodes.free_port)
    story: Story = field(init=False)
    processes: dict[str, NodeProcess] = field(init=False, default_factory=dict)
    logs: dict[str, Tail] = field(init=False, default_factory=dict)
    reports: dict[str, Tail] = field(init=False, default_factory=dict)
    failed_at: float | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        names = [f"node-{index}" for index in range(self.plan.actives + self.plan.spares)]
        self.story = Story(self.plan.steps, {name: NodeState(name, index == 0) for index, name in enumerate(names)})
        (self.directory / "logs").mkdir(parents=True)
        (self.directory / "progress").mkdir()

    @property
    def names(self) -> list[str]:
        return list(self.story.nodes)

    def run(self) -> None:
        """Play the demo to its end. Raises TimeoutError when it takes too long."""
        deadline = time.monotonic() + self.plan.timeout_s
        for index in range(self.plan.actives):
            self._start(index)
        while not self._is_over():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the demo did not end within {self.plan.timeout_s:g} s (--timeout)")
            self._look()
            self._start_spares_when_sealed()
            self._kill_when_due()
            self.view.show(self.story)
            time.sleep(GLANCE_S)
        self._look()
        self.view.show(self.story)

    def find_left(self) -> list[int]:
        """Processes that are still there although all agents have ended, given a moment to go."""
        deadline = time.monotonic() + GONE_PATIENCE_S
        while (left := nodes.marked_pids(f"{self.token}/")) and time.monotonic() < deadline:
            time.sleep(GLANCE_S)
        return left

    def end_all(self) -> list[int]:
        """End every process of the demo. Returns what could not be ended: nothing, or a bug."""
        left = nodes.end_marked(f"{self.token}/")
        for node in self.processes.values():
            with suppress(subprocess.TimeoutExpired):
                node.process.wait(GONE_PATIENCE_S)
        return left

    def log_path(self, name: str) -> Path:
        return self.directory / "logs" / f"{name}.log"

    # --- parts --------------------------------------------------------------------------------------

    def _start(self, index: int) -> None:
        name, plan = self.names[index], self.plan
        command = nodes.torchrun_command(
            nnodes=f"{plan.actives}:{plan.actives + plan.spares}",
            endpoint=f"localhost:{self.port}",
            run_id=f"demo-{self.token}",
            conf={**plan.conf, "is_host": str(index == 0).lower()},
            module="ft_rendezvous.cli.demo.train",
            arguments=[str(self.directory), name, str(plan.steps), str(STEP_S), str(CHECKPOINT_EVERY)],
        )
        if index == 0:
            self.view.tell(f"every node runs: {_describe_command(command)}")
        mark = f"{self.token}/{name}/"
        process = nodes.start_node(name, command, nodes.node_env(index), mark, self.log_path(name))
        self.processes[name] = process
        self.logs[name] = Tail(self.log_path(name))
        self.reports[name] = Tail(report_path(self.directory, name))
        self.story.nodes[name].pid = process.pid
        self.view.tell(f"{name}: started, pid {process.pid}")

    def _look(self) -> None:
        """Take in all that is new. Exit codes first: what an ended node wrote is then already there."""
        ended = {name: code for name, node in self.processes.items() if (code := node.exit_code()) is not None}
        now = time.monotonic()
        for name, tail in self.logs.items():
            for line in tail.read_new():
                self._tell(self.story.take_log_line(name, line.decode(errors="replace"), now))
        for tail in self.reports.values():
            for line in tail.read_new():
                try:
                    self._tell(self.story.take_report(decode_report(line)))
                except msgspec.DecodeError as error:
                    self._tell([f"a report cannot be read: {error}"])
        for name, code in ended.items():
            if self.story.nodes[name].exit_code is None:
                self.story.nodes[name].exit_code = code
                if name != self.story.victim:
                    self._tell([f"{name}: exited {code}"])

    def _start_spares_when_sealed(self) -> None:
        """Spares come late by design, so that the first nodes are the active ones."""
        if len(self.processes) == self.plan.actives and (self.story.sealed_at or self.story.worlds):
            for index in range(self.plan.actives, len(self.names)):
                self._start(index)

    def _kill_when_due(self) -> None:
        story, plan = self.story, self.plan
        if not plan.kills or story.victim is not None or story.step < plan.kill_after:
            return
        is_spare_hot = any(story.nodes[name].has_joined for name in self.names[plan.actives :])
        if not is_spare_hot and story.step < plan.kill_before:
            return
        victim = next(node for node in story.nodes.values() if node.rank and not node.is_host)
        killed_at = time.monotonic()
        self.processes[victim.name].kill()
        story.take_kill(victim.name, killed_at)
        self._tell([f"{victim.name}: KILLED with its workers at step {story.step}; it had rank {victim.rank}"])

    def _is_over(self) -> bool:
        """All have ended; or one that should live has failed, and what follows is only waiting."""
        states = [self.story.nodes[name] for name in self.processes]
        now = time.monotonic()
        if self.failed_at is None and any(node.exit_code and not node.is_killed for node in states):
            self.failed_at = now
        has_waited = self.failed_at is not None and now > self.failed_at + FAILURE_PATIENCE_S
        return has_waited or all(node.exit_code is not None for node in states)

    def _tell(self, events: list[str]) -> None:
        for event in events:
            self.view.tell(event)


def run_demo(plan: Plan, directory: Path | None, keeps: bool) -> bool:
    """Play, judge, tell. True if everything that was promised happened."""
    if not nodes.is_supported():
        raise ConfigError("the demo finds its processes in /proc, which this system lacks: use a Linux machine")
    console = Console(highlight=False, soft_wrap=True)
    with _workspace(directory) as place:
        demo = Demo(plan, place, make_view(console, sys.stdout.isatty()))
        problem: str | None = None
        left: list[int] = []
        try:
            with demo.view:
                demo.run()
            left = demo.find_left()
        except TimeoutError as error:
            problem = str(error)
        finally:
            left = demo.end_all() or left
        checks = judge(demo.story, plan.actives, plan.kills, left)
        if problem is not None:
            checks.insert(0, Check("the demo ended in time", False, problem))
        is_kept = all(check.is_kept for check in checks)
        print_summary(console, checks, _facts(demo.story), is_kept)
        if not is_kept:
            _print_tails(console, demo)
        if is_kept and not keeps and directory is None:
            shutil.rmtree(place)
        else:
            console.print(f"  logs, reports and checkpoint: {escape(str(place))}")
        return is_kept


@contextmanager
def _workspace(directory: Path | None) -> Iterator[Path]:
    """An empty directory: a checkpoint of an earlier demo would be taken for this one's."""
    if directory is None:
        place = Path(tempfile.mkdtemp(prefix="ftr-demo-"))
    else:
        place = directory.resolve()
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise ConfigError(f"{place} is not empty: choose a new directory for --dir")
    try:
        yield place
    except BaseException:
        if directory is None:
            shutil.rmtree(place, ignore_errors=True)
        raise


def _facts(story: Story) -> list[str]:
    facts = [f"cycles: {len(story.cycles)}"]
    for before, after in zip(story.cycles, story.cycles[1:], strict=False):
        for rank, name in sorted(story.worlds[after].items()):
            old = story.worlds[before].get(rank)
            if old != name:
                facts.append(f"cycle {after}: {name} took rank {rank} from {old or 'nobody'}")
        facts.append(f"cycle {after}: resumed at step {story.resumed_at[after]}")
    if story.recovery_s is not None:
        reseal = "" if story.reseal_s is None else f", {story.reseal_s:.1f} s of it until every rank was placed again"
        facts.append(f"from the kill to the first new step: {story.recovery_s:.1f} s{reseal}")
    return facts


def _describe_command(command: list[str]) -> str:
    """As a user would type it: torchrun, and no file names."""
    options = [part for part in command[3:] if part.startswith("--")]
    return " ".join(["torchrun", *options, "..."])


def _print_tails(console: Console, demo: Demo) -> None:
    for name in demo.processes:
        console.print(f"\n--- the end of {demo.log_path(name)}", markup=False)
        for line in last_lines(demo.log_path(name), TAIL_LINES):
            console.print(line, markup=False)
