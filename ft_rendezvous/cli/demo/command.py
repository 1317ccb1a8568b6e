"""`ftr demo`: a real run on this machine in which a node is killed and a hot spare takes its rank."""

from __future__ import annotations

import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from ft_rendezvous.agent.reaper_main import end_carriers, find_carriers
from ft_rendezvous.cli.demo.display import PlainDisplay, make_display, print_summary
from ft_rendezvous.cli.demo.promises import DemoStory, Promise, judge_demo, list_facts
from ft_rendezvous.cli.demo.run_events import RunEvents
from ft_rendezvous.cli.demo.step_reports import ReportReader
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.local import free_port, plan_local
from ft_rendezvous.launch.options import BATCH_HOST, Options
from ft_rendezvous.launch.plan import STATE_NAME, Plan, Process
from ft_rendezvous.launch.runner import start_process
from ft_rendezvous.protocol.journal import CycleSealed
from ft_rendezvous.state.model.records import NodeRole
from ft_rendezvous.warm.nursery import is_ready

POLL_INTERVAL_S = 0.1
STEP_DELAY_S = 0.15
CHECKPOINT_EVERY = 5
MIN_STEPS = 3 * CHECKPOINT_EVERY
EXIT_TIMEOUT_S = 3.0
"""How long processes may take to disappear after their agents have ended."""
FAILURE_GRACE_S = 10.0
"""How long the other nodes may go on after one has failed. Their end may say more."""
TAIL_LINES = 25

NODE_VARIABLE = "FTR_DEMO_NODE"
"""Marks every process of a node. Torch starts workers in their own sessions, so no process group holds them all."""
OUTER_PREFIXES = ("FT_", "FTR_", "PET_", "SLURM_", "TORCHELASTIC_")
OUTER_NAMES = frozenset({"RANK", "LOCAL_RANK", "WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT"})
"""Variables of an outer job. With them, torchrun would take the demo for a part of that job."""


