"""A Ray cluster on this machine, the commands that run on it, and everything they leave behind.

Every raylet has an address of its own in 127.0.0.0/8, so that Ray takes it for a machine. Its processes, and all that
they start, inherit a mark in their environment.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from tests.support.waiting import wait_until

FTR = Path(sys.executable).parent / "ftr"
WORKER = Path(__file__).parents[1] / "integration" / "workers" / "train.py"
MARK_NAME = "RAY_TEST_MARK"
START_S = 120.0
QUICK_LEASE = "lease_timeout=4,beat_interval=0.5"
OURS = (b"torch.distributed.run", b"integration/workers/train.py", b"launch.ray.guard", b"cli.main")


class RayCluster:
    """A head without CPUs. Tests add machines with one CPU each, and lose them again."""

    def __init__(self, folder: Path) -> None:
        self.mark = secrets.token_hex(8)
        os.environ |= {
            MARK_NAME: self.mark,
            "RAY_TMPDIR": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self._count = 0
        self._cluster = Cluster(
            initialize_head=True,
            head_node_args={"num_cpus": 0, "node_ip_address": "127.0.0.9", "include_dashboard": False},
        )
        self.machines: dict[str, Any] = {}
        """The raylets, by their addresses."""

    @property
    def address(self) -> str:
        address: str = self._cluster.address
        return address

    def add(self, count: int = 1) -> list[str]:
        """Add so many machines, and wait until they are there."""
        addresses = [f"127.0.0.{self._count + number + 10}" for number in range(count)]
        self._count += count
        for address in addresses:
            self.machines[address] = self._cluster.add_node(wait=False, num_cpus=1, node_ip_address=address)
        self._cluster.wait_for_nodes(timeout=START_S)
        return addresses

    def lose(self, address: str) -> None:
        """Kill a machine: its raylet, and all that runs under it."""
        node = self.machines.pop(address)
        raylet = raylet_of(node)
        # Torchrun and its workers are in sessions of their own, but they inherit what Ray tells its workers.
        for pid in (raylet.pid, *(pid for pid, _ in carriers(f"RAY_RAYLET_PID={raylet.pid}"))):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        raylet.wait()
        self._cluster.remove_node(node, allow_graceful=False)

    def kill_raylet(self, address: str) -> int:
        """Kill a raylet, and nothing under it. Returns its process id."""
        raylet = raylet_of(self.machines[address])
        raylet.kill()
        raylet.wait()  # Ray's workers look for their raylet by its id: one that is not reaped seems to live.
        return raylet.pid

    def raylet_pid(self, address: str) -> int:
        return int(raylet_of(self.machines[address]).pid)

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

    def assert_nothing_is_left(self) -> None:
        """No process, no actor and no placement group of any run."""
        wait_until("no process of a run lives", lambda: not self.processes(), 30.0, self._describe_left)
        with connected(self.address):
            assert ray.util.list_named_actors(all_namespaces=True) == []
            table = ray.util.placement_group_table()
            assert [facts["name"] for facts in table.values() if facts["state"] != "REMOVED"] == []

    def _describe_left(self) -> str:
        return "\n".join(Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ") for pid in self.processes())

    def clear(self) -> None:
        """Remove all machines but the head."""
        for address in list(self.machines):
            node = self.machines.pop(address)
            self._cluster.remove_node(node, allow_graceful=False)

    def close(self) -> None:
        self.clear()
        self._cluster.shutdown()


class connected:
    """Ask the cluster something from this process."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> None:
        ray.init(self._address, namespace="ftr", log_to_driver=False, logging_level=logging.ERROR)

    def __exit__(self, *_: object) -> None:
        ray.shutdown()


def raylet_of(node: Any) -> subprocess.Popen[bytes]:
    process: subprocess.Popen[bytes] = node.all_processes["raylet"][0].process
    return process


def carriers(entry: str) -> list[tuple[int, bytes]]:
    """Live processes with this entry in their environment, and their commands."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and int(folder.name) != os.getpid():
            with suppress(OSError):
                if entry.encode() in (folder / "environ").read_bytes().split(b"\0"):
                    found.append((int(folder.name), (folder / "cmdline").read_bytes()))
    return found


class RayCommand:
    """One `ftr ray` as a user starts it."""

    def __init__(self, cluster: RayCluster, folder: Path, words: Sequence[str | Path]) -> None:
        self.cluster = cluster
        self.folder = folder
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
                group = facts["name"].partition("/")[2]
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
