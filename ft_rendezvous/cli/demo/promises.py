"""What happened in a demo, and whether the demo kept its promises.

Pure: no process, no file, no clock. What decides comes from the workers' own step reports and from exit codes, not
from the coordinator: a coordinator that is wrong must not confirm itself.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from ft_rendezvous.cli.demo.step_reports import StepReport

MAX_DRIFT = 1e-4
"""Sums of floats depend on their order. A lost or repeated step shifts weights by far more."""


@dataclass(slots=True)
class DemoStory:
    """The demo so far."""

    steps: int
    worlds: dict[int, dict[int, str]] = field(default_factory=lambda: defaultdict(dict))
    """Which node reported which rank, by cycle."""
    resumed_at: dict[int, int] = field(default_factory=dict)
    """From which step a cycle began."""
    first_step_ns: dict[int, int] = field(default_factory=dict)
    """When the first step of a cycle was made."""
    sealed_ns: dict[int, int] = field(default_factory=dict)
    """When a cycle was sealed."""
    newest: dict[str, StepReport] = field(default_factory=dict)
    """The last step report of every node that has trained."""
    exit_codes: dict[str, int | None] = field(default_factory=dict)
    """Of every process that was started. None: it has not ended."""
    victim: str | None = None
    killed_ns: int = 0
    killed_in: int = 0
    """The cycle in which the victim was killed."""
    drift: float | None = None

    def take_report(self, report: StepReport) -> None:
        self.worlds[report.cycle_id].setdefault(report.rank, report.node)
        self.resumed_at.setdefault(report.cycle_id, report.resumed_at)
        self.newest[report.node] = report
        if report.step > report.resumed_at:
            self.first_step_ns.setdefault(report.cycle_id, report.time_ns)
        if report.drift is not None:
            self.drift = report.drift

    def take_kill(self, name: str, time_ns: int) -> None:
        self.victim, self.killed_ns, self.killed_in = name, time_ns, self.newest[name].cycle_id

    @property
    def step(self) -> int:
        """The last step that rank 0 has reported: its checkpoints up to there are on disk."""
        return max((report.step for report in self.newest.values() if report.rank == 0), default=0)

    @property
    def cycles(self) -> list[int]:
        """Cycles in which steps were made."""
        return sorted(self.first_step_ns)

    @property
    def cycle_after_kill(self) -> int | None:
        """The first cycle after the kill in which steps were made."""
        return next((cycle_id for cycle_id in self.cycles if self.victim and cycle_id > self.killed_in), None)

    def start_s(self, cycle_id: int) -> float:
        """From the seal of a cycle to its first step."""
        return (self.first_step_ns[cycle_id] - self.sealed_ns[cycle_id]) / 1e9

    @property
    def last_world(self) -> dict[int, str]:
        return self.worlds[self.cycles[-1]] if self.cycles else {}


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise of the demo, and whether it was kept."""

    text: str
    is_kept: bool
    detail: str


def judge_demo(story: DemoStory, actives: int, kills: bool, left_pids: list[int]) -> list[Promise]:
    """Every promise of a demo that has ended, the most important first."""
    promises = _judge_recovery(story) if kills else _judge_calm(story, actives)
    at_end = [name for name in story.last_world.values() if story.newest[name].step == story.steps]
    survivors = {name: code for name, code in story.exit_codes.items() if name != story.victim}
    codes = ", ".join(f"{name} {'did not end' if code is None else code}" for name, code in survivors.items())
    return [
        *promises,
        Promise(
            f"all {actives} ranks reached step {story.steps}",
            len(at_end) == actives == len(story.last_world),
            f"{len(at_end)} of {actives} did",
        ),
        Promise(
            "the final weights are those of an undisturbed run",
            story.drift is not None and story.drift <= MAX_DRIFT,
            "they were not reported" if story.drift is None else f"largest difference {story.drift:.1e}",
        ),
        Promise("every remaining node exited 0", not any(code != 0 for code in survivors.values()), codes),
        Promise("no process is left", not left_pids, f"pids {', '.join(map(str, left_pids))}" if left_pids else "none"),
    ]


def _judge_recovery(story: DemoStory) -> list[Promise]:
    if story.victim is None:
        return [Promise("a node was killed", False, f"training came no further than step {story.step}")]
    before = story.worlds[story.killed_in]
    after = story.last_world if story.cycle_after_kill is not None else {}
    lost_rank = next(rank for rank, name in before.items() if name == story.victim)
    heir = after.get(lost_rank)
    kept = {rank: name for rank, name in sorted(before.items()) if name != story.victim}
    moved = [f"{name} had {rank}" for rank, name in kept.items() if after.get(rank) != name]
    resumed_at = story.resumed_at.get(story.cycle_after_kill or 0, 0)
    exit_code = story.exit_codes[story.victim]
    return [
        Promise(f"{story.victim} died of SIGKILL", exit_code == -9, f"exit code {exit_code}"),
        Promise(
            f"a hot spare took rank {lost_rank}",
            heir is not None and heir not in before.values(),
            f"{heir or 'no node'} has it",
        ),
        Promise(
            "the others kept their ranks",
            not moved,
            ", ".join(moved or [f"{name} rank {rank}" for rank, name in kept.items()]) or "there are no others",
        ),
        Promise("training resumed from a checkpoint", resumed_at > 0, f"of step {resumed_at}"),
    ]


def _judge_calm(story: DemoStory, actives: int) -> list[Promise]:
    trained = {name for world in story.worlds.values() for name in world.values()}
    return [
        Promise("one cycle was enough", story.cycles == [1], f"steps were made in {story.cycles or 'none'}"),
        Promise("the spares stayed spare", len(trained) == actives, f"trained: {', '.join(sorted(trained))}"),
    ]


def list_facts(story: DemoStory, is_warm: bool = False) -> list[str]:
    """What happened, in a few lines."""
    facts = [f"cycles: {len(story.cycles)}"]
    for before, after in zip(story.cycles, story.cycles[1:], strict=False):
        for rank, name in sorted(story.worlds[after].items()):
            old = story.worlds[before].get(rank)
            if old != name:
                facts.append(f"cycle {after}: {name} took rank {rank} from {old or 'no node'}")
        facts.append(f"cycle {after}: resumed at step {story.resumed_at[after]}")
    cycle_id = story.cycle_after_kill
    if cycle_id is not None:
        seal_ns = story.sealed_ns.get(cycle_id)
        seal = f", {(seal_ns - story.killed_ns) / 1e9:.1f} s of it until every rank was placed again" if seal_ns else ""
        recovery_s = (story.first_step_ns[cycle_id] - story.killed_ns) / 1e9
        facts.append(f"from the kill to the first new step: {recovery_s:.1f} s{seal}")
        facts += _list_savings(story, cycle_id) if is_warm else []
    return facts


def _list_savings(story: DemoStory, cycle_id: int) -> list[str]:
    """What warm workers have saved: in the first cycle, their imports were made."""
    first = min(story.cycles)
    if first == cycle_id or not {first, cycle_id} <= story.sealed_ns.keys():
        return []
    cold_s, warm_s = (story.start_s(each) for each in (first, cycle_id))
    return [
        f"workers started warm: {warm_s:.1f} s from their places to the first step, "
        f"and {cold_s:.1f} s in cycle {first}, in which torch was imported; compare with ftr demo --no-warm"
    ]
