"""Replica groups of real processes that train with torchft, a real lighthouse, and a stand-in for the agents.

The stand-in has a real inbox per group. The test says when it tells of a lost group, and whether a place is trusted.
Each start of a group has a store of its own, as under an agent.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch.distributed import TCPStore

from ft_rendezvous.agent.worker_inbox import WorkerInbox
from ft_rendezvous.agent.worker_messages import GroupLostMessage
from ft_rendezvous.host.lighthouse import Lighthouse
from ft_rendezvous.host.lighthouse_rules import derive_rules, derive_timeouts
from tests.support.waiting import WAIT_S, wait_until

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "train_torchft.py"
LEASE_S = 5.0
START_TIMEOUT_S = 240.0
"""Several processes import torch at the same time."""

_LINE = re.compile(r"(\w+) group=(\d+) rank=(\d+) step=(\d+) groups=(\d+) digest=(\w+) time=([\d.]+) pid=(\d+)")


@dataclass(frozen=True, slots=True)
class Line:
    """What a worker has reported."""

    what: str
    group: int
    rank: int
    step: int
    groups: int
    digest: str
    time: float
    pid: int


def read_lines(path: Path) -> list[Line]:
    """What all workers have reported to this file, oldest first."""
    found = []
    for text in path.read_text().splitlines():
        if (match := _LINE.fullmatch(text)) is not None:
            what, group, rank, step, groups, digest, time, pid = match.groups()
            found.append(Line(what, int(group), int(rank), int(step), int(groups), digest, float(time), int(pid)))
    return found


class Group:
    """One replica group, in one life after another."""

    def __init__(self, number: int, rig: GroupsRig) -> None:
        self.number = number
        self.is_trusted = True
        self.cycle_id = 0
        self.processes: list[subprocess.Popen[bytes]] = []
        self._rig = rig
        self._store: TCPStore | None = None
        self._inbox = WorkerInbox(lambda _message: None, lambda cycle_id: self.is_trusted and cycle_id == self.cycle_id)

    def start(self, script: Iterable[str | Path], environ: Mapping[str, str] = {}) -> None:
        """Begin a new life: new processes, with a new store."""
        self.end()
        self.is_trusted = True
        self.cycle_id += 1
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        for rank in range(self._rig.world_size):
            own = {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(self._rig.world_size),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(self._store.port),
                "TORCHELASTIC_USE_AGENT_STORE": "True",
                "REPLICA_GROUP_ID": str(self.number),
                "FT_INBOX": self._inbox.address,
                "FT_CYCLE_ID": str(self.cycle_id),
            }
            log = self._rig.folder / f"group{self.number}-rank{rank}-cycle{self.cycle_id}.log"
            with log.open("wb") as file:
                command = (sys.executable, *map(str, script))
                env = {**os.environ, **self._rig.environ, **own, **environ}
                self.processes.append(
                    subprocess.Popen(command, env=env, cwd=ROOT, stdout=file, stderr=subprocess.STDOUT)
                )

    def signal(self, signum: int) -> None:
        for process in self.processes:
            process.send_signal(signum)

    def hear_of(self, lost: Group, reason: str = "the test says so") -> int:
        """The agent tells the workers of this group. Returns how many it reached."""
        return self._inbox.tell(GroupLostMessage(group=lost.number, cycle_id=self.cycle_id, reason=reason))

    def wait(self) -> list[int]:
        """The exit codes of its workers."""
        return [process.wait(START_TIMEOUT_S) for process in self.processes]

    def end(self) -> None:
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait(WAIT_S)
        self.processes.clear()
        self._store = None

    def close(self) -> None:
        self.end()
        self._inbox.close()


class GroupsRig:
    """Some groups, their lighthouse, and what they have reported."""

    def __init__(self, folder: Path, count: int, world_size: int = 1, *, is_attached: bool = True) -> None:
        self.folder, self.world_size = folder, world_size
        self.output = folder / "lines.txt"
        self.output.touch()
        self.lighthouse = Lighthouse.start(derive_rules(LEASE_S, 1), "127.0.0.1")
        self.environ = {
            **derive_timeouts(LEASE_S, {}).values,
            "TORCHFT_LIGHTHOUSE": self.lighthouse.address,
            "NUM_REPLICA_GROUPS": str(count),
            "PYTHONPATH": str(ROOT),
            "OMP_NUM_THREADS": "1",
        }
        if not is_attached:
            self.environ["FT_INBOX"] = ""
        self.groups = [Group(number, self) for number in range(count)]

    def close(self) -> None:
        for group in self.groups:
            group.close()
        self.lighthouse.close()

    def script(self, *options: str) -> tuple[str | Path, ...]:
        return (EXAMPLE, "--output", self.output, *options)

    def start_all(self, *options: str) -> None:
        for group in self.groups:
            group.start(self.script(*options))

    def lines(self, what: str = "step", group: int | None = None) -> list[Line]:
        return [line for line in read_lines(self.output) if line.what == what and group in (None, line.group)]

    def wait_for_all(self, groups: int, more: int = 3) -> None:
        """Wait until each group has made so many more steps with so many groups."""
        known = len(self.lines())

        def has_trained() -> bool:
            new = [line for line in self.lines()[known:] if line.groups == groups]
            return (
                all(
                    sum(1 for line in new if line.group == number) >= more * self.world_size
                    for number in {line.group for line in new}
                )
                and len({line.group for line in new}) == groups
            )

        wait_until("all groups train together", has_trained, START_TIMEOUT_S, self.explain)

    def tell_of(self, lost: Group) -> None:
        """All agents tell their workers, the agent of the lost group too."""
        for group in self.groups:
            if group.processes:
                group.hear_of(lost)

    def gap_s(self, group: int, since: float = 0.0) -> float:
        """The longest time between two steps that a group has committed, the second one since then."""
        times = sorted(line.time for line in self.lines(group=group) if line.rank == 0)
        return max((later - earlier for earlier, later in itertools.pairwise(times) if later >= since), default=0.0)

    def check_digests(self) -> None:
        """Groups that report the same step have the same weights."""
        digests: dict[int, set[str]] = {}
        for line in self.lines():
            digests.setdefault(line.step, set()).add(line.digest)
        differing = {step: found for step, found in digests.items() if len(found) > 1}
        assert not differing, f"{differing}\n{self.explain()}"

    def explain(self) -> str:
        logs = sorted(self.folder.glob("group*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)


STOP, CONTINUE, KILL = signal.SIGSTOP, signal.SIGCONT, signal.SIGKILL
