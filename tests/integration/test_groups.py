"""Replica groups of real torchrun processes: only the group that failed restarts, and the others do not notice.

The store has a process of its own, so every node can be lost. Groups train with torchft on gloo where it matters that
they are one training: they heal from each other, and end with the same weights. Bounds on gaps are wide, because the
machine may be busy. What they must tell apart is the minute that torchft takes by itself. The gaps are printed.
"""

from __future__ import annotations

import itertools
import os
import signal
import time
from collections.abc import Iterable, Sequence

import pytest

pytest.importorskip("torchft")

from tests.integration.workers.train import EXIT_ON_PURPOSE
from tests.support.torchrun_cluster import FTR, HERE, QUICK, Cluster, Node, find_processes, send, wait_further
from tests.support.waiting import WAIT_S, wait_until
from tests.torchft.groups_rig import Line, read_lines

WORKER = HERE / "workers" / "train_torchft.py"

MAX_GAP_S = 30.0
"""Half of the timeout of gloo. Without the release, survivors of a stopped group wait for that timeout."""
STEPS_TO_THE_END = 30
"""More than can be done between a look at the steps and the order to end."""
START_TIMEOUT_S = 2 * WAIT_S
"""Several processes import torch at the same time."""

Place = tuple[int, int]
"""Group, and rank in the group."""


class Training:
    """A run that trains with torchft, one worker per node, and what its workers report."""

    def __init__(self, cluster: Cluster, nnodes: str, group_size: int, *options: object, **conf: object) -> None:
        self.cluster = cluster
        self.output, self.last_step_file = cluster.path("lines"), cluster.path("last-step")
        self.output.touch()
        worker = [self.last_step_file, "--step-s=0.1", f"--output={self.output}", *options]
        settings = {**QUICK, "group_size": group_size, "lighthouse": "yes", **conf}
        self.job = cluster.job(nnodes, worker=worker, script=WORKER, conf=settings, env={"RUST_LOG": "warn"})
        self.host = self.job.serve()
        self.lost: list[Node] = []
        self.all_restarted_at = 0.0
        """Steps that were done before are done again, perhaps by more groups, and give other weights."""

    def start(self, infra_rank: int, env: dict[str, str] | None = None) -> Node:
        return self.job.start(f"n{infra_rank}", is_host=False, infra_rank=infra_rank, env=env)

    def kill(self, *nodes: Node) -> float:
        """Kill agents and workers. Returns when."""
        began = time.monotonic()
        for node in nodes:
            node.kill()
        self.lost.extend(nodes)
        return began

    # --- what workers report ------------------------------------------------------------------------

    def lines(self, what: str = "step", groups: Iterable[int] | None = None) -> list[Line]:
        wanted = None if groups is None else set(groups)
        return [
            line for line in read_lines(self.output) if line.what == what and (wanted is None or line.group in wanted)
        ]

    def wait_together(self, groups: set[int], group_size: int, more: int = 3) -> None:
        """Every rank of these groups does so many more steps, with each other and with no other group."""
        known = len(self.lines())

        def have_trained() -> bool:
            done = [(line.group, line.rank) for line in self.lines()[known:] if line.groups == len(groups)]
            places = itertools.product(groups, range(group_size))
            return all(done.count(place) >= more for place in places)

        wait_until(f"groups {groups} train together", have_trained, START_TIMEOUT_S, self.cluster.tails)

    def places(self) -> dict[Place, int]:
        """The pid that reported last, by place."""
        return {(line.group, line.rank): line.pid for line in self.lines()}

    def pids(self, groups: Iterable[int]) -> dict[Place, int]:
        wanted = set(groups)
        return {place: pid for place, pid in self.places().items() if place[0] in wanted}

    def nodes_of(self, group: int) -> list[Node]:
        """The nodes of a group by rank."""
        owners = {pid: node for node in self.job.nodes for pid in node.workers()}
        return [owners[pid] for place, pid in sorted(self.places().items()) if place[0] == group]

    # --- what a user would notice -------------------------------------------------------------------

    def gap_s(self, groups: Iterable[int], since: float) -> float:
        """The longest time between two committed steps of one of these groups, the second one since then."""
        gaps = [0.0]
        for group in groups:
            times = [line.time for line in self.lines(groups=[group]) if line.rank == 0]
            gaps += [later - earlier for earlier, later in itertools.pairwise(times) if later >= since]
        return max(gaps)

    def assert_undisturbed(self, pids: dict[Place, int], since: float, what: str) -> None:
        """These places have the same processes, which committed one step after the other without a long pause."""
        groups = {group for group, _ in pids}
        gap_s = self.gap_s(groups, since)
        print(f"gap after {what}: {gap_s:.2f} s")
        assert self.pids(groups) == pids, self.cluster.tails()
        assert gap_s < MAX_GAP_S, self.cluster.tails()
        for pid in pids.values():
            self.assert_no_step_left_out(pid)

    def assert_no_step_left_out(self, pid: int) -> None:
        steps = [line.step for line in self.lines() if line.pid == pid]
        assert steps == list(range(steps[0], steps[0] + len(steps))), f"pid {pid}: {steps}"

    def assert_healed(self, since: float, groups: Iterable[int]) -> None:
        """The workers that these groups started since then began with a step that the others were at."""
        for group in groups:
            for pid in self.pids([group]).values():
                first = next(line for line in self.lines() if line.pid == pid)
                assert first.time > since
                others = [line.step for line in self.lines() if line.group != group and line.time <= since]
                assert first.step > max(others), f"group {group} began at step {first.step}"

    def assert_same_weights(self) -> None:
        """Groups that report the same step have the same weights."""
        digests: dict[int, set[str]] = {}
        for line in (line for line in self.lines() if line.time >= self.all_restarted_at):
            digests.setdefault(line.step, set()).add(line.digest)
        assert [step for step, found in digests.items() if len(found) > 1] == []

    # --- its end ------------------------------------------------------------------------------------

    def end(self) -> None:
        """Say what the last step is. All workers see it before they are there."""
        draft = self.last_step_file.with_suffix(".draft")
        draft.write_text(str(self.lines()[-1].step + STEPS_TO_THE_END))
        draft.rename(self.last_step_file)

    def assert_ends_well(self, groups: set[int], group_size: int) -> None:
        """All groups end at the last step with the same weights, every node and the host with exit code 0."""
        self.end()
        self.job.assert_succeeds(but=self.lost)
        assert self.host.wait_exit() == 0, self.host.tail()
        assert self.host.lines("closed verdict=succeeded"), self.host.tail()
        done = self.lines("done")
        places = list(itertools.product(sorted(groups), range(group_size)))
        assert sorted((line.group, line.rank) for line in done) == places
        assert {line.step for line in done} == {int(self.last_step_file.read_text()) + 1}
        assert len({line.digest for line in done}) == 1, done
        self.assert_same_weights()


