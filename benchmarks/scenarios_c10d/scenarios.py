"""The ten scenarios: what is done to a job, and how its nodes should exit. The first lines say what is wanted."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable

from benchmarks.scenarios_c10d.observe import Want
from benchmarks.scenarios_c10d.stage import Stage
from tests.support.torchrun_cluster import is_alive
from tests.support.waiting import wait_until

REPLACED_AFTER_S = 10.0
PARKED_S = 2.0
ORPHAN_S = 10.0
RESTARTS = 10

Scenario = Callable[[Stage], None]


def plain(stage: Stage) -> None:
    """Two nodes train and end: both exit 0."""
    job = stage.cluster.job("2:2")
    stage.start(job, "n0", is_host=True)
    stage.start(job, "n1")


def worker_crash(stage: Stage) -> None:
    """A worker fails once: all workers restart, ranks stay."""
    job = stage.cluster.job("2:2", worker=["--until", stage.done, "--fail-below", 2, "--fail-rank", 1])
    nodes = (stage.start(job, "n0", is_host=True), stage.start(job, "n1"))
    ranks = {node.name: int(stage.wait_step(node)["rank"]) for node in nodes}
    failing = next(node for node in nodes if ranks[node.name] == 1)
    failed = failing.wait_report("fail", timeout_s=stage.left_s)
    since = time.monotonic()
    old_pids = {int(failed["pid"]), *(int(node.reports("step")[0]["pid"]) for node in nodes)}
    stage.note_ranks(stage.recover(since, nodes, old_pids), ranks)


def node_killed_spare(stage: Stage) -> None:
    """A node is SIGKILLed with its workers while another waits: that one takes its rank, the other keeps its own."""
    job = stage.cluster.job("2:2", worker=["--until", stage.done])
    n0, n1 = stage.start_pair(job, want=Want.ANY)
    ranks = {node.name: int(stage.wait_step(node)["rank"]) for node in (n0, n1)}
    spare = stage.start_parked(job, "spare", beside=n0)
    old_pids = stage.pids()
    n1.kill()
    since = time.monotonic()
    stage.note_ranks(stage.recover(since, (n0, spare), old_pids), {"n0": ranks["n0"], "spare": ranks["n1"]})


def node_killed_replaced(stage: Stage) -> None:
    """A node is SIGKILLed, and started again 10 s later: the job waits for it and goes on."""
    job = stage.cluster.job("2:2", worker=["--until", stage.done])
    n0, n1 = stage.start_pair(job, want=Want.ANY)
    ranks = {node.name: int(stage.wait_step(node)["rank"]) for node in (n0, n1)}
    old_pids = stage.pids()
    n1.kill()
    time.sleep(REPLACED_AFTER_S)
    again = stage.start(job, "again")
    since = time.monotonic()
    stage.note_ranks(stage.recover(since, (n0, again), old_pids), {"n0": ranks["n0"], "again": ranks["n1"]})


def late_node(stage: Stage) -> None:
    """A third node comes to a job of 2:3 that trains: it disturbs no node, and all exit 0 at the end."""
    job = stage.cluster.job("2:3", conf={"last_call_timeout": 5}, worker=["--until", stage.done])
    n0, n1 = stage.start_pair(job)
    old_pids = stage.pids()
    stage.start_parked(job, "late", beside=n0)
    stage.wait_steps(n0, 50)
    restarted = [node.name for node in (n0, n1) if set(node.workers()) - old_pids]
    if restarted:
        stage.story.flaws.append(f"running workers were restarted on {' and '.join(restarted)}")


def spare_at_success(stage: Stage) -> None:
    """A job ends well while another node waits: that one exits 0 too."""
    job = stage.cluster.job("2:2", worker=["--until", stage.done])
    n0, _ = stage.start_pair(job)
    stage.start_parked(job, "spare", beside=n0)


def failure_for_good(stage: Stage) -> None:
    """The agents may not restart their workers and one fails: every node exits non-zero, the waiting one too."""
    go = stage.cluster.path("go")
    worker = ["--until", stage.done, "--fail-below", 99, "--fail-rank", 1, "--fail-when", go]
    job = stage.cluster.job("2:2", max_restarts=0, worker=worker)
    nodes = [stage.start(job, "n0", is_host=True, want=Want.NOT_ZERO), stage.start(job, "n1", want=Want.NOT_ZERO)]
    for node in nodes:
        stage.wait_step(node)
    spare = stage.start(job, "spare", want=Want.NOT_ZERO)
    stage.wait_connected(spare, job)
    time.sleep(PARKED_S)
    go.touch()


def sigterm_one(stage: Stage) -> None:
    """One node gets SIGTERM, as when it is preempted, while another waits: that one takes over."""
    job = stage.cluster.job("2:2", worker=["--until", stage.done])
    n0, n1 = stage.start_pair(job, want=Want.NOT_ZERO)
    ranks = {node.name: int(stage.wait_step(node)["rank"]) for node in (n0, n1)}
    spare = stage.start_parked(job, "spare", beside=n0)
    old_pids = stage.pids()
    n1.signal(signal.SIGTERM)
    since = time.monotonic()
    stage.note_ranks(stage.recover(since, (n0, spare), old_pids), {"n0": ranks["n0"], "spare": ranks["n1"]})


def agent_killed(stage: Stage) -> None:
    """Only the agent of a node is SIGKILLed: its worker is gone within 10 s, and the waiting node takes over."""
    job = stage.cluster.job("2:2", worker=["--until", stage.done])
    n0, n1 = stage.start_pair(job, want=Want.ANY)
    spare = stage.start_parked(job, "spare", beside=n0)
    old_pids = stage.pids()
    (orphan,) = n1.workers()
    n1.kill(with_workers=False)
    since = time.monotonic()
    try:
        wait_until("the orphan is gone", lambda: not is_alive(orphan) or None, ORPHAN_S)
    except AssertionError:
        stage.story.flaws.append(f"the worker of the dead agent still ran {ORPHAN_S:g} s later")
    stage.recover(since, (n0, spare), old_pids)


def surplus_restarts(stage: Stage) -> None:
    """Four nodes for a job of 2:2, and ten restarts in a row: the run goes on, and all exit 0 at the end."""
    enough = stage.cluster.path("enough")
    job = stage.cluster.job(
        "2:2",
        conf={"crash_loop": 0, "max_node_failures": 0},
        worker=["--until", stage.done, "--fail-until", enough, "--fail-rank", 1],
    )
    nodes = [stage.start(job, f"n{index}", is_host=index == 0) for index in range(4)]

    def failures() -> int:
        return sum(len(node.reports("fail")) for node in nodes)

    wait_until(f"{RESTARTS} restarts", lambda: failures() >= RESTARTS or None, stage.left_s)
    enough.touch()
    trained = wait_until("a world trains", lambda: [n for n in nodes if n.reports("step")] or None, stage.left_s)
    stage.wait_steps(trained[0], 3)


SCENARIOS: dict[str, Scenario] = {
    scenario.__name__.replace("_", "-"): scenario
    for scenario in (
        plain,
        worker_crash,
        node_killed_spare,
        node_killed_replaced,
        late_node,
        spare_at_success,
        failure_for_good,
        sigterm_one,
        agent_killed,
        surplus_restarts,
    )
}


def wanted(name: str) -> str:
    """What a scenario is about, in a sentence."""
    return " ".join((SCENARIOS[name].__doc__ or "").split())
