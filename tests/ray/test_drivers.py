"""Drivers that die, stand still or break, and what they may leave to actors: training must not notice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import ray

from ft_rendezvous.core.model import VerdictKind
from ft_rendezvous.host.verdict_file import VerdictReport
from ft_rendezvous.launch.ray import cluster
from ft_rendezvous.launch.ray.actors import NodeActor, ProcessSpec, RunActor
from ft_rendezvous.launch.ray.machine import NodePlaced, RayEnd, RayMachine, RayOutcome, StartNode
from ft_rendezvous.launch.ray.questions import RayQuestions, explain_store_end
from tests.ray.conftest import Start
from tests.ray.ray_cluster import RayCluster, RayCommand, connected
from tests.support.ray_machines import MARK_NAME
from tests.support.waiting import wait_until

BROKEN = """
import sys
from ft_rendezvous.launch.ray import driver

note = driver.Driver._note
def note_and_break(self):
    note(self)
    if self.machine.has_run:
        raise ZeroDivisionError("a bug of the driver")
driver.Driver._note = note_and_break
from ft_rendezvous.cli.main import app
sys.argv[0] = "ftr"
app()
"""


def adopt(start: Start, words: tuple[str, ...]) -> RayCommand:
    """Go on with a run. A driver that is silent is taken for gone after a while."""
    tried: list[RayCommand] = []

    def goes_on() -> bool:
        tried.append(start(*words))
        wait_until("it ends or goes on", lambda: "going on" in tried[-1].output or tried[-1].process.poll() is not None)
        return tried[-1].process.poll() is None

    wait_until("the run is adopted", goes_on, 60.0, lambda: tried[-1].output)
    return tried[-1]


def test_a_driver_may_stand_still_or_die_and_the_same_command_goes_on(ray_cluster: RayCluster, start: Start) -> None:
    ray_cluster.have(2)
    words = ("--nnodes", "2", "--pending-timeout", "600")
    first = start(*words)
    cycle = first.wait_trained(world=2)
    first.ranks(cycle)  # All have trained.
    pids = {step["pid"] for step in first.steps(cycle)}
    refused = start(*words)
    assert refused.wait_exit() == 2
    assert "run job is driven by another process" in refused.output

    # It stands still: another one goes on. Back again, it leaves, and touches nothing.
    first.process.send_signal(signal.SIGSTOP)
    second = adopt(start, words)
    first.process.send_signal(signal.SIGCONT)
    assert first.wait_exit() == 2, first.output
    assert "goes on with run job: this one leaves" in first.output.splitlines()[-1], first.output

    # It dies: another one goes on.
    second.process.kill()
    second.process.wait()
    third = adopt(start, words)
    assert "run job: going on with 2 nodes" in third.output
    other = start("--nnodes", "1")
    assert other.wait_exit() == 2
    assert "run job is there, with other options" in other.output or "driven by another" in other.output
    (first.folder / "done").touch()
    assert third.wait_exit() == 0, third.explain()
    assert {step["pid"] for step in first.steps()} == pids, "training has not noticed"


def test_an_error_of_the_driver_does_not_remove_a_healthy_run(
    ray_cluster: RayCluster, tmp_path: Path, start: Start
) -> None:
    ray_cluster.have(2)
    with connected(ray_cluster.address):
        # Another program may name its placement group as it likes. It is not ours.
        stranger = ray.util.placement_group([{"CPU": 1}], name="job/min")
        assert stranger.wait(30)
        run = start("--nnodes", "1")
        run.wait_trained(world=1)
        run.process.kill()  # Its words are used again below.
        run.process.wait()
        env = {name: value for name, value in os.environ.items() if name != MARK_NAME}
        words = [str(word) for word in run.words]

        def breaks() -> subprocess.CompletedProcess[str] | None:
            done = subprocess.run(
                [sys.executable, "-c", BROKEN, "ray", *words],
                cwd=run.folder,
                env=env,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
            return None if "driven by another" in done.stderr else done

        broken = wait_until("the broken driver goes on", breaks, 90.0)
        assert broken.returncode == 1
        assert "a bug of the driver" in broken.stderr
        steps = len(list(run.steps()))
        wait_until("training goes on", lambda: len(list(run.steps())) > steps, 30.0, run.explain)
        stop = run.also("stop", "job", "--address", ray_cluster.address)
        assert stop.returncode == 0, stop.stderr
        assert ray.util.placement_group_table(stranger)["state"] == "CREATED"
        ray.util.remove_placement_group(stranger)
    assert len({step["pid"] for step in run.steps()}) == 1
    assert tmp_path.exists()


def test_waiting_calls_take_no_thread_from_others(ray_cluster: RayCluster, tmp_path: Path) -> None:
    """Drivers that died left these calls behind. And many are asked in the time of one."""
    ray_cluster.have(1)
    spec = ProcessSpec(command=[sys.executable, "-c", "import time; time.sleep(600)"], log=str(tmp_path / "log"))
    with connected(ray_cluster.address):
        actor = cluster._actor_class(NodeActor).options(num_cpus=0).remote()
        assert "where" in cluster.call(actor.start, spec, "")
        waiting = [cluster.ask_to_wait(actor.wait) for _ in range(4 * cluster.CONCURRENT_CALLS)]
        assert ray.wait(waiting, timeout=1.0)[0] == []
        assert cluster.try_call_all([actor.ping, actor.state], 15.0) == [True, "running"]
        began_at = time.monotonic()
        silent = cluster.try_call_all([actor.wait] * cluster.CONCURRENT_CALLS, 2.0)
        assert silent == [None] * cluster.CONCURRENT_CALLS
        assert time.monotonic() - began_at < 2.0 * cluster.CONCURRENT_CALLS / 2
        ray.kill(actor)
    wait_until("its process has ended", lambda: not ray_cluster.processes(), 30.0)


def test_groups_that_were_removed_do_not_make_a_look_larger(ray_cluster: RayCluster) -> None:
    ray_cluster.have(1)
    with connected(ray_cluster.address):
        seat = [cluster.BundleSeat("min", 0)]
        for _ in range(20):
            id_ = cluster.request_seats("gone", seat, {"CPU": 1.0}, "PACK")
            ray.util.remove_placement_group(cluster._handle(id_))
        kept = cluster.request_seats("kept", seat, {"CPU": 1.0}, "PACK")
        assert len(ray.util.placement_group_table()) > 20, "Ray keeps them"
        assert list(cluster.look_at_groups({"min": kept, "old": id_})) == ["min"]
        assert cluster.groups_of("gone") == {}
        assert list(cluster.groups_of("kept")) == ["min"]
        cluster.remove_run("kept")
        wait_until("it is removed", lambda: cluster.look_at_groups({"min": kept}) == {}, 10.0)


def test_a_node_that_fails_with_its_run_is_not_started_once_more(ray_cluster: RayCluster, tmp_path: Path) -> None:
    """Its store may live a little longer than the nodes. The verdict was there before they ended."""
    ray_cluster.have(1)
    verdict = VerdictReport(run_id="r", verdict=VerdictKind.FAILED, reason="it failed", cycle=1)
    (tmp_path / "verdict.json").write_bytes(msgspec.json.encode(verdict))
    fails = ProcessSpec(command=[sys.executable, "-c", "raise SystemExit(1)"], log=str(tmp_path / "log"))
    machine = RayMachine(1, 1, 0.0)
    assert machine.step([NodePlaced(0, "m")], 0.0) == [StartNode(0, 1)]
    questions = RayQuestions(machine, has_own_store=True)
    with connected(ray_cluster.address):
        manifest = {"run_id": "r", "verdict_path": str(tmp_path / "verdict.json")}
        questions.run_actor = cluster._actor_class(RunActor).options(num_cpus=0).remote(manifest, "driver")
        actor = cluster._actor_class(NodeActor).options(num_cpus=0).remote()
        questions.expect_start(0, 1, actor, actor.start.remote(fails, ""))
        actions = wait_until(
            "the machine decides",
            # It is placed, and it ran for long: nothing but the end of the run keeps it from a start.
            lambda: machine.step([*questions.answers(0.0), NodePlaced(0, "m")], 1000.0) or None,
            60.0,
        )
        assert actions == [RayEnd(RayOutcome.ENDED)]
        for each in (actor, questions.run_actor):
            ray.kill(each)


@pytest.mark.parametrize(("code", "said"), [(0, ""), (1, ""), (3, ""), (143, "by signal 15,"), (-9, "by signal 9,")])
def test_a_store_that_was_killed_is_told(code: int, said: str) -> None:
    assert (said in explain_store_end(code)) if said else explain_store_end(code) == ""