def find_lighthouse(host: Node) -> int | None:
    """The pid of the host's lighthouse, if it has one now."""
    found = [process.pid for process in find_processes(host.marker) if "lighthouse_main" in process.command]
    return found[0] if found else None


# --- groups that are lost ---------------------------------------------------------------------------


@pytest.mark.timeout(900)
def test_groups_are_lost_one_after_the_other_and_the_others_train_on(cluster: Cluster) -> None:
    """Three groups of two nodes, and one spare."""
    training = Training(cluster, "6:8", 2)
    host, job = training.host, training.job
    for infra_rank in range(7):
        training.start(infra_rank)
    training.wait_together({0, 1, 2}, 2)

    # A node is killed: the spare takes its rank, and its group heals.
    (spare,) = [node for node in job.nodes if not node.workers()]
    stayed, victim = training.nodes_of(1)
    others = training.pids([0, 2])
    began = training.kill(victim)
    training.wait_together({0, 1, 2}, 2)
    training.assert_undisturbed(others, began, "SIGKILL of a node")
    training.assert_healed(began, [1])
    assert training.nodes_of(1) == [stayed, spare]
    assert host.lines(r"sealed cycle=2 group=1 active=2"), host.tail()

    # So is its replacement. No spare is left: the group waits, and the others train on. A late node heals it.
    began = training.kill(spare)
    host.wait_for(r"waiting cycle=3 group=1: 1 of 2 nodes have arrived; missing: infra rank \d+ at .* \(rank 1\)")
    training.wait_together({0, 2}, 2, more=10)
    late = training.start(7)
    training.wait_together({0, 1, 2}, 2)
    training.assert_undisturbed(others, began, "SIGKILL of its replacement")
    training.assert_healed(began, [1])
    assert training.nodes_of(1) == [stayed, late]

    # The lighthouse is killed. The next one serves the same port.
    pids, began = training.places(), time.monotonic()
    lighthouse = find_lighthouse(host)
    assert lighthouse is not None
    send(lighthouse, signal.SIGKILL)
    host.wait_for("the lighthouse ended: .*; another one starts in 0 s on the same port")
    training.wait_together({0, 1, 2}, 2, more=10)
    training.assert_undisturbed(pids, began, "SIGKILL of the lighthouse")
    assert find_lighthouse(host) not in (None, lighthouse)

    # A whole group stands still: none of its sockets closes.
    others, stopped = training.pids([0, 1]), training.nodes_of(2)
    began = time.monotonic()
    for node in stopped:
        node.pause()
    training.wait_together({0, 1}, 2, more=5)
    training.assert_undisturbed(others, began, "SIGSTOP of a group")
    host.wait_for(r"waiting cycle=\d+ group=2: 0 of 2 nodes have arrived")
    began = time.monotonic()
    for node in stopped:
        node.resume()
    training.wait_together({0, 1, 2}, 2)
    training.assert_undisturbed(others, began, "SIGCONT of that group")
    training.assert_healed(began, [2])
    assert training.nodes_of(2) == stopped

    assert not host.lines(r"opened cycle=[2-9] because"), host.tail()
    training.assert_ends_well({0, 1, 2}, 2)


