"""The driver of a run on Ray: gathers observations, steps the machine, performs its actions, and cleans up at the end.

It may die at any time. Actors and placement groups are detached, so training goes on, and the same command goes on with
the run.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ft_rendezvous.agent.signals import ENDING_SIGNALS, on_signals
from ft_rendezvous.config.addresses import format_endpoint
from ft_rendezvous.errors import ConfigError
from ft_rendezvous.launch.plan import LaunchedRun
from ft_rendezvous.launch.ray import cluster
from ft_rendezvous.launch.ray.actors import DRIVER_LEASE_S, STOPPED
from ft_rendezvous.launch.ray.cluster import BundleSeat, GroupFacts, call, try_call
from ft_rendezvous.launch.ray.commands import (
    has_own_directory,
    log_dir_of,
    node_process,
    plan_run,
    script_file,
    store_process,
)
from ft_rendezvous.launch.ray.ending import RayRunEnding
from ft_rendezvous.launch.ray.head_watch import while_head_lives
from ft_rendezvous.launch.ray.machine import (
    WAITS_FOR_RAY,
    Action,
    DrainNode,
    EndAsked,
    NodePlaced,
    Observation,
    RayEnd,
    RayMachine,
    RayOutcome,
    RunIsOver,
    StartNode,
    StopNode,
    Wish,
)
from ft_rendezvous.launch.ray.progress import NodeProgress, say
from ft_rendezvous.launch.ray.questions import RayQuestions
from ft_rendezvous.launch.ray.request import (
    FIRST_NODE,
    RayNodeFacts,
    RayRequest,
    decide_spreading,
    describe_differences,
    describe_resources,
)
from ft_rendezvous.launch.run_end import FAILED, RunEnd

import ray  # isort: skip - After `cluster`, which says what to do if there is no Ray.
from ray.exceptions import ActorUnavailableError, RayError  # isort: skip

LOOK_INTERVAL_S = 1.0
"""How often the driver asks Ray for machines and placement groups. Answers of actors wake it at once."""
BEAT_INTERVAL_S = 2.0
"""How often the driver says that it lives."""
SERVE_TIMEOUT_S = 120.0
FIRST_GROUP = "min"
HAS_RUN, HAD_MIN = "has_run", "had_min"
"""What the manifest of a run says of its machine."""


def drive(request: RayRequest) -> RunEnd:
    """Start the run, or go on with it, and wait for its end. Raises ConfigError or HeadLost."""
    head = cluster.find_head(request.address)
    environment: dict[str, Any] = {}
    if ray.is_initialized():
        environment = cluster.own_environment(request.environment)
        request = replace(request, runtime_env=json.dumps(environment) if environment else "")
    driver = Driver(request, environment)

    def work() -> RunEnd:
        with cluster.connected(head, request.environment):
            return driver.run()

    with on_signals(driver.signals.append, ENDING_SIGNALS):
        return while_head_lives(
            head,
            work,
            f"run {driver.name} is lost with it, and its nodes end; start the cluster again, then the run from its "
            "checkpoint",
        )


@dataclass
class Driver:
    """One process that drives one run."""

    request: RayRequest
    environment: Mapping[str, Any] = field(default_factory=dict)
    """The runtime environment of the actors, where the connection does not bring it."""
    name: str = field(init=False)
    id: str = field(init=False)
    machine: RayMachine = field(init=False)
    launched: LaunchedRun = field(init=False)
    signals: list[int] = field(init=False, default_factory=list)
    """Those that this process has received, in the order in which they came. The main thread adds them."""
    _is_owner: bool = field(init=False, default=False)
    """Whether this driver has made what the cluster has of the run."""
    _questions: RayQuestions = field(init=False)
    _progress: NodeProgress = field(init=False)
    _seats: list[BundleSeat] = field(init=False)
    _beat_call: Any = field(init=False, default=None)
    _beat_at: float = field(init=False, default=float("-inf"))
    _looked_at: float = field(init=False, default=float("-inf"))
    _machines: dict[str, RayNodeFacts] = field(init=False, default_factory=dict)
    _group_ids: dict[str, str] = field(init=False, default_factory=dict)
    _groups: dict[str, GroupFacts] = field(init=False, default_factory=dict)
    _noted: dict[str, bool] = field(init=False, default_factory=dict)
    """What the actor of the run has noted of the machine, for a later driver."""

    def __post_init__(self) -> None:
        request = self.request
        self.name = request.name or f"ftr-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}"
        self.id = f"{socket.gethostname()} pid {os.getpid()} {secrets.token_hex(2)}"
        least = request.sizes[0]
        self._seats = [BundleSeat(FIRST_GROUP, number) for number in range(least)]
        self._seats += [BundleSeat(f"node-{number}", 0) for number in range(least, request.node_count)]
        self.machine = RayMachine(
            least, request.node_count, time.monotonic(), request.pending_timeout_s, request.has_own_store
        )
        self._questions = RayQuestions(self.machine, request.has_own_store)
        self._progress = NodeProgress(self.machine, request.bundle, say, ray.available_resources)

    @property
    def run_actor(self) -> Any:
        """The actor of the run; None before there is one."""
        return self._questions.run_actor

    def run(self) -> RunEnd:
        if self.signals:
            say("a signal came before anything was started")
            return RunEnd(None, [FAILED], tuple(self.signals))
        try:
            self._begin_or_adopt()
            end = self._loop()
        except RayError as error:
            # The run may live: only an end that was decided removes it.
            raise ConfigError(
                f"Ray does not answer as it should: {cluster.explain_death(error)}; if the cluster lives, training "
                f"goes on: repeat the command with --name {self.name}, or end it with `ftr ray stop {self.name}`"
            ) from error
        try:
            return self._finish(end)
        finally:
            cluster.remove_run(self.name)

    def _finish(self, end: RayEnd) -> RunEnd:
        if end.outcome is RayOutcome.PENDING_TOO_LONG:
            waiting = self._progress.describe_waiting(time.monotonic())
            raise ConfigError(f"{waiting}: --pending-timeout is over: add machines, free some, or wait longer")
        ending = RayRunEnding(
            name=self.name,
            has_own_store=self.request.has_own_store,
            log_dir=self.launched.log_dir,
            nodes=self.machine.nodes,
            run_actor=self.run_actor,
            actors=self._questions.actors,
        )
        return ending.tell(end, self.signals)

    # --- the beginning --------------------------------------------------------------------------------

    def _begin_or_adopt(self) -> None:
        """Go on with a run of this name, or start one. Removes nothing that this driver has not made."""
        actors = cluster.find_actors(self.name)
        self._questions.run_actor = actors.get("run")
        stop = f"end it with `ftr ray stop {self.name}`, or choose another --name"
        if self.run_actor is None and (actors or cluster.groups_of(self.name)):
            raise ConfigError(f"something of an earlier run {self.name} is left: {stop}")
        if self.run_actor is None:
            self._begin()
            return
        manifest = try_call(self.run_actor.manifest)
        if manifest is None:
            raise ConfigError(f"run {self.name} is there, and its actor does not answer: try again later, {stop}")
        driver = call(self.run_actor.drive, self.id)
        if driver != self.id:
            raise ConfigError(
                f"run {self.name} is driven by another process ({driver}): if that one has just died, repeat the "
                f"command after {DRIVER_LEASE_S:g} s; look at the run with `ftr ray status {self.name}`, {stop}"
            )
        problem = ""
        differences = describe_differences(self._described(), manifest["request"])
        if differences:
            problem = f"run {self.name} is there, with other options ({differences}): repeat its own command, {stop}"
        elif "endpoint" not in manifest:
            problem = f"run {self.name} is there, and its driver died before the store was up: {stop}"
        if problem:
            call(self.run_actor.release, self.id)
            raise ConfigError(problem)
        self._adopt(manifest, actors)

    def _described(self) -> dict[str, Any]:
        """What must be equal when another driver goes on."""
        # A copy that Ray makes has another path for each driver, and may be gone.
        directory = "" if has_own_directory(self.request) else os.getcwd()
        return {**self.request.describe(), "directory": directory}

    def _begin(self) -> None:
        request = self.request
        self._look(time.monotonic())
        spreading = decide_spreading(request, list(self._machines.values()))
        if spreading.warning:
            say(spreading.warning)
        run_id = f"{self.name}-{secrets.token_hex(2)}"
        # All settings are checked before anything is asked of Ray.
        plan_run(request, run_id, request.store if not request.has_own_store else "localhost:29400", Path("logs"))
        head = next((each.id for each in self._machines.values() if each.is_head), next(iter(self._machines), ""))
        manifest = {"request": self._described(), "run_id": run_id, "verdict_path": ""}
        try:
            if request.store == FIRST_NODE:
                self._request_seats(spreading.strategy)
                machine = self._await_first_machine()
                self._start_run_actor(manifest, machine)
            else:
                machine = head
                self._start_run_actor(manifest, machine)
                self._request_seats(spreading.strategy)
            self._start_store(run_id, machine)
        except BaseException:
            if self._is_owner:
                cluster.remove_run(self.name)
            raise
        run = self.launched
        spares = f" and {request.spares} spare" if request.spares else ""
        say(
            f"run {self.name}: {request.nnodes} active{spares} nodes with {describe_resources(request.bundle)} and "
            f"{request.nproc_per_node} workers each, store at {run.endpoint}, logs in {run.log_dir} on the machines"
        )
        if not request.has_own_store:
            say(f"start its store on that host: {shlex.join(store_process(request, run).command)}")

    def _start_run_actor(self, manifest: Mapping[str, Any], machine: str) -> None:
        self._questions.run_actor = cluster.start_run_actor(self.name, manifest, self.id, machine, self.environment)
        self._is_owner = True
        call(self.run_actor.manifest, timeout_s=cluster.START_TIMEOUT_S)

    def _request_seats(self, strategy: str) -> None:
        """One placement group for MIN nodes, all or nothing; then one for each further node. None waits for another."""
        groups: dict[str, list[BundleSeat]] = {}
        for seat in self._seats:
            groups.setdefault(seat.group, []).append(seat)
        self._is_owner = True
        for group, seats in groups.items():
            self._group_ids[group] = cluster.request_seats(self.name, seats, self.request.bundle, strategy)

    def _await_first_machine(self) -> str:
        while True:
            now = time.monotonic()
            self._look(now)
            first = self._groups.get(FIRST_GROUP)
            if first is not None and first.is_placed and 0 in first.machines:
                return first.machines[0]
            limit_s = self.request.pending_timeout_s
            if self.signals or (limit_s is not None and now > self.machine.began_at + limit_s):
                raise ConfigError(f"{self._progress.describe_waiting(now)}: given up")
            self._progress.tell(now)
            time.sleep(LOOK_INTERVAL_S)

    def _start_store(self, run_id: str, machine: str) -> None:
        request = self.request
        endpoint = request.store
        if request.has_own_store:
            addr, port = self._machines[machine].address, request.port or call(self.run_actor.choose_port)
            endpoint = format_endpoint(addr, port)
        self.launched = run = plan_run(request, run_id, endpoint, log_dir_of(request, run_id))
        if request.has_own_store:
            spec = store_process(request, run)
            refusal = call(self.run_actor.serve, spec, addr, port, timeout_s=SERVE_TIMEOUT_S)
            if refusal:
                raise ConfigError(refusal)
        # From here on, another driver can go on with this run.
        facts = {"endpoint": endpoint, "verdict_path": str(run.verdict_path), "log_dir": str(run.log_dir)}
        call(self.run_actor.put, facts)

    def _adopt(self, manifest: Mapping[str, Any], actors: Mapping[str, Any]) -> None:
        """Go on with a run whose driver is gone."""
        self.launched = plan_run(self.request, manifest["run_id"], manifest["endpoint"], Path(manifest["log_dir"]))
        self._group_ids = {group: facts.id for group, facts in cluster.groups_of(self.name).items()}
        self.machine.resume(manifest.get(HAS_RUN, False), manifest.get(HAD_MIN, False))
        newest: dict[int, int] = {}
        for rest in actors:
            if rest.startswith("node-"):
                node, start = (int(part) for part in rest.removeprefix("node-").split("."))
                newest[node] = max(start, newest.get(node, 0))
        now = time.monotonic()
        for node, start in newest.items():
            self.machine.adopt(node, start, now)
            self._questions.adopt(node, start, actors[f"node-{node}.{start}"])
        say(f"run {self.name}: going on with {len(newest)} nodes, store at {self.launched.endpoint}")

    # --- the loop -------------------------------------------------------------------------------------

    def _loop(self) -> RayEnd:
        if self.request.has_own_store:
            self._questions.ask_for_end()
        while True:
            now = time.monotonic()
            for action in self.machine.step([*self._observe(now)], now):
                if isinstance(action, RayEnd):
                    self._progress.tell(now)
                    return action
                self._perform(action)
            self._progress.tell(now)
            self._note()

    def _note(self) -> None:
        """Tell the actor of the run what a later driver must know."""
        facts = {HAS_RUN: self.machine.has_run, HAD_MIN: self.machine.had_min}
        if facts != self._noted:
            self._noted = facts
            self.run_actor.put.remote(facts)

    def _observe(self, now: float) -> Iterator[Observation]:
        """Everything that is new. Waits for a moment if nothing is."""
        yield from self._beat(now)
        if self.signals:
            # The first Ctrl-C drains. The second one stops, and so does any other signal.
            wish = Wish.DRAIN if self.signals == [signal.SIGINT] else Wish.STOP
            is_drain = wish is Wish.DRAIN
            self._progress.tell_once("Ctrl-C: the nodes drain; a second one stops them" if is_drain else "stopping")
            yield EndAsked(wish)
        yield from self._questions.answers(now)
        waiting = [node for node in self.machine.nodes if node.state in WAITS_FOR_RAY]
        if now >= self._looked_at + LOOK_INTERVAL_S or any(node.since > self._looked_at for node in waiting):
            self._look(now)
        for node, seat in zip(self.machine.nodes, self._seats, strict=True):
            group = self._groups.get(seat.group)
            if node.state in WAITS_FOR_RAY and group is not None and group.is_placed:
                machine = group.machines.get(seat.bundle, "")
                if machine in self._machines:
                    yield NodePlaced(node.number, self._machines[machine].address, self._looked_at)

    def _beat(self, now: float) -> Iterator[Observation]:
        """Tell the actor of the run that this driver lives, and hear whether an operator has stopped the run."""
        if self._beat_call is not None and ray.wait([self._beat_call], timeout=0)[0]:
            ref, self._beat_call = self._beat_call, None
            yield from self._take_beat(ref)
        if self._beat_call is None and now >= self._beat_at + BEAT_INTERVAL_S:
            self._beat_at, self._beat_call = now, self.run_actor.drive.remote(self.id)

    def _take_beat(self, ref: Any) -> Iterator[Observation]:
        try:
            driver = ray.get(ref)
        except ActorUnavailableError:
            return
        except RayError as error:
            yield RunIsOver(f"the actor of the run is gone: {cluster.explain_death(error)}")
            return
        if driver == STOPPED:
            self._progress.tell_once("an operator has stopped the run")
            yield EndAsked(Wish.STOP)
        elif driver != self.id:
            raise ConfigError(f"another process ({driver}) goes on with run {self.name}: this one leaves")

    def _look(self, now: float) -> None:
        self._looked_at = now
        self._groups = cluster.look_at_groups(self._group_ids)
        self._machines = {each.id: each for each in cluster.machines()}

    def _perform(self, action: Action) -> None:
        match action:
            case StartNode(node, start):
                self._start_node(node, start)
            case DrainNode(node):
                self._questions.actors[node].send_signal.remote(int(signal.SIGUSR1))
            case StopNode(node):
                self._questions.actors[node].send_signal.remote(int(signal.SIGTERM))

    def _start_node(self, node: int, start: int) -> None:
        if node in self._questions.actors:
            # The actor of a torchrun that has failed lives, and holds the bundle.
            ray.kill(self._questions.actors[node])
        request, seat = self.request, self._seats[node]
        actor = cluster.start_node_actor(
            cluster.node_name(self.name, node, start),
            self._groups[seat.group],
            seat.bundle,
            request.bundle,
            self.environment,
        )
        started = actor.start.remote(node_process(request, self.launched, node), script_file(request))
        self._questions.expect_start(node, start, actor, started)
