"""Training on a real Ray cluster on this machine: how it starts, and what the loss of one of its machines costs.

The head has no CPUs. It has the store of ours, and the controller of Ray Train. Every other machine has one CPU. Every
loss has a cluster of its own, so that no sample sees what Ray still believes of the sample before.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.baselines import ray_train
from benchmarks.group_steps import Loss, Step, count_together, judge, parse
from benchmarks.group_training import PLAIN, start_run
from benchmarks.group_training import Stage as TorchrunStage
from benchmarks.machine import ROOT
from benchmarks.measure import OURS, DidNotFinish, require
from tests.support.torchrun_cluster import Cluster

if TYPE_CHECKING:
    from tests.support.ray_machines import RayMachines  # It needs Ray, which is optional.

FTR = Path(sys.executable).parent / "ftr"
STEP_S = 0.13
"""How long a worker sleeps in each step."""
SAVE_EVERY = 20
BEFORE = 15
"""Steps that all ranks make before a machine is lost."""
SHORT_RUN = 10
"""Steps of a run that is only started."""
VICTIM = 1
"""The rank whose machine is lost."""
START_LIMIT_S = 240.0
LOSS_LIMIT_S = 180.0
END_LIMIT_S = 60.0
_FOREIGN = ("RAY_", "SLURM_", "FT_")


@dataclass(slots=True)
class Stage:
    """One run on a cluster, and all that it writes."""

    machines: RayMachines
    folder: Path
    nodes: int
    spares: int
    drivers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def output(self) -> Path:
        return self.folder / "lines.txt"

    def options(self, steps: int) -> list[str]:
        """Of the training, the same for all contenders."""
        given = {"steps": steps, "step-s": STEP_S, "output": self.output, "save-every": SAVE_EVERY}
        return [f"--{name}={value}" for name, value in {**given, "checkpoint": self.folder / "saved.pt"}.items()]

    def steps(self) -> list[Step]:
        return parse(self.output.read_text().splitlines(keepends=True)) if self.output.exists() else []

    def start_driver(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        with (self.folder / "driver.log").open("ab") as log:
            driver = subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )
        self.drivers.append(driver)
        return driver

    def said(self, words: str) -> bool:
        """Whether the log of a node has these words."""
        logs = (self.folder / "logs").glob("node-*.log")
        return any(words in path.read_text(errors="replace") for path in logs)

    def explain(self) -> str:
        logs = [self.folder / "driver.log", *sorted((self.folder / "logs").glob("*.log"))]
        return "\n".join(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in logs)


@dataclass(frozen=True, slots=True)
class Setup:
    """How a contender starts its training, and how one knows that its spare waits."""

    start: Callable[[Stage], None]
    has_spare: Callable[[Stage], bool]


# --- contenders -------------------------------------------------------------------------------------


def ftr_command(stage: Stage, steps: int) -> list[str]:
    """As a user writes it; all settings are the defaults."""
    name = f"job-{secrets.token_hex(3)}"
    place = ["--address", stage.machines.address, "--name", name, "--log-dir", str(stage.folder / "logs")]
    world = ["--nnodes", str(stage.nodes), "--spares", str(stage.spares), "--nproc-per-node", "1"]
    return [str(FTR), "ray", *place, *world, "--", str(PLAIN), *stage.options(steps)]


def start_ours(stage: Stage) -> None:
    stage.start_driver(ftr_command(stage, steps=1_000_000))


def start_ray_train(stage: Stage) -> None:
    options = stage.options(steps=1_000_000)
    stage.start_driver(ray_train.command(stage.machines.address, stage.nodes, str(stage.folder), options))


SETUPS: Mapping[str, Setup] = {
    OURS: Setup(start_ours, lambda stage: stage.said("spare in cycle=1: waiting")),
    # Its spare is a machine that is free, and that is there from the beginning.
    ray_train.CONTENDER: Setup(start_ray_train, lambda _stage: True),
}


# --- a machine is lost ------------------------------------------------------------------------------


def lose(setup: Setup, signum: signal.Signals, nodes: int, spares: int) -> float:
    """Seconds from the loss of a machine until its rank has trained a step again."""
    with cluster(nodes + spares) as machines, stage_on(machines, nodes, spares) as stage:
        setup.start(stage)
        wait_trained(stage, lambda: count_together(stage.steps(), nodes) > BEFORE and setup.has_spare(stage))
        lost_at = lose_machine(stage, signum)
        wait_trained(stage, lambda: count_together(stage.steps(), nodes, lost_at) > 0, LOSS_LIMIT_S)
        cost = judge(stage.steps(), Loss(VICTIM, lost_at, are_others_kept=False, saved_every=SAVE_EVERY))
    assert cost.back_s is not None
    return cost.back_s


def lose_machine(stage: Stage, signum: signal.Signals) -> float:
    """Stop or kill all processes of one machine. Returns when it was done."""
    worker = [step.pid for step in stage.steps() if step.group == VICTIM][-1]
    machine = stage.machines.find(worker)
    # Also before a kill: no process of it may see another one go, and act on it.
    stage.machines.silence(machine)
    lost_at = time.monotonic()
    if signum is signal.SIGKILL:
        stage.machines.lose(machine)
    return lost_at


def wait_trained(stage: Stage, has_trained: Callable[[], bool], limit_s: float | None = None) -> None:
    """With a limit, a run that trains too late did not finish. Without one it never began, which is an error."""
    deadline = time.monotonic() + (START_LIMIT_S if limit_s is None else limit_s)
    while not has_trained():
        if any(driver.poll() is not None for driver in stage.drivers):
            raise AssertionError(f"the run has ended\n{stage.explain()}")
        if time.monotonic() > deadline and limit_s is not None:
            raise DidNotFinish(limit_s)
        if time.monotonic() > deadline:
            raise AssertionError(f"the run did not begin to train in {START_LIMIT_S:g} s\n{stage.explain()}")
        time.sleep(0.1)


# --- a run is started -------------------------------------------------------------------------------


def start_on_ray(machines: RayMachines, nodes: int) -> float:
    """Seconds from the command until the slowest worker has trained its first step; the run then ends well."""
    with stage_on(machines, nodes, 0) as stage:
        began = time.monotonic()
        driver = stage.start_driver(ftr_command(stage, SHORT_RUN))
        try:
            code = driver.wait(START_LIMIT_S)
        except subprocess.TimeoutExpired:
            raise DidNotFinish(START_LIMIT_S) from None
        require(code == 0, f"`ftr ray` ended with {code}\n{stage.explain()}")
        return first_steps_s(stage.steps(), nodes, began)


def start_directly(nodes: int) -> float:
    """The same with a store and torchruns that are started here, without Ray."""
    with tempfile.TemporaryDirectory(prefix="ft-start-") as folder:
        stage = TorchrunStage(Cluster(Path(folder)), nodes, 0)
        try:
            began = time.monotonic()
            given = [f"--checkpoint={stage.cluster.path('saved.pt')}", f"--save-every={SAVE_EVERY}"]
            start_run(stage, [*stage.worker(PLAIN, *given), f"--steps={SHORT_RUN}"], "")
            for node in stage.cluster.nodes:
                require(node.wait_exit(START_LIMIT_S) == 0, f"a torchrun failed\n{stage.explain()}")
            return first_steps_s(stage.steps(), nodes, began)
        finally:
            for node in stage.cluster.nodes:
                node.kill()
            stage.cluster.close()


def first_steps_s(steps: Sequence[Step], nodes: int, began: float) -> float:
    require(count_together(steps, nodes) == SHORT_RUN, "not every rank has trained to the end")
    return max(step.at for step in steps if step.no == 1) - began


# --- a cluster --------------------------------------------------------------------------------------


@contextmanager
def cluster(count: int) -> Iterator[RayMachines]:
    """A head and so many machines. All processes of all of them end with the block."""
    from tests.support.ray_machines import MARK_NAME, RayMachines, carriers  # noqa: PLC0415 - Ray is optional

    before = dict(os.environ)
    # Ray's sockets must have short paths.
    with tempfile.TemporaryDirectory(prefix="r", dir="/tmp", ignore_cleanup_errors=True) as folder:
        for name in [name for name in os.environ if name.startswith(_FOREIGN)]:
            del os.environ[name]
        # By default Ray gives its workers a low priority, and a start without Ray would not be the same work.
        os.environ |= {"PYTHONPATH": str(ROOT), "RAY_worker_niceness": "0"}
        machines = RayMachines(Path(folder))
        try:
            machines.add(count)
            yield machines
        finally:
            for address in list(machines.machines):
                machines.lose(address)
            machines.close()
            os.environ.clear()
            os.environ.update(before)
            mark = f"{MARK_NAME}={machines.mark}"
            _end_all(lambda: [pid for pid, _ in carriers(mark)])


@contextmanager
def stage_on(machines: RayMachines, nodes: int, spares: int) -> Iterator[Stage]:
    with tempfile.TemporaryDirectory(prefix="ft-ray-", ignore_cleanup_errors=True) as folder:
        stage = Stage(machines, Path(folder), nodes, spares)
        try:
            yield stage
        finally:
            for driver in stage.drivers:
                driver.kill()
                driver.wait()


def _end_all(find: Callable[[], Sequence[int]]) -> None:
    """Kill what is left until nothing is."""
    deadline = time.monotonic() + END_LIMIT_S
    while left := find():
        require(time.monotonic() < deadline, f"processes {left} do not end")
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.1)
