"""Real replica groups that train, one node to a group, and one of these nodes is lost: killed, or stopped.

Every contender has processes of its own for every sample. The node that is lost loses its agent and its worker at once.
The store of ours, and the lighthouse, are on no node: any node may be lost.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.baselines import torchft
from benchmarks.group_steps import Cost, Loss, Step, count_together, judge, parse
from benchmarks.machine import ROOT
from benchmarks.measure import OURS, DidNotFinish, Sample
from tests.support.torchrun_cluster import TORCHRUN, Cluster, Node, find_processes, free_port, send, state_of
from tests.support.waiting import wait_until

EXAMPLE = ROOT / "examples" / "train_torchft.py"
PLAIN = ROOT / "benchmarks" / "train_plainly.py"
FTR = (sys.executable, "-m", "ft_rendezvous.cli.main")
LAUNCHER = (*TORCHRUN, "--local-addr=127.0.0.1")

STEP_S = 0.13
"""How long a worker sleeps in each step. A step takes 0.15 s with what it computes."""
SAVE_EVERY = 20
"""Steps between two checkpoints of the plain training."""
BEFORE = 15
"""Steps that all groups make together before one is lost."""
AFTER = 5
"""Steps that they make together when all are back, before the sample ends."""
START_LIMIT_S = 240.0
LIMIT_S = 120.0
"""How long a contender may take until all are back, or those that did not fail train on."""
VICTIM = 1

EVERYBODY = "restart of all"


@dataclass(frozen=True, slots=True)
class Stage:
    """Where one sample happens."""

    cluster: Cluster
    groups: int
    spares: int

    @property
    def output(self) -> Path:
        return self.cluster.path("lines.txt")

    def worker(self, script: Path, *more: str) -> list[str]:
        return [str(script), "--steps=1000000", f"--step-s={STEP_S}", f"--output={self.output}", *more]

    def steps(self) -> list[Step]:
        return parse(self.output.read_text().splitlines(keepends=True)) if self.output.exists() else []

    def explain(self) -> str:
        return self.cluster.tails()


@dataclass(frozen=True, slots=True)
class Setup:
    """How a contender is started, and what it promises."""

    start: Callable[[Stage], None]
    are_others_kept: bool = True
    saved_every: int | None = None
    replaces_stopped: bool = True
    """It gives the place of a node that hangs to another one."""


# --- contenders -------------------------------------------------------------------------------------


def start_groups(stage: Stage) -> None:
    """Ours: one run with groups, a spare, and a lighthouse."""
    start_run(stage, stage.worker(EXAMPLE), "group_size=1,lighthouse=yes")


def start_everybody(stage: Stage) -> None:
    """Ours without groups: a plain training with checkpoints."""
    checkpoint = stage.cluster.path("checkpoint.pt")
    start_run(stage, stage.worker(PLAIN, f"--checkpoint={checkpoint}", f"--save-every={SAVE_EVERY}"), "")


def start_run(stage: Stage, worker: list[str], conf: str) -> None:
    """A store in a process of its own, and a torchrun with our backend for each node."""
    endpoint, nnodes = f"127.0.0.1:{free_port()}", f"{stage.groups}:{stage.groups + stage.spares}"
    serve = [*FTR, "serve", "--endpoint", endpoint, "--rdzv-id=benchmark", f"--nnodes={nnodes}"]
    stage.cluster.spawn("host", [*serve, *([f"--rdzv-conf={conf}"] if conf else [])])
    for index in range(stage.groups + stage.spares):
        command = [
            *LAUNCHER,
            f"--nnodes={nnodes}",
            "--nproc-per-node=1",
            "--max-restarts=1000",
            "--rdzv-backend=ft",
            f"--rdzv-endpoint={endpoint}",
            "--rdzv-id=benchmark",
            f"--rdzv-conf={','.join(part for part in (conf, 'is_host=false') if part)}",
            *worker,
        ]
        stage.cluster.spawn(f"n{index}", command, {"FT_INFRA_RANK": str(index)})


def start_torchft(stage: Stage) -> None:
    """torchft alone: a lighthouse, and a shell loop around one torchrun per group."""
    port = free_port()
    stage.cluster.spawn("lighthouse", torchft.lighthouse_command(port))
    for group in range(stage.groups):
        env = {
            "TORCHFT_LIGHTHOUSE": f"http://127.0.0.1:{port}",
            "REPLICA_GROUP_ID": str(group),
            "NUM_REPLICA_GROUPS": str(stage.groups),
        }
        stage.cluster.spawn(f"group{group}", torchft.loop_command(LAUNCHER, stage.worker(EXAMPLE)), env)


SETUPS: Mapping[str, Setup] = {
    OURS: Setup(start_groups),
    EVERYBODY: Setup(start_everybody, are_others_kept=False, saved_every=SAVE_EVERY),
    torchft.CONTENDER: Setup(start_torchft, replaces_stopped=False),
}


# --- a sample ---------------------------------------------------------------------------------------


def lose(setup: Setup, signum: signal.Signals, groups: int, spares: int, must_come_back: bool) -> Cost:
    """Let the groups train, and one of them be lost; what it has cost the others.

    The sample ends when all groups train together again, or, if that is not waited for, all others do.
    """
    with tempfile.TemporaryDirectory(prefix="ft-groups-") as folder:
        stage = Stage(Cluster(Path(folder)), groups, spares)
        try:
            setup.start(stage)
            wait_until(
                "all groups train", lambda: count_together(stage.steps(), groups) > BEFORE, START_LIMIT_S, stage.explain
            )
            victim = find_node(stage, VICTIM)
            # What is written meanwhile by a worker that is about to be stopped is still from before.
            lost_at = _signal_node(victim, signum)
            _wait_for_the_others(stage, lost_at, must_come_back)
            steps = stage.steps()
        finally:
            _end(stage.cluster)
    return judge(steps, Loss(VICTIM, lost_at, setup.are_others_kept, setup.saved_every))


def find_node(stage: Stage, group: int) -> Node:
    """The node whose worker trains this group."""
    pid = [step.pid for step in stage.steps() if step.group == group][-1]
    for node in stage.cluster.nodes:
        if any(process.pid == pid for process in find_processes(node.marker)):
            return node
    raise AssertionError(f"no node has the worker {pid}\n{stage.explain()}")


def _signal_node(node: Node, signum: signal.Signals) -> float:
    """Stop or kill the agent and its workers, but not the shell that starts them again. Returns when it was done."""
    is_shell = Path(f"/proc/{node.pid}/comm").read_text().strip() == "bash"
    pids = [process.pid for process in find_processes(node.marker) if not (is_shell and process.pid == node.pid)]
    for pid in sorted(pids):  # The agent first: it must not see its worker go and act on it.
        send(pid, signal.SIGSTOP)
    wait_until("stopped", lambda: all(state_of(pid) in "TZX" for pid in pids))
    lost_at = time.monotonic()
    if signum is not signal.SIGSTOP:
        for pid in pids:
            send(pid, signum)
    return lost_at


def _wait_for_the_others(stage: Stage, lost_at: float, must_come_back: bool) -> None:
    def is_over() -> bool:
        steps = stage.steps()
        if must_come_back:
            return count_together(steps, stage.groups, lost_at) >= AFTER
        return count_together(steps, stage.groups - 1, lost_at, but=(VICTIM,)) >= AFTER

    while not is_over():
        if time.monotonic() > lost_at + LIMIT_S:
            raise DidNotFinish(LIMIT_S)
        time.sleep(0.1)


def _end(cluster: Cluster) -> None:
    """Shells first: they would start again what ends."""
    for node in cluster.nodes:
        node.kill()
    cluster.close()


# --- many -------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Record:
    """What the losses of one kind have cost, by contender."""

    signum: signal.Signals
    groups: int
    spares: int
    must_come_back: bool = True
    costs: dict[str, list[Cost]] = field(default_factory=lambda: defaultdict(list))

    def gaps(self, contenders: Mapping[str, Setup]) -> dict[str, Sample]:
        return {name: partial(self._play, name, setup) for name, setup in contenders.items()}

    def _play(self, name: str, setup: Setup) -> float:
        comes_back = setup.replaces_stopped or self.signum is not signal.SIGSTOP
        cost = lose(setup, self.signum, self.groups, self.spares, self.must_come_back and comes_back)
        self.costs[name].append(cost)
        return cost.gap_s
