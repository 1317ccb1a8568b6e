"""What happened in a demo, folded from reports, log lines and exit codes; and whether it was what was promised.

Pure: no process, no file, no clock. Facts that decide the verdict come from the workers' reports and from exit
codes; the logs of the nodes only tell the story.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from ft_rendezvous.cli.demo.report import Report

MOST_DRIFT = 1e-4
"""Sums of floats depend on their order; a lost or repeated step shifts weights by far more."""

_FT_LINE = re.compile(r"^\[ft [^\]]* (?P<level>[A-Z]+)\] (?P<text>.*)$")
_PLACED = re.compile(r"^cycle=(?P<cycle>\d+) rank=(?P<rank>\d+) world=\d+$")
_JOINED = re.compile(r"^joined cycle=\d+ node=infra rank (?P<infra_rank>\d+) at .* spare=(?P<is_spare>True|False)$")
_OPENED = re.compile(r"^opened cycle=(?P<cycle>\d+) ")


@dataclass(slots=True)
class NodeState:
    """One node as a person would describe it."""

    name: str
    is_host: bool
    pid: int | None = None
    has_joined: bool = False
    cycle_id: int | None = None
    rank: int | None = None
    step: int | None = None
    is_killed: bool = False
    exit_code: int | None = None

    @property
    def role(self) -> str:
        if self.is_killed:
            return "dead"
        if self.rank is not None:
            return "active"
        return "hot spare" if self.has_joined else ""

    def state(self, newest_cycle: int) -> str:
        if self.is_killed:
            return "killed"
        if self.exit_code is not None:
            return f"exited {self.exit_code}"
        if self.pid is None:
            return "not started"
        if self.cycle_id is None:
            return "waiting" if self.has_joined else "starting"
        if self.cycle_id < newest_cycle:
            return "restarting"
        return "training" if self.step is not None else "starting workers"


@dataclass(frozen=True, slots=True)
class Check:
    """One promise of the demo, and whether it was kept."""

    promise: str
    is_kept: bool
    detail: str


@dataclass(slots=True)
class Story:
    """The run so far."""

    steps: int
    nodes: dict[str, NodeState]
    newest_cycle: int = 1
    worlds: dict[int, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    """Which node reported which rank, by cycle."""
    resumed_at: dict[int, int] = field(default_factory=dict)
    first_step_at: dict[int, float] = field(default_factory=dict)
    sealed_at: dict[int, float] = field(default_factory=dict)
    """When a cycle's first node was seen to have its rank."""
    last_steps: dict[str, Report] = field(default_factory=dict)
    victim: str | None = None
    killed_at: float | None = None
    killed_in: int | None = None
    drift: float | None = None

    # --- what happens -------------------------------------------------------------------------------

    def take_report(self, report: Report) -> list[str]:
        """Fold in what a worker says. Returns what is worth telling."""
        node = self.nodes[report.node]
        events: list[str] = []
        world = self.worlds[report.cycle_id]
        world.setdefault(report.rank, report.node)
        self.newest_cycle = max(self.newest_cycle, report.cycle_id)
        node.cycle_id, node.rank, node.step = report.cycle_id, report.rank, report.step
        self.last_steps[report.node] = report
        if report.cycle_id not in self.resumed_at:
            self.resumed_at[report.cycle_id] = report.resumed_at
            if report.resumed_at:
                events.append(f"training resumes from the checkpoint of step {report.resumed_at}")
        if report.is_step:
            self.first_step_at.setdefault(report.cycle_id, report.at)
        if report.drift is not None:
            self.drift = report.drift
        return events

    def take_log_line(self, name: str, line: str, now: float) -> list[str]:
        """Fold in a line of a node's log. Returns what is worth telling."""
        match = _FT_LINE.match(line)
        if match is None:
            return []
        text = match["text"]
        if placed := _PLACED.match(text):
            return self._take_placed(self.nodes[name], int(placed["cycle"]), int(placed["rank"]), now)
        if joined := _JOINED.match(text):
            return self._take_joined(int(joined["infra_rank"]), joined["is_spare"] == "True")
        if opened := _OPENED.match(text):
            self.newest_cycle = max(self.newest_cycle, int(opened["cycle"]))
        return [] if match["level"] == "DEBUG" else [f"{name}: {text}"]

    def _take_placed(self, node: NodeState, cycle_id: int, rank: int, now: float) -> list[str]:
        was_spare = node.rank is None
        node.cycle_id, node.rank, node.step = cycle_id, rank, None
        self.newest_cycle = max(self.newest_cycle, cycle_id)
        self.sealed_at.setdefault(cycle_id, now)
        role = ", was a hot spare" if was_spare and cycle_id > 1 else ""
        return [f"{node.name}: rank {rank} in cycle {cycle_id}{role}"]

    def _take_joined(self, infra_rank: int, is_spare: bool) -> list[str]:
        node = list(self.nodes.values())[infra_rank]
        node.has_joined = True
        return [f"{node.name}: joined {'as a hot spare' if is_spare else 'the run'}"]

    def take_kill(self, name: str, at: float) -> None:
        self.victim, self.killed_at = name, at
        self.nodes[name].is_killed = True
        self.killed_in = self.nodes[name].cycle_id

    # --- what it comes to ---------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """The last step that rank 0 has reported: its checkpoints up to there are on disk."""
        steps = [report.step for report in self.last_steps.values() if report.rank == 0]
        return max(steps, default=0)

    @property
    def cycles(self) -> list[int]:
        """Cycles in which steps were made."""
        return sorted(self.first_step_at)

    @property
    def last_cycle(self) -> int | None:
        return self.cycles[-1] if self.cycles else None

    @property
    def first_cycle_after_kill(self) -> int | None:
        if self.killed_in is None:
            return None
        return next((cycle_id for cycle_id in self.cycles if cycle_id > (self.killed_in or 0)), None)

    @property
    def recovery_s(self) -> float | None:
        """From the kill to the first new step."""
        cycle_id = self.first_cycle_after_kill
        if cycle_id is None or self.killed_at is None:
            return None
        return self.first_step_at[cycle_id] - self.killed_at

    @property
    def reseal_s(self) -> float | None:
        """From the kill to the new placement; the rest of the recovery is the workers' own start."""
        cycle_id = self.first_cycle_after_kill
        if cycle_id is None or self.killed_at is None or cycle_id not in self.sealed_at:
            return None
        return self.sealed_at[cycle_id] - self.killed_at


