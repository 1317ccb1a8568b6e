"""Jobs on the test cluster: what SLURM says of one, and the files that launcher.sh leaves of it.

A `Job` is what sbatch gave an id. A `Run` is a job that was started through launcher.sh: it knows who trains, from the
nodes' own logs. Tests wait for what they need and never for time to pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.slurm.cluster import WAIT_S, SlurmCluster, free_ports, tail, wait_until

REPOSITORY = Path(__file__).parents[2]
LAUNCHER = REPOSITORY / "launcher.sh"
EXAMPLES = REPOSITORY / "examples" / "slurm"
EXAMPLE_TRAIN = REPOSITORY / "examples" / "train.py"
WORKER = REPOSITORY / "tests" / "integration" / "workers" / "train.py"

QUICK = "lease_timeout=4,beat_interval=0.5"
"""A death is noticed in seconds, yet a loaded machine's pauses are not taken for deaths."""

START_S = 120.0
"""Until a job's workers train: a dozen processes import torch, and other tests use the machine."""

GOING = frozenset({"PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED"})


@dataclass
class Job:
    """One job id; of an array, the id of one task."""

    cluster: SlurmCluster
    id: str
    output: Path

    def fact(self, name: str) -> str:
        """One of scontrol's facts, by its own name."""
        return self.cluster.show("job", self.id).get(name, "")

    @property
    def state(self) -> str:
        return self.fact("JobState")

    @property
    def exit_code(self) -> int:
        """Of the batch script; 128 and the signal's number if a signal ended it."""
        code, _, signum = self.fact("ExitCode").partition(":")
        return int(code) or (128 + int(signum) if int(signum) else 0)

    @property
    def ended_at(self) -> float:
        return datetime.fromisoformat(self.fact("EndTime")).timestamp()

    @property
    def text(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def wait_state(self, *wanted: str, timeout_s: float = WAIT_S) -> str:
        return wait_until(
            f"job {self.id} is {' or '.join(wanted)}",
            lambda: state if (state := self.state) in wanted else None,
            timeout_s,
            self.explain,
        )

    def wait_until(self, what: str, look: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
        """Wait for something else; it fails with what is known of the job."""
        wait_until(what, look, timeout_s, self.explain)

    def wait_end(self, timeout_s: float = WAIT_S) -> str:
        """The state the job ended in, once SLURM has nothing of it left to do."""
        wait_until(f"job {self.id} ends", lambda: not self.is_queued, timeout_s, self.explain)
        return self.state

    @property
    def is_queued(self) -> bool:
        return bool(self.cluster.run("squeue", "--noheader", "--jobs", self.id, check=False))

    def explain(self) -> str:
        facts = [f"{key}={value}" for key, value in self.cluster.show("job", self.id).items()]
        return "\n".join([" ".join(facts), tail(self.output), self.cluster.explain()])


@dataclass
class Run:
    """A job of launcher.sh and its log directory."""

    job: Job
    log_dir: Path
    task: str = ""
    """How its nodes' logs begin, if it is a task of an array."""
    first_node: int = 0
    """The infra rank of its first node."""
    extra: Sequence[Run] = field(default_factory=tuple)

    # --- its nodes ----------------------------------------------------------------------------------

    def logs(self) -> dict[int, str]:
        """What the nodes said, by their numbers."""
        found: dict[int, str] = {}
        for path in self.log_dir.glob(f"{self.task}node-*.log"):
            number = int(path.stem.rpartition("-")[2])
            found[number] = path.read_text(errors="replace")
        return found

    def node_with(self, pattern: str, timeout_s: float = START_S) -> int:
        """The number of a node in whose log the pattern is found, once there is one."""

        def look() -> int | None:
            for number, log in sorted(self.logs().items()):
                if re.search(pattern, log):
                    return number
            self.assert_going(pattern)
            return None

        return wait_until(f"{pattern!r} in a log of job {self.job.id}", look, timeout_s, self.explain)

    @property
    def host(self) -> int:
        """The number of the node that hosts the store."""
        return self.node_with("hosting the store of run")

    def ranks(self, cycle: int) -> dict[int, int]:
        """Who has which node rank in a cycle, by node numbers."""
        told = {number: re.search(rf"cycle={cycle} rank=(\d+) world=", log) for number, log in self.logs().items()}
        return {number: int(match[1]) for number, match in told.items() if match}

    def wait_ranks(self, cycle: int, count: int, timeout_s: float = START_S) -> dict[int, int]:
        """All ranks of a cycle, once so many nodes have one."""

        def look() -> dict[int, int] | None:
            ranks = self.ranks(cycle)
            self.assert_going(f"ranks of cycle {cycle}")
            return ranks if len(ranks) == count else None

        return wait_until(f"{count} ranks in cycle {cycle}", look, timeout_s, self.explain)

    def reports(self, kind: str, **wanted: object) -> list[dict[str, str]]:
        """The lines of one kind that tests/integration/workers/train.py printed, with the wanted fields."""
        lines = [text for log in self.logs().values() for text in re.findall(rf"ft-test {kind} (.*)", log)]
        found = [dict(item.partition("=")[::2] for item in line.split()) for line in lines]
        return [each for each in found if all(each.get(key) == str(value) for key, value in wanted.items())]

    def wait_report(self, kind: str, **wanted: object) -> dict[str, str]:
        def look() -> dict[str, str] | None:
            found = self.reports(kind, **wanted)
            self.assert_going(f"a {kind} report {wanted}")
            return found[0] if found else None

        return wait_until(f"a {kind} report {wanted}", look, START_S, self.explain)

    def agent_pid(self, number: int) -> int:
        """The torchrun of a node."""
        found = [
            process.pid
            for process in self.job.cluster.processes()
            if process.environ.get("SLURM_JOB_ID") == self.job.id
            and process.environ.get("SLURM_PROCID") == str(number)
            and "SLURM_STEP_ID" in process.environ
            and "--rdzv-backend=ft" in process.command
        ]
        assert len(found) == 1, f"node {number} has {len(found)} agents\n{self.explain()}"
        return found[0]

    # --- its end ------------------------------------------------------------------------------------

    @property
    def verdict(self) -> dict[str, Any]:
        path = self.log_dir / "verdict.json"
        assert path.exists(), f"no verdict\n{self.explain()}"
        verdict: dict[str, Any] = json.loads(path.read_text())
        return verdict

    def assert_ends(self, state: str, exit_code: int, timeout_s: float = START_S) -> None:
        """The job ends so, by SLURM's own account."""
        assert (self.job.wait_end(timeout_s), self.job.exit_code) == (state, exit_code), self.explain()

    def assert_going(self, wanted: str) -> None:
        """Fail at once if the job has ended, instead of when patience has."""
        state = self.job.state
        assert state in GOING, f"job {self.job.id} is {state} without {wanted}\n{self.explain()}"

    def explain(self) -> str:
        logs = "\n".join(tail(path) for path in sorted(self.log_dir.glob("*.log")))
        return f"{logs}\n{self.job.explain()}"


class Submitter:
    """Submits jobs of one test, from the test's own directory, which all nodes share."""

    def __init__(self, cluster: SlurmCluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.checkpoint = directory / "checkpoint.pt"

    def path(self, name: str) -> Path:
        return self.directory / name

    def submit(self, *words: object, env: Mapping[str, str] | None = None) -> Job:
        """sbatch with these words."""
        output = self.path("job-%j.out")
        command = ("sbatch", "--parsable", f"--output={output}", *words)
        job_id = self.cluster.run(*command, cwd=self.directory, env=env).splitlines()[-1]
        return Job(self.cluster, job_id, self.path(f"job-{job_id}.out"))

    def launch(
        self,
        nodes: int,
        *,
        sbatch: Sequence[object] = (),
        launcher: Sequence[object] = (),
        conf: str = QUICK,
        worker: Sequence[object] = (),
    ) -> Run:
        """launcher.sh through sbatch on so many nodes."""
        port = free_ports(1)[0]
        job = self.submit(
            f"--nodes={nodes}", *sbatch, LAUNCHER, f"--port={port}", f"--rdzv-conf={conf}", *launcher, "--", *worker
        )
        return Run(job, self.directory / "ft-logs" / f"{job.id}.0")

    def example_train(self, steps: int, *more: object) -> list[object]:
        """examples/train.py with a checkpoint that all nodes share."""
        return [EXAMPLE_TRAIN, "--steps", steps, "--save-every", 2, "--checkpoint", self.checkpoint, *more]
