"""A node of real torchrun processes is SIGKILLed with its workers: until the workers of the new world have trained.

A cold worker imports torch anew, and where all share a few cores that is most of the time; so it is also measured when
the last new worker was started. Ours are warm, unless they are called cold. The cluster, the commands and the workers
are those of the scenarios.
"""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from benchmarks.measure import OURS, DidNotFinish, Sample
from benchmarks.scenarios_c10d.observe import Want
from benchmarks.scenarios_c10d.stage import CONTENDERS as BACKENDS
from benchmarks.scenarios_c10d.stage import Contender, Stage, play
from ft_rendezvous.warm.nursery import is_ready
from tests.support.torchrun_cluster import Node, find_processes
from tests.support.waiting import wait_until

ACTIVE = 8
VICTIM = 1
LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Setup:
    backend: Contender
    conf: Mapping[str, object] = field(default_factory=dict)


Setups = Mapping[str, Setup]

WARM = Contender("ft", {"PYTHON_EXEC": "ftr-python"})
"""Its nodes find the program beside their Python, also where that is not in PATH."""
COLD_OURS = "ours, cold"
AS_THEY_COME: Setups = {
    OURS: Setup(WARM),
    COLD_OURS: Setup(BACKENDS["ft"]),
    "c10d": Setup(BACKENDS["c10d"]),
    "c10d, unshared": Setup(BACKENDS["c10d, unshared store"]),
}
"""What "unshared" is about: see the scenarios' CONTENDERS."""
TUNED: Setups = {
    OURS: Setup(WARM, {"lease_timeout": 3, "beat_interval": 0.5}),
    "c10d, unshared": Setup(BACKENDS["c10d, unshared store"], {"keep_alive_interval": 1, "keep_alive_max_attempt": 3}),
}
"""A node is dead after 3 s, for both."""


@dataclass(slots=True)
class Record:
    """What happened to each contender, in order: played once, and used for two cases."""

    setups: Setups
    scene: Callable[[Mapping[str, object], Callable[[float], None], Stage], None]
    started_s: dict[str, list[float | None]] = field(default_factory=lambda: defaultdict(list))
    """From the kill until all workers of the new world had been started; None if they never trained."""

    def steps(self) -> dict[str, Sample]:
        """Plays: until all workers of the new world have trained a step."""
        return {name: partial(self._play, name) for name in self.setups}

    def starts(self) -> dict[str, Sample]:
        """Plays nothing: of what was played before, round by round."""
        return {name: partial(self._retell, name) for name in self.setups}

    def _play(self, name: str) -> float:
        setup, starts = self.setups[name], list[float]()
        with tempfile.TemporaryDirectory(prefix="ft-recovery-") as logs:
            story = play(partial(self.scene, setup.conf, starts.append), setup.backend, LIMIT_S, Path(logs))
        self.started_s[name].append(None if story.recovery_s is None else starts[0])
        if story.recovery_s is None:
            raise DidNotFinish(LIMIT_S)
        return story.recovery_s

    def _retell(self, name: str) -> float:
        started_s = self.started_s[name].pop(0)
        if started_s is None:
            raise DidNotFinish(LIMIT_S)
        return started_s


FAILING: Setups = {OURS: Setup(WARM), COLD_OURS: Setup(BACKENDS["ft"])}
"""Who takes part when a worker fails."""


def fail_worker(conf: Mapping[str, object], note_start: Callable[[float], None], stage: Stage) -> None:
    """A worker is killed on one of eight nodes."""
    job = stage.cluster.job(f"{ACTIVE}:{ACTIVE}", conf=conf, worker=["--until", stage.done])
    nodes = [stage.start(job, f"n{index}", is_host=index == 0) for index in range(ACTIVE)]
    for node in nodes:
        stage.wait_step(node)
    old_pids = stage.pids()
    os.kill(int(nodes[VICTIM].reports("begin")[-1]["pid"]), signal.SIGKILL)
    since = time.monotonic()
    for node in nodes:
        stage.wait_step(node, old_pids, kind="begin")
    note_start(time.monotonic() - since)
    stage.recover(since, nodes, old_pids)


def wait_for_nursery(node: Node) -> None:
    """Wait until a node's nursery, if it has one, has done its imports."""
    pids = [each.pid for each in find_processes(node.marker) if "nursery_main.py" in each.command]
    wait_until("the nursery is ready", lambda: all(map(is_ready, pids)))


def lose_node(conf: Mapping[str, object], note_start: Callable[[float], None], stage: Stage) -> None:
    job = stage.cluster.job(f"{ACTIVE}:{ACTIVE}", conf=conf, worker=["--until", stage.done])
    nodes = [
        stage.start(job, f"n{index}", is_host=index == 0, want=Want.ANY if index == VICTIM else Want.ZERO)
        for index in range(ACTIVE)
    ]
    for node in nodes:
        stage.wait_step(node)
    spare = stage.start_parked(job, "spare", beside=nodes[0])
    wait_for_nursery(spare)
    old_pids = stage.pids()
    nodes.pop(VICTIM).kill()
    since = time.monotonic()
    for node in (*nodes, spare):
        stage.wait_step(node, old_pids, kind="begin")
    note_start(time.monotonic() - since)
    stage.recover(since, (*nodes, spare), old_pids)