@dataclass(frozen=True, kw_only=True)
class DemoOptions:
    """The options of the command, checked."""

    actives: int
    spares: int
    steps: int
    lease_s: float
    kills: bool
    timeout_s: float
    is_warm: bool = True

    def __post_init__(self) -> None:
        if self.kills and self.spares < 1:
            raise ConfigError("without a spare, no node can take the killed node's rank: use --spares 1 or --no-kill")
        if self.kills and self.steps < MIN_STEPS:
            raise ConfigError(f"the kill needs a checkpoint before it and steps after it: use --steps {MIN_STEPS}")

    @property
    def kill_after(self) -> int:
        """A step between two checkpoints, so that training is seen to go back."""
        checkpoints = max(1, self.steps // 3 // CHECKPOINT_EVERY)
        return checkpoints * CHECKPOINT_EVERY + 2

    @property
    def kill_before(self) -> int:
        """At this step the demo does not wait for the spare any longer. The spare takes the rank when it comes."""
        return self.steps * 2 // 3


def plan_demo(options: DemoOptions, directory: Path, token: str) -> Plan:
    """The plan of `ftr launch --local`, with a store of its own: so every node may be killed."""
    arguments = (directory, options.steps, STEP_DELAY_S, CHECKPOINT_EVERY)
    launch_options = Options(
        script=("-m", "ft_rendezvous.cli.demo.train", *map(str, arguments)),
        conf={"lease_timeout": f"{options.lease_s:g}", "beat_interval": f"{options.lease_s / 6:g}"},
        store=BATCH_HOST,
        is_warm=options.is_warm,
        log_dir=directory / "logs",
        torchrun=(sys.executable, "-m", "torch.distributed.run"),
        ftr=(sys.executable, "-m", "ft_rendezvous.cli.main"),
    )
    return plan_local(launch_options, f"{options.actives}+{options.spares}", f"demo-{token}", free_port())


class Demo:
    """One demo: its processes, what is known of them, and where they write."""

    def __init__(self, options: DemoOptions, directory: Path, display: PlainDisplay) -> None:
        self.options, self.display = options, display
        self._token = secrets.token_hex(8)
        self._plan = plan_demo(options, directory, self._token)
        self.story = DemoStory(options.steps)
        self.logs: dict[str, Path] = {}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._events = RunEvents(self._plan.run.log_dir / STATE_NAME)
        self._reports = ReportReader(directory / "steps.jsonl")
        self._failed_at: float | None = None

    def run(self) -> None:
        """Play the demo to its end. Raises TimeoutError when it takes too long."""
        deadline = time.monotonic() + self.options.timeout_s
        self._plan.run.log_dir.mkdir(parents=True)
        self.display.tell(f"every node runs: {_describe_command(self._plan.nodes[0].command)}")
        assert self._plan.store is not None
        for process in (self._plan.store, *self._plan.nodes[: self.options.actives]):
            self._start(process)
        while not self._is_over():
            if time.monotonic() > deadline:
                raise TimeoutError(f"the demo did not end within {self.options.timeout_s:g} s (--timeout)")
            self._look()
            # Spares start late, so that the first nodes are the active ones.
            if self.story.sealed_ns and len(self.logs) == 1 + self.options.actives:
                for process in self._plan.nodes[self.options.actives :]:
                    self._start(process)
            self._kill_when_due()
            time.sleep(POLL_INTERVAL_S)
        self._look()

    def find_left(self) -> list[int]:
        """Processes that are still there a moment after all agents have ended."""
        deadline = time.monotonic() + EXIT_TIMEOUT_S
        while (left := self._find_all()) and time.monotonic() < deadline:
            time.sleep(POLL_INTERVAL_S)
        return left

    def end_all(self) -> list[int]:
        """End every process of the demo. Returns those that could not be ended: none, or it is a bug."""
        for name in self._names:
            end_carriers(self._mark(name))
            if name in self._processes:
                with suppress(subprocess.TimeoutExpired):
                    self._processes[name].wait(EXIT_TIMEOUT_S)
        self._events.close()
        return self._find_all()

    # --- parts --------------------------------------------------------------------------------------

    @property
    def _names(self) -> list[str]:
        """All processes of the plan. A signal may come between the start of a process and the note of it."""
        planned = (self._plan.store, *self._plan.nodes)
        return [process.log.stem for process in planned if process is not None and process.log is not None]

    def _mark(self, name: str) -> bytes:
        return f"{NODE_VARIABLE}={self._token}/{name}".encode()

    def _find_all(self) -> list[int]:
        return [pid for name in self._names for pid in find_carriers(self._mark(name))]

    def _start(self, process: Process) -> None:
        assert process.log is not None
        name = process.log.stem
        env = {
            "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),  # The machine's own name may not resolve.
            "RES_OPTIONS": os.environ.get("RES_OPTIONS", "timeout:1 attempts:1"),  # TCPStore looks up every client.
            "OMP_NUM_THREADS": "1",
            NODE_VARIABLE: f"{self._token}/{name}",
        }
        outer = tuple(each for each in os.environ if each in OUTER_NAMES or each.startswith(OUTER_PREFIXES))
        started = start_process(replace(process, env={**process.env, **env}, unset=outer))
        self._processes[name], self.logs[name], self.story.exit_codes[name] = started, process.log, None
        self.display.tell(f"{name}: started, pid {started.pid}")

    def _look(self) -> None:
        """Take in everything that is new."""
        # Exit codes come first: what a process wrote before its end is then already there.
        ended = {name: process.poll() for name, process in self._processes.items()}
        for event in self._events.read_new():
            if isinstance(event.event, CycleSealed):
                self.story.sealed_ns[event.event.cycle_id] = event.timestamp_ns
            if sentence := self._events.describe(event):
                self.display.tell(sentence)
        for report in self._reports.read_new():
            if report.resumed_at and report.cycle_id not in self.story.resumed_at:
                self.display.tell(f"training resumes from the checkpoint of step {report.resumed_at}")
            self.story.take_report(report)
        for name, code in ended.items():
            if code is not None and self.story.exit_codes[name] is None and name != self.story.victim:
                self.display.tell(f"{name}: exited {code}")
        self.story.exit_codes.update(ended)
        self.display.show(self.story, self._events.nodes, {name: each.pid for name, each in self._processes.items()})

    def _kill_when_due(self) -> None:
        story, options, nodes = self.story, self.options, self._events.nodes
        if not options.kills or story.victim is not None or story.step < options.kill_after:
            return
        spares = [name for name, node in nodes.items() if node.role is NodeRole.HOT_SPARE]
        has_spare = any(not options.is_warm or self._is_warm(name) for name in spares)
        if not has_spare and story.step < options.kill_before:
            return
        # Rank 0 saves the checkpoints, and is killed only if no other node trains.
        report = min(story.newest.values(), key=lambda report: (report.rank == 0, report.rank))
        killed_ns = time.time_ns()
        # The agent first: it must not report the death of its workers.
        self._processes[report.node].kill()
        end_carriers(self._mark(report.node))
        story.take_kill(report.node, killed_ns)
        self.display.tell(f"{report.node}: KILLED with its workers at step {story.step}; it had rank {report.rank}")

    def _is_warm(self, name: str) -> bool:
        """Whether the nursery of a node has done its imports."""
        return any(map(is_ready, find_carriers(self._mark(name))))

    def _is_over(self) -> bool:
        """All processes have ended; or one has failed that should live, and the others had time to end too."""
        now = time.monotonic()
        codes = {name: code for name, code in self.story.exit_codes.items() if name != self.story.victim}
        if self._failed_at is None and any(codes.values()):
            self._failed_at = now
        has_waited = self._failed_at is not None and now > self._failed_at + FAILURE_GRACE_S
        return has_waited or (bool(codes) and None not in codes.values())


def run_demo(options: DemoOptions, directory: Path | None, keeps: bool) -> bool:
    """Play, judge, and print the result. True if all promises were kept."""
    if not Path("/proc/self/environ").exists():
        raise ConfigError("the demo finds its processes in /proc, which this system lacks: use a Linux machine")
    console = Console(highlight=False, soft_wrap=True)
    with _workspace(directory) as place:
        demo = Demo(options, place, make_display(console, sys.stdout.isatty()))
        promises: list[Promise] = []
        left: list[int] = []
        try:
            with demo.display:
                demo.run()
            left = demo.find_left()
        except TimeoutError as error:
            promises.append(Promise("the demo ended in time", False, str(error)))
        finally:
            left = demo.end_all() or left
        promises += judge_demo(demo.story, options.actives, options.kills, left)
        is_kept = all(promise.is_kept for promise in promises)
        print_summary(console, promises, list_facts(demo.story, options.is_warm))
        if not is_kept:
            _print_tails(console, demo.logs)
        if is_kept and not keeps and directory is None:
            shutil.rmtree(place)
        else:
            console.print(f"  logs, events, step reports and checkpoint: {escape(str(place))}")
        return is_kept


@contextmanager
def _workspace(directory: Path | None) -> Iterator[Path]:
    """An empty directory: the demo must not find the checkpoint of an earlier one."""
    if directory is None:
        place = Path(tempfile.mkdtemp(prefix="ftr-demo-"))
    else:
        place = directory.resolve()
        place.mkdir(parents=True, exist_ok=True)
        if any(place.iterdir()):
            raise ConfigError(f"{place} is not empty: choose a new directory for --dir")
    try:
        yield place
    except BaseException:
        if directory is None:
            shutil.rmtree(place, ignore_errors=True)
        raise


def _describe_command(command: tuple[str, ...]) -> str:
    """The command as a user would type it, without the settings and files of the demo."""
    shown = ("--nnodes", "--nproc-per-node", "--max-restarts", "--rdzv-backend", "--rdzv-endpoint", "--rdzv-id")
    return " ".join(["torchrun", *(word for word in command if word.startswith(shown)), "..."])


def _print_tails(console: Console, logs: dict[str, Path]) -> None:
    for path in logs.values():
        console.print(f"\n--- the end of {path}", markup=False)
        for line in path.read_text(errors="replace").splitlines()[-TAIL_LINES:]:
            console.print(line, markup=False)
