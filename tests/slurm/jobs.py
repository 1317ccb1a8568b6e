"""Jobs on the test cluster: what SLURM says of one, and the files that launcher.sh leaves of it.

A `Job` is what sbatch gave an id. A `Run` is a job that was started through launcher.sh: it knows who trains, from the
nodes' own logs. Tests wait for what they need and never for time to pass.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.slurm.slurm_cluster import Process, SlurmCluster, free_ports, tail
from tests.support.waiting import WAIT_S, wait_until

REPOSITORY = Path(__file__).parents[2]
LAUNCHER = REPOSITORY / "launcher.sh"
EXAMPLES = REPOSITORY / "examples" / "slurm"
EXAMPLE_TRAIN = REPOSITORY / "examples" / "train.py"
WORKER = REPOSITORY / "tests" / "integration" / "workers" / "train.py"

QUICK = {"lease_timeout": 4, "beat_interval": 0.5}
"""A death is noticed in seconds, yet a loaded machine's pauses are not taken for deaths."""

START_S = 120.0
"""Until a job's workers train: a dozen processes import torch, and other tests use the machine."""

GOING = frozenset({"PENDING", "CONFIGURING", "RUNNING", "SIGNALING", "COMPLETING", "REQUEUED", "SUSPENDED"})


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
    """A job of launcher.sh and its log directory. Nodes are named by their infra ranks."""

    job: Job
    log_dir: Path
    first_nodes: int = 0
    """How many nodes a task of the array has, or the first part of a heterogeneous job."""

    # --- its nodes ----------------------------------------------------------------------------------

    def logs(self) -> dict[int, str]:
        """What the nodes said."""
        found: dict[int, str] = {}
        for path in self.log_dir.glob("*node-*.log"):
            name = re.fullmatch(r"(?:(?:task|part)-(\d+)-)?node-(\d+)\.log", path.name)
            assert name is not None, path
            found[int(name[1] or 0) * self.first_nodes + int(name[2])] = path.read_text(errors="replace")
        return found

    def wait_log(self, pattern: str, timeout_s: float = START_S) -> int:
        """The node in whose log the pattern is found, once there is one."""

        def look() -> int | None:
            state = self.job.state
            for number, log in sorted(self.logs().items()):
                if re.search(pattern, log):
                    return number
            self._assert_going(state, pattern)
            return None

        return wait_until(f"{pattern!r} in a log of job {self.job.id}", look, timeout_s, self.explain)

    @property
    def host(self) -> int:
        """The node that hosts the store."""
        return self.wait_log("hosting the store of run")

    def ranks(self, cycle: int) -> dict[int, int]:
        """Who has which node rank in a cycle."""
        told = {number: re.search(rf"cycle={cycle} rank=(\d+) world=", log) for number, log in self.logs().items()}
        return {number: int(match[1]) for number, match in told.items() if match}

    def wait_ranks(self, cycle: int, count: int, timeout_s: float = START_S) -> dict[int, int]:
        """Who has which node rank in a cycle, once so many nodes have one."""

        def look() -> dict[int, int] | None:
            state, ranks = self.job.state, self.ranks(cycle)
            if len(ranks) == count:
                return ranks
            self._assert_going(state, f"{count} ranks in cycle {cycle}")
            return None

        return wait_until(f"{count} ranks in cycle {cycle}", look, timeout_s, self.explain)

    def reports(self, kind: str, **wanted: object) -> list[dict[str, str]]:
        """The lines of one kind that the worker of the integration tests printed, with the wanted fields."""
        lines = [text for log in self.logs().values() for text in re.findall(rf"ft-test {kind} (.*)", log)]
        found = [dict(item.partition("=")[::2] for item in line.split()) for line in lines]
        return [each for each in found if all(each.get(key) == str(value) for key, value in wanted.items())]

    def wait_reports(self, kind: str, count: int = 1, **wanted: object) -> None:
        """So many workers have told this."""

        def look() -> bool:
            state = self.job.state
            pids = {report.get("rank") for report in self.reports(kind, **wanted)}
            if len(pids) < count:
                self._assert_going(state, f"{count} {kind} reports {wanted}")
            return len(pids) >= count

        wait_until(f"{count} {kind} reports {wanted}", look, START_S, self.explain)

    def agent(self, node: int) -> Process:
        """The torchrun of a node."""
        found = [
            process
            for process in self.job.cluster.processes()
            if process.environ.get("SLURM_PROCID") == str(node)
            and "SLURM_STEP_ID" in process.environ
            and "TORCHELASTIC_RUN_ID" not in process.environ
            and re.search(r"torchrun .*--rdzv-backend=ft", process.command)
            and not process.command.startswith("srun")
        ]
        assert len(found) == 1, f"node {node} has {len(found)} agents: {found}\n{self.explain()}"
        return found[0]

    def worker_variables(self, name: str) -> set[str]:
        """What the live workers of this job find in one variable of their environment."""
        workers = [
            process.environ
            for process in self.job.cluster.processes()
            if "TORCHELASTIC_RUN_ID" in process.environ and process.environ.get("SLURM_JOB_ID") == self.job.id
        ]
        return {environ.get(name, "") for environ in workers}

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

    def assert_all_exited_well(self) -> None:
        """srun has nothing to say about its tasks; it does complain about nodes that look whether it is there."""
        told = [line for line in self.job.text.splitlines() if "srun: error" in line]
        assert [line for line in told if "eio_message_socket_accept" not in line] == [], self.explain()

    def _assert_going(self, state: str, wanted: str) -> None:
        """Fail at once if the job had ended, instead of when patience has."""
        assert state in GOING, f"job {self.job.id} is {state} without {wanted}\n{self.explain()}"

    def explain(self) -> str:
        logs = "\n".join(tail(path) for path in sorted(self.log_dir.glob("*.log")))
        return f"{logs}\n{self.job.explain()}"