def judge(story: Story, actives: int, kills: bool, left_pids: list[int]) -> list[Check]:
    """Every promise of a demo that has ended, most telling first."""
    checks = _judge_recovery(story) if kills else _judge_calm(story, actives)
    last_world = story.worlds[story.last_cycle] if story.last_cycle is not None else {}
    at_end = [name for name in last_world.values() if story.last_steps[name].step == story.steps]
    checks.append(
        Check(
            f"all {actives} ranks reached step {story.steps}",
            len(at_end) == actives == len(last_world),
            f"{len(at_end)} of {actives} did",
        )
    )
    checks.append(
        Check(
            "the final weights are those of an undisturbed run",
            story.drift is not None and story.drift <= MOST_DRIFT,
            "they were not reported" if story.drift is None else f"largest difference {story.drift:.1e}",
        )
    )
    survivors = [node for node in story.nodes.values() if not node.is_killed]
    checks.append(
        Check(
            "every remaining node exited 0",
            all(node.exit_code == 0 for node in survivors),
            ", ".join(f"{node.name} {'did not' if node.exit_code is None else node.exit_code}" for node in survivors),
        )
    )
    checks.append(
        Check("no process is left", not left_pids, f"pids {', '.join(map(str, left_pids))}" if left_pids else "none")
    )
    return checks


def _judge_recovery(story: Story) -> list[Check]:
    if story.victim is None:
        return [Check("a node was killed", False, f"training came no further than step {story.step}")]
    before = story.worlds.get(story.killed_in or 0, {})
    after = story.worlds.get(story.last_cycle or 0, {}) if story.first_cycle_after_kill is not None else {}
    lost_rank = next((rank for rank, name in before.items() if name == story.victim), None)
    heir = after.get(lost_rank) if lost_rank is not None else None
    kept = {rank: name for rank, name in before.items() if name != story.victim}
    is_heir_spare = heir is not None and heir not in before.values()
    moved = [f"{name} had {rank}" for rank, name in sorted(kept.items()) if after.get(rank) != name]
    resumed_at = story.resumed_at.get(story.first_cycle_after_kill or 0, 0)
    exit_code = story.nodes[story.victim].exit_code
    return [
        Check(f"{story.victim} died of SIGKILL", exit_code == -9, f"exit code {exit_code}"),
        Check(f"a hot spare took rank {lost_rank}", is_heir_spare, f"{heir or 'nobody'} has it"),
        Check("the others kept their ranks", not moved, ", ".join(moved) or _describe(kept)),
        Check("training resumed from a checkpoint", resumed_at > 0, f"of step {resumed_at}"),
    ]


def _judge_calm(story: Story, actives: int) -> list[Check]:
    trained = {name for world in story.worlds.values() for name in world.values()}
    return [
        Check("one cycle was enough", story.cycles == [1], f"steps were made in {story.cycles or 'none'}"),
        Check("the spares stayed spare", len(trained) == actives, f"trained: {', '.join(sorted(trained))}"),
    ]


def _describe(world: dict[int, str]) -> str:
    return ", ".join(f"{name} rank {rank}" for rank, name in sorted(world.items()))
