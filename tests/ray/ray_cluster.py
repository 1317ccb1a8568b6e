"""The commands that run on a Ray cluster on this machine, and everything they leave behind."""

from __future__ import annotations

import logging
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray

from ft_rendezvous.launch.local import free_port
from tests.support.ray_machines import HEAD, MARK_NAME, START_S, RayMachines, carriers
from tests.support.waiting import wait_until

FTR = Path(sys.executable).parent / "ftr"
WORKER = Path(__file__).parents[1] / "integration" / "workers" / "train.py"
QUICK_LEASE = "lease_timeout=4,beat_interval=0.5"
OURS = (b"torch.distributed.run", b"integration/workers/train.py", b"launch.ray.guard", b"cli.main")


HEALTH = {"health_check_initial_delay_ms": 1000, "health_check_period_ms": 500}
"""Ray looks for machines that are gone six times as often as by default. A machine that stands still keeps its time."""


class RayCluster(RayMachines):
    """What tests see of a cluster and of the runs on it."""

    def __init__(self, folder: Path, head: str = HEAD, dashboard_port: int | None = None) -> None:
        options: dict[str, Any] = {"_system_config": HEALTH}
        if dashboard_port is not None:
            # Jobs that are submitted find their commands here.
            os.environ["PATH"] = f"{FTR.parent}:{os.environ['PATH']}"
            options |= {"dashboard_port": dashboard_port, "dashboard_agent_listen_port": free_port()}
        super().__init__(folder, head, include_dashboard=dashboard_port is not None, **options)

    def processes(self) -> list[int]:
        """Live processes of our own on all machines."""
        wanted = f"{MARK_NAME}={self.mark}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                with suppress(OSError):
                    command = (entry / "cmdline").read_bytes()
                    if any(word in command for word in OURS) and wanted in (entry / "environ").read_bytes().split(
                        b"\0"
                    ):
                        found.append(int(entry.name))
        return found

    def torchruns_under(self, raylet: int) -> list[int]:
        """Live processes of our own that came from this raylet."""
        found = carriers(f"RAY_RAYLET_PID={raylet}")
        return [pid for pid, command in found if any(word in command for word in OURS)]

    def assert_nothing_is_left(self, jobs: bool = False) -> None:
        """No process, no actor and no placement group of any run. The actors of submitted jobs are Ray's."""
        wait_until("no process of a run lives", lambda: not self.processes(), 30.0, self._describe_left)
        with connected(self.address):
            actors = ray.util.list_named_actors(all_namespaces=True)
            assert [
                each for each in actors if not (jobs and each["namespace"] == "SUPERVISOR_ACTOR_RAY_NAMESPACE")
            ] == []
            table = ray.util.placement_group_table()
            assert [facts["name"] for facts in table.values() if facts["state"] != "REMOVED"] == []

    def _describe_left(self) -> str:
        return "\n".join(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in self.processes())


class connected:
    """Ask the cluster something from this process."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> None:
        ray.init(self._address, namespace="ftr", log_to_driver=False, logging_level=logging.ERROR)

    def __exit__(self, *_: object) -> None:
        ray.shutdown()


class RayCommand:
    """One `ftr ray` as a user starts it."""

    def __init__(self, cluster: RayCluster, folder: Path, words: Sequence[str | Path]) -> None:
        self.cluster = cluster
        self.folder = folder
        self.words = words
        self.name = folder.name
        self.log_dir = folder / "logs"
        self._output = folder / f"driver-{secrets.token_hex(2)}.log"
        env = {name: value for name, value in os.environ.items() if name != MARK_NAME and not name.startswith("FT_")}
        with self._output.open("wb") as output:
            self.process = subprocess.Popen(
                ["env", "--default-signal=INT,TERM", str(FTR), "ray", *(str(word) for word in words)],
                cwd=folder,
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    @property
    def output(self) -> str:
        return self._output.read_text()

    def node_log(self, node: int) -> str:
        path = self.log_dir / f"node-{node}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def explain(self) -> str:
        logs = [f"--- node {node}\n{self.node_log(node)[-2000:]}" for node in range(4)]
        store = self.log_dir / "store.log"
        return "\n".join([self.output, store.read_text() if store.exists() else "", *logs])

    def wait_said(self, pattern: str, timeout_s: float = START_S) -> re.Match[str]:
        return wait_until(pattern, lambda: re.search(pattern, self.output), timeout_s, self.explain)

    def steps(self, cycle: int | None = None) -> Iterator[dict[str, str]]:
        """The reports of workers on all nodes, each with its node."""
        for node in range(8):
            for text in re.findall(r"ft-test step (.*)$", self.node_log(node), re.MULTILINE):
                fields = dict(part.split("=") for part in text.split())
                if cycle is None or fields["cycle"] == str(cycle):
                    yield {**fields, "node": str(node)}

    def wait_trained(self, *, after: int = 0, world: int | None = None, timeout_s: float = START_S) -> int:
        """Wait for a step of a cycle after this one, in a world of this size. Returns the cycle."""

        def look() -> int | None:
            found = [int(s["cycle"]) for s in self.steps() if world is None or s["world"] == str(world)]
            return max((cycle for cycle in found if cycle > after), default=None)

        return wait_until(f"a step after cycle {after}, world {world}", look, timeout_s, self.explain)

    def ranks(self, cycle: int, world: int = 2) -> dict[int, int]:
        """The node of each rank of a cycle, once all have trained."""

        def look() -> dict[int, int] | None:
            found = {int(step["rank"]): int(step["node"]) for step in self.steps(cycle)}
            return found if len(found) == world else None

        return wait_until(f"all ranks of cycle {cycle}", look, START_S, self.explain)

    def machine_of(self, node: int) -> str:
        """The address of a node's machine, from the newest start."""
        with connected(self.cluster.address):
            machines = {each["NodeID"]: each["NodeManagerAddress"] for each in ray.nodes()}
            for facts in ray.util.placement_group_table().values():
                prefix, run, group = f"{facts['name']}//".split("/")[:3]
                if (prefix, run) != ("ftr", self.name):
                    continue
                for bundle, machine in facts["bundles_to_node_id"].items():
                    number = bundle if group == "min" else int(group.removeprefix("node-"))
                    if number == node and facts["state"] != "REMOVED":
                        return str(machines[machine])
        raise AssertionError(f"node {node} has no machine")

    def wait_exit(self, timeout_s: float = START_S) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it does not end\n{self.explain()}") from None

    def also(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Another `ftr ray` command, to its end."""
        return subprocess.run([FTR, "ray", *words], capture_output=True, text=True, timeout=START_S, check=False)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