def test_a_group_is_added_without_a_restart_and_the_last_one_ends_alone(cluster: Cluster) -> None:
    training = Training(cluster, "2:3", 1, policy="elastic", last_call_timeout=5)
    host = training.host
    training.start(0)
    training.start(1)
    training.wait_together({0, 1}, 1)

    # A third node is a new group, which begins with the weights of the others.
    others, began = training.places(), time.monotonic()
    newcomer = training.start(2)
    training.wait_together({0, 1, 2}, 1)
    training.assert_undisturbed(others, began, "a new group")
    training.assert_healed(began, [2])
    assert training.nodes_of(2) == [newcomer]
    assert len(host.lines("opened")) == 2, host.tail()
    assert host.lines(r"opened cycle=2 group=2 because "), host.tail()

    # All groups but one are killed. It trains on, and its end is that of the run.
    last = training.pids([1])
    began = training.kill(*training.nodes_of(0), newcomer)
    training.wait_together({1}, 1, more=10)
    for group in (0, 2):
        host.wait_for(rf"waiting cycle=\d+ group={group}: 0 of 1 nodes have arrived")
    training.assert_undisturbed(last, began, "SIGKILL of all other groups")
    training.assert_ends_well({1}, 1)
    for group in (0, 2):
        assert host.lines(rf"dissolved cycle=\d+ group={group}: it lacks nodes, and all other groups have finished")


# --- groups that fail again and again ---------------------------------------------------------------

SAVE_EVERY = 5
FAILS_AGAIN = r"opened cycle=\d+ because group 1 failed {times} times in a row soon after its start"


def wait_until_spare(node: Node) -> None:
    node.wait_for("spare in cycle=1: waiting for the next cycle")


