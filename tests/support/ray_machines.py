"""A Ray cluster on this machine, and its machines, which can be lost.

Every raylet has an address of its own in 127.0.0.0/8, so that Ray takes it for a machine. Its processes, and all that
they start, inherit a mark in their environment.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray.cluster_utils import Cluster

from tests.support.torchrun_cluster import send, state_of
from tests.support.waiting import wait_until

MARK_NAME = "RAY_TEST_MARK"
START_S = 120.0
HEAD = "127.0.0.9"


class RayMachines:
    """A head without CPUs, and machines that come and are lost."""

    def __init__(self, folder: Path, head: str = HEAD, **head_options: Any) -> None:
        self.mark = secrets.token_hex(8)
        os.environ |= {
            MARK_NAME: self.mark,
            "RAY_TMPDIR": str(folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        self._head, self._count = head, 0
        options = {"num_cpus": 0, "node_ip_address": head, "include_dashboard": False, **head_options}
        self._cluster = Cluster(initialize_head=True, head_node_args=options)
        self.machines: dict[str, Any] = {}
        """The raylets, by their addresses."""

    @property
    def address(self) -> str:
        address: str = self._cluster.address
        return address

    def add(self, count: int = 1) -> list[str]:
        """Add so many machines with one CPU each, and wait until they are there."""
        network = self._head.rpartition(".")[0]
        addresses = [f"{network}.{self._count + number + 10}" for number in range(count)]
        self._count += count
        for address in addresses:
            self.machines[address] = self._cluster.add_node(wait=False, num_cpus=1, node_ip_address=address)
        self._cluster.wait_for_nodes(timeout=START_S)
        return addresses

    def have(self, count: int) -> None:
        """Have exactly so many machines. Tests share them: a new one takes seconds."""
        for address in list(self.machines)[count:]:
            self._cluster.remove_node(self.machines.pop(address), allow_graceful=False)
        self.add(count - len(self.machines))
        self._cluster.wait_for_nodes(timeout=START_S)  # Ray notices a while later that a machine is gone.

    def lose_head(self) -> None:
        """Kill the head: Ray's control plane, and its raylet."""
        head: Any = self._cluster.head_node
        for kind in ("gcs_server", "raylet"):
            for info in head.all_processes[kind]:
                info.process.kill()
                info.process.wait()

    def raylet_pid(self, address: str) -> int:
        return int(raylet_of(self.machines[address]).pid)

    def find(self, pid: int) -> str:
        """The machine on which a process runs that came from Ray."""
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        for address in self.machines:
            if f"RAY_RAYLET_PID={self.raylet_pid(address)}".encode() in variables:
                return address
        raise AssertionError(f"process {pid} runs on no machine of the cluster")

    def processes_of(self, address: str) -> list[int]:
        """The raylet, and all that runs under it."""
        raylet = self.raylet_pid(address)
        # Torchrun and its workers are in sessions of their own, but they inherit what Ray tells its workers. A raylet's
        # helpers are its children, and are told nothing.
        carried = [pid for pid, _ in carriers(f"RAY_RAYLET_PID={raylet}")]
        return list(dict.fromkeys([raylet, *children_of(raylet), *carried]))

    def silence(self, address: str) -> None:
        """Stop a machine: its raylet, and all that runs under it. No connection closes, and nothing answers."""

        def is_silent() -> bool:
            """A process that was about to fork has a child when it is asked again."""
            running = [pid for pid in self.processes_of(address) if state_of(pid) not in "TZX"]
            for pid in running:
                send(pid, signal.SIGSTOP)
            return not running

        wait_until(f"{address} is silent", is_silent)

    def lose(self, address: str) -> None:
        """Kill a machine: its raylet, and all that runs under it."""
        pids = self.processes_of(address)
        node = self.machines.pop(address)
        for pid in pids:
            send(pid, signal.SIGKILL)
        raylet_of(node).wait()  # Ray's workers look for their raylet by its id: one that is not reaped seems to live.
        self._cluster.remove_node(node, allow_graceful=False)

    def kill_raylet(self, address: str) -> int:
        """Kill a raylet, and nothing under it. Returns its process id."""
        raylet = raylet_of(self.machines[address])
        raylet.kill()
        raylet.wait()
        return raylet.pid

    def clear(self) -> None:
        """Remove all machines but the head, and wait until Ray knows: until then it would place actors there."""
        self._remove_machines()
        self._cluster.wait_for_nodes(timeout=START_S)

    def close(self) -> None:
        """The end, also of a cluster whose head is lost."""
        self._remove_machines()
        self._cluster.shutdown()

    def _remove_machines(self) -> None:
        for address in list(self.machines):
            self._cluster.remove_node(self.machines.pop(address), allow_graceful=False)


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


def children_of(parent: int) -> list[int]:
    """The direct children of a process."""
    found = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and (folder / "stat").read_text().rpartition(")")[2].split()[1] == str(parent):
                found.append(int(folder.name))
    return found