class Submitter:
    """Submits the jobs of one test, from the test's own directory, which all nodes share."""

    def __init__(self, cluster: SlurmCluster, directory: Path) -> None:
        self.cluster = cluster
        self.directory = directory
        self.checkpoint = directory / "checkpoint.pt"
        self.done = directory / "done"
        """Workers that `until_done` describes end well once this file is there."""

    def path(self, name: str) -> Path:
        return self.directory / name

    def submit(self, *words: object, env: Mapping[str, str] | None = None) -> Job:
        """sbatch with these words."""
        command = ("sbatch", "--parsable", f"--output={self.path('job-%j.out')}", *words)
        job_id = self.cluster.run(*command, cwd=self.directory, env=env).splitlines()[-1]
        return Job(self.cluster, job_id, self.path(f"job-{job_id}.out"))

    def launch(
        self,
        nodes: int,
        worker: Sequence[object],
        *,
        sbatch: Sequence[object] = (),
        launcher: Sequence[object] = (),
        conf: Mapping[str, object] | None = None,
    ) -> Run:
        """launcher.sh through sbatch, on so many nodes."""
        told = [f"--port={free_ports(1)[0]}", f"--rdzv-conf={conf_text(conf)}", *launcher]
        job = self.submit(f"--nodes={nodes}", *sbatch, LAUNCHER, *told, "--", *worker)
        return self.run_of(job)

    def example(
        self,
        name: str,
        worker: Sequence[object],
        *,
        sbatch: Sequence[object] = (),
        conf: Mapping[str, object] | None = None,
        **variables: object,
    ) -> Job:
        """A script of examples/slurm through sbatch, with what it reads from the environment."""
        env = {"LAUNCHER": LAUNCHER, "CONF": conf_text(conf), "NPROC": 1, **variables}
        return self.submit(*sbatch, EXAMPLES / name, *worker, env={key: str(value) for key, value in env.items()})

    def run_of(self, job: Job, restarts: int = 0) -> Run:
        """A life of a job, each of which is a run."""
        return Run(job, self.directory / "ft-logs" / f"{job.id}.{restarts}")

    def salloc_job(self, output: Path) -> Job:
        """The job that a salloc got, by what it says."""

        def look() -> re.Match[str] | None:
            return re.search(r"Granted job allocation (\d+)", output.read_text())

        job_id = wait_until("an allocation", look, explain=lambda: tail(output))[1]
        return Job(self.cluster, job_id, output)

    def tasks_of(self, array: Job, count: int) -> list[Job]:
        """The jobs of an array's tasks."""
        ids = [f"{array.id}_{task}" for task in range(count)]
        facts = [self.cluster.show("job", task_id) for task_id in ids]
        return [
            Job(self.cluster, task_id, self.path(f"job-{fact['JobId']}.out"))
            for task_id, fact in zip(ids, facts, strict=True)
        ]

    def first_node_hosts(self) -> str:
        """For --srun-args: the others start when the first node has the store; on one machine any of them could."""
        script = self.path("task-prolog")
        look = f'grep -qs "hosting the store" {self.directory}/ft-logs/*/node-0.log'
        script.write_text(f'#!/bin/sh\n[ "$SLURM_PROCID" = 0 ] || until {look}; do sleep 0.1; done\n')
        script.chmod(0o755)
        return f"--task-prolog={script}"

    def train(self, steps: int, *more: object) -> list[object]:
        """examples/train.py with a checkpoint that all nodes share."""
        return [EXAMPLE_TRAIN, "--steps", steps, "--save-every", 2, "--checkpoint", self.checkpoint, *more]

    def until_done(self, *more: object) -> list[object]:
        """Workers that end well when `done` is there. They need no torch, so that they are there at once."""
        return [WORKER, "--until", self.done, "--alone-below", 99, *more]


def conf_text(conf: Mapping[str, object] | None) -> str:
    """As --rdzv-conf has it: the quick settings, and others."""
    return ",".join(f"{key}={value}" for key, value in {**QUICK, **(conf or {})}.items())