def test_a_replacement_that_crashes_at_its_start_makes_all_restart(cluster: Cluster) -> None:
    """It is tried `max_group_failures` times. Then all restart once, from their checkpoint, and it is cured."""
    sick, checkpoint = cluster.path("sick"), cluster.path("checkpoint")
    sick.touch()
    options = (f"--checkpoint={checkpoint}", f"--save-every={SAVE_EVERY}")
    training = Training(cluster, "2:3", 1, *options, max_group_failures=2, crash_loop=0)
    host = training.host
    for infra_rank in (0, 1):
        training.start(infra_rank)
    host.wait_for("sealed cycle=1")
    replacement = training.start(2, env={"TEST_CRASH_WHILE": str(sick)})
    wait_until_spare(replacement)
    training.wait_together({0, 1}, 1)
    wait_until("a checkpoint", checkpoint.exists)
    (first_pid,) = training.pids([0]).values()
    training.kill(*training.nodes_of(1))
    host.wait_for(FAILS_AGAIN.format(times=2))
    reached = training.lines(groups=[0])[-1].step
    sick.unlink()

    training.wait_together({0, 1}, 1)
    assert training.nodes_of(1) == [replacement]
    pids = list(dict.fromkeys(line.pid for line in training.lines(groups=[0])))
    assert len(pids) == 2, "group 0 has restarted once"
    assert pids[0] == first_pid
    training.assert_no_step_left_out(first_pid)
    again = next(line for line in training.lines() if line.pid == pids[1])
    assert again.step > reached - 2 * SAVE_EVERY, "it may be ended before it saves, once"
    training.all_restarted_at = again.time
    assert len(host.lines(r"opened cycle=\d+ because group 1 failed")) == 1, host.tail()
    openings = host.lines("opened cycle=")
    before = openings[: next(index for index, line in enumerate(openings) if "failed 2 times" in line)]
    assert sum("group=1 because workers failed" in line for line in before) == 2, host.tail()
    training.assert_ends_well({0, 1}, 1)


def test_a_crash_loop_of_a_group_ends_the_run(cluster: Cluster) -> None:
    conf = {**QUICK, "group_size": 1, "max_group_failures": 2, "crash_loop": 4}
    job = cluster.job("2:3", conf=conf, worker=["--fail-node", 2, "--fail-below", 99, "--idle-below", 99])
    host = job.serve()
    nodes = [job.start(f"n{infra_rank}", is_host=False, infra_rank=infra_rank) for infra_rank in (0, 1)]
    for node in nodes:
        node.wait_report("begin", cycle=1)
    other, lost = nodes if nodes[1].reports("begin", ft_group_id=1) else reversed(nodes)
    replacement = job.start("n2", is_host=False, infra_rank=2)
    wait_until_spare(replacement)
    lost.kill()
    for node in (other, replacement):
        node.assert_fails()
    assert host.wait_exit() == 1
    assert len(replacement.reports("fail")) == 4
    assert len(other.reports("begin")) == 2, "it has restarted once, with all"
    assert len(host.lines(FAILS_AGAIN.format(times=2))) == 1, host.tail()
    first = rf"first failure: infra rank 2 .*exit code {EXIT_ON_PURPOSE}"
    reason = rf"failed\(group 1: crash loop: 4 cycles in a row .*{first}"
    assert host.lines(f"closed verdict={reason}"), host.tail()
    for node in (other, replacement):
        assert node.lines(rf"^\[ft .* ERROR\] run .* is closed: {reason}"), node.tail()


# --- groups without torchft -------------------------------------------------------------------------


