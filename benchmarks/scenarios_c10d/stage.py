"""Where a scenario plays: a cluster, a time by which it must be over, and what is seen."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.scenarios_c10d.observe import Story, Want
from tests.support.torchrun_cluster import TORCHRUN, Cluster, Job, Node, Report
from tests.support.waiting import wait_until

LIMIT_S = 90.0
"""What a scenario may take. None needs more than half of it when all goes well."""

LAUNCHER = (*TORCHRUN, "--local-addr=127.0.0.1")
"""c10d would give workers the machine's name, which need not resolve."""


@dataclass(frozen=True)
class Contender:
    """A backend, as it comes or with a switch of its own."""

    backend: str
    env: Mapping[str, str] = field(default_factory=dict)


CONTENDERS = {
    "ft": Contender("ft"),
    "c10d": Contender("c10d"),
    # By default, c10d's rank 0 publishes the address of the workers' store once, and a node that joins in a later round
    # waits for it in vain (torch 2.13, dynamic_rendezvous.py, `_bootstrap_store_info`). This is torch's switch to opt
    # out.
    "c10d, unshared store": Contender("c10d", {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
}


@dataclass
class Stage:
    """One scenario with one contender."""

    cluster: Cluster
    env: Mapping[str, str]
    ends_at: float
    story: Story = field(default_factory=Story)
    nodes: dict[str, Node] = field(default_factory=dict)

    @property
    def done(self) -> Path:
        """Workers that got `--until` this file end well when it exists."""
        return self.cluster.path("done")

    @property
    def left_s(self) -> float:
        return max(0.1, self.ends_at - time.monotonic())

    def start(self, job: Job, name: str, *, is_host: bool = False, want: Want = Want.ZERO) -> Node:
        """Start a node; its infra rank is the order of starting."""
        node = job.start(name, is_host=is_host, infra_rank=len(self.nodes), env=self.env, launcher=LAUNCHER)
        self.nodes[name] = node
        self.story.wants[name] = want
        return node

    def start_pair(self, job: Job, want: Want = Want.ZERO) -> tuple[Node, Node]:
        """Two nodes that train; the first hosts the store. The second is wanted to end as said."""
        first = self.start(job, "n0", is_host=True)
        second = self.start(job, "n1", want=want)
        for node in (first, second):
            self.wait_step(node)
        return first, second

    def start_parked(self, job: Job, name: str, beside: Node) -> Node:
        """A node that is not needed now. No log of c10d says that it waits, so the others train on for a while."""
        node = self.start(job, name)
        self.wait_connected(node, job)
        self.wait_steps(beside, 20)
        return node

    def wait_connected(self, node: Node, job: Job) -> None:
        wait_until(f"{node.name} has found the store", lambda: _is_connected(node, job.port), self.left_s)

    def wait_step(self, node: Node, but: Collection[int] = (), kind: str = "step") -> Report:
        """A step (or its `begin`) of a worker that is not one of those already known, once there is one."""

        def look() -> Report | None:
            has_ended = node.has_exited
            fresh = [report for report in node.reports(kind) if int(report["pid"]) not in but]
            if not fresh and has_ended:
                raise AssertionError(f"{node.name} ended instead of training")
            return fresh[0] if fresh else None

        return wait_until(f"{node.name} trains{' again' if but else ''}", look, self.left_s)

    def wait_steps(self, node: Node, count: int) -> None:
        """So many more steps, by any worker."""
        seen = len(node.reports("step"))
        wait_until(f"{node.name} goes on", lambda: len(node.reports("step")) >= seen + count or None, self.left_s)

    def recover(self, since: float, nodes: Collection[Node], old_pids: Collection[int]) -> dict[str, int]:
        """Wait until all of these nodes train in a new world. Returns their ranks."""
        ranks = {node.name: int(self.wait_step(node, but=old_pids)["rank"]) for node in nodes}
        self.story.recovery_s = time.monotonic() - since
        return ranks

    def note_ranks(self, ranks: dict[str, int], wanted: dict[str, int]) -> None:
        if ranks != wanted:
            listed = ", ".join(f"{name} {rank}" for name, rank in ranks.items())
            self.story.flaws.append(f"ranks changed: {listed}")

    def pids(self) -> set[int]:
        """Of all workers so far."""
        return {int(report["pid"]) for node in self.nodes.values() for report in node.reports("begin")}

    def end(self) -> None:
        """Let the training nodes end, wait for all nodes, and look at what is left."""
        self.done.touch()
        for node in self.nodes.values():
            with contextlib.suppress(AssertionError):
                node.wait_exit(self.left_s)
        for node in self.nodes.values():
            self.story.exits[node.name] = node.process.poll()
            if node.has_exited and node.workers():
                self.story.flaws.append(f"workers of {node.name} were left behind")
        self.cluster.close()


def play(scenario: Callable[[Stage], None], contender: Contender, limit_s: float, logs: Path) -> Story:
    """Play one scenario with one contender, with its logs in a directory, and return what was seen."""
    started = time.monotonic()
    logs.mkdir(parents=True, exist_ok=True)
    stage = Stage(Cluster(logs, contender.backend), contender.env, started + limit_s)
    try:
        scenario(stage)
    except AssertionError as error:
        stage.story.missed = re.sub(r"^not within [\d.]+ s", "not seen", str(error).splitlines()[0])
    finally:
        stage.end()
    stage.story.took_s = time.monotonic() - started
    return stage.story


def _is_connected(node: Node, port: int) -> bool | None:
    """Whether the node's agent holds a connection to the job's store."""
    held = set()
    with contextlib.suppress(OSError):
        for fd in Path(f"/proc/{node.pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                held.add(str(fd.readlink()))
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/{node.pid}/net/{table}").read_text().splitlines()[1:]:
            _, _, remote, state, *rest = line.split()
            if int(remote.rpartition(":")[2], 16) == port and state == "01" and f"socket:[{rest[5]}]" in held:
                return True
    return None