def test_a_plain_script_sees_its_group_as_its_world(cluster: Cluster) -> None:
    done = cluster.path("done")
    conf = {**QUICK, "group_size": 2}
    job = cluster.job("4:4", conf=conf, worker=["--until", done, "--tell-info"])
    host = job.serve()
    nodes = [job.start(f"n{infra_rank}", is_host=False, infra_rank=infra_rank) for infra_rank in range(4)]
    for index, node in enumerate(nodes):
        node.wait_report("step", cycle=1, rank=index % 2, world=2, sum=3)
    ports = [assert_told(node, 1, group=index // 2, rank=index % 2) for index, node in enumerate(nodes)]
    assert ports[0] == ports[1] != ports[2] == ports[3]

    # A worker fails: its group restarts, with a store of its own that is new.
    pids = {node.name: node.workers() for node in nodes}
    (failing,) = nodes[3].workers()
    send(failing, signal.SIGKILL)
    for rank, node in enumerate(nodes[2:]):
        node.wait_report("step", cycle=2, rank=rank, world=2, sum=3)
    new_ports = {assert_told(node, 2, group=1, rank=rank) for rank, node in enumerate(nodes[2:])}
    assert len(new_ports - set(ports)) == 1
    assert_trains_on(nodes[:2], pids)
    assert host.lines("opened cycle=2 group=1 because workers failed on infra rank [23] "), host.tail()

    # An operator asks for the restart of the other group.
    pids = {node.name: node.workers() for node in nodes}
    unknown = cluster.spawn("unknown", (str(FTR), "restart", job.endpoint, "--group", "7"))
    assert unknown.wait_exit() == 1
    assert unknown.lines("there is no group '7': the run has groups 0, 1"), unknown.tail()
    restart = (str(FTR), "restart", job.endpoint, "--group", "0", "--reason", "a new library")
    granted = cluster.spawn("restart", restart)
    assert granted.wait_exit() == 0, granted.tail()
    assert granted.lines("group 0 restarts, the others train on"), granted.tail()
    for rank, node in enumerate(nodes[:2]):
        node.wait_report("step", cycle=3, rank=rank, world=2, sum=3)
    assert_trains_on(nodes[2:], pids)
    assert host.lines("opened cycle=3 group=0 because .* asked for a restart: a new library"), host.tail()

    done.touch()
    job.assert_succeeds()
    assert host.wait_exit() == 0
    assert len(host.lines("opened")) == 3, host.tail()


def assert_told(node: Node, cycle: int, group: int, rank: int) -> str:
    """What a worker finds in its environment, and what `worker.info()` says, are of its group. Returns the port."""
    begin = node.wait_report("begin", cycle=cycle)
    numbers = {"rank": rank, "world": 2, "group_rank": rank, "ft_group_id": group, "replica_group_id": group}
    told = {**numbers, "num_replica_groups": 2, "master_addr": "127.0.0.1", "lighthouse": None}
    assert {name: begin[name] for name in told} == {name: str(value) for name, value in told.items()}
    info = node.wait_report("info", cycle_id=cycle)
    told = {"rank": rank, "world_size": 2, "node_rank": rank, "group": group, "group_count": 2}
    assert {name: info[name] for name in told} == {name: str(value) for name, value in told.items()}
    assert info["rank_over_groups"] == str(2 * group + rank)
    return begin["master_port"]


def assert_trains_on(nodes: Sequence[Node], pids: dict[str, list[int]]) -> None:
    """They have the workers that they had, and those do further steps and have left none out."""
    for node in nodes:
        wait_further(node)
        assert node.workers() == pids[node.name], node.tail()
        steps = [int(report["step"]) for report in node.reports("step", pid=pids[node.name][0])]
        assert steps == list(range(len(steps)))


# --- what a user gets wrong -------------------------------------------------------------------------


def test_a_group_size_that_does_not_divide_the_number_of_nodes(cluster: Cluster) -> None:
    node = cluster.job("6:8", conf={"group_size": 4}).start("odd")
    node.assert_fails()
    told = "group_size=4 does not divide both numbers of --nnodes=6:8: make it --nnodes=8:8, for example"
    assert node.lines(rf"^\[ft .* ERROR\] {told}"), node.tail()


@pytest.mark.parametrize("host", ["node", "ftr serve"])
def test_a_lighthouse_without_torchft(cluster: Cluster, host: str) -> None:
    """The module is hidden from processes as if it were not installed."""
    folder = cluster.path("hides-torchft")
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['torchft'] = None\n")
    env = {"PYTHONPATH": os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])}
    job = cluster.job("2:2", conf={"group_size": 1, "lighthouse": "yes"}, env=env)
    told = r"lighthouse=yes needs torchft, which is not installed: pip install 'ft-rendezvous\[torchft\]'"
    if host == "node":
        node = job.start("node", is_host=True)
        node.assert_fails()
        assert len(node.lines(rf"^\[ft .* ERROR\] {told}")) == 1, node.tail()
    else:
        with pytest.raises(AssertionError, match="ended without 'serving run'"):
            job.serve()
        (node,) = cluster.nodes
        assert node.wait_exit() == 2
        assert len(node.lines(told)) == 1, node.tail()
        assert "Traceback" not in node.log, node.tail()
